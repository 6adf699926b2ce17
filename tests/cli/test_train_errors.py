"""What `penstock train` refuses: one sentence, exit code 2, no traceback, and nothing written."""

import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

from forks import forked_command
from in_process import answer, command, refusal
from penstock.api import Run, train
from refusals import refused
from training_graphs import PENSTOCK, community_graph, facts_of, newest_checkpoint, trained, typed_graph

FEW = ["--fanouts", "4,3", "--hidden", "16", "--batch-size", "16", "--epochs", "2", "--threads", "1"]


@pytest.fixture
def refused_command(monkeypatch, capsys):
    return functools.partial(refusal, monkeypatch, capsys)


@pytest.fixture
def answered(monkeypatch, capsys):
    return functools.partial(answer, monkeypatch, capsys)


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("errors") / "graph"
    community_graph().save(folder)
    return folder


def written(graph, folder, change):
    """A folder with a graph that something is wrong with."""
    made = graph()
    change(made)
    made.save(folder)
    return folder


@pytest.mark.parametrize(
    "fields, parts",
    [
        ({"epocs": 3}, ["unknown field 'epocs'", "did you mean 'epochs'?"]),
        ({"learning_rate": 3}, ["unknown field 'learning_rate'"]),
        ({"qqq": 3}, ["unknown field 'qqq'", "docs/job.md"]),
        ({"epochs": "many"}, ["epochs", "neither auto nor a whole number"]),
        ({"epochs": 0}, ["epochs", "auto, or at least 1"]),
        ({"lr": -1}, ["lr", "greater than 0"]),
        ({"fanouts": [4, "x"]}, ["fanouts"]),
        ({"fanouts": []}, ["Fan-outs are []"]),
        ({"model": "sagee"}, ["model", "'sage'"]),
        ({"sampler": "neighbor"}, ["sampler", "'neighbour'"]),
        ({"dropout": 1}, ["dropout", "less than 1"]),
        ({"split_ratio": [0.5, 0.5]}, ["split_ratio"]),
        ({"model": "gat", "heads": 3, "hidden": 16}, ["hidden (16)", "heads (3)"]),
        ({"layers": 3}, ["layers is 3", "fanouts has 2", "one number for each layer"]),
        ({"optimiser": "Adamm"}, ["optimiser 'Adamm'", "did you mean 'Adam'?"]),
        ({"optimiser_options": {"momentum": 0.9}}, ["Adam", "momentum"]),
        ({"optimiser_options": 3}, ["optimiser_options", "map keys to values"]),
        ({"optimiser": "LBFGS"}, ["LBFGS", "closure"]),
        ({"optimiser": "SparseAdam"}, ["SparseAdam"]),
        ({"schedule": "StepLRR"}, ["schedule 'StepLRR'", "did you mean 'StepLR'?"]),
        ({"schedule": "StepLR"}, ["StepLR", "step_size"]),
        ({"metric": "acuracy"}, ["No metric", "'acuracy'", "did you mean 'accuracy'?"]),
        ({"metric": "mrr"}, ["mrr", "node-classification"]),
        ({"task": "node-regresion"}, ["task", "'node-regression'"]),
        ({"label": "z"}, ["field 'z'", "set `label`"]),
        ({"label": "z", "task": "node-classification"}, ["labels 'z'", "set `label`"]),
        ({"target": "nod"}, ["target 'nod'", "did you mean 'node'?"]),
        ({"task": "edge-classification"}, ["field 'y'", "set `label`"]),
        ({"model": "distmult"}, ["distmult is a scorer", "`scorer`"]),
        ({"task": "edge-classification", "target": "node__to__node"}, ["field 'y'", "set `label`"]),
        ({"task": "link-prediction", "target": "node__too__node"}, ["target", "did you mean 'node__to__node'?"]),
        ({"task": "link-prediction", "sampler": "labor"}, ["neighbour", "labor"]),
        ({"split": "per-class", "per_class": [0, 3]}, ["training split", "empty"]),
        ({"split_ratio": [0, 0.5, 0.5], "split": "ratio"}, ["training split", "empty"]),
        ({"split_ratio": [2, -1, 0], "split": "ratio"}, ["Split ratios"]),
        ({"fanouts": [{"cites": 3}, 2]}, ["relation"]),
        ({"weight": "w"}, ["'w'"]),
        ({"time": "t"}, ["'t'"]),
        ({"device": "cuda"}, ["cuda"]),
        ({"graph": "sythetic-arxiv"}, ["did you mean the data set 'synthetic-arxiv'?"]),
        ({"graph": "nowhere/graph"}, ["nowhere/graph"]),
        ({"clusters": "nowhere", "sampler": "cluster"}, ["nowhere"]),
        ({"checkpoint_minutes": -1}, ["checkpoint_minutes"]),
        ({"seed": -1}, ["seed"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_a_job_that_cannot_be_run(fields, parts, graph, tmp_path, refused_command):
    job, run = tmp_path / "job.yaml", tmp_path / "run"
    few = {"fanouts": [4, 3], "hidden": 16, "batch_size": 16, "epochs": 2, "threads": 1}
    job.write_text(yaml.safe_dump({"graph": str(graph), "run": str(run), **few, **fields}))
    sentence = refused_command("train", job)
    for part in parts:
        assert part in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.yaml"]


def test_flags_are_refused_like_fields(graph, tmp_path, refused_command, monkeypatch, capsys):
    run = ["--graph", graph, "--run", tmp_path / "run", *FEW]
    assert "epochs" in refused_command("train", *run, "--epochs", "0")
    assert "model" in refused_command("train", *run, "--model", "sagee")
    for flags, said in ((["--epochs", "x"], "epochs: 'x' is neither auto nor"), (["--epocs", "3"], "--epocs")):
        code, out, err = command(monkeypatch, capsys, "train", *run, *flags)
        assert (code, out) == (2, "")
        assert "Error: " in err and "Traceback" not in err
        assert said in err
    assert "schedule_options" in refused_command("train", *run, "--schedule-options", "[1")
    assert "does not exist" in refused_command("train", tmp_path / "job.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["- a\n", "a: [1\n", "", "\x00", "a: !!python/object:os.system {}\n"])
def test_a_job_file_that_is_none(text, tmp_path, refused_command):
    (tmp_path / "job.yaml").write_text(text)
    assert "job.yaml" in refused_command("train", tmp_path / "job.yaml")


def set_labels(values):
    def change(graph):
        y = graph.nodes["node"].fields["y"]
        graph.nodes["node"].fields["y"] = values(np.array(y))

    return change


def remove(what):
    def change(graph):
        nodes = graph.nodes["node"]
        nodes.fields.pop(what, None)
        nodes.splits.pop(what, None)

    return change


def unlabel_one(y, row=3):
    y[row] = -1
    return y


def put_in_split(graph):
    nodes = graph.nodes["node"]
    nodes.splits = {"train": np.arange(100), "val": np.arange(100, 150)}
    unlabel_one(nodes.fields["y"])


@pytest.mark.parametrize(
    "change, parts",
    [
        (set_labels(lambda y: y - 2), ["'y'", "-2", "-1 means no label"]),
        (set_labels(lambda y: y * 0), ["'y'", "1 class", "at least two"]),
        (set_labels(lambda y: y * 0 - 1), ["'y'", "0 class"]),
        (set_labels(lambda y: y.astype(str).astype("S")), ["'y'"]),
        (set_labels(lambda y: np.stack([y, y], 1)), ["'y'", "not all 0 or 1"]),
        (set_labels(lambda y: np.stack([y - 1, y], 1).clip(-1, 1)), ["'y'", "not all 0 or 1"]),
        (put_in_split, ["1 vertex", "'train'", "'y'", "vertex 3"]),
        (lambda g: g.nodes["node"].splits.update(train=np.empty(0, np.int64)), ["training split", "empty"]),
        (lambda g: g.nodes["node"].fields.update(x=np.zeros(200, np.float32)), ["'x'", "row of numbers"]),
    ],
    ids=[
        "-2",
        "one class",
        "none",
        "words",
        "counts in a matrix",
        "-1 in a matrix",
        "unlabelled in split",
        "empty split",
        "flat features",
    ],
)
def test_a_graph_that_does_not_fit_the_task(change, parts, tmp_path, refused_command):
    folder = written(community_graph, tmp_path / "graph", change)
    sentence = refused_command("train", "--graph", folder, "--run", tmp_path / "run", *FEW)
    for part in parts:
        assert part in sentence
    assert not (tmp_path / "run").exists()


def test_labels_that_are_not_there(tmp_path, refused_command):
    folder = written(community_graph, tmp_path / "graph", remove("y"))
    sentence = refused_command(
        "train", "--graph", folder, "--task", "node-classification", "--run", tmp_path / "run", *FEW
    )
    assert "labels 'y'" in sentence
    assert not (tmp_path / "run").exists()


def test_several_numbers_a_vertex(tmp_path, refused_command):
    folder = written(community_graph, tmp_path / "graph", set_labels(lambda y: np.stack([y, y], 1) / 3))
    flags = ["--graph", folder, "--run", tmp_path / "run", *FEW]
    assert "regression supports one" in refused_command("train", *flags, "--task", "node-regression")
    assert "not all 0 or 1" in refused_command("train", *flags)
    assert not (tmp_path / "run").exists()


def test_models_and_samplers_of_one_type_only(tmp_path, refused_command):
    typed_graph().save(tmp_path / "graph")
    run = ["--graph", tmp_path / "graph", "--run", tmp_path / "run", *FEW]
    assert "one node type" in refused_command("train", *run, "--model", "gcn")
    assert "several node or edge types" in refused_command("train", *run, "--sampler", "labor", "--model", "rgcn")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(graph, tmp_path, refused_command):
    run = tmp_path / "run"
    flags = ["--graph", graph, "--run", run, *FEW, "--lr", "1e30", "--checkpoint-steps", "1", "--force"]
    sentence = refused_command("train", *flags)
    assert "The loss is nan" in sentence or "The loss is inf" in sentence
    assert "at epoch 1, batch" in sentence
    assert str(run / "checkpoints") in sentence
    facts = facts_of(run)
    assert facts["state"] == "failed"
    assert facts["message"] == sentence
    assert "Traceback" in (run / "log.txt").read_text()
    good = newest_checkpoint(run)
    assert all(bool(values.isfinite().all()) for values in good["learned"].values())
    assert good["standing"]["step"] >= 1
    with refused("diverged"):
        train(resume=run)


def test_weights_that_are_no_numbers_are_never_a_checkpoint(tmp_path):
    graph = community_graph()
    graph.nodes["node"].fields["x"][:] = 3e38
    with refused("diverged"):
        trained(graph, tmp_path / "run", checkpoint_steps=1, norm="layer", model="gin", lr=1e10, optimiser="SGD")
    for file in (tmp_path / "run" / "checkpoints").glob("*.ckpt"):
        from penstock.train.run_files.checkpoints import read_state

        assert all(bool(values.isfinite().all()) for values in read_state(file)["learned"].values()), file


def test_a_folder_that_exists(graph, tmp_path, refused_command, answered):
    run = tmp_path / "run"
    flags = ["train", "--graph", graph, "--run", run, *FEW]
    answered(*flags)
    before = sorted(path.name for path in run.iterdir())
    assert "--force" in refused_command(*flags)
    assert sorted(path.name for path in run.iterdir()) == before
    answered(*flags, "--force")
    foreign = tmp_path / "mine"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    flags[4] = foreign
    assert refused_command(*flags, "--force").code == "file-exists"
    flags[4] = graph
    assert refused_command(*flags, "--force").code == "file-exists"
    assert (foreign / "thesis.tex").exists()
    assert (graph / "graph.json").exists()


def test_a_folder_in_use(graph, tmp_path, refused_command, answered):
    run = tmp_path / "run"
    flags = ["train", "--graph", graph, "--run", run, *FEW]
    answered(*flags)
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "in use by another process" in refused_command("train", "--resume", run)
        assert "in use by another process" in refused_command(*flags, "--force")
    assert Run.open(run).state == "finished"
    assert newest_checkpoint(run)


def test_resuming_what_cannot_be(graph, tmp_path, refused_command, answered):
    run = tmp_path / "run"
    assert refused_command("train", "--resume", run).code == "wrong-file"
    assert refused_command("train", "--resume", graph).code == "wrong-file"
    assert not run.exists()
    shutil.copytree(graph, tmp_path / "graph")
    answered("train", "--graph", tmp_path / "graph", "--run", run, *FEW)
    assert "keeps its job" in refused_command("train", "--resume", run, "--lr", "1")
    assert "keeps its job" in refused_command("train", "job.yaml", "--resume", run)
    (tmp_path / "graph").rename(tmp_path / "moved")
    assert str(tmp_path / "graph") in refused_command("train", "--resume", run)
    assert facts_of(run)["state"] == "finished"
    (tmp_path / "moved").rename(tmp_path / "graph")
    facts = (run / "run.json").read_text()
    (run / "run.json").write_text(facts[:50])
    assert "cannot be read" in refused_command("train", "--resume", run)
    (run / "run.json").write_text("[]")
    assert refused_command("train", "--resume", run).code == "unsupported-version"
    (run / "run.json").write_text(json.dumps({**json.loads(facts), "version": 99}))
    assert "release" in refused_command("train", "--resume", run)
    (run / "run.json").write_text(facts)
    for file in (run / "checkpoints").iterdir():
        file.unlink()
    assert "no checkpoint" in refused_command("train", "--resume", run)


def test_another_graph_under_the_same_name(graph, tmp_path, refused_command, answered):
    run = tmp_path / "run"
    community_graph().save(tmp_path / "graph")
    answered("train", "--graph", tmp_path / "graph", "--run", run, *FEW)
    shutil.rmtree(tmp_path / "graph")
    community_graph(classes=7).save(tmp_path / "graph")
    assert "not the one that" in refused_command("train", "--resume", run)
    assert "the weights of another model" in refused_command("evaluate", run)


@pytest.mark.parametrize("harm", ["flipped", "truncated", "empty", "other zip"])
def test_a_damaged_checkpoint(harm, graph, tmp_path, refused_command, answered):
    run = tmp_path / "run"
    answered("train", "--graph", graph, "--run", run, *FEW)
    damage = {
        "flipped": lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :],
        "truncated": lambda data: data[: len(data) // 2],
        "empty": lambda data: b"",
        "other zip": lambda data: b"PK\x05\x06" + bytes(18),
    }[harm]
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(damage(file.read_bytes()))
    newest = max((run / "checkpoints").glob("step-*"))
    assert f"{newest} is damaged" in refused_command("train", "--resume", run)
    assert " is damaged" in refused_command("evaluate", run)
    assert " is damaged" in refused_command("predict", run, "--out", tmp_path / "p.parquet")
    assert not (tmp_path / "p.parquet").exists()


def test_interrupts_are_told_apart_from_failures(graph, tmp_path, monkeypatch, capsys):
    from penstock.train.steps.one_by_one import LearnAlone

    def impatient(self, loaded):
        raise KeyboardInterrupt

    monkeypatch.setattr(LearnAlone, "__call__", impatient)
    code, out, err = command(monkeypatch, capsys, "train", "--graph", graph, "--run", tmp_path / "run", *FEW)
    assert (code, out) == (130, "")
    assert f"resume with `penstock train --resume {tmp_path / 'run'}`" in err
    assert facts_of(tmp_path / "run")["state"] == "interrupted"
    monkeypatch.undo()
    assert train(resume=tmp_path / "run").state == "finished"


def test_an_interrupted_run_prints_what_was_done_and_no_empty_table(graph, tmp_path, monkeypatch, capsys):
    from penstock.train.steps.one_by_one import LearnAlone

    learn, done = LearnAlone.__call__, []

    def polite(self, loaded):
        done.append(loaded)
        if len(done) == 2:
            signal.raise_signal(signal.SIGINT)
        return learn(self, loaded)

    monkeypatch.setattr(LearnAlone, "__call__", polite)
    code, out, err = command(monkeypatch, capsys, "train", "--graph", graph, "--run", tmp_path / "run", *FEW)
    assert code == 130
    assert "validation" not in out.replace("best validation", "")
    steps, planned = (
        facts_of(tmp_path / "run")["result"]["steps"],
        facts_of(tmp_path / "run")["result"]["steps_planned"],
    )
    assert 2 <= steps < planned
    assert f"{steps} of {planned} batches done, training loss " in out
    assert "0 epochs;" in out
    assert f"training: {steps} of {planned} batches, " in err


def test_what_is_wrong_with_a_job_is_said_before_torch_is_imported():
    """Importing it takes seconds on a busy machine."""
    code = "import sys; sys.argv[1:] = ['train', '--model', 'gnn']; from penstock.cli.main import run; run(); "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert 'torch' not in sys.modules"], capture_output=True, text=True
    )
    assert done.returncode == 0 and "model cannot be 'gnn'" in done.stderr, done.stderr


def test_a_word_behind_a_flag_without_a_value_is_explained():
    done = forked_command("train", "--filtered", "false")
    assert done.returncode == 2 and "--no-filtered" in done.stderr


def test_a_reader_who_has_seen_enough_is_no_error():
    """As `penstock train --help-all | head -1`: the pipe is closed before the answer is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([*PENSTOCK, "recipes"], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert done.returncode == 0 and done.stderr == ""
