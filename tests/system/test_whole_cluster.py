"""Training on the whole graph on clusters: the losses of one machine, and equal bits when workers are killed."""

import os
import signal
import threading

import pytest

from cluster_runs import (
    assert_same_losses,
    at_report_of_epoch,
    cluster_file,
    disturbed_run,
    in_parts,
    machines,
    recorded_starts,
    result_of,
    run_on,
)
from penstock.cluster.run import resume_cluster_run
from training_graphs import (
    assert_same_state,
    community_graph,
    labelled_edges,
    newest_checkpoint,
    numbered_edges,
    trained,
    typed_graph,
)

ROUNDING = 1e-4
WHOLE = {"sampler": "whole", "layers": 3, "bins": 3, "epochs": 8, "evaluate_every": 4, "hidden": 16, "dropout": 0.3}
PLAIN = {**WHOLE, "model": "gcn", "norm": "batch", "hidden": 136}
"""So wide that the gradients of the second layer are summed while the first one is computed."""
TYPED = {**WHOLE, "layers": 2, "model": "rgcn", "embedding": 8, "clip": 0.5}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A graph in two parts, and a run on two machines that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    graph = community_graph().save(folder / "graph")
    cluster = cluster_file(folder, machines=machines(1, 1), partition=in_parts(graph, 2, folder))
    run_on(cluster, graph.path, folder / "run", **PLAIN)
    return folder, graph, cluster


def test_two_workers_lose_as_one(plain):
    folder, graph, _ = plain
    one = trained(graph, folder / "one", **PLAIN)
    assert_same_losses(folder / "run", one.path, ROUNDING)
    result = result_of(folder / "run")
    assert result["bins"] == [3, 3, 3] and result["exchange"] == "bins"
    assert result["bytes_received"] >= result["bytes_minimum"] > 0
    assert result["exposed_communication_s"] >= 0
    waited = [task["exposed_communication_s"] for task in result["tasks"] if task["kind"] == "worker"]
    assert len(waited) == 2 and result["largest_exposed_communication_s"] == max(waited)
    assert waited[0] == pytest.approx(result["exposed_communication_s"], abs=0.1)


@pytest.mark.parametrize("task", ["worker-1", pytest.param("worker-0", marks=pytest.mark.long)])
def test_killed_worker_ends_with_equal_bits(plain, tmp_path, task):
    folder, graph, cluster = plain
    run = disturbed_run(task, 3, cluster, graph.path, tmp_path / "run", **PLAIN)
    (recovery,) = result_of(run.path)["recoveries"]
    assert recovery["task"] == task
    assert_same_losses(run.path, folder / "run", 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(folder / "run")["learned"])


@pytest.mark.long
@pytest.mark.parametrize("task", ["worker-0", "worker-1"])
@pytest.mark.parametrize("delay", [0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1])
def test_killed_at_any_moment(plain, tmp_path, task, delay):
    """A moment after the first worker has reported an epoch: in the forward pass, an exchange, the backward pass."""
    folder, graph, cluster = plain

    def later():
        threading.Timer(delay, os.kill, (handles[task].pid, signal.SIGKILL)).start()

    with recorded_starts() as handles, at_report_of_epoch(2, later):
        run = run_on(cluster, graph.path, tmp_path / "run", **PLAIN)
    assert_same_losses(run.path, folder / "run", 0)
    assert_same_state(newest_checkpoint(run.path)["learned"], newest_checkpoint(folder / "run")["learned"])


@pytest.mark.long
def test_resumed_run_ends_with_equal_bits(plain, tmp_path):
    folder, graph, cluster = plain
    run = run_on(cluster, graph.path, tmp_path / "run", **{**PLAIN, "epochs": 5}).path
    resume_cluster_run(run, epochs=8)
    assert_same_state(newest_checkpoint(run)["learned"], newest_checkpoint(folder / "run")["learned"])


@pytest.mark.parametrize("workers", [(1, 0), pytest.param((2, 1), marks=pytest.mark.long)])
def test_several_types_and_learned_rows(tmp_path, workers):
    """On machines with several workers, and with parts on a machine without any."""
    graph = typed_graph().save(tmp_path / "graph")
    one = trained(graph, tmp_path / "one", **TYPED)
    cluster = cluster_file(tmp_path, machines=machines(*workers), partition=in_parts(graph, 2, tmp_path))
    run = run_on(cluster, graph.path, tmp_path / "run", **TYPED)
    assert_same_losses(run.path, one.path, ROUNDING)


LINKS = {"task": "link-prediction", "rank_against": 20, "model": "gcn", "layers": 2}


@pytest.mark.parametrize(
    "make, fields",
    [
        pytest.param(community_graph, {**LINKS, "supervision": 0.5}, marks=pytest.mark.long),
        pytest.param(labelled_edges, {"task": "edge-classification", "label": "kind"}, marks=pytest.mark.long),
        pytest.param(numbered_edges, {"task": "edge-regression", "label": "score"}, marks=pytest.mark.long),
        (typed_graph, {**TYPED, **LINKS, "model": "rgcn", "target": "author__writes__paper"}),
    ],
    ids=["links", "classes of edges", "numbers of edges", "links between types"],
)
def test_tasks_on_edges(tmp_path, make, fields):
    """Supervised edges carry no messages on any worker, and negatives may be other workers' vertices."""
    graph, fields = make().save(tmp_path / "graph"), {**WHOLE, **fields}
    one = trained(graph, tmp_path / "one", **fields)
    cluster = cluster_file(tmp_path, machines=machines(1, 1), partition=in_parts(graph, 2, tmp_path))
    run = run_on(cluster, graph.path, tmp_path / "run", **fields)
    assert_same_losses(run.path, one.path, ROUNDING)
    for name in ("supervised_edges", "message_edges"):
        assert result_of(run.path)[name] == result_of(one.path)[name]
