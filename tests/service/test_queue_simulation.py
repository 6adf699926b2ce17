"""Queues on a simulated clock: equal to a plain simulator, never over what a device has, never below the bounds."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_queue import PlainJob, plain_ends

from penstock.service import POLICIES
from penstock.service.simulation import (
    METHODS,
    QueueOutcome,
    QueueTrace,
    least_makespan,
    least_mean_completion,
    simulate_method,
    simulate_queue,
)

FOREVER = 1e8

plain_jobs = st.lists(
    st.tuples(st.integers(1, 10), st.integers(1, 50), st.integers(1, 10)), min_size=1, max_size=9
)  # Memory, seconds, tenths of the device.

traces = st.builds(
    lambda jobs, devices, **options: QueueTrace.model_validate({"jobs": jobs, "devices": devices, **options}),
    jobs=st.lists(
        st.fixed_dictionaries(
            {
                "arrival_s": st.integers(0, 100),
                "alone_s": st.integers(1, 60),
                "share": st.sampled_from([0.1, 0.25, 0.5, 0.8, 1.0]),
                "memory_gb": st.integers(0, 14),
                "host_gb": st.integers(0, 8),
                "cores": st.integers(0, 4),
                "priority": st.integers(0, 1),
            }
        ),
        min_size=1,
        max_size=14,
    ).map(lambda jobs: [{"name": f"job {at}", **job} for at, job in enumerate(jobs)]),
    devices=st.lists(
        st.fixed_dictionaries(
            {
                "memory_gb": st.integers(8, 12),
                "host_gb": st.integers(8, 30),
                "cores": st.integers(4, 8),
                "machine": st.sampled_from(["a", "b"]),
                "concurrent": st.sampled_from(["auto", 1, 3]),
            }
        ),
        min_size=1,
        max_size=3,
    ).map(lambda devices: _same_host([{"name": f"gpu {at}", **device} for at, device in enumerate(devices)])),
    age_s=st.sampled_from([20.0, 1e6]),
    interference=st.sampled_from([0.0, 0.1]),
    warm_start_s=st.sampled_from([0.0, 3.0]),
    times_known=st.booleans(),
    shares_known=st.booleans(),
)


def _same_host(devices: list[dict]) -> list[dict]:
    """Devices of one machine have one host."""
    first = {}
    for device in devices:
        host = first.setdefault(device["machine"], device)
        device |= {"host_gb": host["host_gb"], "cores": host["cores"]}
    return devices


@given(plain_jobs, st.sampled_from(["base", "lmcf", "bmc", "fit"]), st.integers(10, 20), st.integers(1, 4))
def test_it_agrees_with_a_plain_simulator(jobs, policy: str, memory: int, limit: int) -> None:
    plain = [
        PlainJob(f"{at}", size, Fraction(seconds), Fraction(tenths, 10))
        for at, (size, seconds, tenths) in enumerate(jobs)
    ]
    expected = plain_ends(plain, policy, memory, limit)
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": memory, "concurrent": limit}],
            "jobs": [
                {"name": job.name, "memory_gb": job.memory, "alone_s": float(job.seconds), "share": float(job.share)}
                for job in plain
            ],
            "age_s": FOREVER,
        }
    )
    found = simulate_queue(trace, POLICIES[policy](FOREVER))
    assert {job.name: job.end_s for job in found.jobs} == pytest.approx(
        {name: float(end) for name, end in expected.items()}
    )


@given(traces, st.sampled_from(METHODS))
def test_every_job_ends_or_is_refused_and_nothing_is_given_twice(trace: QueueTrace, method: str) -> None:
    found = simulate_method(trace, method)
    too_large = {
        job.name
        for job in trace.jobs
        if not any(
            job.memory_gb <= device.memory_gb and job.host_gb <= device.host_gb and job.cores <= device.cores
            for device in trace.devices
        )
    }
    assert set(found.refused) == too_large
    assert sorted(job.name for job in found.jobs) == sorted({job.name for job in trace.jobs} - too_large)
    _check_limits(trace, found, limit=method in POLICIES)
    for job in found.jobs:
        assert job.start_s >= job.arrival_s - 1e-6
        assert job.end_s - job.start_s >= job.alone_s * (1 - 1e-6)
    if found.jobs:
        assert found.makespan_s >= least_makespan(trace) * (1 - 1e-6)
        assert found.fields()["mean_completion_s"] >= least_mean_completion(trace) * (1 - 1e-6)
        assert 0 < found.fields()["utilisation"] <= 1 + 1e-6


def _check_limits(trace: QueueTrace, found: QueueOutcome, limit: bool) -> None:
    """At the moment after each start, the jobs on each device and machine together have room."""
    given_jobs = {job.name: job for job in trace.jobs}
    machines = {device.name: device.machine for device in trace.devices}
    for moment in {job.start_s for job in found.jobs}:
        now = [job for job in found.jobs if job.start_s <= moment < job.end_s - 1e-6]
        for device in trace.devices:
            here = [given_jobs[job.name] for job in now if job.device == device.name]
            machine = [given_jobs[job.name] for job in now if machines[job.device] == device.machine]
            assert sum(job.memory_gb for job in here) <= device.memory_gb
            assert sum(job.host_gb for job in machine) <= device.host_gb
            assert sum(job.cores for job in machine) <= device.cores
            assert len(here) <= (device.concurrent or len(here)) if limit else len(here) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(1, 7)), min_size=5, max_size=40),
    st.integers(1, 2),
    st.sampled_from(["auto", 2, 4]),
    st.sampled_from(sorted(POLICIES)),
    st.booleans(),
)
def test_a_large_job_waits_no_longer_than_those_that_ran_when_it_became_overdue(
    stream, devices: int, concurrent, policy: str, shares_known: bool
) -> None:
    """However many small jobs arrive: it starts when the last of the jobs that ran at that moment has ended."""
    age_s = 25.0
    small = [
        {"name": f"{at}", "arrival_s": arrival, "alone_s": seconds, "memory_gb": size, "share": size / 10}
        for at, (arrival, seconds, size) in enumerate(stream)
    ]
    large = {"name": "large", "alone_s": 10, "memory_gb": 10, "share": 1.0}
    # One that fills the device is there before it.
    blocker = {"name": "blocker", "alone_s": 5, "memory_gb": 10, "share": 1.0, "priority": 5, "count": devices}
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": f"gpu {at}", "memory_gb": 10, "concurrent": concurrent} for at in range(devices)],
            "jobs": [blocker, large, *small],
            "age_s": age_s,
            "shares_known": shares_known,
        }
    )
    jobs = simulate_method(trace, policy).jobs
    found = next(job for job in jobs if job.name == "large")
    ran_then = [job.end_s for job in jobs if job.start_s < age_s <= job.end_s and job is not found]
    assert found.start_s <= max([age_s, *ran_then]) + 1e-6


@given(
    st.lists(st.tuples(st.integers(1, 10), st.integers(1, 50), st.integers(1, 10)), min_size=1, max_size=20),
    st.booleans(),
)
def test_how_much_longer_than_the_best_schedule_fit_can_take(jobs, times_known: bool) -> None:
    """For jobs that are all there at the start. While a job waits, nine tenths of the throughput are used, or so much
    memory that it does not fit; shares add up to 1.9 at most, so that nobody is slower than that. Adding up all times:
    those without throughput, those in which a small job lacks memory (half of it is used), those in which a large one
    does (another large one runs, or the last small ones), and the last job."""
    memory = 10
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": memory}],
            "jobs": [
                {"name": str(at), "memory_gb": size, "alone_s": seconds, "share": tenths / 10}
                for at, (size, seconds, tenths) in enumerate(jobs)
            ],
            "age_s": FOREVER,
            "times_known": times_known,
        }
    )
    work = sum(seconds * tenths / 10 for _, seconds, tenths in jobs)
    area = sum(size * seconds / memory for size, seconds, _ in jobs)
    large = sum(seconds for size, seconds, _ in jobs if 2 * size > memory)
    longest = max(seconds for _, seconds, _ in jobs)
    found = simulate_method(trace, "fit")
    assert found.makespan_s <= work / 0.9 + 3.8 * area + 1.9 * large + 3.8 * longest + 1e-6
    # And never longer than one after the other: two or more jobs at 1/1.9 of their speed do more than one alone.
    assert found.makespan_s <= simulate_method(trace, "sequential").makespan_s + 1e-6


def test_interference_and_starts_take_their_time() -> None:
    fields = {
        "devices": [{"name": "gpu", "memory_gb": 10, "concurrent": 2}],
        "jobs": [{"name": "a", "alone_s": 10, "share": 0.5, "count": 2}],
        "interference": 0.2,
        "warm_start_s": 1.0,
        "cold_start_s": 4.0,
    }
    trace = QueueTrace.model_validate(fields)
    assert simulate_method(trace, "fit").makespan_s == pytest.approx(1 + 10 * 1.2)
    assert simulate_method(trace, "sequential").makespan_s == pytest.approx(2 * (1 + 10))
    assert simulate_method(trace, "sequential-cold").makespan_s == pytest.approx(2 * (4 + 10))


def test_measured_speeds_find_how_many_jobs_a_device_can_take() -> None:
    """Of jobs whose share nobody knows, as many run at once as the device has throughput for, and one more."""
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": 100}],
            "jobs": [{"name": "a", "alone_s": 1000, "share": 0.25, "memory_gb": 1, "count": 20}],
            "shares_known": False,
            "measured_after_s": 5.0,
            "age_s": FOREVER,
        }
    )
    jobs = simulate_method(trace, "fit").jobs
    starts = sorted(job.start_s for job in jobs)
    assert starts[:5] == [0, 0, 5, 10, 15]
    assert starts[5] > 1000
    together = [sum(other.start_s <= job.start_s < other.end_s for other in jobs) for job in jobs]
    assert max(together) == 5


def test_the_bounds_by_hand() -> None:
    """Three jobs of one second of the whole device; one that arrives late; nothing can end them sooner."""
    trace = QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": 10}],
            "jobs": [{"name": "a", "alone_s": 1, "count": 3}, {"name": "b", "alone_s": 1, "arrival_s": 10}],
        }
    )
    assert least_makespan(trace) == 11
    assert least_mean_completion(trace) == pytest.approx((1 + 2 + 3 + 1) / 4)
