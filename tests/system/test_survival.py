"""Tasks of every kind are killed in the middle of a run, which ends as if nothing had happened."""

import json
import os
import signal
import time
from contextlib import ExitStack
from functools import partial

import pytest

from cluster_runs import (
    JOB,
    MARK,
    assert_same_losses,
    at_report_of_epoch,
    cluster_file,
    disturbed_run,
    in_parts,
    machines,
    marked_processes,
    recorded_starts,
    result_of,
    run_on,
)
from forks import ForkedProgram
from penstock.cluster.run import resume_cluster_run
from training_graphs import (
    assert_same_state,
    best_checkpoint,
    facts_of,
    lines_of,
    newest_checkpoint,
    typed_graph,
)

LONG = {
    "embedding": 8,
    "epochs": 6,
    "evaluate_every": 2,
    "checkpoint_steps": 7,
    "schedule": "StepLR",
    "schedule_options": {"step_size": 3},
}
"""Long enough for a task to be missed."""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A graph in two parts, some of whose vertices have learned rows, and clusters with all kinds of tasks and few."""
    folder = tmp_path_factory.mktemp("survival")
    graph = typed_graph().save(folder / "graph")
    parts = in_parts(graph, 2, folder)
    few = cluster_file(folder, machines=machines(1, 1), partition=parts)
    wire = cluster_file(folder, machines=machines(1, 1), partition=parts, reduction="wire")
    all_kinds = cluster_file(folder, machines=machines(1, 1), partition=parts, samplers=1, reduce="servers", servers=1)
    return folder, graph.path, {"few": few, "wire": wire, "all": all_kinds}


@pytest.fixture(scope="module")
def whole(place):
    """The runs that nothing happened to, by cluster."""
    folder, graph, clusters = place
    return {name: run_on(cluster, graph, folder / name, **LONG).path for name, cluster in clusters.items()}


@pytest.mark.parametrize(
    "victims",
    [
        {1: "store-m1", 3: "server-0", 5: "worker-0"},
        *(pytest.param({3: task}, marks=pytest.mark.long) for task in ("store-m1", "server-0", "worker-0")),
        *(pytest.param({3: task}, marks=pytest.mark.long) for task in ("sampler-0-0", "worker-1")),
    ],
    ids=lambda victims: "+".join(victims.values()),
)
def test_killed_task_is_replaced(place, whole, tmp_path, victims):
    """Each of them after an epoch of its own."""
    _, graph, clusters = place

    def kill(task):
        os.kill(handles[task].pid, signal.SIGKILL)

    with recorded_starts() as handles, ExitStack() as stack:
        for epoch, task in victims.items():
            stack.enter_context(at_report_of_epoch(epoch, partial(kill, task)))
        run = run_on(clusters["all"], graph, tmp_path / "run", **LONG)
    recoveries = result_of(run.path)["recoveries"]
    assert {each["task"]: each["cause"] for each in recoveries} == dict.fromkeys(victims.values(), "signal 9")
    assert len(recoveries) == len(victims)
    restarts = {each["id"]: each["restarts"] for each in result_of(run.path)["tasks"]}
    assert {task: count for task, count in restarts.items() if count} == dict.fromkeys(victims.values(), 1)
    assert_ended_like(run.path, whole["all"])


@pytest.mark.parametrize(
    "task, tasks",
    [
        ("worker-1", "tasks_are_forked"),
        # As outside tests: processes that import for themselves, before and after the loss.
        pytest.param("worker-0", "tasks_are_programs", marks=pytest.mark.long),
        pytest.param("worker-1", "tasks_are_programs", marks=pytest.mark.long),
    ],
)
def test_killed_worker_among_workers_that_sum(place, whole, tmp_path, request, task, tasks):
    request.getfixturevalue(tasks)
    _, graph, clusters = place
    run = disturbed_run(task, 5, clusters["few"], graph, tmp_path / "run", **LONG)
    assert [each["task"] for each in result_of(run.path)["recoveries"]] == [task]
    assert_ended_like(run.path, whole["few"])


@pytest.mark.parametrize("task", [pytest.param("worker-0", marks=pytest.mark.long), "worker-1"])
def test_killed_worker_among_workers_that_sum_over_the_wire(place, whole, tmp_path, task):
    """The same weights as undisturbed, bit for bit; and the losses of torch's sums, to rounding."""
    _, graph, clusters = place
    run = disturbed_run(task, 5, clusters["wire"], graph, tmp_path / "run", **LONG)
    assert [each["task"] for each in result_of(run.path)["recoveries"]] == [task]
    assert_ended_like(run.path, whole["wire"])
    assert_same_losses(whole["wire"], whole["few"], 1e-4)


@pytest.mark.long
def test_interrupted_and_resumed(place, whole, tmp_path):
    _, graph, clusters = place
    run = disturbed_run_of_controller(clusters["all"], graph, tmp_path / "run", signal.SIGINT)
    assert facts_of(run)["state"] == "interrupted"
    assert 0 < newest_checkpoint(run)["standing"]["step"] < newest_checkpoint(whole["all"])["standing"]["step"]
    resume_cluster_run(run)
    assert_ended_like(run, whole["all"])


def test_controller_killed_and_resumed(place, whole, tmp_path):
    """Its tasks end by themselves when it is gone."""
    _, graph, clusters = place
    run = disturbed_run_of_controller(clusters["few"], graph, tmp_path / "run", signal.SIGKILL)
    assert facts_of(run)["state"] == "running"
    resume_cluster_run(run)
    assert_ended_like(run, whole["few"])


def disturbed_run_of_controller(cluster, graph, run, how):
    """A run of its own process, which gets a signal when two epochs are recorded; returns when all its tasks ended."""
    flags = [f"--{name.replace('_', '-')}={_flag(value)}" for name, value in {**JOB, **LONG}.items()]
    command = ["penstock", "train", f"--graph={graph}", f"--run={run}", f"--cluster={cluster}", *flags, "--json"]
    process = ForkedProgram(command)
    try:
        while not _epochs(run) >= 2:
            assert process.poll() is None, process.said()
            time.sleep(0.01)
        process.send_signal(how)
        process.wait()
        while marked_processes(os.environ[MARK]):
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()
    return run


def assert_ended_like(run, whole):
    """The same bits in the newest checkpoint and the best model, and every step recorded once."""
    assert facts_of(run)["state"] == facts_of(whole)["state"]
    assert_same_state(newest_checkpoint(run), newest_checkpoint(whole))
    assert_same_state(best_checkpoint(run), best_checkpoint(whole))
    assert result_of(run)["test"] == result_of(whole)["test"]
    recorded = [(line["kind"], line["step"], line["loss"]) for line in lines_of(whole)]
    assert [
        (line["kind"], line["step"], line["loss"]) for line in lines_of(run) if line["kind"] != "resumed"
    ] == recorded


def _epochs(run):
    try:
        return sum(line["kind"] == "epoch" for line in lines_of(run))
    except (FileNotFoundError, json.JSONDecodeError):
        return 0


def _flag(value):
    return json.dumps(value) if isinstance(value, dict) else str(value).strip("[]").replace(" ", "")
