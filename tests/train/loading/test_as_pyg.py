"""`ps.loader` beside PyG's own loaders: the same names, shapes, types and meanings on the same graph."""

import inspect
import pickle

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.train.loading.options import LOADER_FIELDS, PYG_ARGUMENTS
from refusals import refused

pytest.importorskip("torch_geometric")
from torch_geometric import transforms
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import HGTLoader, LinkNeighborLoader, NeighborLoader
from torch_geometric.nn import GATv2Conv, SAGEConv, to_hetero
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.utils import is_undirected, trim_to_layer

FEW = {"fanouts": [4, 3], "batch_size": 16, "device": "cpu"}
WRITES, REV = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
CITES = ("paper", "cites", "paper")


def plain(nodes=60, edges=400, seed=0):
    """A graph whose edges are in no order, with fields of every kind."""
    rng = torch.Generator().manual_seed(seed)
    index = torch.unique(torch.randint(0, nodes, (2, edges), generator=rng), dim=1)
    index = index[:, torch.randperm(index.shape[1], generator=rng)]
    data = Data(x=torch.rand(nodes, 5, generator=rng), edge_index=index, y=torch.arange(nodes) % 4)
    data.edge_attr = index.T.float()
    data.edge_weight = torch.rand(index.shape[1], generator=rng)
    data.kind = torch.randint(0, 3, (index.shape[1],), generator=rng)
    data.born = torch.arange(nodes, dtype=torch.int32) * 10
    data.train_mask = torch.arange(nodes) % 3 == 0
    data.val_mask = torch.arange(nodes) % 3 == 1
    data.title = "a graph"
    return data


def hetero(seed=0):
    rng = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.rand(40, 6, generator=rng), torch.arange(40) % 3
    data["paper"].train_mask = torch.arange(40) % 2 == 0
    data["author"].x = torch.rand(30, 4, generator=rng)
    data["author"].age = torch.arange(30)
    data[CITES].edge_index = torch.unique(torch.randint(0, 40, (2, 150), generator=rng), dim=1)
    writes = torch.stack([torch.randint(0, n, (200,), generator=rng) for n in (30, 40)])
    data[WRITES].edge_index = torch.unique(writes, dim=1)[:, torch.randperm(torch.unique(writes, dim=1).shape[1])]
    data[WRITES].edge_attr = data[WRITES].edge_index.T.float()
    data[REV].edge_index = data[WRITES].edge_index.flip(0)
    return data


def pygs_own(loader, batch):
    """What PyG's loader makes of the same draw: its sampler's output is ours."""
    if isinstance(loader.data, Data):
        out = SamplerOutput(batch.n_id, *batch.edge_index, batch.e_id, None, batch.num_sampled_nodes,
                            batch.num_sampled_edges)  # fmt: skip
        sampler = loader.node_sampler
        # Edges of a sampler's output are places in its own sorted lists.
        places = torch.empty_like(sampler.perm)
        places[sampler.perm] = torch.arange(len(places))
        out.edge = places[batch.e_id]
    else:
        perm = loader.node_sampler.perm
        edges = {}
        for kind, e_id in batch.e_id_dict.items():
            places = torch.empty_like(perm[kind])
            places[perm[kind]] = torch.arange(len(places))
            edges[kind] = places[e_id]
        rows = {kind: index[0] for kind, index in batch.edge_index_dict.items()}
        columns = {kind: index[1] for kind, index in batch.edge_index_dict.items()}
        sampled = batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict
        out = HeteroSamplerOutput(batch.n_id_dict, rows, columns, edges, None, *sampled)
    out.metadata = (batch.input_id, None)
    return loader.filter_fn(out)


def assert_equal(ours, theirs):
    """Two stores of PyG's have the same names, and values of the same types, shapes and numbers."""
    assert set(ours.keys()) == set(theirs.keys())
    for name in theirs.keys():  # noqa: SIM118
        a, b = ours[name], theirs[name]
        assert type(a) is type(b), name
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), name
            assert torch.equal(a, b), name
        else:
            assert a == b, name


@pytest.mark.filterwarnings("default")
def test_a_batch_is_what_pyg_makes_of_the_same_draw():
    data = plain()
    theirs = NeighborLoader(data, [4, 3], input_nodes=data.train_mask, batch_size=16)
    for batch in ps.loader(data, data.train_mask, **FEW):
        assert_equal(batch.to_pyg(), pygs_own(theirs, batch))
    numbers = torch.tensor([7, 3, 50, 2])
    theirs = NeighborLoader(data, [4, 3], input_nodes=numbers, batch_size=16)
    (batch,) = ps.loader(data, numbers, **FEW)
    assert batch.input_id.tolist() == [0, 1, 2, 3] and batch.n_id[:4].tolist() == numbers.tolist()
    assert_equal(batch.to_pyg(), pygs_own(theirs, batch))


@pytest.mark.filterwarnings("default")
def test_a_batch_of_several_types_is_what_pyg_makes_of_the_same_draw():
    data = hetero()
    theirs = NeighborLoader(data, [4, 3], input_nodes=("paper", data["paper"].train_mask), batch_size=16)
    for batch in ps.loader(data, ("paper", data["paper"].train_mask), **FEW):
        made, own = batch.to_pyg(), pygs_own(theirs, batch)
        assert made.metadata() == own.metadata() == batch.metadata()
        for key in (*own.node_types, *own.edge_types):
            assert_equal(made[key], own[key])


@pytest.mark.filterwarnings("default")
def test_whole_neighbourhoods_are_those_of_pygs_sampler():
    """Where PyG's loader can run: the same vertices, edges and edge numbers, though hops are in another order."""
    pytest.importorskip("torch_sparse")
    data = plain()
    pairs = zip(
        NeighborLoader(data, [-1, -1], input_nodes=data.train_mask, batch_size=16),
        ps.loader(data, data.train_mask, **{**FEW, "fanouts": [-1, -1]}),
        strict=True,
    )
    for theirs, ours in pairs:
        assert torch.equal(theirs.input_id, ours.input_id) and theirs.batch_size == ours.batch_size
        assert torch.equal(theirs.n_id[: theirs.batch_size], ours.n_id[: ours.batch_size])
        assert set(theirs.n_id.tolist()) == set(ours.n_id.tolist())
        assert torch.equal(theirs.e_id.sort().values, ours.e_id.sort().values)
        assert torch.equal(theirs.edge_attr[theirs.e_id.argsort()], ours.edge_attr[ours.e_id.argsort()])
        assert (theirs.edge_index[1].diff() >= 0).all() and (ours.edge_index[1].diff() >= 0).all()
        assert set(theirs.keys()) - {"num_sampled_nodes"} <= set(ours.to_pyg().keys())


def test_every_field_is_carried_by_default():
    data = plain()
    for batch in ps.loader(data, data.train_mask, **FEW):
        for name in ("x", "y", "train_mask", "val_mask", "born"):
            assert torch.equal(batch[name], data[name][batch.n_id]) and batch[name].dtype == data[name].dtype
        for name in ("edge_attr", "edge_weight", "kind"):
            assert torch.equal(batch[name], data[name][batch.e_id]) and batch[name].dtype == data[name].dtype
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert batch.title == "a graph" and "title" in batch
    layer = GATv2Conv(5, 3, edge_dim=2)
    assert layer(batch.x, batch.edge_index, batch.edge_attr).shape == (batch.num_nodes, 3)


def test_numbers_of_edges_are_the_callers_whatever_is_held_out():
    data = plain()
    for held_out in ([0.0, 0.0], [0.1, 0.1]):
        for batch in ps.loader(data, task="link-prediction", held_out=held_out, **FEW):
            assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
            positives = batch.n_id[batch.edge_label_index[:, : len(batch)]]
            assert torch.equal(data.edge_index[:, batch.input_id], positives)
    graph = ps.load(data)
    (kind,) = graph.edges
    batch = next(iter(ps.loader(graph, task="link-prediction", held_out=[0.1, 0.1], **FEW)))
    pairs = torch.from_numpy(graph.edges[kind].edge_index())
    assert torch.equal(pairs[:, batch.e_id], batch.n_id[batch.edge_index])


def test_nothing_is_held_out_unless_asked_for():
    data = plain()
    edges = data.num_edges
    assert len(ps.loader(data, task="link-prediction", **FEW)) == -(-edges // 16)
    assert len(ps.loader(data, task="link-prediction", held_out=[0.05, 0.1], **FEW)) < -(-edges // 16)
    with refused("split-missing val held_out"):
        ps.loader(data, "val", task="link-prediction", **FEW)
    # As PyG, the caller's order, where it is not shuffled.
    seen = torch.cat([b.input_id for b in ps.loader(data, task="link-prediction", shuffle=False, **FEW)])
    assert torch.equal(seen, torch.arange(edges))
    for name in ("train_mask", "val_mask"):
        del data[name]
    assert sum(len(batch) for batch in ps.loader(data, **FEW)) == 60
    assert sum(len(batch) for batch in ps.loader(data, "train", **FEW)) == 36
    labels = ps.loader(data, task="edge-classification", label="kind", **FEW)
    assert sum(len(batch) for batch in labels) == edges


def test_edges_and_labels_of_a_random_link_split_are_used():
    data = plain(edges=1500)
    split = transforms.RandomLinkSplit(0.1, 0.2, add_negative_train_samples=False)
    train, val, _ = split(data)
    seen = list(ps.loader(val, task="link-prediction", **FEW))
    index = torch.cat([batch.n_id[batch.edge_label_index] for batch in seen], 1)
    assert torch.equal(index, val.edge_label_index)
    assert torch.equal(torch.cat([batch.edge_label for batch in seen]), val.edge_label)
    assert torch.equal(torch.cat([batch.input_id for batch in seen]), torch.arange(val.edge_label_index.shape[1]))
    # The edges of the graph itself carry messages; those that are judged are not in it.
    for batch in seen:
        assert torch.equal(val.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
    # Asked for, negatives come behind the caller's; labels that begin with 0 move up, as in PyG.
    batch = next(iter(ps.loader(val, task="link-prediction", negatives_per_edge=2, **FEW)))
    assert batch.edge_label[:16].tolist() == (val.edge_label[:16] + 1).tolist()
    assert batch.edge_label[16:].tolist() == [0.0] * 32
    batch = next(iter(ps.loader(train, task="link-prediction", negatives_per_edge=1, **FEW)))
    assert batch.edge_label.tolist() == [1.0] * 16 + [0.0] * 16
    positive = batch.n_id[batch.edge_label_index[:, :16]].T.tolist()
    assert not {tuple(pair) for pair in positive} & {tuple(p) for p in batch.n_id[batch.edge_index].T.tolist()}
    # The same as arguments, and with the edges that are judged left in the neighbourhoods, as in PyG.
    fields = {"edge_label_index": train.edge_label_index, "edge_label": train.edge_label}
    (whole,) = ps.loader(train, exclude_edges=False, **fields, **{**FEW, "fanouts": [-1], "batch_size": 9999})
    assert len(whole.e_id.unique()) == train.num_edges
    with refused("option-missing edge_label_index"):
        ps.loader(train, edge_label=train.edge_label, **FEW)
    with refused("shape-mismatch edge_label"):
        ps.loader(train, edge_label_index=train.edge_label_index, edge_label=train.edge_label[:3], **FEW)
    with refused("id-out-of-range edge_label_index"):
        ps.loader(train, edge_label_index=torch.tensor([[0], [60]]), **FEW)
    with refused("conflicting-options"):
        ps.loader(train, [1, 2], edge_label_index=train.edge_label_index, **FEW)


def test_edges_of_a_bipartite_split():
    data = hetero()
    data[WRITES].edge_label = torch.arange(data[WRITES].num_edges) % 5
    split = transforms.RandomLinkSplit(0.1, 0.1, neg_sampling_ratio=0.0, edge_types=[WRITES], rev_edge_types=[REV])
    _, val, _ = split(data)
    index, labels = val[WRITES].edge_label_index, val[WRITES].edge_label
    for fields in ({}, {"edge_label_index": (WRITES, index), "edge_label": labels}):
        seen = list(ps.loader(val, task="link-prediction", **fields, **FEW))
        rows = [batch[WRITES].edge_label_index for batch in seen]
        ends = [torch.stack([b["author"].n_id[r[0]], b["paper"].n_id[r[1]]]) for b, r in zip(seen, rows, strict=True)]
        assert torch.equal(torch.cat(ends, 1), index)
        found = torch.cat([batch[WRITES].edge_label for batch in seen])
        assert torch.equal(found, labels) and found.dtype == labels.dtype
        made = seen[0].to_pyg()
        assert torch.equal(made[WRITES].edge_label_index, rows[0]) and "input_id" in made[WRITES]
    assert len(ps.loader(val, edge_label_index=(WRITES, None), **FEW)) == -(-val[WRITES].num_edges // 16)
    assert len(ps.loader(val, edge_label_index=CITES, **FEW)) == -(-val[CITES].num_edges // 16)


def test_values_of_types():
    data = hetero()
    batch = next(iter(ps.loader(data, ("paper", data["paper"].train_mask), **FEW)))
    assert torch.equal(batch["paper"].x, data["paper"].x[batch["paper"].n_id])
    assert torch.equal(batch["author"].age, data["author"].age[batch["author"].n_id])
    assert batch["paper"].batch_size == batch.batch_size == 16
    assert torch.equal(batch["paper"].input_id, batch["paper"].n_id[:16])
    for key in (WRITES, ("author", "paper"), "writes"):
        assert torch.equal(batch[key].edge_attr, data[WRITES].edge_attr[batch[WRITES].e_id])
    assert set(batch.x_dict) == {"paper", "author"} and set(batch.edge_attr_dict) == {WRITES}
    assert set(batch.num_sampled_edges_dict) == {CITES, WRITES, REV}
    assert batch["paper"].num_nodes == len(batch["paper"].n_id) and batch[WRITES].num_edges == len(batch[WRITES].e_id)
    with refused("unsupported-combination x_dict"):
        _ = batch.x
    assert not hasattr(batch, "x") and hasattr(batch, "x_dict")
    with refused("unknown-name venue"):
        _ = batch["venue"]
    with refused("unknown-name age author"):
        _ = batch["author"].height
    assert sum(len(each) for each in ps.loader(data, "author", **FEW)) == 30


@pytest.mark.parametrize("typed", [False, True])
def test_trimming_computes_the_same(typed):
    """`trim_to_layer`, as hierarchical_sage uses it, gives the seeds what all rows give them."""
    torch.manual_seed(0)
    data = hetero() if typed else plain()
    seeds = ("paper", data["paper"].train_mask) if typed else data.train_mask
    layers = [SAGEConv((-1, -1), 8) for _ in range(3)]
    if typed:
        layers = [to_hetero(_Layer(layer), data.metadata()) for layer in layers]
    for batch in ps.loader(data, seeds, **{**FEW, "fanouts": [3, 2, 2]}):
        whole = x = dict(batch.x_dict) if typed else batch.x
        index = all_edges = batch.edge_index_dict if typed else batch.edge_index
        sampled = (
            (batch.num_sampled_nodes_dict, batch.num_sampled_edges_dict)
            if typed
            else (batch.num_sampled_nodes, batch.num_sampled_edges)
        )
        for number, layer in enumerate(layers):
            x, index, _ = trim_to_layer(number, *sampled, x, index)
            x, whole = layer(x, index), layer(whole, all_edges)
        own, other = (x["paper"], whole["paper"]) if typed else (x, whole)
        assert len(own) < len(other)
        torch.testing.assert_close(own[: len(batch)], other[: len(batch)])


class _Layer(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, edge_index):
        return self.layer(x, edge_index)


def test_hops_of_relations_are_counted_as_pyg_counts_them():
    """Every hop draws for the vertices that the hop before added, also of relations that it did not follow."""
    data = hetero()
    fanouts = {WRITES: [0, 4], REV: [3, 2], CITES: [2, 0]}
    for batch in ps.loader(data, ("paper", None), **{**FEW, "fanouts": fanouts}):
        counts = batch.num_sampled_edges_dict
        assert counts[WRITES][0] == 0 and counts[CITES][1] == 0
        assert {kind: sum(each) for kind, each in counts.items()} == {
            kind: index.shape[1] for kind, index in batch.edge_index_dict.items()
        }
        assert {name: sum(each) for name, each in batch.num_sampled_nodes_dict.items()} == batch.num_nodes_dict
        # The second hop draws for new papers alone: seeds have no list of a relation that their own hop left out.
        assert not counts[WRITES][1] or int(batch[WRITES].edge_index[1].min()) >= len(batch)
    listed = [{WRITES: 0, REV: 3, CITES: 2}, {WRITES: 4, REV: 2, CITES: 0}]
    (a, b) = (next(iter(ps.loader(data, ("paper", None), **{**FEW, "fanouts": f}))) for f in (fanouts, listed))
    assert torch.equal(a[CITES].e_id, b[CITES].e_id)
    with refused("shape-mismatch fanouts"):
        ps.loader(data, ("paper", None), fanouts={WRITES: [1], REV: [1, 2]})
    with refused("unknown-name reads"):
        ps.loader(data, ("paper", None), fanouts={("author", "reads", "paper"): [1]})


def test_moving_some_values():
    batch = next(iter(ps.loader(plain(), **FEW)))
    assert batch.to("meta", "edge_index", "y") is batch
    assert batch.edge_index.device.type == batch.y.device.type == "meta"
    assert batch.x.device.type == batch.e_id.device.type == "cpu"
    assert batch.to("meta").x.device.type == "meta" == batch.n_id.device.type
    with refused("wrong-type non_blocking"):
        batch.to("cpu", True)
    with refused("unknown-name edge_indx"):
        batch.to("cpu", "edge_indx")
    typed = next(iter(ps.loader(hetero(), **FEW))).to("meta", "x")
    assert {x.device.type for x in typed.x_dict.values()} == {"meta"}
    assert typed[WRITES].edge_index.device.type == "cpu"


def test_assigning_cloning_and_pickling():
    data = plain()
    for whole in (data, hetero()):
        batch = next(iter(ps.loader(whole, **FEW)))
        copy, read = batch.clone(), pickle.loads(pickle.dumps(batch))
        assert len(pickle.dumps(batch)) < 200_000
        for other in (copy, read):
            assert other.keys() == batch.keys() and repr(other) == repr(batch)
            for name, value in batch.to_pyg().to_dict().items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(other[name], value) and other[name].data_ptr() != value.data_ptr()
        assert len(read.blocks) == 2 and read.cpu() is read and batch.pin_memory() is batch
    batch = next(iter(ps.loader(data, **FEW)))
    batch.x, batch.hello = batch.x * 2, "there"
    batch["z"] = 3
    assert torch.equal(batch.x, 2 * data.x[batch.n_id]) and batch.to_pyg().hello == "there" and batch.z == 3
    del batch.edge_attr
    assert "edge_attr" not in batch and "edge_attr" not in batch.to_pyg()
    with pytest.raises(AttributeError):
        batch.blocks = []
    typed = next(iter(ps.loader(hetero(), **FEW)))
    typed["paper"].x = torch.zeros(3)
    assert typed.x_dict["paper"].shape == typed.to_pyg()["paper"].x.shape == (3,)


def test_given_as_pygs_own():
    data = plain()
    for threads in (1, 2):
        fields = {"as_pyg": True, "sample_threads": threads, **FEW}
        for made in ps.loader(data, data.train_mask, **fields):
            assert type(made) is Data
            assert made.validate() and made.num_nodes == len(made.n_id)
        for made in ps.loader(hetero(), **fields):
            assert type(made) is HeteroData and made.validate()
            assert transforms.ToUndirected()(made).num_edges >= made.num_edges
    batch = next(iter(ps.loader(data, **FEW)))
    made = batch.to_pyg()
    for name in ("x", "edge_index", "n_id", "y"):
        assert made[name].data_ptr() == batch[name].data_ptr()
    alone = HeteroData()
    alone["user"].x, alone["user", "knows", "user"].edge_index = data.x, data.edge_index
    made = next(iter(ps.loader(alone, ("user", None), as_pyg=True, **FEW)))
    assert made["user"].x.shape[1] == 5 and made["user", "user"].e_id.shape == (made["user", "user"].num_edges,)


def test_transform_and_the_last_batch():
    data = plain()
    loader = ps.loader(data, data.train_mask, transform=lambda b: (len(b), b.n_id), drop_last=True, **FEW)
    assert loader.data is data and len(loader) == 1
    assert [[size for size, _ in loader] for _ in range(2)] == [[16], [16]] and loader.epoch == 2
    (made,) = ps.loader(data, data.train_mask, as_pyg=True, drop_last=True, transform=transforms.ToUndirected(), **FEW)
    assert made.is_undirected()
    assert len(ps.loader(data, [1, 2], drop_last=True, **FEW)) == 0
    assert list(ps.loader(data, [1, 2], drop_last=True, **FEW)) == []


def test_disjoint_neighbourhoods():
    data = plain()
    for batch in ps.loader(data, data.train_mask, disjoint=True, **FEW):
        assert torch.equal(batch.batch[: len(batch)], torch.arange(len(batch)))
        # Edges stay in a seed's own neighbourhood, and a vertex is in it once.
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
        assert len(torch.unique(torch.stack([batch.batch, batch.n_id]), dim=1)[0]) == batch.num_nodes
        assert torch.equal(data.edge_index[:, batch.e_id], batch.n_id[batch.edge_index])
        assert torch.equal(batch.to_pyg().batch, batch.batch)
    for batch in ps.loader(hetero(), disjoint=True, **FEW):
        for kind, (sources, targets) in batch.edge_index_dict.items():
            assert torch.equal(batch[kind[0]].batch[sources], batch[kind[2]].batch[targets])
    for batch in ps.loader(data, task="link-prediction", disjoint=True, **FEW):
        ends = batch.batch[batch.edge_label_index]
        assert torch.equal(ends[0], ends[1]) and torch.equal(ends[0, : len(batch)], torch.arange(len(batch)))
        assert torch.equal(batch.batch[batch.edge_index[0]], batch.batch[batch.edge_index[1]])
    with refused("unsupported-combination disjoint"):
        ps.loader(data, disjoint=True, sampler="labor", **FEW)
    with refused("conflicting-options induced"):
        ps.loader(data, disjoint=True, subgraph_type="induced", **FEW)


def pairs_of(batch, kind=("node", "to", "node")):
    index = batch.edge_index_dict[kind]
    ends = [batch.n_id_dict[name][rows] for name, rows in zip(kind[::2], index, strict=True)]
    return {tuple(pair) for pair in torch.stack(ends).T.tolist()}


def test_subgraph_types():
    data = plain()
    every = {tuple(pair) for pair in data.edge_index.T.tolist()}
    drawn, both, all_ = (
        next(iter(ps.loader(data, data.train_mask, subgraph_type=name, **FEW)))
        for name in ("directional", "bidirectional", "induced")
    )
    assert torch.equal(drawn.n_id, both.n_id) and torch.equal(drawn.n_id, all_.n_id)
    there = set(all_.n_id.tolist())
    assert pairs_of(all_) == {(a, b) for a, b in every if a in there and b in there}
    assert torch.equal(data.edge_index[:, all_.e_id], all_.n_id[all_.edge_index])
    assert torch.equal(all_.edge_attr, data.edge_attr[all_.e_id])
    forward = pairs_of(drawn)
    assert pairs_of(both) == forward | {(b, a) for a, b in forward}
    assert is_undirected(both.edge_index)
    assert both.edge_index.shape[1] == len(pairs_of(both)) == len(both.edge_weight)
    with refused("unsupported-combination directional"):
        _ = both.num_sampled_nodes
    data = hetero()
    drawn, both, all_ = (
        next(iter(ps.loader(data, subgraph_type=name, **FEW))) for name in ("directional", "bidirectional", "induced")
    )
    turned = {(b, a) for a, b in pairs_of(drawn, REV)}
    assert pairs_of(both, WRITES) == pairs_of(drawn, WRITES) | turned and "e_id" not in both[WRITES]
    rows = [set(all_.n_id_dict[name].tolist()) for name in ("author", "paper")]
    every = {tuple(pair) for pair in data[WRITES].edge_index.T.tolist()}
    assert pairs_of(all_, WRITES) == {(a, b) for a, b in every if a in rows[0] and b in rows[1]}
    del data[REV]
    with refused("unsupported-combination reverse"):
        next(iter(ps.loader(data, subgraph_type="bidirectional", **FEW))).edge_index_dict  # noqa: B018
    # Edges that a batch is asked for are not in it.
    for batch in ps.loader(plain(), task="link-prediction", subgraph_type="induced", **FEW):
        asked = batch.n_id[batch.edge_label_index[:, : len(batch)]].T.tolist()
        assert not {tuple(pair) for pair in asked} & pairs_of(batch)


def test_what_is_asked_for_is_made_ahead_and_stays_right():
    data = plain()
    loader = ps.loader(data, data.train_mask, shuffle=True, **{**FEW, "batch_size": 4})
    for _ in range(3):
        for batch in loader:
            assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
            assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
    assert {name for _, name in loader._fields.wanted} >= {"edge_attr", "train_mask"}


def test_features_of_whole_numbers_can_look_up_rows():
    data = plain()
    data.x = torch.arange(60)[:, None]
    batch = next(iter(ps.loader(data, **FEW)))
    assert batch.x.dtype == torch.int64 and torch.equal(batch.x[:, 0], batch.n_id)
    assert torch.nn.Embedding(60, 3)(batch.x).shape == (batch.num_nodes, 1, 3)


def test_triples_by_pygs_names():
    graph = ps.Graph(
        {"entity": ps.NodeSet(20)},
        {
            ("entity", name, "entity"): ps.EdgeSet(np.arange(21), (np.arange(20) + shift) % 20)
            for shift, name in enumerate(("r0", "r1", "r2"), 1)
        },
    )
    batches = list(ps.loader(graph, task="knowledge-graph-completion", sampler="seeds", batch_size=7, device="cpu"))
    found = torch.cat([torch.stack([b.head_index, b.rel_type, b.tail_index]) for b in batches], 1)
    assert torch.equal((found[2] + 1 + found[1]) % 20, found[0]) and found.shape == (3, 60)


@pytest.mark.parametrize("loader", [NeighborLoader, LinkNeighborLoader, HGTLoader, torch.utils.data.DataLoader])
def test_every_argument_of_pyg_is_taken_or_answered(loader):
    ours = set(inspect.signature(ps.loader).parameters) | LOADER_FIELDS
    for name in inspect.signature(loader.__init__).parameters:
        if name in ("self", "kwargs", "args") or name in ours:
            continue
        assert name in PYG_ARGUMENTS, name
        said = PYG_ARGUMENTS[name]
        with refused(f"unknown-name {name} PyG"):
            ps.loader(plain(), **{name: None})
        assert said.endswith(".")
