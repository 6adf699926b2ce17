"""`ps.train` and `ps.Run`, as a notebook meets them."""

import pickle

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.progress import Progress
from penstock.train.run import start_run
from refusals import refused
from training_graphs import SMALL, assert_same_state, community_graph, newest_checkpoint, typed_graph

FEW = {**SMALL, "epochs": 2}


def test_a_graph_a_name_and_keywords(tmp_path):
    run = ps.train(community_graph(), "gcn", run=str(tmp_path / "run"), **FEW)
    assert run.state == "finished"
    assert run.message == ""
    assert run.path == tmp_path / "run"
    assert run.test == run.result["test"]
    assert set(run.val) == {"accuracy", "macro-f1", "micro-f1"}
    assert run.report() == tmp_path / "run" / "report.html"
    assert f"Run('{tmp_path / 'run'}', finished" in repr(run)
    again = ps.Run.open(str(tmp_path / "run"))
    assert (again.state, again.result) == (run.state, run.result)


def test_anything_load_recognises(tmp_path):
    data = pytest.importorskip("torch_geometric.data")
    graph = community_graph()
    nodes = graph.nodes["node"]
    masks = {f"{name}_mask": torch.zeros(200, dtype=torch.bool) for name in nodes.splits}
    for name, rows in nodes.splits.items():
        masks[f"{name}_mask"][rows] = True
    edges = torch.from_numpy(graph.edges["node", "to", "node"].edge_index().astype(np.int64))
    given = data.Data(x=torch.from_numpy(nodes.x), y=torch.from_numpy(nodes.y), edge_index=edges, **masks)
    run = ps.train(given, run=str(tmp_path / "pyg"), **FEW)
    whole = ps.train(graph, run=str(tmp_path / "own"), **FEW)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run.path))
    graph.save(tmp_path / "graph")
    run = ps.train(tmp_path / "graph", run=str(tmp_path / "folder"), **FEW)
    assert_same_state(newest_checkpoint(whole.path), newest_checkpoint(run.path))


def test_models_of_the_zoo_and_of_pyg(tmp_path):
    graph = community_graph()
    run = ps.train(graph, ps.nn.GraphSAGE(graph, hidden=16, layers=2), run=str(tmp_path / "zoo"), **FEW)
    assert run.test["accuracy"] >= 0
    pyg = pytest.importorskip("torch_geometric.nn")
    run = ps.train(graph, pyg.GraphSAGE(4, 16, 2, 4), run=str(tmp_path / "pyg"), **{**FEW, "epochs": 8, "lr": 0.02})
    assert run.test["accuracy"] > 0.5


def test_a_typed_module(tmp_path):
    pyg = pytest.importorskip("torch_geometric.nn")
    graph = typed_graph()

    class Typed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            kinds = [("author", "writes", "paper"), ("paper", "by", "author"), ("paper", "cites", "paper")]
            self.first = pyg.HeteroConv({kind: pyg.SAGEConv((-1, -1), 16) for kind in kinds})
            self.second = pyg.HeteroConv({kind: pyg.SAGEConv((-1, -1), 3) for kind in kinds})

        def forward(self, x, edges):
            return self.second({name: rows.relu() for name, rows in self.first(x, edges).items()}, edges)

    module = Typed()
    x = {name: torch.zeros(2, 3 if name == "paper" else 8) for name in graph.nodes}
    with torch.no_grad():
        module(x, {kind: torch.zeros(2, 1, dtype=torch.int64) for kind in graph.edges})
    run = ps.train(graph, module, run=str(tmp_path / "run"), **{**FEW, "embedding": 8, "epochs": 6, "lr": 0.02})
    assert run.test["accuracy"] > 0.5


def test_mistakes_are_penstock_errors(tmp_path):
    graph = community_graph()
    for given, said in (
        ({"epoch": 3}, "unknown-name epochs"),
        ({"epochs": "x"}, "invalid-document epochs"),
        ({"model": "sgae"}, "invalid-document model"),
        ({"fanouts": [3, 3], "layers": 3}, "shape-mismatch 3"),
    ):
        with refused(said):
            ps.train(graph, run=str(tmp_path / "run"), **{**FEW, **given})
    with refused("wrong-file"):
        ps.Run.open(tmp_path)
    with refused("graph-not-found"):
        ps.train("nowhere", run=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_part_of_a_cut_graph_is_refused(tmp_path):
    graph = community_graph().save(tmp_path / "graph")
    ps.cut(graph, ps.Cut(2), tmp_path / "parts")
    with refused("whole-graph-needed"):
        ps.train(tmp_path / "parts" / "part0", run=str(tmp_path / "run"), **FEW)


def test_a_report_that_cannot_be_written_leaves_the_run_as_it_is(tmp_path, monkeypatch):
    class Notes(Progress):
        def note(self, sentence):
            self.notes.append(sentence)

    # A folder in its place cannot be replaced by a file, whoever the user is.
    def start(*arguments, **more):
        folder = start_run(*arguments, **more)
        (folder.path / "report.html").mkdir()
        return folder

    monkeypatch.setattr("penstock.api.training.start_run", start)
    progress = Notes()
    run = ps.train(community_graph(), run=str(tmp_path / "run"), progress=progress, **FEW)
    assert run.state == "finished"
    assert run.test == run.result["test"]
    assert run.test
    assert [note for note in progress.notes if "report.html" in note and "The run is finished" in note]
    with refused("write-failed"):
        run.report()
    again = Notes()
    assert ps.train(community_graph(), resume=tmp_path / "run", progress=again).state == "finished"
    assert [note for note in again.notes if "report.html" in note]


def test_what_a_cluster_cannot_see(tmp_path):
    """A module of this process, and a graph beside the parts of another."""
    graph = community_graph()
    with refused('unsupported-combination module="FILE.py:NAME'):
        ps.train(graph, torch.nn.Linear(4, 4), cluster="1x1", run=str(tmp_path / "run"), **FEW)
    ps.cut(community_graph(80), ps.Cut(2, method="random"), tmp_path / "parts")
    file = tmp_path / "cluster.yaml"
    file.write_text(f"machines: [{{name: a}}, {{name: b}}]\npartition: {tmp_path / 'parts'}\n")
    with refused("mismatched-inputs"):
        ps.train(graph, cluster=file, run=str(tmp_path / "run"), **FEW)
    assert not (tmp_path / "run").exists()


def test_functions_that_train_can_travel_to_other_processes():
    """Ray and others send the modules that a function uses by pickle."""
    assert pickle.loads(pickle.dumps(ps.train)) is ps.train
