"""`ps.Run` held in Python: its model, metrics, predictions, embeddings, history and comparison."""

import inspect
import pickle
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.api.training import NotebookProgress, shown_in_notebooks
from penstock.plan.document import Plan
from penstock.progress import SILENT
from penstock.train.job import Job, JobFields
from refusals import refused
from training_graphs import SMALL, carrying_graph, community_graph, labelled_edges, typed_graph

FEW = {**SMALL, "device": "cpu"}


class Averages(torch.nn.Module):
    """One layer that reads neighbours, as PyG's modules are called."""

    def __init__(self, out=4):
        super().__init__()
        self.own, self.others = torch.nn.Linear(4, out), torch.nn.Linear(4, out)

    def forward(self, x, edge_index):
        sums = torch.zeros_like(x).index_add_(0, edge_index[1], x[edge_index[0]])
        return self.own(x) + self.others(sums)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return ps.train(community_graph(), run=str(tmp_path_factory.mktemp("held") / "run"), **FEW)


def test_a_run_can_be_used(run):
    graph = community_graph()
    assert run.evaluate("test") == run.test
    assert run.evaluate("val") == run.val
    model = run.model()
    assert not model.training
    out = ps.infer(graph, model)
    rows = graph.split("test")
    assert (out.argmax(1).numpy()[rows] == graph.y[rows]).mean() == pytest.approx(run.test["accuracy"])
    table = run.predict([5, 3, 5])
    assert table["id"].to_pylist() == [5, 3, 5]
    assert table["prediction"].to_pylist() == out[[5, 3, 5]].argmax(1).tolist()
    assert run.predict(split="test").num_rows == len(rows)
    assert run.predict().num_rows == 200
    assert run.embed().shape == (200, 16)
    assert isinstance(run.job, Job)
    assert run.job.hidden == 16
    with refused("split-missing"):
        run.evaluate("tset")
    with refused("id-out-of-range 999"):
        run.predict([3, 999])
    with refused("wrong-type"):
        run.predict(["a"])
    with refused("conflicting-options"):
        run.predict([3], split="test")


def test_a_run_on_a_graph_in_memory_is_used_later(run):
    later = ps.Run.open(run.path)
    with refused("graph-not-found"):
        later.evaluate()
    assert later.evaluate(graph=community_graph()) == run.test
    assert ps.Run.open(run.path, community_graph()).evaluate() == run.test


def test_history(run):
    history = run.history
    assert [row["epoch"] for row in history] == history["epoch"] == [1, 2]
    assert all(value > 0 for value in history["train_loss"] + history["val_loss"])
    assert history[-1]["val_accuracy"] in run.history["val_accuracy"]
    assert "val_loss" in repr(history)
    assert "<table>" in history._repr_html_()
    pandas = pytest.importorskip("pandas")
    assert isinstance(history.to_pandas(), pandas.DataFrame)
    assert list(history.to_pandas()["epoch"]) == [1, 2]
    with refused("unknown-name loss"):
        history["los"]


def test_validation_loss_is_that_of_the_validation_split(tmp_path):
    graph = community_graph()
    run = ps.train(graph, run=str(tmp_path / "run"), **{**FEW, "epochs": 1})
    rows = graph.split("val")
    loss = torch.nn.functional.cross_entropy(ps.infer(graph, run.model())[rows], torch.from_numpy(graph.y[rows]))
    assert run.history["val_loss"] == pytest.approx([float(loss)], rel=1e-4)
    edges = ps.train(labelled_edges(), run=str(tmp_path / "edges"), label="kind", **{**FEW, "epochs": 1})
    assert edges.history["val_loss"][0] > 0
    with refused("unsupported-combination"):
        edges.predict([1])


def test_links_are_scored_by_pairs_of_ids(tmp_path):
    run = ps.train(community_graph(), run=str(tmp_path / "run"), task="link-prediction", **{**FEW, "epochs": 1})
    table = run.predict([(3, 7), (1, 2)])
    assert table["source"].to_pylist() == [3, 1]
    assert table["destination"].to_pylist() == [7, 2]
    assert run.history["val_loss"] == [None]


def test_a_module_of_ones_own(tmp_path):
    graph, module = community_graph(), Averages()
    run = ps.train(graph, module, run=str(tmp_path / "run"), **{**FEW, "fanouts": [4], "epochs": 1})
    model = run.model()
    assert isinstance(model, Averages)
    assert model is not module
    whole = ps.infer(graph, model)
    assert torch.allclose(whole, ps.infer(graph, model, fanouts=[-1], batch_size=50), atol=1e-5)
    assert (whole.argmax(1).numpy() == graph.y)[graph.split("val")].mean() == pytest.approx(run.val["accuracy"])


def test_inference_of_several_types():
    graph = typed_graph()
    with refused("field-missing author"):
        ps.infer(graph, Averages(), node_type="paper")
    with refused("option-missing node_type"):
        ps.infer(graph, Averages())


def test_comparing_runs(run, tmp_path):
    other = ps.train(community_graph(), run=str(tmp_path / "run"), **{**FEW, "hidden": 8, "epochs": 1})
    found = run.compare(other)
    assert found.settings == {"hidden": (16, 8), "epochs": (2, 1)}
    assert found.scores["test accuracy"] == (run.test["accuracy"], other.test["accuracy"])
    assert "hidden" in repr(found)
    assert "<table>" in found._repr_html_()


def test_objects_show_themselves_in_notebooks(run, tmp_path):
    graph = community_graph()
    assert "200" in graph._repr_html_()
    assert "finished" in run._repr_html_()
    evil = ps.Graph({"<b>": ps.NodeSet(1)}, {})
    assert "<b>" not in evil._repr_html_()
    parts = ps.cut(graph, ps.Cut(2, method="random"), tmp_path / "parts")
    assert "part" in ps.open_partition(tmp_path / "parts")._repr_html_()
    assert parts is not None
    task = SimpleNamespace(id="worker0", machine="a")
    plan = Plan.model_construct(tasks=[task], bottleneck="link", placement="etp", flows="fair")
    assert "worker0" in plan._repr_html_()


def test_train_names_every_field_of_a_job():
    parameters = inspect.signature(ps.train).parameters
    assert set(JobFields.model_fields) - {"model", "graph"} <= set(parameters)
    for name, field in JobFields.model_fields.items():
        if name not in ("model", "graph"):
            # A list of functions that is not given differs from an empty one when a run is resumed.
            known = None if name in ("metrics", "callbacks") else field.get_default()
            assert parameters[name].default == known
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert f"    {name}: " in inspect.getdoc(ps.train)
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


@pytest.mark.parametrize("name", ["train", "explain", "memory"])
def test_modules_that_are_called_show_what_they_call(name):
    called, function = getattr(ps, name), getattr(ps.api, name)
    assert inspect.signature(called) == inspect.signature(function)
    assert called.__doc__ == function.__doc__ and function.__doc__
    assert pickle.loads(pickle.dumps(called)) is called


def test_partitions_show_themselves(tmp_path):
    partition = ps.cut(community_graph(60), ps.Cut(parts=2), tmp_path / "parts")
    assert repr(partition) == f"Partition({str(tmp_path / 'parts')!r}, 2 parts, nodes {{node: 60}})"


def test_progress_in_a_notebook(monkeypatch, tmp_path):
    assert shown_in_notebooks() is SILENT
    shown = []

    class Handle:
        def update(self, page):
            shown.append(page)

    def display(page, display_id=False):
        shown.append(page)
        return Handle() if display_id else None

    class ZMQInteractiveShell:
        pass

    shell, pages = ModuleType("IPython"), ModuleType("IPython.display")
    shell.get_ipython = ZMQInteractiveShell
    pages.HTML, pages.display = str, display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", pages)
    assert isinstance(shown_in_notebooks(), NotebookProgress)
    ps.train(community_graph(), run=str(tmp_path / "run"), **{**FEW, "epochs": 1})
    assert any("batches" in page for page in shown)
    np.testing.assert_equal(type(shown[0]), str)


def test_wrong_arguments_get_a_sentence(run):
    assert str(run.compare(run.path)) == str(run.compare(run))
    with refused("wrong-type int folder"):
        run.compare(5)
    with refused("wrong-file run.json"):
        run.compare(run.path / "nothing")
    with refused("split-missing tset 'test'"):
        run.evaluate("tset")
    for ids in (3, [], [(1, 2)]):
        with refused("shape-mismatch list"):
            run.predict(ids)


def test_pairs_of_a_run_on_links(tmp_path):
    graph = community_graph()
    links = ps.train(graph, task="link-prediction", run=str(tmp_path / "run"), **{**FEW, "epochs": 1})
    assert links.predict([(1, 2), (3, 4)]).equals(links.predict(np.array([[1, 2], [3, 4]])))
    for ids in ([1, 2], [], [(1, 2), (1,)], [(1, 2, 3, 4)]):
        with refused("shape-mismatch source destination"):
            links.predict(ids)
    with refused("unsupported-combination time"):
        links.predict([(1, 2, 3)])


class WithEdges(Averages):
    """Reads what edges carry."""

    def forward(self, x, edge_index, edge_attr, edge_weight):
        messages = x[edge_index[0]] * edge_weight[:, None] + edge_attr.sum(1, keepdim=True)
        return self.own(x) + self.others(torch.zeros_like(x).index_add_(0, edge_index[1], messages))


def test_modules_that_read_edges_are_inferred_with():
    graph = carrying_graph()
    torch.manual_seed(0)
    module, named = WithEdges(), {"edge_features": ["edge_attr", "far"], "edge_weight": "edge_weight"}
    found = ps.infer(graph, module, **named)
    torch.testing.assert_close(ps.infer(graph, module, fanouts=[-1], batch_size=7, **named), found)
    (edges,) = graph.edges.values()
    columns = np.concatenate([edges.fields["edge_attr"], edges.fields["far"][:, None]], 1)
    rows = torch.from_numpy(graph.nodes["node"].fields["x"]), torch.from_numpy(np.asarray(edges.edge_index(), np.int64))
    carried = torch.from_numpy(columns).float(), torch.from_numpy(edges.fields["edge_weight"])
    with torch.no_grad():
        torch.testing.assert_close(module(*rows, *carried), found)
    with refused("user-code-failed WithEdges edge_attr"):
        ps.infer(graph, module)


def test_a_model_of_the_zoo_that_reads_edges(tmp_path):
    graph = carrying_graph()
    fields = {"edge_features": ["edge_attr"], "epochs": 1}
    run = ps.train(graph, "gine", run=str(tmp_path / "run"), **{**FEW, **fields})
    rows = graph.split("test")
    found = ps.infer(graph, run.model(), edge_features=["edge_attr"])[rows].argmax(1).numpy()
    assert (found == graph.y[rows]).mean() == pytest.approx(run.test["accuracy"])


def test_what_is_no_model_or_run_gets_a_sentence(tmp_path):
    graph = community_graph()
    with refused("wrong-type Averages"):
        ps.train(graph, Averages, run=str(tmp_path / "run"), **FEW)
    with refused("wrong-type int"):
        ps.memory(graph, 3, **FEW)
    with refused("wrong-type sage"):
        ps.infer(graph, "sage")
    with refused("user-code-failed Linear"):
        ps.infer(graph, torch.nn.Linear(4, 2))
    with refused("invalid-value early_stop"):
        ps.train(graph, early_stop="soon", run=str(tmp_path / "run"), **FEW)
    for wrong in (lambda: ps.Run.open(None), lambda: ps.explain(None, graph, 3)):
        with refused("wrong-type None"):
            wrong()
    with refused("wrong-type NoneType"):
        ps.loader(graph, fanouts=[2]).load_state_dict(None)


def test_progress_in_a_script(tmp_path, capsys):
    job = {**FEW, "epochs": 1}
    ps.train(community_graph(), run=str(tmp_path / "silent"), **job, progress=False)
    assert capsys.readouterr().err == ""
    ps.train(community_graph(), run=str(tmp_path / "shown"), **job, progress=True)
    assert "epoch 1" in capsys.readouterr().err.lower()
    with pytest.raises(ps.PenstockError) as refused:
        ps.train(community_graph(), run=str(tmp_path / "wrong"), **job, progress="yes")
    assert refused.value.code == "invalid-value"
    assert not (tmp_path / "wrong").exists()
