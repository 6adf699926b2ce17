"""Exact inference: layer by layer and in chunks, yet the numbers of the whole graph at once."""

import errno
import os
import weakref

import numpy as np
import pytest
import torch

from penstock import EdgeSet, Graph, NodeSet
from penstock.progress import SILENT, Progress
from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.layerwise import host
from penstock.train.layerwise import inference as levels
from penstock.train.layerwise.host import frontiers
from penstock.train.layerwise.inference import GrowingChunks
from refusals import refused
from training_graphs import community_graph, lists_of, stage_threads, typed_graph

ANY = BatchKey(0, 0, 0)
SMALL = {"fanouts": [3, 3], "hidden": 16, "batch_size": 16, "embedding": 8}


def session_of(graph, module=None, **fields):
    """A session whose batch statistics are not the initial ones, so that they matter."""
    torch.manual_seed(1)
    session = make_session(make_job({**SMALL, **fields}), graph, module)
    for part in session.model.modules():
        if isinstance(part, torch.nn.BatchNorm1d):
            part.running_mean.uniform_(-1, 1)
            part.running_var.uniform_(0.5, 2)
    return session


def test_a_finished_layer_frees_the_rows_that_it_read():
    """Rows of features may be wider than all that follow; until then their memory is used for the next chunk."""
    plan = session_of(community_graph()).whole_graph_inference().plan
    read = plan.pull("node", np.arange(20))
    place = read.data_ptr()
    del read
    read = plan.pull("node", np.arange(20))
    assert read.data_ptr() == place
    del read
    buffers = [weakref.ref(each) for each in plan._pool._returned]
    assert [each() is not None for each in buffers] == [True]
    plan.finish_layer(0)
    assert buffers[0]() is None


def full_forward(session, node_type, weight=None):
    """The model on the whole graph at once, by blocks that hold every edge."""
    graph, layers = session.graph, len(session.job.fanouts)
    rows = {name: np.arange(nodes.count) for name, nodes in graph.nodes.items()}
    session.model.eval()
    with torch.no_grad():
        if graph.is_homogeneous:
            sampler = NeighbourSampler(graph, [ALL] * layers, weight=weight, totals=True)
            batch = sampler.sample(rows[node_type], ANY)
            return session.model(batch.blocks, session.inputs.pull(node_type, batch.vertices[node_type]))
        typed = TypedNeighbourSampler(graph, [ALL] * layers, totals=True).sample(rows, ANY)
        x = {name: session.inputs.pull(name, ids) for name, ids in typed.vertices.items()}
        return session.model(typed.blocks, x)[node_type]


def outputs(session, node_type, rows=None, **more):
    """What inference gives for some vertices, all by default."""
    rows = np.arange(session.graph.nodes[node_type].count) if rows is None else rows
    return session.inference().outputs({node_type: rows}, **more)[node_type]


MODELS = [
    {"model": "sage"},
    {"model": "sage", "aggregate": "max", "norm": "batch"},
    {"model": "sage", "aggregate": "sum", "residual": True, "activation": "elu"},
    {"model": "gcn", "norm": "batch"},
    {"model": "gat", "norm": "layer"},
    {"model": "gatv2", "jump": "max"},
    {"model": "gin", "norm": "batch", "jump": "cat"},
    {"model": "mlp"},
    {"model": "rgcn"},
    {"model": "sage", "jump": "cat", "fanouts": [2, 2, 2]},
]
SELDOM = (MODELS[2], MODELS[5])


@pytest.mark.parametrize(
    "features, fields",
    [
        *(pytest.param(True, fields, marks=[pytest.mark.long] * (fields in SELDOM)) for fields in MODELS),
        # Learned rows are the input of the first layer as features are.
        (False, MODELS[0]),
        *(pytest.param(False, fields, marks=pytest.mark.long) for fields in MODELS[1:]),
    ],
    ids=str,
)
def test_layers_in_chunks_equal_the_whole_graph(fields, features, monkeypatch):
    session = session_of(community_graph(features=features), **fields)
    expected = full_forward(session, "node")
    torch.testing.assert_close(outputs(session, "node"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session.job.inference_mb = 1
    chunked = Chunks()
    torch.testing.assert_close(outputs(session, "node", progress=chunked), expected, rtol=1e-5, atol=1e-5)
    assert chunked.count > 10
    some = np.array([0, 7, 33, 150, 199])
    torch.testing.assert_close(outputs(session, "node", some), expected[some], rtol=1e-5, atol=1e-5)
    assert stage_threads() == []


def test_parts_of_a_model_that_are_frozen_stay_so():
    module = ByEdges(4, 4)
    module.norm = torch.nn.BatchNorm1d(8).eval()
    session = session_of(community_graph(), module)
    assert (module.training, module.first.training, module.norm.training) == (True, True, False)
    outputs(session, "node")
    assert (module.training, module.first.training, module.norm.training) == (True, True, False)
    # Nothing of a module that was evaluated as a whole is meant to be frozen.
    session_of(community_graph(), module.eval())
    assert all(part.training for part in module.modules())


def test_a_model_in_training_stays_in_training():
    session = session_of(community_graph())
    assert session.model.training
    outputs(session, "node")
    assert session.model.training


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "rgcn"},
        {"model": "rgcn", "bases": 2, "norm": "batch", "jump": "cat"},
        {"model": "rgcn", "blocks": 4},
        {"model": "gat"},
        {"model": "hgt"},
        {"model": "mlp"},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_typed_graphs(fields, monkeypatch):
    session = session_of(typed_graph(), **fields)
    expected = full_forward(session, "paper")
    torch.testing.assert_close(outputs(session, "paper"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session.job.inference_mb = 1
    some = np.array([1, 2, 80, 149])
    torch.testing.assert_close(outputs(session, "paper", some), expected[some], rtol=1e-5, atol=1e-5)


class Chunks(Progress):
    """Counts pieces of work."""

    count = 0

    def advance(self, amount):
        self.count += 1


def test_levels_that_do_not_fit_are_kept_in_files(monkeypatch, tmp_path):
    session = session_of(community_graph(), model="gcn")
    expected = outputs(session, "node")
    inference = session.inference()
    rooms, taken = [], []
    allocate = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", lambda *where: (taken.append(where[2]), allocate(*where)))
    room = levels.HostLevel._room

    def recorded(self, shape):
        values = room(self, shape)
        rooms.append(isinstance(values.base, np.memmap))
        return values

    monkeypatch.setattr(levels.HostLevel, "_room", recorded)
    inference.plan.budget, inference.plan.folder = 1000, tmp_path
    found = inference.outputs({"node": np.arange(200)})["node"]
    assert rooms == [True, True]
    assert taken == [200 * 16 * 4, 200 * 4 * 4]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not list(tmp_path.iterdir())


class ByEdges(torch.nn.Module):
    """A module as PyG users write it: two rounds of mean over edge_index, with a hidden width between."""

    def __init__(self, width, out):
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, 8), torch.nn.Linear(8, out)

    def forward(self, x, edge_index):
        return self.mean(self.second(torch.relu(self.mean(self.first(x), edge_index))), edge_index)

    def mean(self, x, edge_index):
        total = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        return total / torch.bincount(edge_index[1], minlength=len(x)).clamp(min=1)[:, None]


class Loads(Progress):
    """Sizes of the pieces of work, and what each had to hold."""

    def __init__(self):
        self.sizes = []

    count = property(lambda self: len(self.sizes))

    def advance(self, amount):
        self.sizes.append(amount)


def run_in_room(session, room, monkeypatch):
    """(pieces, outputs) of all vertices with working memory for so many rows and edges; no piece has more."""
    inference = session.inference()
    inference.plan.budget = room * host.SHARE * 4 * inference.plan.width(0)
    held = []
    read = inference.engine.read

    def recorded(chunks, source):
        for sampled, x in read(chunks, source):
            load = sum(map(len, sampled.inputs.values())) + max(block.num_edges for block in sampled.blocks)
            held.append((len(sampled.chunk.rows), load))
            yield sampled, x

    monkeypatch.setattr(inference.engine, "read", recorded)
    progress = Loads()
    found = inference.outputs({"node": np.arange(session.graph.num_nodes)}, progress)["node"]
    assert [size for size, _ in held] == progress.sizes
    assert all(load <= room or size == 1 for size, load in held)
    return progress, found


def test_a_module_of_ones_own_in_small_groups(monkeypatch):
    graph = community_graph()
    module = ByEdges(4, 4)
    session = session_of(graph, module)
    x = torch.from_numpy(graph.nodes["node"].fields["x"])
    edges = torch.from_numpy(graph.edges["node", "to", "node"].edge_index().astype(np.int64))
    with torch.no_grad():
        expected = module.eval()(x, edges)
    torch.testing.assert_close(outputs(session, "node"), expected, rtol=1e-5, atol=1e-5)
    chunked, rows = run_in_room(session, 2000, monkeypatch)
    assert chunked.count > 5
    torch.testing.assert_close(rows, expected, rtol=1e-5, atol=1e-5)


def test_pyg_modules():
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = community_graph()
    for module in (pyg.GraphSAGE(4, 8, 2, 4), pyg.GCN(4, 8, 2, 4), pyg.GAT(4, 8, 2, 4, heads=2)):
        session = session_of(graph, module)
        x = torch.from_numpy(graph.nodes["node"].fields["x"])
        edges = torch.from_numpy(graph.edges["node", "to", "node"].edge_index().astype(np.int64))
        with torch.no_grad():
            expected = module.eval()(x, edges)
        found = outputs(session, "node")
        if isinstance(module, pyg.GCN):
            # GCN divides by the degrees of the edges it is given: a vertex at the rim has fewer in a batch of some.
            some = np.arange(0, 200, 40)
            assert outputs(session, "node", some).shape == (5, 4)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_times_hide_what_comes_later():
    rng = np.random.default_rng(0)
    count = 60
    src, dst = rng.integers(0, count, 400), rng.integers(0, count, 400)
    edges = lists_of(src, dst, count, count, t=rng.integers(0, 100, 400))
    fields = {"x": rng.random((count, 3), np.float32), "y": rng.integers(0, 2, count), "t": rng.integers(0, 100, count)}
    graph = Graph({"node": NodeSet(count, fields)}, {("node", "to", "node"): edges})
    session = session_of(graph, time="t")
    found = outputs(session, "node")
    for v in (0, 17, 59):
        keep = edges.fields["t"] <= fields["t"][v]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(edges.destinations()[keep], minlength=count))])
        earlier = EdgeSet(indptr, edges.indices[keep])
        then = Graph({"node": graph.nodes["node"]}, {("node", "to", "node"): earlier})
        sampler = NeighbourSampler(then, [ALL, ALL], totals=True)
        batch = sampler.sample(np.array([v]), ANY)
        session.model.eval()
        with torch.no_grad():
            expected = session.model(batch.blocks, session.inputs.pull("node", batch.vertices["node"]))
        torch.testing.assert_close(found[v : v + 1], expected, rtol=1e-5, atol=1e-5)


def timed_graph(count=60):
    rng = np.random.default_rng(0)
    edges = lists_of(*rng.integers(0, count, (2, 400)), count, count, t=rng.integers(0, 100, 400))
    fields = {"x": rng.random((count, 3), np.float32), "y": rng.integers(0, 2, count), "t": np.full(count, 100)}
    return Graph({"node": NodeSet(count, fields)}, {("node", "to", "node"): edges})


def test_trees_of_seeds_with_times_are_bounded(monkeypatch):
    # The graph has 60 vertices and 400 edges; trees of all seeds repeat them many times over.
    session = session_of(timed_graph(), time="t")
    expected = outputs(session, "node")
    for room in (1, 600):
        progress, found = run_in_room(session, room, monkeypatch)
        assert progress.count == 60 if room == 1 else 10 < progress.count < 60
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("model", ["rgcn", "gat", "mlp"])
def test_relations_that_training_does_not_follow_are_not_read(model, monkeypatch):
    graph = typed_graph()
    inner, outer = {"author__writes__paper": 2, "paper__cites__paper": 0}, {"paper__by__author": 3}
    session = session_of(graph, model=model, fanouts=[inner, outer])
    whole = [{("author", "writes", "paper"): ALL}, {("paper", "by", "author"): ALL}]
    batch = TypedNeighbourSampler(graph, whole, totals=True).sample({"paper": np.arange(150)}, ANY)
    session.model.eval()
    with torch.no_grad():
        x = {name: session.inputs.pull(name, ids) for name, ids in batch.vertices.items()}
        expected = session.model(batch.blocks, x)["paper"]
    torch.testing.assert_close(outputs(session, "paper"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(host, "SHARE", 1 << 13)
    session.job.inference_mb = 1
    torch.testing.assert_close(outputs(session, "paper"), expected, rtol=1e-5, atol=1e-5)


class PairSum(torch.nn.Module):
    """Two rounds over edge_index_dict that want every type and relation, empty or not."""

    def __init__(self):
        super().__init__()
        self.paper, self.author = torch.nn.Linear(3, 3), torch.nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        x = {"paper": self.paper(x_dict["paper"]), "author": self.author(x_dict["author"])}
        for _ in range(2):
            new = {name: rows.clone() for name, rows in x.items()}
            for source, relation, destination in EVERY:
                pairs = edge_index_dict[source, relation, destination]
                new[destination].index_add_(0, pairs[1], x[source][pairs[0]])
            x = new
        return x


EVERY = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]


def test_modules_are_given_every_type_and_relation_even_if_empty():
    graph = typed_graph()
    cites = {kind: lists for kind, lists in graph.edges.items() if kind[1] == "cites"}
    nobody = {kind: EdgeSet(np.zeros_like(graph.edges[kind].indptr), np.empty(0, np.int32)) for kind in EVERY[:2]}
    lonely = Graph(graph.nodes, {**nobody, **cites})
    session = session_of(lonely, PairSum())
    found = outputs(session, "paper", np.array([4, 9]))
    edges = {kind: torch.from_numpy(lists.edge_index().astype(np.int64)) for kind, lists in lonely.edges.items()}
    x = {name: session.inputs.pull(name, np.arange(nodes.count)) for name, nodes in graph.nodes.items()}
    with torch.no_grad():
        expected = session.model.module(x, edges)["paper"][[4, 9]]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with refused("user-code-failed author"):
        session_of(lonely, OnlyPapers()).inference().outputs({"author": np.arange(3)})


class OnlyPapers(PairSum):
    """Gives rows of one type."""

    def forward(self, x_dict, edge_index_dict):
        return {"paper": super().forward(x_dict, edge_index_dict)["paper"]}


@pytest.mark.parametrize("rows", [[3, 1], [1, 1], [-1, 4], [4, 200]])
def test_rows_that_do_not_ascend_are_refused(rows):
    session = session_of(community_graph())
    with refused("id-out-of-range 0..199"):
        outputs(session, "node", np.array(rows))


def test_a_full_disk_is_a_sentence(monkeypatch, tmp_path):
    def full(descriptor, start, size):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    session = session_of(community_graph())
    session.folder = tmp_path
    inference = session.inference()
    inference.plan.budget = 1000
    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused(f"write-failed {tmp_path} No space left on device"):
        inference.outputs({"node": np.arange(200)})
    assert not list(tmp_path.iterdir())


def test_weights_of_edges_count():
    rng = np.random.default_rng(0)
    graph = community_graph()
    edges = graph.edges["node", "to", "node"]
    edges.fields["w"] = rng.random(edges.count).astype(np.float32)
    session = session_of(graph, weight="w", model="gcn")
    expected = full_forward(session, "node", weight="w")
    torch.testing.assert_close(outputs(session, "node"), expected, rtol=1e-5, atol=1e-5)


def test_frontiers_hold_what_is_read_and_no_more():
    graph = typed_graph()
    wanted = {"paper": np.array([3, 50])}
    levels = frontiers(graph, wanted, [list(graph.edges)] * 2)
    batch = TypedNeighbourSampler(graph, [ALL, ALL]).sample(wanted, ANY)
    for name in graph.nodes:
        assert levels[0][name].tolist() == sorted(batch.vertices.get(name, []))
    assert levels[2]["paper"].tolist() == [3, 50]
    assert levels[2]["author"].tolist() == []


def test_hidden_outputs_are_those_before_the_answer():
    session = session_of(community_graph(), model="sage")
    hidden = outputs(session, "node", hidden=True)
    assert hidden.shape == (200, 16)
    joined = session_of(community_graph(), model="sage", jump="cat")
    assert outputs(joined, "node", hidden=True).shape == (200, 16)


def test_vertices_without_neighbours_and_relations_without_edges():
    count = 12
    x = np.eye(count, dtype=np.float32)
    nodes = NodeSet(count, {"x": x, "y": np.arange(count) % 2})
    graph = Graph({"node": nodes}, {("node", "to", "node"): lists_of([0, 1], [1, 0], count, count)})
    for model in ("sage", "gcn", "gat", "gin"):
        session = session_of(graph, model=model)
        torch.testing.assert_close(outputs(session, "node"), full_forward(session, "node"), rtol=1e-5, atol=1e-5)


def test_outputs_of_earlier_chunks_keep_no_more_than_their_rows():
    session = session_of(community_graph(), ByEdges(4, 4))
    inference = session.inference()
    rows = np.arange(0, 60, 2)
    wanted = {"node": rows}
    inference.plan.start(wanted, 0, 0)
    inference.plan._growing = GrowingChunks(4, 1, lambda sampled: 0)
    with torch.no_grad():
        found = inference._of_neighbourhoods("node", rows, SILENT)
    assert len(found) > 3
    for each in found:
        assert each.untyped_storage().nbytes() == each.nbytes
    torch.testing.assert_close(torch.cat(found), inference.outputs(wanted)["node"])
