"""Exact inference: layer by layer and in chunks, yet the numbers of the whole graph at once."""

import numpy as np
import pytest
import torch

from penstock import EdgeSet, Graph, NodeSet
from penstock.progress import Progress
from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.train import inference as inference_module
from penstock.train.inference import frontiers
from penstock.train.job import make_job
from penstock.train.session import make_session
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


def full_forward(session, node_type, weight=None):
    """The model on the whole graph at once, by blocks that hold every edge."""
    graph, layers = session.graph, len(session.job.fanouts)
    rows = {name: np.arange(nodes.count) for name, nodes in graph.nodes.items()}
    session.model.eval()
    with torch.no_grad():
        if graph.is_homogeneous:
            sampler = NeighbourSampler(graph, [ALL] * layers, weight=weight, totals=True)
            batch = sampler.sample(rows[node_type], ANY)
            return session.model(batch.blocks, session.inputs.pull(node_type, batch.vertices))
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


@pytest.mark.parametrize("features", [True, False], ids=["features", "embeddings"])
@pytest.mark.parametrize("fields", MODELS, ids=lambda fields: " ".join(map(str, fields.values())))
def test_layers_in_chunks_equal_the_whole_graph(fields, features, monkeypatch):
    session = session_of(community_graph(features=features), **fields)
    expected = full_forward(session, "node")
    torch.testing.assert_close(outputs(session, "node"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(inference_module, "_SHARE", 1 << 13)
    session.job.inference_mb = 1
    chunked = Chunks()
    torch.testing.assert_close(outputs(session, "node", progress=chunked), expected, rtol=1e-5, atol=1e-5)
    assert chunked.count > 10
    some = np.array([0, 7, 33, 150, 199])
    torch.testing.assert_close(outputs(session, "node", some), expected[some], rtol=1e-5, atol=1e-5)
    assert stage_threads() == []


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
        {"model": "gat"},
        {"model": "mlp"},
    ],
    ids=lambda fields: " ".join(map(str, fields.values())),
)
def test_typed_graphs(fields, monkeypatch):
    session = session_of(typed_graph(), **fields)
    expected = full_forward(session, "paper")
    torch.testing.assert_close(outputs(session, "paper"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(inference_module, "_SHARE", 1 << 13)
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
    rooms = []
    room = inference_module._Level._room

    def recorded(self, shape):
        values = room(self, shape)
        rooms.append(isinstance(values.base, np.memmap))
        return values

    monkeypatch.setattr(inference_module._Level, "_room", recorded)
    inference._budget, inference._folder = 1000, tmp_path
    found = inference.outputs({"node": np.arange(200)})["node"]
    assert rooms == [True, True]
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


def test_a_module_of_ones_own_in_small_groups(monkeypatch):
    graph = community_graph()
    module = ByEdges(4, 4)
    session = session_of(graph, module)
    x = torch.from_numpy(graph.nodes["node"].fields["x"])
    edges = torch.from_numpy(graph.edges["node", "to", "node"].edge_index().astype(np.int64))
    with torch.no_grad():
        expected = module.eval()(x, edges)
    torch.testing.assert_close(outputs(session, "node"), expected, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(inference_module, "_FEW", 7)
    inference = session.inference()
    inference._budget = 1
    chunked = Chunks()
    found = inference.outputs({"node": np.arange(200)}, chunked)["node"]
    assert chunked.count == 29
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


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
            expected = session.model(batch.blocks, session.inputs.pull("node", batch.vertices))
        torch.testing.assert_close(found[v : v + 1], expected, rtol=1e-5, atol=1e-5)


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
    levels = frontiers(graph, wanted, 2)
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
