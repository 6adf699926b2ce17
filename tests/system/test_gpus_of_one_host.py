"""`--gpus N`: one host, a process for each GPU, and a graph that is not cut. Here the processes compute on the CPU."""

import json
import os
import signal

import numpy as np
import pytest

from cluster_runs import JOB, assert_same_losses, at_report_of_epoch, recorded_starts, result_of
from forks import forked_command
from penstock import train
from penstock.cluster.run import cluster_of
from refusals import refused
from training_graphs import assert_same_state, community_graph, newest_checkpoint, trained, typed_graph

ROUNDING = 1e-4
"""Losses of a few steps: sums of 32-bit numbers in another order."""
FIELDS = {**JOB, "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph on disk, trained by one process and by two."""
    folder = tmp_path_factory.mktemp("gpus")
    graph = community_graph().save(folder / "graph")
    trained(graph, folder / "one", **FIELDS)
    train(graph, gpus=2, run=str(folder / "two"), **FIELDS)
    return folder, graph


def test_several_processes_lose_as_one(place):
    folder, _ = place
    assert_same_losses(folder / "two", folder / "one", ROUNDING)
    assert result_of(folder / "two")["test"] == pytest.approx(result_of(folder / "one")["test"], abs=0.02)
    assert [task["kind"] for task in result_of(folder / "two")["tasks"]].count("worker") == 2


def test_the_graph_is_opened_where_it_lies(place):
    folder, graph = place
    written = [path.name for path in (folder / "two" / "parts").rglob("*.npy")]
    assert written == ["original.npy"]
    document = json.loads((folder / "two" / "parts" / "partition.json").read_text())
    assert document["whole"] == str(graph.path.resolve()) and cluster_of(folder / "two").method == "none"


def test_learned_rows_of_several_types_and_a_graph_in_memory(tmp_path):
    """What is only in memory is written to the run folder once, for all processes."""
    graph = typed_graph()
    fields = {**FIELDS, "dropout": 0.0, "embedding": 8}
    trained(graph, tmp_path / "one", **fields)
    train(graph, gpus=3, run=str(tmp_path / "three"), **fields)
    assert_same_losses(tmp_path / "three", tmp_path / "one", 1e-3)
    assert (tmp_path / "three" / "parts" / "part0" / "graph.json").is_file()


def test_a_lost_process_and_a_resumed_run_change_no_bit(place, tmp_path):
    folder, graph = place
    fields = {**FIELDS, "checkpoint_steps": 2}
    with recorded_starts() as handles, at_report_of_epoch(2, lambda: os.kill(handles["worker-1"].pid, signal.SIGKILL)):
        train(graph, gpus=2, run=str(tmp_path / "run"), **{**fields, "epochs": 2})
    train(resume=tmp_path / "run", epochs=3)
    assert len(result_of(tmp_path / "run")["recoveries"]) <= 1
    ours, theirs = (newest_checkpoint(run) for run in (tmp_path / "run", folder / "two"))
    assert_same_state(ours["learned"], theirs["learned"])
    assert_same_state(ours["optimiser"], theirs["optimiser"])


def test_the_command(place, tmp_path):
    folder, graph = place
    words = ["--graph", str(graph.path), "--run", str(tmp_path / "run"), "--device", "cpu", "--fanouts", "4,3"]
    given = [f"--{name.replace('_', '-')}={value}" for name, value in JOB.items() if name != "fanouts"]
    done = forked_command("train", *words, *given, "--gpus", "2", "--json", timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state"] == "finished"
    assert_same_losses(tmp_path / "run", folder / "two", 0)


@pytest.mark.parametrize(
    "more, says",
    [
        (["--gpus", "1000"], "1000 GPUs were asked for and this host has"),
        (["--gpus", "2", "--device", "cuda"], "2 GPUs were asked for and this host has"),
        (["--gpus", "0", "--device", "cpu"], "give 1 or more"),
        (["--gpus", "2", "--cluster", "1x2"], "give cluster or gpus"),
    ],
)
def test_what_cannot_be_is_one_sentence(place, tmp_path, more, says):
    _, graph = place
    run = tmp_path / "run"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = forked_command("train", "--graph", str(graph.path), "--run", str(run), *more, env=environment)
    assert done.returncode == 2 and says in done.stderr and not run.exists()
    assert sum(line.startswith("Error:") for line in done.stderr.splitlines()) == 1 and not done.stdout


def test_arguments_that_do_not_go_together(place, tmp_path):
    folder, graph = place
    with refused("conflicting-options"):
        train(resume=folder / "two", gpus=2)
    with refused("conflicting-options"):
        train(graph, gpus=2, cluster="1x2", run=str(tmp_path / "run"))


def test_a_changed_graph_reaches_the_processes(place, tmp_path):
    """A graph that the job changes before it is trained on is not that of the folder."""
    _, graph = place
    fields = {**FIELDS, "reverse_edges": True, "epochs": 1}
    trained(graph, tmp_path / "one", **fields)
    trained(graph, tmp_path / "two", gpus=2, **fields)
    assert_same_losses(tmp_path / "two", tmp_path / "one", ROUNDING)
    seen = [np.load(path) for path in (tmp_path / "two" / "parts").rglob("original.npy")]
    assert len(seen[0]) == graph.num_nodes and (tmp_path / "two" / "parts" / "part0").is_dir()
