"""An exported model gives what exact inference gives, in a process that has no Penstock."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from in_process import command
from knowledge_graph import family_graph
from penstock.api import train
from penstock.export.exported import export_session, write_safetensors
from penstock.export.module_specs import part_spec
from penstock.export.plain import loading
from penstock.nn import GATLayer
from penstock.train.use import open_session
from refusals import refused
from training_graphs import SMALL, carrying_graph, community_graph, labelled_edges, trained, typed_graph

WITHOUT_PENSTOCK = """
import json, sys
for name in ("penstock", "numpy", "safetensors"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import torch
from model import load
model = load()
inputs = torch.load(sys.argv[2], weights_only=True)
with torch.no_grad():
    torch.save(model(**inputs), sys.argv[3])
"""
HOPS = [{"author__writes__paper": 3, "paper__cites__paper": 2}, {"paper__by__author": 3, "author__writes__paper": 2}]
EDGES = {"edge_features": ["edge_attr", "far"]}
CASES = {
    "sage": (community_graph, {"model": "sage"}),
    "sage-max": (community_graph, {"aggregate": "max", "norm": "batch", "jump": "cat", "residual": True}),
    "sage-sum": (community_graph, {"aggregate": "sum", "norm": "layer", "jump": "max", "scale_features": "rows"}),
    "gcn": (community_graph, {"model": "gcn", "activation": "elu"}),
    "gat": (community_graph, {"model": "gat"}),
    "gatv2": (carrying_graph, {"model": "gatv2", **EDGES}),
    "gin": (community_graph, {"model": "gin"}),
    "gine": (carrying_graph, {"model": "gine", **EDGES}),
    "transformer": (carrying_graph, {"model": "transformer", **EDGES}),
    "mlp": (community_graph, {"model": "mlp"}),
    "rgcn": (community_graph, {"model": "rgcn"}),
    "weighted-gcn": (carrying_graph, {"model": "gcn", "edge_weight": "edge_weight"}),
    "weighted-gat": (carrying_graph, {"model": "gat", "weight": "edge_weight"}),
    "embedded": (lambda: community_graph(80, features=False), {"model": "sage", "embedding": 8}),
    "typed-sage": (typed_graph, {"model": "sage", "embedding": 8, "norm": "layer"}),
    "typed-gat": (typed_graph, {"model": "gat", "embedding": 8}),
    "typed-bases": (typed_graph, {"model": "rgcn", "bases": 2, "embedding": 8, "fanouts": HOPS}),
    "typed-blocks": (typed_graph, {"model": "rgcn", "blocks": 2, "embedding": 8}),
    "hgt": (typed_graph, {"model": "hgt", "embedding": 8, "heads": 2}),
    "one-hot": (lambda: bare(typed_graph()), {"model": "rgcn", "bases": 2, "embedding": "one-hot"}),
    "typed-mlp": (typed_graph, {"model": "mlp", "embedding": 8}),
}


def bare(graph):
    """Without features."""
    for nodes in graph.nodes.values():
        nodes.fields.pop("x", None)
    return graph


def trained_session(tmp_path, graph, **fields):
    run = trained(graph, tmp_path / "run", **{"epochs": 1, **fields})
    return open_session(run.path, graph)


def arguments(session):
    """The whole graph of a session, as the module takes it."""
    graph, job = session.graph, session.job
    x = {name: rows_of(nodes, [job.features]) for name, nodes in graph.nodes.items() if job.features in nodes.fields}
    index = {
        kind: torch.from_numpy(np.stack([edges.indices, owners(edges)]).astype(np.int64))
        for kind, edges in graph.edges.items()
    }
    found = {"x": x, "edge_index": index}
    if session.list_weight is not None:
        found["edge_weight"] = {
            kind: rows_of(edges, [session.list_weight])[:, 0] for kind, edges in graph.edges.items()
        }
    if job.edge_features:
        found["edge_attr"] = {kind: rows_of(edges, job.edge_features) for kind, edges in graph.edges.items()}
    if graph.is_homogeneous:
        found = {name: next(iter(each.values()), None) for name, each in found.items()}
    return found


def owners(edges):
    return np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))


def rows_of(owner, fields):
    count = owner.count
    return torch.from_numpy(
        np.concatenate([np.asarray(owner.fields[f], np.float32).reshape(count, -1) for f in fields], 1)
    )


def exact(session, names):
    return session.inference().outputs({name: np.arange(session.graph.nodes[name].count) for name in names})


def assert_exact(session, out):
    """The module's outputs are those of exact inference."""
    out = out if isinstance(out, dict) else {next(iter(session.graph.nodes)): out}
    for name, rows in exact(session, out).items():
        torch.testing.assert_close(out[name], rows, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_every_model_gives_what_exact_inference_gives(tmp_path, case):
    make, fields = CASES[case]
    session = trained_session(tmp_path, make(), **fields)
    export_session(session, tmp_path / "out")
    with torch.no_grad():
        assert_exact(session, loading.load(tmp_path / "out")(**arguments(session)))


def test_it_runs_where_there_is_no_penstock(tmp_path):
    session = trained_session(tmp_path, typed_graph(), model="gat", embedding=8)
    export_session(session, tmp_path / "out")
    torch.save(arguments(session), tmp_path / "in.pt")
    given = [sys.executable, "-I", "-c", WITHOUT_PENSTOCK, tmp_path / "out", tmp_path / "in.pt", tmp_path / "out.pt"]
    done = subprocess.run(list(map(str, given)), capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_exact(session, torch.load(tmp_path / "out.pt", weights_only=True))


def test_heads_score_pairs(tmp_path):
    session = trained_session(tmp_path, labelled_edges(), task="edge-classification", label="kind", batch_size=100)
    export_session(session, tmp_path / "out")
    model, task = loading.load(tmp_path / "out"), session.task
    positions = np.arange(20)
    (sources, targets, logits), *_ = task.outputs(session.inference(), positions)
    with torch.no_grad():
        out = model(**arguments(session))
        mine = model.head(out[torch.from_numpy(sources)], out[torch.from_numpy(targets)])
    torch.testing.assert_close(mine, logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scorer", ["distmult", "complex", "transe", "rotate"])
def test_knowledge_graphs(tmp_path, scorer):
    fields = {"model": "embedding", "embedding": 8, "scorer": scorer, "fanouts": [], "batch_size": 50}
    session = trained_session(tmp_path, family_graph(), task="knowledge-graph-completion", **fields)
    export_session(session, tmp_path / "out")
    model, task = loading.load(tmp_path / "out"), session.task
    triples = task.items_of_split("test")
    with torch.no_grad():
        rows = torch.cat(list(model().values()))
        head, relation, tail = (torch.from_numpy(np.asarray(each, np.int64)) for each in triples)
        mine = model.head(rows[head], rows[tail], relation)
    right = torch.from_numpy(task.score_triples(session.inference(), triples))
    torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-5)
    relations = json.loads((tmp_path / "out" / "config.json").read_text())["relations"]
    assert relations == [list(kind) for kind in task.relations]


def test_a_program_keeps_sizes_free(tmp_path):
    session = trained_session(tmp_path, community_graph(), model="gat")
    export_session(session, tmp_path / "out", "program")
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    assert_exact(session, program(**arguments(session)))


@pytest.mark.filterwarnings("default")
def test_onnx(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    session = trained_session(tmp_path, carrying_graph(), model="gatv2", **EDGES)
    export_session(session, tmp_path / "out", "onnx")
    opened = runtime.InferenceSession(tmp_path / "out" / "model.onnx")
    given = {name: each.numpy() for name, each in arguments(session).items()}
    (out,) = opened.run(["out"], given)
    assert_exact(session, torch.from_numpy(out))


def test_without_onnx(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    session = trained_session(tmp_path, community_graph(80))
    with refused("not-installed onnx"):
        export_session(session, tmp_path / "out", "onnx")
    assert not (tmp_path / "out").exists()


def test_weights_are_safetensors(tmp_path):
    package = pytest.importorskip("safetensors.torch")
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(3), "c": torch.tensor(2.0).bfloat16(), "d": torch.empty(0, 4)}
    write_safetensors(tmp_path / "w.safetensors", tensors, {"format": "pt"})
    for read in (package.load_file, loading.read_safetensors):
        found = read(tmp_path / "w.safetensors")
        assert set(found) == set(tensors)
        assert all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in tensors.items())


def test_the_command_and_the_run(tmp_path, monkeypatch, capsys):
    run = train(community_graph(80).save(tmp_path / "graph").path, run=str(tmp_path / "run"), **{**SMALL, "epochs": 1})
    code, said, _ = command(monkeypatch, capsys, "export", run.path, "--out", tmp_path / "out", "--json")
    assert code == 0 and json.loads(said)["files"] == ["model.py", "model.safetensors", "config.json"]
    with refused("file-exists"):
        run.export(tmp_path / "out")
    assert (run.export(tmp_path / "out", force=True) / "model.py").exists()
    with refused("invalid-value keras"):
        run.export(tmp_path / "other", "keras")


def test_what_has_no_plain_form(tmp_path):
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x, edge_index):
            return self.linear(x)

    run = train(community_graph(80), Own(), run=str(tmp_path / "run"), **{**SMALL, "epochs": 1})
    with refused("unsupported-combination state_dict"):
        run.export(tmp_path / "out")

    class Further(GATLayer):
        pass

    with refused("unsupported-combination Further"):
        part_spec(Further(4, 4))
