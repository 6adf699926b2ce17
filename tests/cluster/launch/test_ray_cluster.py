"""Connecting to Ray, as far as it fails without one; the actor, without an actor around it."""

import sys
from unittest.mock import patch

import pytest
from setups import cluster_of, setup_of

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.launch.ray_cluster import TaskActor, connect, join, ray_tasks
from penstock.hardware.cluster import Machine, RayOptions
from refusals import refused


def test_without_ray_there_is_one_sentence(tmp_path):
    with patch.dict(sys.modules, {"ray": None}):
        with refused("not-installed penstock[ray]"):
            connect(cluster_of(Machine(name="m"), launcher="ray"))
        with refused("not-installed penstock[ray]"):
            read_cluster("ray")


def test_a_client_address_is_refused():
    pytest.importorskip("ray")
    with refused("unsupported-combination ray.address"):
        join(RayOptions(address="ray://10.0.0.1:10001"))


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.1:10001", "here", "127.0.0.1:1", "127.0.0.1:99999", ":6379", "a..b:1"]
)
def test_tasks_need_the_address_of_a_cluster(address):
    with refused(f"peer-lost --ray {address}"), ray_tasks(address):
        pass


def test_a_keeper_tells_how_its_task_ended(tmp_path):
    cluster = cluster_of(Machine(name="m"))
    # There is no partition to open, which is the user's to mend: 2.
    actor = TaskActor(setup_of(cluster, tmp_path, "store-m").model_dump_json(), "/nowhere")
    assert actor.pid() > 0
    assert actor.wait() == (2, "")
    assert "is not a partition folder" in (tmp_path / "logs" / "store-m.log").read_text()
    actor.end()


def test_a_keeper_ends_its_task(tmp_path):
    cluster = cluster_of(Machine(name="m"))
    actor = TaskActor(setup_of(cluster, tmp_path, "worker-0").model_dump_json(), str(tmp_path))
    actor.end()
    assert actor.wait() == (-9, "")


def test_a_keeper_that_does_not_see_the_run_folder_says_so(tmp_path):
    setup = setup_of(cluster_of(Machine(name="m")), tmp_path, "worker-0")
    actor = TaskActor(setup.model_copy(update={"run": "/nowhere/run"}).model_dump_json(), str(tmp_path))
    assert actor.pid() is None
    status, refusal = actor.wait()
    assert status == 0 and "Machine m" in refusal and "run folder /nowhere/run" in refusal
