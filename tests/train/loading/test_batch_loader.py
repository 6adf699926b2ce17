"""`ps.loader`: the batches of training, for a loop of one's own."""

import gc
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.pipeline.schedule import Schedule
from penstock.sampling.sampler_table import SAMPLERS
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_context import seeded
from refusals import refused
from training_graphs import (
    best_checkpoint,
    carrying_graph,
    community_graph,
    labelled_edges,
    lines_of,
    stage_threads,
    trained,
    typed_graph,
)

FEW = {"fanouts": [4, 3], "batch_size": 16}


def arrays_of(batch):
    """Everything of a batch that a model can see."""
    blocks = [part for block in batch.blocks for part in block.parts]
    return [
        *batch.n_id_dict.values(),
        *batch.x_dict.values(),
        *(torch.from_numpy(each) for part in blocks for each in (part.indptr, part.indices)),
        *([] if batch.y is None else [batch.y]),
    ]


def assert_same(a, b):
    """Two batches are equal in every number."""
    assert (a.epoch, a.number) == (b.epoch, b.number)
    for left, right in zip(arrays_of(a), arrays_of(b), strict=True):
        assert torch.equal(left, right)


def test_batches_are_those_of_training():
    graph = community_graph()
    for sampler in ("neighbour", "labor", "saint-walk", "cluster"):
        fields = {"sampler": sampler, "clusters": 6, **FEW, **({"batch_size": 4} if sampler == "cluster" else {})}
        session = make_session(make_job({**fields, "layers": 2, "seed": 3}), graph)
        batches = ps.loader(graph, seed=3, layers=2, **fields)
        schedule = Schedule(session.task.items, session.task.batch_size, 3, epochs=2)
        assert len(batches) == schedule.batches
        drawn = [batch for _ in range(2) for batch in batches]
        for planned, batch in zip(schedule.from_position(), drawn, strict=True):
            theirs = session.task.sample(planned)
            assert torch.equal(batch.n_id, torch.from_numpy(theirs.vertices["node"]).long())
            assert batch.batch_size == theirs.num_seeds
            np.testing.assert_array_equal(batch.x.numpy(), graph.x[theirs.vertices["node"]])
            np.testing.assert_array_equal(batch.y.numpy(), graph.y[theirs.vertices["node"]])
            for own, other in zip(batch.blocks, theirs.blocks, strict=True):
                np.testing.assert_array_equal(own.indices, other.indices)
                np.testing.assert_array_equal(own.indptr, other.indptr)


def test_a_bare_loop_ends_with_the_weights_of_training(tmp_path):
    graph = community_graph()
    fields = {"dropout": 0.0, "lr": 0.01, "seed": 5, "first_layer": "gather", "evaluate_every": 0}
    run = trained(graph, tmp_path / "run", device="cpu", **fields)
    with one_thread(), seeded(make_job(fields).weight_seed, torch.device("cpu")):
        model = ps.nn.build_model(ps.nn.ModelOptions(layers=2, hidden=16, dropout=0.0), 4, 4)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        batches = ps.loader(graph, seed=5, device="cpu", **FEW)
        for _ in range(2):
            total = 0.0
            for batch in batches:
                loss = torch.nn.functional.cross_entropy(model(batch.blocks, batch.x), batch.y[: len(batch)])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += float(loss.detach()) * batch.batch_size
    learned = best_checkpoint(run.path)["learned"]
    assert len(learned) == len(model.state_dict())
    for name, values in model.state_dict().items():
        assert torch.equal(values, torch.as_tensor(learned[f"model.{name}"])), name
    last = [line for line in lines_of(run.path) if line["kind"] == "epoch"][-1]
    assert total / 100 == pytest.approx(last["loss"])


@contextmanager
def one_thread():
    """Sums are rounded as one thread rounds them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_epochs_and_states():
    graph = community_graph()
    batches = ps.loader(graph, **FEW)
    first, second = list(batches), list(batches)
    assert [len(first), first[0].epoch, second[0].epoch] == [len(batches), 0, 1]
    assert not torch.equal(first[0].n_id[:16], second[0].n_id[:16])
    batches.set_epoch(0)
    for a, b in zip(first, batches, strict=True):
        assert_same(a, b)
    # An epoch that is broken off is over.
    broken_off = next(iter(batches))
    assert next(iter(batches)).epoch == broken_off.epoch + 1 == 2
    # In the middle of an epoch, at its end, and before anything.
    for taken in (0, 2, len(batches)):
        batches, again = ps.loader(graph, **FEW), ps.loader(graph, **FEW)
        iteration = iter(batches)
        for _ in range(taken):
            next(iteration)
        again.load_state_dict(batches.state_dict())
        following = list(iteration) or list(batches)
        for a, b in zip(following, again, strict=True):
            assert_same(a, b)


def test_states_of_other_loaders_are_refused():
    graph = community_graph()
    batches = ps.loader(graph, **FEW)
    with refused("mismatched-inputs seed 1"):
        batches.load_state_dict(ps.loader(graph, seed=1, **FEW).state_dict())
    with refused("value-out-of-range 99"):
        batches.load_state_dict({**batches.state_dict(), "batch": 99})
    with refused("value-out-of-range"):
        batches.set_epoch(-1)
    with refused("value-out-of-range rank"):
        ps.loader(graph, rank=2, world=2, **FEW)
    with refused("unknown-name lr"):
        ps.loader(graph, lr=0.1, **FEW)
    with refused("unknown-name num_neighbors fanouts"):
        ps.loader(graph, num_neighbors=[4, 3])
    with refused("invalid-document fanouts"):
        ps.loader(graph, fanouts=4)
    with refused("unknown-name fanouts"):
        ps.loader(graph, fanout=[1])
    with refused("split-missing"):
        ps.loader(graph, "tset", **FEW)
    with refused("unsupported-combination"):
        ps.loader(graph, sampler="whole")
    with refused("conflicting-options"):
        ps.loader(graph, reuse_batches=True, **FEW)
    with refused("id-out-of-range"):
        ps.loader(graph, [200], **FEW)


def test_batches_may_be_kept():
    graph = community_graph()
    for batch in list(ps.loader(graph, **FEW)):
        np.testing.assert_array_equal(batch.x.numpy(), graph.x[batch.n_id.numpy()])


def test_ranks_share_the_batches_of_one_process():
    graph = community_graph()
    whole = list(ps.loader(graph, **{**FEW, "batch_size": 24}))
    ranks = [list(ps.loader(graph, rank=rank, world=3, **{**FEW, "batch_size": 8})) for rank in range(3)]
    assert [len(each) for each in ranks] == [len(whole)] * 3
    for number, batch in enumerate(whole):
        seeds = torch.cat([rank[number].n_id[: rank[number].batch_size] for rank in ranks])
        assert torch.equal(seeds, batch.n_id[: batch.batch_size])
    # 100 seeds for 33 ranks: the last batch has one, and every rank still gets a seed.
    last = [list(ps.loader(graph, rank=rank, world=33, **{**FEW, "batch_size": 1}))[-1] for rank in (0, 32)]
    assert [batch.batch_size for batch in last] == [1, 1]


def test_no_thread_outlives_its_iterator():
    batches = ps.loader(community_graph(), **FEW)
    iteration = iter(batches)
    next(iteration)
    assert stage_threads()
    del iteration
    gc.collect()
    assert not stage_threads()
    for _ in batches:
        break
    gc.collect()
    assert not stage_threads()
    list(batches)
    assert not stage_threads()


def test_what_fails_in_a_stage_is_raised_as_it_was(monkeypatch):
    batches = ps.loader(community_graph(), **FEW)

    def fail(batch):
        raise ValueError("no labels today")

    monkeypatch.setattr(batches._fields, "make_ahead", fail)
    with pytest.raises(ValueError, match="no labels today"):
        list(batches)
    assert not stage_threads()


def test_edges_are_those_of_the_graph():
    graph = community_graph()
    pairs = set(zip(*graph.edges["node", "to", "node"].edge_index().tolist(), strict=True))
    for batch in ps.loader(graph, "val", **FEW):
        sources, targets = batch.n_id[batch.edge_index].tolist()
        assert set(zip(sources, targets, strict=True)) <= pairs
        assert (batch.edge_index[1].diff() >= 0).all()
        assert sum(batch.num_sampled_nodes) == batch.num_nodes == len(batch.x)
        assert sum(batch.num_sampled_edges) == batch.edge_index.shape[1]
        assert batch.edge_norm is None


def test_every_sampler():
    graph = community_graph()
    # These make no batches, are for models without layers, and for clusters.
    for sampler in sorted(set(SAMPLERS) - {"whole", "seeds", "explained"}):
        sizes = {"fanouts": [30, 30] if sampler in ("fastgcn", "ladies") else [4, 3], "batch_size": 4}
        batches = ps.loader(graph, sampler=sampler, layers=2, clusters=6, **sizes)
        for batch in batches:
            assert len(batch.y) == batch.num_nodes
            assert batch.edge_index.shape[0] == 2
            weights = batch.edge_norm
            assert weights is None or len(weights) == batch.edge_index.shape[1]
            assert batch.node_norm is None or len(batch.node_norm) == batch.batch_size
            assert ps.nn.GCN(4, hidden=8, layers=2, out=3)(batch.blocks, batch.x).shape == (batch.batch_size, 3)


def test_vertices_of_the_users_choice():
    graph = community_graph()
    chosen = np.array([7, 3, 150])
    (batch,) = ps.loader(graph, chosen, **FEW)
    assert batch.n_id[:3].tolist() == [7, 3, 150]
    assert batch.y[:3].tolist() == graph.y[chosen].tolist()
    mask = torch.zeros(200, dtype=torch.bool)
    mask[[3, 7]] = True
    (batch,) = ps.loader(graph, mask, **FEW)
    assert batch.n_id[:2].tolist() == [3, 7]
    assert sum(batch.batch_size for batch in ps.loader(graph, None, **FEW)) == 200
    bare = ps.Graph({"node": ps.NodeSet(200)}, graph.edges)
    batch = next(iter(ps.loader(bare, None, **FEW)))
    assert batch.y is None
    assert batch.x is None


def test_links_with_negatives_and_exclusion():
    graph = community_graph()
    fields = {"task": "link-prediction", "negatives_per_edge": 2, "held_out": [0.1, 0.1], **FEW}
    batches = ps.loader(graph, **fields)
    for batch in batches:
        assert batch.edge_label_index.shape == (2, len(batch.edge_label))
        assert int(batch.edge_label.sum()) == batch.batch_size
        assert len(batch.y) == batch.num_nodes
        positive = batch.n_id[batch.edge_label_index[:, batch.edge_label == 1]]
        drawn = batch.n_id[batch.edge_index]
        both = {tuple(pair) for pair in positive.T.tolist()} | {tuple(pair) for pair in positive.flip(0).T.tolist()}
        assert not both & {tuple(pair) for pair in drawn.T.tolist()}
    held_out = batches.graph.edges["node", "to", "node"].held_out
    seen = [
        tuple(pair)
        for batch in ps.loader(graph, "val", **fields)
        for pair in batch.n_id[batch.edge_label_index[:, batch.edge_label == 1]].T.tolist()
    ]
    assert seen == [tuple(pair) for pair in held_out["val"].tolist()]


def test_labelled_edges():
    graph = labelled_edges()
    kinds = graph.edges["node", "to", "node"].fields["kind"]
    for split in ("train", "val"):
        for batch in ps.loader(graph, split, task="edge-classification", label="kind", **FEW):
            assert batch.edge_label.tolist() == kinds[batch.links.edges].tolist()
            assert len(batch) == len(batch.edge_label)
            with refused("unsupported-combination y"):
                ps.loader(community_graph(), **FEW).__iter__().__next__().edge_label  # noqa: B018


def test_several_types():
    graph = typed_graph()
    for batch in ps.loader(graph, **FEW):
        assert set(batch.x_dict) == {"paper"}
        assert set(batch.edge_index_dict) == set(graph.edges)
        assert batch.y_dict["paper"].tolist() == graph.nodes["paper"].y[batch.n_id_dict["paper"]].tolist()
        for (source, _, target), edges in batch.edge_index_dict.items():
            assert not edges.shape[1] or int(edges[0].max()) < len(batch.n_id_dict[source])
            assert not edges.shape[1] or int(edges[1].max()) < len(batch.n_id_dict[target])
        with refused("unsupported-combination x_dict"):
            batch.x  # noqa: B018
    (batch,) = ps.loader(graph, {"author": [1, 4]}, **FEW)
    assert batch.n_id_dict["author"][:2].tolist() == [1, 4]


def test_orders_and_reused_batches():
    graph = community_graph()
    given = graph.nodes["node"].splits["test"]
    for _ in range(2):
        seeds = torch.cat([batch.n_id[: len(batch)] for batch in ps.loader(graph, "test", **FEW)])
        assert seeds.tolist() == given.tolist()
    batches = ps.loader(graph, shuffle=False, reuse_batches=True, **FEW)
    for a, b in zip(list(batches), list(batches), strict=True):
        assert torch.equal(a.n_id, b.n_id)
        assert torch.equal(a.edge_index, b.edge_index)
        assert torch.equal(a.x, b.x)


def test_a_batch_says_what_it_is_and_moves():
    batch = next(iter(ps.loader(community_graph(), **FEW)))
    assert "16 seeds" in repr(batch)
    assert batch.num_edges == batch.edge_index.shape[1] and batch.num_nodes_dict == {"node": batch.num_nodes}
    inner = batch.blocks[-1]
    assert repr(inner) == f"Block({inner.num_src} -> 16 rows, {inner.num_edges} edges)"
    assert batch.to("cpu") is batch
    assert batch.edge_index.device.type == "cpu"
    moved = batch.to("meta")
    assert moved.x.device.type == moved.y.device.type == moved.edge_index.device.type == "meta"
    assert "7 batches" in repr(ps.loader(community_graph(), **FEW))


def test_pygs_layers_on_blocks_give_what_they_give_on_all_edges():
    """Of whole neighbourhoods, so that both ways read the same edges."""
    convolutions = pytest.importorskip("torch_geometric.nn")
    graph = community_graph()
    layers = [convolutions.SAGEConv(graph.x.shape[1], 8), convolutions.SAGEConv(8, 3)]
    batch = next(iter(ps.loader(graph, fanouts=[-1, -1], batch_size=16)))
    whole, rows = batch.x, batch.x
    for layer, block in zip(layers, batch.blocks, strict=True):
        ends = torch.from_numpy(np.stack([block.indices, block.destinations()]).astype(np.int64))
        rows, whole = layer((rows, rows[: block.num_dst]), ends), layer(whole, batch.edge_index)
    torch.testing.assert_close(rows, whole[:16])


def ends_of(batch, kind):
    """The original numbers of the ends of a batch's edges."""
    sources, ends = batch.edge_index_dict[kind]
    return torch.stack([batch.n_id_dict[kind[0]][sources], batch.n_id_dict[kind[2]][ends]], 1)


def with_ends(graph):
    """A graph whose edges have their own ends as features."""
    for edges in graph.edges.values():
        targets = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
        edges.fields["ends"] = np.stack([edges.indices, targets], 1).astype(np.int32)
    return graph


@pytest.mark.parametrize("sampler", ["neighbour", "labor", "cluster"])
def test_batches_have_what_edges_carry(sampler):
    graph = with_ends(carrying_graph())
    (kind,) = graph.edges
    y, fields = graph.nodes["node"].fields["y"], {"sampler": sampler, "clusters": 4, "layers": 2, **FEW}
    batches = ps.loader(graph, edge_features=["edge_attr", "ends"], edge_weight="edge_weight", **fields)
    for batch in list(batches):
        ends = ends_of(batch, kind)
        assert torch.equal(batch.edge_attr[:, 3:].long(), ends)
        alike = torch.from_numpy(y[ends[:, 0]] == y[ends[:, 1]])
        assert torch.equal(batch.edge_weight, torch.where(alike, 2.0, 0.25))
        assert torch.equal(batch.edge_attr_dict[kind], batch.edge_attr)
    (sampled, *_) = ps.loader(graph, **{**FEW, "batch_size": 100})
    rows = torch.from_numpy(graph.edges[kind].fields["edge_attr"])[sampled.e_id]
    assert torch.equal(sampled.edge_attr, rows) and torch.equal(sampled.ends.long(), ends_of(sampled, kind))
    with refused("field-missing edge_features"):
        ps.loader(graph, edge_features=["nothing"], **FEW)


def test_batches_of_several_types_have_what_edges_carry():
    graph = with_ends(typed_graph())
    batch = next(iter(ps.loader(graph, edge_features=["ends"], **FEW)))
    assert set(batch.edge_attr_dict) == set(graph.edges)
    for kind, rows in batch.edge_attr_dict.items():
        assert torch.equal(rows.long(), ends_of(batch, kind))
    with refused("unsupported-combination edge_attr"):
        _ = batch.edge_attr


def test_vertices_given_twice_are_refused():
    with refused("duplicate 4 twice"):
        ps.loader(community_graph(), np.array([1, 4, 2, 4]), **FEW)
