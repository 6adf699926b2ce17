"""When jobs of the queue are expected to end, beside the simulated clock, and the seconds of a run."""

import numpy as np
import pytest

from penstock.service import POLICIES
from penstock.service.policies import DeviceRoom, RunningJob, WaitingJob, expected_ends
from penstock.service.simulation import QueueTrace, simulate_method
from penstock.train.job import make_job
from penstock.train.memory import process_memory
from penstock.train.memory.forecast import RunSeconds, forecast, forecast_fields
from training_graphs import community_graph, typed_graph

ROOM = DeviceRoom(name="gpu", bytes=10, host_bytes=100, cores=8)


def waiting(*seconds, share=1.0, size=6):
    return [
        WaitingJob(id=str(at), submitted=at, device_bytes=size, share=share, expected_s=each)
        for at, each in enumerate(seconds)
    ]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_ends_are_those_of_the_simulator(policy):
    """The simulator has clocks and queues of its own."""
    rng = np.random.default_rng(3)
    jobs = [
        {"name": str(at), "memory_gb": int(rng.integers(1, 10)), "alone_s": float(rng.integers(1, 90)), "share": 0.7}
        for at in range(12)
    ]
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": 10}],
            "jobs": jobs,
            "age_s": 1e8,
            "times_known": True,
            "measured_after_s": 1e8,
        }
    )
    known = [
        WaitingJob(
            id=job["name"], submitted=at, device_bytes=job["memory_gb"] * 10**9, share=0.7, expected_s=job["alone_s"]
        )
        for at, job in enumerate(jobs)
    ]
    room = trace.devices[0].room
    found = expected_ends(known, [], {}, [room], POLICIES[policy](1e8))
    assert found == pytest.approx({job.name: job.end_s for job in simulate_method(trace, policy).jobs})


def test_a_running_job_ends_first_and_one_of_unknown_time_hides_those_behind_it():
    running = [RunningJob(id="9", device="gpu", device_bytes=6, share=1.0)]
    fit = POLICIES["fit"](1e8)
    assert expected_ends(waiting(5.0, 3.0), running, {"9": 4.0}, [ROOM], fit) == {"9": 4.0, "1": 7.0, "0": 12.0}
    assert expected_ends(waiting(5.0, 3.0), running, {"9": None}, [ROOM], fit) == {}
    assert expected_ends(waiting(None, 3.0), running, {"9": 4.0}, [ROOM], fit) == {"9": 4.0}


def test_many_jobs_wait_without_ends():
    found = expected_ends(waiting(*[1.0] * 300), [], {}, [ROOM], POLICIES["fit"](1e8))
    assert len(found) == 200


@pytest.fixture
def stated_process(monkeypatch):
    monkeypatch.setattr(process_memory, "_known", lambda *_: process_memory.ProcessMemory(resident=400 << 20, files=0))
    monkeypatch.setenv("PENSTOCK_OPERATORS", "shipped")


@pytest.mark.parametrize("sampler", ["neighbour", "whole"])
def test_seconds_of_a_run_grow_with_its_steps_and_its_widths(stated_process, sampler):
    graph, fields = (
        community_graph(2000),
        {"fanouts": [5, 5], "layers": 2, "sampler": sampler, "batch_size": 100, "epochs": 2},
    )

    def run_of(**more):
        return forecast(make_job({**fields, **more}), graph, device="cpu").run

    one, more, wider, silent = run_of(), run_of(epochs=10), run_of(hidden=512), run_of(evaluate_every=-1)
    assert isinstance(one, RunSeconds)
    assert more.steps == 5 * one.steps and more.step_s == one.step_s
    assert wider.step_s > 1.2 * one.step_s and wider.validation_s > one.validation_s
    assert silent.validations == 0 and silent.total < one.total
    assert one.total == pytest.approx(one.apart_s + one.steps * one.step_s + one.validations * one.validation_s)


def test_what_was_not_measured_is_said(stated_process):
    found = forecast_fields(forecast(make_job({"model": "rgcn", "fanouts": [5, 5]}), typed_graph(), device="cpu"))
    assert found["run"] is None and "several types" in found["run_unknown"]
    found = forecast_fields(forecast(make_job({"fanouts": [5, 5]}), community_graph(200), device="cuda"))
    assert found["run"] is None and "of a GPU were not measured" in found["run_unknown"]
