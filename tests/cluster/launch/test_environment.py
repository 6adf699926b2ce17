"""A job's processes: process 0 with its launcher, agents on other nodes, those that have nothing to do."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from setups import cluster_of, nothing_left, setup_of

from cluster_runs import JOB, assert_same_losses, cluster_file, in_parts, machines, run_on
from penstock.cluster.launch.environment import Agent, AgentRegistry, AgentTask
from penstock.cluster.launch.job_processes import Place
from penstock.hardware.cluster import FailureOptions, Machine
from penstock.wire.message import Message
from refusals import refused
from training_graphs import community_graph

SECRET = "5e" * 32
PROCESS = """
import sys
from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.launch import take_part
from penstock.cluster.run import start_cluster_run
from penstock.errors import PenstockError
from penstock.train.job import make_job
try:
    if take_part(read_cluster(sys.argv[1])):
        start_cluster_run(make_job({job!r}), sys.argv[1])
except PenstockError as error:
    sys.exit(str(error))
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def places(nodes=2):
    """Process 0 and the agents of a job on this host."""
    port = free_port()
    return [Place(node, 0, (1,) * nodes, "127.0.0.1", port, "job", False) for node in range(nodes)]


@pytest.fixture
def cluster():
    failure = FailureOptions(patience=30)
    return cluster_of(Machine(name="m"), Machine(name="n"), launcher="environment", failure=failure)


@pytest.fixture
def gathering():
    """Process 0's side, with an agent in a thread; `agent_failed` says what its run raised."""
    first, second = places()
    gathering = AgentRegistry(first, SECRET, "127.0.0.1", 30)
    agent = Agent(second, SECRET, "127.0.0.1", 30)
    thread = threading.Thread(target=agent.run)
    thread.start()
    yield gathering
    gathering.close()
    thread.join(30)
    assert not thread.is_alive()


def ended(task):
    """Its status, when it has one."""
    for _ in range(3000):
        if (status := task.poll()) is not None:
            return status
        time.sleep(0.02)
    raise AssertionError("it does not end")


def came(gathering, name):
    for _ in range(3000):
        if gathering.agents.get(name):
            return True
        time.sleep(0.02)
    return False


def test_an_agent_starts_tasks_and_tells_how_they_ended(gathering, cluster, tmp_path):
    # Asked for before the agent has come.
    store = AgentTask(setup_of(cluster, tmp_path, "store-n"), "agent-1", gathering)
    worker = AgentTask(setup_of(cluster, tmp_path, "worker-1"), "agent-1", gathering)
    assert came(gathering, "agent-1")
    assert worker.poll() is None
    worker.kill()
    assert worker.poll() == -9
    assert ended(store) == 2
    assert "is not a partition folder" in (tmp_path / "logs" / "store-n.log").read_text()
    again = AgentTask(setup_of(cluster, tmp_path, "store-n", 1), "agent-1", gathering)
    assert ended(again) == 2


def test_an_agent_that_cannot_start_a_task_says_why(gathering, cluster, tmp_path):
    assert came(gathering, "agent-1")
    setup = setup_of(cluster, tmp_path, "worker-1").model_copy(update={"run": "/nowhere/run"})
    task = AgentTask(setup, "agent-1", gathering)
    assert ended(task) == 2
    assert "run folder /nowhere/run" in task.trouble


def test_a_task_whose_agent_has_not_come_says_so(cluster, tmp_path):
    gathering = AgentRegistry(places()[0], SECRET, "127.0.0.1", 5)
    try:
        task = AgentTask(setup_of(cluster, tmp_path, "worker-1"), "agent-1", gathering)
        assert task.poll() is None
        assert task.trouble == "the agent of machine n has not come"
        task.kill()
        assert task.poll() == -9
        assert task.trouble == "the agent of machine n has not come"
    finally:
        gathering.close()


def test_an_agent_with_another_secret_is_not_heard():
    first, second = places()
    gathering = AgentRegistry(first, SECRET, "127.0.0.1", 5)
    try:
        with refused("peer-lost launcher"):
            Agent(second, "6f" * 32, "127.0.0.1", 1).run()
        assert gathering.agents.get("agent-1") is None
    finally:
        gathering.close()


def test_an_agent_whose_last_report_is_not_answered_ends_with_the_run():
    """A launcher that ends while a report is on its way does not answer it, and its agent does not wait for that."""
    first, second = places()
    gathering = AgentRegistry(first, SECRET, "127.0.0.1", 3600)
    asked, ended = threading.Event(), threading.Event()

    def hear(message, sender):
        answer = gathering._hear(message, sender)
        asked.set()
        ended.wait()
        return answer

    gathering.endpoint.serve("report", hear)
    thread = threading.Thread(target=Agent(second, SECRET, "127.0.0.1", 3600).run)
    thread.start()
    try:
        assert asked.wait(60)
        assert gathering.endpoint.channel("agent-1").call(Message("over"), 60).kind == "heard"
        thread.join(60)
        assert not thread.is_alive()
    finally:
        ended.set()
        gathering.agents.clear()  # It has been told.
        gathering.close()


def test_an_agent_without_a_launcher_gives_up():
    with refused("peer-lost MASTER_ADDR"):
        Agent(places()[1], SECRET, "127.0.0.1", 1).run()


@pytest.mark.long
def test_a_job_of_processes_trains_as_one_host_does(tmp_path):
    graph = community_graph()
    graph.save(tmp_path / "graph")
    fields = {"machines": machines(1, 1), "partition": in_parts(graph, 2, tmp_path)}
    run_on(cluster_file(tmp_path, **fields), tmp_path / "graph", tmp_path / "local")
    job = {**JOB, "graph": str(tmp_path / "graph"), "run": str(tmp_path / "run")}
    cluster = cluster_file(tmp_path, **fields, launcher="environment")
    with nothing_left():
        processes = [_process(rank, free_port_of(tmp_path), cluster, job) for rank in range(4)]
        try:
            said = [process.communicate(timeout=120)[0] for process in processes]
            assert [(process.returncode, text) for process, text in zip(processes, said, strict=True)] == [(0, "")] * 4
        finally:
            for process in processes:
                process.kill()
    assert_same_losses(tmp_path / "run", tmp_path / "local", 0)


def free_port_of(folder):
    """The same for all processes of a test."""
    file = folder / "port"
    if not file.exists():
        file.write_text(str(free_port()))
    return file.read_text()


def _process(rank, port, cluster, job):
    """One of four, on two nodes."""
    place = {
        "RANK": str(rank),
        "WORLD_SIZE": "4",
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "PENSTOCK_SECRET": SECRET,
    }
    command = [sys.executable, "-c", PROCESS.format(job=job), cluster]
    return subprocess.Popen(
        command, env={**os.environ, **place}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
