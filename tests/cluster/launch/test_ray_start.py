"""Ray that does not start: one sentence, in a time that has a limit."""

import signal
import threading
import time
from types import SimpleNamespace

import pytest

from penstock.cluster.launch import ray_cluster
from penstock.cluster.launch.ray_cluster import TimeLimit, time_limit
from penstock.hardware.cluster import ClusterDocument, Machine, RayOptions
from refusals import refused

TIMED_OUT = "The current node timed out during startup.\nSome of the raylet may have failed to start."


def connected(monkeypatch, init, **options):
    """What comes of starting a Ray whose `init` is another."""
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_cluster, "imported_ray", lambda: ray)
    monkeypatch.delenv(ray_cluster.ADDRESS, raising=False)
    return ray_cluster.connect(ClusterDocument(machines=[Machine(name="m")], ray=RayOptions(**options)))


@pytest.mark.parametrize("kind", [Exception, RuntimeError, TimeoutError, ConnectionError])
def test_whatever_ray_raises_is_one_sentence(kind, monkeypatch):
    pytest.importorskip("ray")

    def init(**given):
        raise kind(TIMED_OUT)

    with refused("peer-lost Ray local (The current node") as caught:
        connected(monkeypatch, init)
    assert "\n" not in str(caught.value) and caught.value.__cause__ is None


def test_ray_that_hangs_is_given_up(monkeypatch):
    pytest.importorskip("ray")

    def init(**given):
        while True:
            time.sleep(0.01)

    with refused("peer-lost 0.2 ray.start_timeout"):
        connected(monkeypatch, init, start_timeout=0.2)


def test_a_limit_leaves_an_alarm_as_it_was():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *given: rang.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 100)
        with pytest.raises(TimeLimit), time_limit(0.05):
            while True:
                time.sleep(0.01)
        left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        assert 0 < left < 100 and rang == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_another_thread_is_left_alone():
    done = []

    def work():
        with time_limit(0.01):
            time.sleep(0.1)
        done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


def test_workers_of_ray_do_not_search_the_working_folder():
    """Ray would put it first on their path: a file there would stand in for an installed module."""
    pytest.importorskip("ray")
    assert ray_cluster._job_config()._runtime_env_has_working_dir()
