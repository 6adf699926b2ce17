"""A task's way from node to node, with actors that do as they are told."""

import pytest
from setups import cluster_of, setup_of

from penstock.cluster.launch import ray as module
from penstock.cluster.launch.ray import RayTask
from penstock.cluster.launch.ray_cluster import TaskEnd
from penstock.hardware.cluster import Machine

HERE = "10.0.0.1"


class FakeActor:
    """Says what a test has put into it."""

    def __init__(self):
        self.process, self.became, self.ended = None, None, 0

    def pid(self):
        return self.process

    def look(self):
        return self.became

    def end(self):
        self.ended += 1


class Ray:
    """Nodes that come and go; `now` is the time."""

    def __init__(self):
        self.actors, self.alive, self.address, self.now = [], True, HERE, 100.0

    def place(self, setup):
        if not self.alive:
            return None
        self.actors.append(FakeActor())
        return self.actors[-1], self.address

    def monotonic(self):
        return self.now


@pytest.fixture
def ray(monkeypatch):
    ray = Ray()
    monkeypatch.setattr(module, "time", ray)
    return ray


@pytest.fixture
def setup(tmp_path):
    cluster = cluster_of(Machine(name="m"))
    return setup_of(cluster, tmp_path, "worker-0")


def test_its_status_is_that_of_its_process(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    assert task.poll() is None
    assert task.pid is None
    ray.actors[0].process = 7
    assert task.poll() is None
    assert task.pid == 7
    ray.actors[0].became = TaskEnd("ended", -11)
    assert task.poll() == -11
    assert task.over
    task.kill()
    assert ray.actors[0].ended == 0


def test_a_process_elsewhere_has_no_number_here(ray, setup):
    ray.address = "10.0.0.2"
    task = RayTask(setup, ray.place, HERE)
    ray.actors[0].process = 7
    assert task.poll() is None
    assert task.pid is None


def test_a_task_that_ran_is_lost_with_its_node(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    ray.actors[0].process = 7
    task.poll()
    ray.actors[0].became = TaskEnd("lost")
    assert task.poll() == -9


def test_a_task_that_did_not_run_yet_waits_for_a_node_and_counts_as_no_death(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    ray.actors[0].became, ray.alive = TaskEnd("lost"), False
    for _ in range(10):
        ray.now += 1
        assert task.poll() is None
    assert len(ray.actors) == 1
    ray.alive = True
    ray.now += 1
    assert task.poll() is None
    assert len(ray.actors) == 2
    ray.actors[1].process = 8
    ray.now += 1000
    assert task.poll() is None
    assert task.pid == 8


@pytest.mark.parametrize(
    ("alive", "why"), [(False, "machine m has no living Ray node"), (True, "Ray has not started it")]
)
def test_a_task_that_waits_says_why(ray, setup, alive, why):
    ray.alive = alive
    task = RayTask(setup, ray.place, HERE)
    ray.now += 50
    assert task.poll() is None
    assert why in task.trouble
    task.kill()
    assert why in task.trouble
    assert task.poll() == -9
    assert [actor.ended for actor in ray.actors] == [1] * alive


def test_a_task_that_runs_is_in_no_trouble(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    ray.actors[0].process = 7
    task.poll()
    assert task.trouble == ""
    task.kill()
    assert task.trouble == ""


def test_a_machine_that_refuses_says_why(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    ray.actors[0].became = TaskEnd("refused", why="Machine m does not see the run folder.")
    assert task.poll() == 2
    assert "does not see" in task.trouble


def test_killing_it_ends_its_process_once(ray, setup):
    task = RayTask(setup, ray.place, HERE)
    task.kill()
    task.kill()
    assert ray.actors[0].ended == 1
    assert task.poll() == -9
