"""Edge regression: a number for each edge, from both its ends."""

import numpy as np
import pytest
import torch

import penstock as ps
from refusals import refused
from training_graphs import facts_of, labelled_edges, numbered_edges, trained

JOB = {"task": "edge-regression", "label": "score", "batch_size": 200, "hidden": 16}


def splits_of(graph):
    """The numbers of the edges that have one."""
    (edges,) = graph.edges.values()
    return edges.fields["score"][np.isfinite(edges.fields["score"])]


def test_numbers_of_edges_are_learned(tmp_path):
    graph = numbered_edges()
    run = trained(graph, tmp_path / "run", **{**JOB, "epochs": 30, "lr": 0.01})
    known = splits_of(graph)
    # Who answers with the mean is off by this much.
    assert run.test["mae"] < 0.7 * np.mean(np.abs(known - known.mean()))
    assert set(run.test) == {"mae", "rmse"} and run.test["mae"] <= run.test["rmse"]
    assert facts_of(run.path)["labels"] | {"words": None} == {
        "task": "edge-regression",
        "type": "node__to__node",
        "field": "score",
        "classes": 0,
        "multi_label": False,
        "words": None,
    }


def test_the_task_is_chosen_by_the_labels(tmp_path):
    run = trained(numbered_edges(), tmp_path / "run", label="score", batch_size=200, epochs=1)
    assert facts_of(run.path)["task"] == "edge-regression"
    run = trained(labelled_edges(), tmp_path / "classes", label="kind", batch_size=200, epochs=1)
    assert facts_of(run.path)["task"] == "edge-classification"


def test_predictions_are_what_metrics_judge(tmp_path):
    graph = numbered_edges()
    run = trained(graph, tmp_path / "run", **JOB, epochs=2)
    opened = ps.Run.open(run.path, graph)
    assert opened.evaluate("test") == pytest.approx(run.test)
    table = opened.predict(split="test")
    assert table.column_names == ["source", "destination", "prediction"]
    (edges,) = graph.edges.values()
    targets = np.repeat(np.arange(graph.num_nodes), np.diff(edges.indptr))
    number = dict(zip(zip(edges.indices.tolist(), targets.tolist(), strict=True), edges.fields["score"], strict=True))
    pairs = zip(table["source"].to_pylist(), table["destination"].to_pylist(), strict=True)
    true = np.array([number[pair] for pair in pairs])
    assert np.mean(np.abs(true - table["prediction"].to_numpy())) == pytest.approx(run.test["mae"], rel=1e-5)


def test_edges_without_a_number_are_in_no_split():
    graph, seen = numbered_edges(), 0
    for split in ("train", "val", "test"):
        for batch in ps.loader(graph, split, task="edge-regression", label="score", fanouts=[3], batch_size=100):
            assert batch.edge_label.dtype == torch.float32 and torch.isfinite(batch.edge_label).all()
            assert batch.edge_label_index.shape == (2, len(batch.edge_label))
            seen += len(batch.edge_label)
    assert seen == len(splits_of(graph))


@pytest.mark.parametrize("name", ["mse", "mae", "huber"])
def test_named_losses_are_torchs(tmp_path, name):
    """A name gives what torch's function gives where it is passed."""
    functions = {"mse": "mse_loss", "mae": "l1_loss", "huber": "huber_loss"}
    named = trained(numbered_edges(), tmp_path / "named", **JOB, loss=name, epochs=2)

    def own(outputs, labels):
        return getattr(torch.nn.functional, functions[name])(outputs, labels, reduction="none")

    given = trained(numbered_edges(), tmp_path / "given", **JOB, loss=own, epochs=2)
    assert named.history["train_loss"] == given.history["train_loss"]
    assert named.history["val_loss"] == given.history["val_loss"]
    if name == "mse":
        usual = trained(numbered_edges(), tmp_path / "usual", **JOB, epochs=2)
        assert usual.history["train_loss"] == named.history["train_loss"]


def test_named_losses_of_vertices(tmp_path):
    graph = numbered_edges()
    graph.nodes["node"].fields["height"] = graph.nodes["node"].fields["x"].sum(1)
    fields = {"label": "height", "task": "node-regression", "epochs": 2}
    one, other = (trained(graph, tmp_path / name, **fields, loss=name) for name in ("mae", "mse"))
    assert one.history["val_loss"][-1] == pytest.approx(one.history["val_mae"][-1], rel=1e-5)
    assert other.history["val_loss"][-1] == pytest.approx(other.history["val_rmse"][-1] ** 2, rel=1e-5)


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"loss": "mae", "task": "edge-classification", "label": "kind"}, "unsupported-combination mae regression"),
        ({"class_weights": "balanced"}, "unsupported-combination class_weights"),
        ({"label": "wide"}, "wrong-type wide regression"),
        ({"label": "kind", "metric": "accuracy"}, "unsupported-combination accuracy"),
        ({"label": "nothing"}, "field-missing nothing"),
        ({"task": "edge-classification"}, "wrong-type score edge-regression"),
    ],
)
def test_bad_jobs_are_refused_in_a_sentence(tmp_path, fields, said):
    graph = numbered_edges()
    (edges,) = graph.edges.values()
    edges.fields["wide"] = np.ones((edges.count, 2), np.float32)
    edges.fields["kind"] = (edges.indices % 2).astype(np.int64)
    with refused(said):
        trained(graph, tmp_path / "run", **{**JOB, **fields})
    assert not (tmp_path / "run").exists()
