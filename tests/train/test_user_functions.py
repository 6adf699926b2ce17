"""Losses, metrics, callbacks and weights of classes: a user's functions in runs, by object and by location."""

import csv
import json
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional

from penstock import Run
from penstock.api import train
from penstock.train.losses import loss_weights
from penstock.train.run_files import run_folder
from refusals import refused
from training_graphs import SMALL, carrying_graph, community_graph, facts_of, labelled_edges, lines_of

CODE = """
from pathlib import Path
import torch
from torch.nn import functional

def focal(outputs, labels):
    losses = functional.cross_entropy(outputs, labels, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses

def first_share(outputs, labels):
    return float((outputs.argmax(1) == 0).mean())

class Noted:
    def on_start(self, run, job):
        self.file = Path(run) / "noted.txt"

    def __call__(self, result):
        with self.file.open("a") as file:
            print(result.epoch, result.val["first_share"], file=file)

    def on_end(self, result):
        with self.file.open("a") as file:
            print("end", result["epochs"], file=file)

def at_two(result):
    return result.epoch == 2
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The location of a file with functions."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def fit(tmp_path, name="run", graph=None, **fields):
    return train(graph or community_graph(), "sage", run=str(tmp_path / name), **{**SMALL, **fields})


def cross_entropy(outputs, labels):
    return functional.cross_entropy(outputs, labels)


def rows_alike(outputs, labels):
    return functional.cross_entropy(outputs, labels, reduction="none")


def error_rate(outputs, labels):
    return float(np.mean(outputs.argmax(1) != labels))


error_rate.better = "lower"


@pytest.mark.covering(1)
@pytest.mark.parametrize("sampler", [{}, {"sampler": "whole", "batch_size": 1000}])
@pytest.mark.parametrize("loss", [cross_entropy, rows_alike])
def test_a_loss_that_is_the_tasks_own_learns_the_same(tmp_path, loss, sampler):
    """The same weights after the same steps, whether it gives a mean or a number for each row."""
    usual, own = fit(tmp_path, "usual", **sampler), fit(tmp_path, "own", loss=loss, **sampler)
    assert own.history["train_loss"] == pytest.approx(usual.history["train_loss"], abs=1e-5)
    assert own.val == pytest.approx(usual.val) and facts_of(own.path)["given"] == {"loss": [loss.__name__]}


def test_a_loss_that_gives_a_mean_is_refused_where_rows_are_weighed(tmp_path):
    weighed = {"sampler": "saint-edge", "batch_size": 60, "fanouts": [], "layers": 2, "loss": cross_entropy}
    with refused("unsupported-combination cross_entropy reduction='none'"):
        fit(tmp_path, **weighed)
    assert fit(tmp_path, **{**weighed, "loss": rows_alike}).state == "finished"


@pytest.mark.parametrize(
    "loss, code",
    [
        (lambda out, y: 3.0, "user-code-failed float"),
        (lambda out, y: out.sum() / 0 if False else (_ for _ in ()).throw(KeyError("lost")), "user-code-failed lost"),
        (lambda out, y: out[:1, 0], "shape-mismatch"),
    ],
)
def test_a_wrong_loss_is_named_before_anything_is_written(tmp_path, loss, code):
    with refused(code):
        fit(tmp_path, loss=loss)
    assert not (tmp_path / "run").exists()


def test_losses_of_edges_and_links(tmp_path):
    edges = {"task": "edge-classification", "label": "kind", "batch_size": 100}
    usual, own = (
        fit(tmp_path, name, labelled_edges(), **edges, **more)
        for name, more in (("usual", {}), ("own", {"loss": cross_entropy}))
    )
    assert own.history["train_loss"] == pytest.approx(usual.history["train_loss"], abs=1e-5)
    assert own.history["val_loss"] == pytest.approx(usual.history["val_loss"], abs=1e-5)

    def pairs(scores, true):
        return functional.binary_cross_entropy_with_logits(scores, true)

    links = {"task": "link-prediction", "batch_size": 100}
    usual, own = (fit(tmp_path, name, **links, **more) for name, more in (("u", {}), ("o", {"loss": pairs})))
    assert own.history["train_loss"] == pytest.approx(usual.history["train_loss"], abs=1e-5)


def test_a_metric_is_recorded_and_chooses_the_best_model(tmp_path):
    run = fit(tmp_path, metrics=[error_rate], metric="error_rate", epochs=3, evaluate_every=2)
    assert run.val["error_rate"] == pytest.approx(1 - run.val["accuracy"])
    assert facts_of(run.path)["metric"] == {"name": "error_rate", "better": "lower"}
    assert run.history["val_error_rate"][0] is None and run.history["val_error_rate"][1] is not None
    assert run.evaluate("test")["error_rate"] == pytest.approx(run.test["error_rate"])
    assert "error_rate" in run.page.read_text().replace("<wbr>", "")
    # Looked at later, by who has the function and by who has not.
    assert "error_rate" not in Run.open(run.path, community_graph()).evaluate("test")
    assert "error_rate" in Run.open(run.path, community_graph(), metrics=[error_rate]).evaluate("test")


def test_metrics_of_links_get_ranks(tmp_path):
    def median_rank(ranks):
        return np.median(ranks)

    run = fit(tmp_path, task="link-prediction", batch_size=200, metrics=median_rank)
    assert run.val["median_rank"] >= 1


def test_wrong_metrics(tmp_path):
    def accuracy(outputs, labels):
        return 1.0

    def rows(outputs, labels):
        return outputs

    for metrics, said in [
        ([accuracy], "duplicate accuracy"),
        ([error_rate, error_rate], "duplicate"),
        ([rows], "user-code-failed rows"),
    ]:
        with refused(said):
            fit(tmp_path, metrics=metrics)


def test_a_callback_sees_every_epoch_and_ends_the_run(tmp_path):
    seen = []

    def prune(result):
        seen.append(result)
        # Comparisons of NumPy's numbers are not Python's True, and other answers are no wish to end.
        return np.float64(result.epoch) == 3 if result.epoch > 1 else "no"

    run = fit(tmp_path, callbacks=[prune], epochs=6)
    assert run.state == "stopped-early" and [each.epoch for each in seen] == [1, 2, 3]
    assert [each.loss for each in seen] == run.history["train_loss"]
    assert [each.value for each in seen] == run.history["val_accuracy"] and seen[-1].best_epoch >= 1
    assert seen[0].run == run.path and set(seen[0].numbers) >= {"loss", "val_loss", "val_accuracy", "lr"}
    # Without it the first epochs are the same, and a run that was ended so goes on with more epochs.
    usual = fit(tmp_path, "usual", epochs=6)
    assert usual.history["train_loss"][:3] == run.history["train_loss"]
    longer = train(community_graph(), resume=run.path, epochs=6, callbacks=[])
    assert longer.state == "finished" and longer.history["train_loss"] == usual.history["train_loss"]


def test_a_callback_that_fails_is_named(tmp_path):
    told = []

    class Broken:
        def __call__(self, result):
            raise KeyError("gone")

        def on_end(self, result):
            told.append(result)

    with refused("user-code-failed Broken gone"):
        fit(tmp_path, callbacks=Broken())
    assert facts_of(tmp_path / "run")["state"] == "failed" and told == [None]


def test_objects_are_asked_for_again(tmp_path):
    run = fit(tmp_path, loss=rows_alike, metrics=[error_rate], callbacks=[lambda result: result.epoch == 2], epochs=4)
    again = {"graph": community_graph(), "resume": run.path, "epochs": 4}
    for given in ({}, {"loss": cross_entropy}, {"loss": rows_alike}, {"loss": rows_alike, "metrics": [error_rate]}):
        with refused("mismatched-inputs"):
            train(**again, **given)
    run = train(**again, loss=rows_alike, metrics=[error_rate], callbacks=[])
    assert run.state == "finished" and "error_rate" in run.val


def test_a_job_names_functions(tmp_path, code, monkeypatch):
    named = {"loss": f"{code}:focal", "metrics": f"{code}:first_share", "callbacks": [f"{code}:Noted"]}
    run = fit(tmp_path, **named, epochs=3)
    assert run.job.metrics == [f"{code}:first_share"] and facts_of(run.path)["given"] == {}
    noted = (run.path / "noted.txt").read_text().splitlines()
    assert [line.split()[0] for line in noted] == ["1", "2", "3", "end"]
    assert float(noted[0].split()[1]) == run.history["val_first_share"][0]
    assert "first_share" in run.evaluate("test")
    # A run folder may come from somebody else.
    monkeypatch.setattr(run_folder, "_started_here", set())
    with refused("untrusted-code mine.py:first_share --trust-module"):
        Run.open(run.path, community_graph()).evaluate("test")
    with refused("untrusted-code mine.py:focal"):
        train(community_graph(), resume=run.path, epochs=4)
    assert train(community_graph(), resume=run.path, epochs=4, trust_module=True).state == "finished"


def test_names_that_lead_nowhere(tmp_path, code):
    for named, said in [
        ({"loss": f"{code}:focall"}, "unknown-name focal"),
        ({"callbacks": "tensorbord"}, "unknown-name tensorboard"),
        ({"metrics": "nowhere.py:f"}, "file-not-found nowhere.py"),
    ]:
        with refused(said):
            fit(tmp_path, **named)


def test_early_stop_waits_for_a_gain(tmp_path):
    run = fit(tmp_path, epochs=8, early_stop={"patience": 2, "min_delta": 10.0})
    assert run.state == "stopped-early" and len(run.history) == 3 and run.job.min_delta == 10.0
    assert fit(tmp_path, "two", epochs=2, early_stop=5).job.patience == 5
    with refused("invalid-value early_stop"):
        fit(tmp_path, "three", early_stop={"wait": 3})


def test_class_weights_are_weights_of_rows(tmp_path):
    weights = [1.0, 2.0, 0.5, 3.0]

    def weighed(outputs, labels):
        return functional.cross_entropy(outputs, labels, torch.tensor(weights), reduction="none")

    runs = [
        fit(tmp_path, str(number), **more)
        for number, more in enumerate(
            ({"loss": weighed}, {"class_weights": weights}, {"class_weights": dict(enumerate(weights))})
        )
    ]
    assert runs[0].history["train_loss"] == runs[1].history["train_loss"] == runs[2].history["train_loss"]
    assert Run.open(runs[1].path, community_graph()).evaluate("test") == pytest.approx(runs[1].test)
    balanced = fit(tmp_path, "balanced", class_weights="balanced")
    assert balanced.history["train_loss"] != runs[0].history["train_loss"]
    edges = {"task": "edge-classification", "label": "kind", "batch_size": 100, "class_weights": "balanced"}
    assert fit(tmp_path, "edges", labelled_edges(), **edges).state == "finished"


def test_balanced_weights():
    labels = np.array([0, 0, 0, 1])
    assert loss_weights("balanced", labels, 3).on(torch.device("cpu")).tolist() == pytest.approx([2 / 3, 2, 1])
    several = np.array([[1, 0], [1, 0], [1, 1], [0, 0]])
    assert loss_weights("balanced", several, 2).on(torch.device("cpu")).tolist() == pytest.approx([1 / 3, 3])
    named = loss_weights({"cat": 2, 1: 3}, labels, 3, ["cat", "dog", "owl"])
    assert named.on(torch.device("cpu")).tolist() == [2, 3, 1]
    for asked, said in [
        ([1.0, 2.0], "shape-mismatch"),
        ({"cot": 2.0}, "unknown-name cat"),
        ([0.0] * 3, "value-out-of-range"),
    ]:
        with refused(said):
            loss_weights(asked, labels, 3, ["cat", "dog", "owl"])


def test_class_weights_that_mean_nothing(tmp_path):
    with refused("unsupported-combination link-prediction"):
        fit(tmp_path, task="link-prediction", class_weights="balanced")
    with refused("conflicting-options"):
        fit(tmp_path, class_weights="balanced", loss=rows_alike)


def test_epochs_are_a_table_too(tmp_path):
    """Also where a run is resumed from an earlier step, and where only some epochs are validated."""
    run = fit(tmp_path, epochs=3, evaluate_every=2, graph=carrying_graph())
    with (run.path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    epochs = [record for record in lines_of(run.path) if record["kind"] == "epoch"]
    assert [float(row["loss"]) for row in rows] == [record["loss"] for record in epochs]
    assert [row["val_accuracy"] for row in rows] == [
        "",
        json.dumps(epochs[1]["val"]["accuracy"]),
        rows[2]["val_accuracy"],
    ]
    train(carrying_graph(), resume=run.path, epochs=4)
    assert len((run.path / "metrics.csv").read_text().splitlines()) == 5


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name, package", [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")])
def test_logs_for_other_tools(tmp_path, name, package, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    run = fit(tmp_path, callbacks=name)
    assert run.state == "finished" and run.job.callbacks == [name]
    if name == "mlflow":
        import mlflow

        (found,) = mlflow.search_runs(experiment_names=["penstock"], output_format="list")
        assert found.data.metrics["val_accuracy"] == run.history["val_accuracy"][-1]
        assert found.info.status == "FINISHED" and found.data.params["model"] == "sage"
    else:
        assert any((run.path / name).rglob("*"))


def test_a_log_whose_package_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("not-installed wandb"):
        fit(tmp_path, callbacks="wandb")
