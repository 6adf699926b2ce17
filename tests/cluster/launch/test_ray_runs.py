"""Runs on two simulated nodes of a Ray cluster that are not alike."""

import logging
import os
import time
import warnings
from unittest.mock import patch

import pytest
from setups import nothing_left

from cluster_runs import (
    AtEpoch,
    assert_same_losses,
    at_report_of_epoch,
    cluster_file,
    in_parts,
    machines,
    recorded_starts,
    run_on,
)
from penstock.cluster.cluster_file import read_cluster
from refusals import refused
from training_graphs import community_graph

pytest.importorskip("ray")
pytestmark = pytest.mark.slow
CORES = {"m0": 1, "m1": 2}
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""Ray notices a lost node after seconds."""


class SimulatedNodes:
    """Ray nodes of this host, by machine."""

    def __init__(self):
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={**self._node("m0"), "include_dashboard": False, "_system_config": QUICK},
        )
        self.nodes = {"m1": self.add("m1")}

    def add(self, name):
        # Ray sets a handler for SIGTERM, which only a process's first thread may; a run's controller has others.
        with patch("ray._private.utils.set_sigterm_handler"):
            return self.cluster.add_node(**self._node(name), wait=False)

    def replace(self, name):
        self.cluster.remove_node(self.nodes[name], allow_graceful=False)
        self.nodes[name] = self.add(name)

    def _node(self, name):
        return {
            "num_cpus": CORES[name],
            "resources": {f"machine:{name}": 1},
            "node_ip_address": "127.0.0.1",
            "object_store_memory": 80 << 20,
        }


@pytest.fixture(scope="module")
def nodes():
    logging.getLogger("ray").setLevel(logging.ERROR)
    with warnings.catch_warnings(), nothing_left():
        # Ray's own, about files it has not closed.
        warnings.simplefilter("ignore")
        nodes = SimulatedNodes()
        nodes.cluster.wait_for_nodes(60)
        yield nodes
        nodes.cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def graph(folder):
    graph = community_graph()
    graph.save(folder / "graph")
    return folder / "graph"


@pytest.fixture(scope="module")
def cluster_fields(folder):
    made = machines(1, 1)
    for machine in made:
        machine["cores"] = CORES[machine["name"]]
    # Nothing here is noticed by silence, and hosts that run tests may be slow.
    failure = {"patience": 200}
    return {"machines": made, "partition": in_parts(community_graph(), 2, folder), "failure": failure}


@pytest.fixture(scope="module")
def local_run(folder, graph, cluster_fields):
    run_on(cluster_file(folder, **cluster_fields), graph, folder / "local")
    return folder / "local"


def on_ray(nodes, folder, fields):
    return cluster_file(folder, **fields, launcher="ray", ray={"address": nodes.cluster.address})


@pytest.mark.long
def test_tasks_run_where_planned_with_the_same_losses(nodes, folder, graph, cluster_fields, local_run):
    seen = {}

    def look():
        from ray._private import state

        names = {node["NodeID"]: node["Resources"] for node in state.nodes()}
        for actor in state.actors().values():
            if actor["State"] == "ALIVE":
                labels = [name for name in names[actor["Address"]["NodeID"]] if name.startswith("machine:")]
                seen[actor["Name"].rpartition(".")[0]] = labels
        seen["free"] = {node: left.get("CPU", 0) for node, left in state.available_resources_per_node().items()}
        seen["pids"] = [handle.pid for handle in handles.values()]

    with recorded_starts() as handles:
        run = run_on(on_ray(nodes, folder, cluster_fields), graph, folder / "ray", AtEpoch(1, look))
    assert run.facts["result"]["recoveries"] == []
    for number in range(2):
        assert seen[f"store-m{number}"] == seen[f"worker-{number}"] == [f"machine:m{number}"]
    # Each worker has all its machine's cores, as the cluster file says.
    assert list(seen["free"].values()) == [0, 0]
    assert None not in seen["pids"]
    assert not any(map(_is_alive, seen["pids"]))
    assert_same_losses(folder / "ray", local_run, 0)


@pytest.mark.long
def test_a_node_is_removed_and_the_run_goes_on_when_its_machine_is_back(
    nodes, folder, graph, cluster_fields, local_run
):
    with at_report_of_epoch(1, lambda: nodes.replace("m1")):
        run = run_on(on_ray(nodes, folder, cluster_fields), graph, folder / "removed")
    lost = {each["task"]: each["cause"] for each in run.facts["result"]["recoveries"]}
    assert lost == {"store-m1": "signal 9", "worker-1": "signal 9"}
    assert_same_losses(folder / "removed", local_run, 0)


def test_machines_are_found(nodes, folder):
    nodes.cluster.wait_for_nodes(60)
    path = cluster_file(folder, machines="ray", ray={"address": nodes.cluster.address})
    cluster = read_cluster(path)
    assert {machine.name: machine.cores for machine in cluster.machines} == CORES
    assert {(machine.address, machine.workers, machine.gpus) for machine in cluster.machines} == {("127.0.0.1", 1, 0)}
    assert all(machine.memory_gb > 0 for machine in cluster.machines)
    assert (cluster.launcher, cluster.ray.spares) == ("ray", True)


def test_a_machine_that_ray_does_not_have_is_refused_before_anything_starts(nodes, folder, graph, cluster_fields):
    fields = {**cluster_fields, "machines": machines(1, 1, 1), "partition": None}
    with refused("infeasible m2"):
        run_on(on_ray(nodes, folder, fields), graph, folder / "refused")
    assert not (folder / "refused").exists()


def _is_alive(pid):
    """Whether a process is there; one that was just ended may take a moment."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True
