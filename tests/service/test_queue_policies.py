"""Which job starts where, by policy, on cases small enough to be decided by hand."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.service import POLICIES
from penstock.service.policies import AGE_S, DeviceRoom, Packing, RunningJob, WaitingJob, by_size, never_fits
from refusals import refused

GPU = DeviceRoom(name="cuda:0", bytes=100, host_bytes=1000, cores=16, concurrent=8)
AUTO = DeviceRoom(name="cuda:0", bytes=100, host_bytes=1000, cores=16)


def jobs(*sizes: int, **fields: object) -> list[WaitingJob]:
    return [
        WaitingJob(id=f"{order}:{size}", device_bytes=size, submitted=order, **fields)  # type: ignore[arg-type]
        for order, size in enumerate(sizes)
    ]


def started(policy: str, waiting, running=(), devices=(GPU,), age_s=1800.0) -> list[str]:
    starts = POLICIES[policy](age_s).choose(waiting, running, devices)
    return [start.id for start in starts]


@pytest.mark.parametrize(
    ("policy", "group"),
    [
        ("base", ["0:50", "1:30"]),
        ("lmcf", ["3:10", "4:20", "1:30"]),
        # Smallest, largest, smallest; then no larger one has room.
        ("bmc", ["3:10", "2:60", "4:20"]),
        ("fit", ["3:10", "4:20", "1:30"]),
    ],
)
def test_the_first_group_of_each_policy(policy: str, group: list[str]) -> None:
    assert started(policy, jobs(50, 30, 60, 10, 20)) == group


@pytest.mark.parametrize("policy", POLICIES)
def test_an_exact_fit_is_taken_and_an_oversized_job_passes_nobody(policy: str) -> None:
    assert sorted(started(policy, jobs(101, 40, 60))) == ["1:40", "2:60"]


@pytest.mark.parametrize("policy", ["base", "lmcf", "bmc"])
def test_a_group_ends_before_the_next_begins(policy: str) -> None:
    running = [RunningJob(id="old", device="cuda:0", device_bytes=10)]
    assert started(policy, jobs(10, 20), running) == []


def test_fit_starts_beside_running_jobs() -> None:
    running = [RunningJob(id="old", device="cuda:0", device_bytes=75)]
    assert started("fit", jobs(30, 25), running) == ["1:25"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_priority_goes_before_the_order_of_the_policy(policy: str) -> None:
    urgent = WaitingJob(id="urgent", device_bytes=95, submitted=9, priority=1)
    assert started(policy, [*jobs(10, 20), urgent]) == ["urgent"]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_job_that_must_run_alone_has_the_device_to_itself(policy: str) -> None:
    lonely = jobs(1, alone=True)
    assert started(policy, [*lonely, WaitingJob(id="next", device_bytes=2, submitted=5)]) == ["0:1"]
    running = [RunningJob(id="old", device="cuda:0", device_bytes=1, alone=True)]
    assert started(policy, jobs(2), running) == []
    running = [RunningJob(id="old", device="cuda:0", device_bytes=1)]
    assert started(policy, lonely, running) == []


@pytest.mark.parametrize("policy", POLICIES)
def test_cores_and_host_memory_are_shared_by_a_machines_devices(policy: str) -> None:
    devices = [
        DeviceRoom(name=name, bytes=100, host_bytes=10, cores=2, machine=machine, concurrent=4)
        for name, machine in (("a0", "a"), ("a1", "a"), ("b0", "b"))
    ]
    waiting = [WaitingJob(id=str(order), host_bytes=6, cores=1, submitted=order) for order in range(3)]
    starts = POLICIES[policy]().choose(waiting, [], devices)
    machines = [start.device[0] for start in starts]
    assert sorted(machines) == ["a", "b"]


def test_a_cpu_counts_cores_and_host_memory() -> None:
    cpu = DeviceRoom(name="cpu", host_bytes=100, cores=2)
    waiting = [WaitingJob(id=str(order), host_bytes=20, cores=1, submitted=order, share=0.5) for order in range(3)]
    assert started("fit", waiting, devices=[cpu]) == ["0", "1"]


def test_jobs_run_on_devices_of_their_kind_and_share_the_host() -> None:
    devices = [
        DeviceRoom(name="cuda:0", kind="cuda", bytes=100, host_bytes=10, cores=4),
        DeviceRoom(name="cpu", kind="cpu", host_bytes=10, cores=4),
    ]
    waiting = [
        WaitingJob(id=f"{kind} {order}", kind=kind, host_bytes=6, cores=1, submitted=order)
        for order, kind in enumerate(("cpu", "cuda"))
    ]
    starts = POLICIES["fit"]().choose(waiting, [], devices)
    assert [(start.id, start.device) for start in starts] == [("cpu 0", "cpu")]
    assert "kind tpu" in (never_fits(WaitingJob(id="a", kind="tpu", submitted=0), devices) or "")


def test_fit_goes_by_known_times_and_takes_memory_for_unknown_ones() -> None:
    waiting = [
        WaitingJob(id="short", device_bytes=40, submitted=0, expected_s=1.0),
        WaitingJob(id="long", device_bytes=30, submitted=1, expected_s=90.0),
        WaitingJob(id="unknown", device_bytes=20, submitted=2),
    ]
    # The known jobs take a median of about 1.5 s for each byte: the unknown one is expected to take 30 s.
    assert started("fit", waiting) == ["short", "unknown", "long"]


def test_auto_starts_two_jobs_of_which_nothing_is_known() -> None:
    assert started("fit", jobs(1, 1, 1), devices=[AUTO]) == ["0:1", "1:1"]


@pytest.mark.parametrize(
    ("speeds", "count"),
    [
        ((1.0, 1.0), 1),  # Undisturbed: one more is tried.
        ((0.97, 1.0, 1.0), 1),
        ((1.0,) * 12, 1),
        ((0.8, 0.8), 0),  # Saturated.
        ((1.0, None), 0),  # Not measured since the last start.
    ],
)
def test_auto_tries_one_more_job_while_the_running_ones_are_undisturbed(
    speeds: tuple[float | None, ...], count: int
) -> None:
    running = [RunningJob(id=str(at), device="cuda:0", speed=speed) for at, speed in enumerate(speeds)]
    assert len(started("fit", jobs(1, 1, 1), running, [AUTO])) == count


def test_auto_fills_the_device_by_predicted_shares() -> None:
    # 0.4 + 0.4 leaves a fifth of the device, for which a third job starts; beside 0.95 nothing does.
    assert started("fit", jobs(1, 2, 3, 4, share=0.4), devices=[AUTO]) == ["0:1", "1:2", "2:3"]
    assert started("fit", jobs(1, 2, share=0.95), devices=[AUTO]) == ["0:1"]


def test_jobs_spread_over_devices() -> None:
    devices = [DeviceRoom(name=name, bytes=100, host_bytes=1000, cores=16) for name in ("one", "two")]
    starts = POLICIES["fit"]().choose(jobs(10, 10, share=0.4), [], devices)
    assert {start.device for start in starts} == {"one", "two"}


def test_base_leaves_a_job_for_the_larger_device() -> None:
    devices = [
        DeviceRoom(name="small", bytes=10, host_bytes=1000, cores=16),
        DeviceRoom(name="large", bytes=100, host_bytes=1000, cores=16),
    ]
    starts = POLICIES["base"]().choose(jobs(50, 10), [], devices)
    assert {(start.id, start.device) for start in starts} == {("0:50", "large"), ("1:10", "small")}


def test_room_is_kept_for_an_overdue_job() -> None:
    late = WaitingJob(id="late", device_bytes=80, submitted=0, waited_s=110)
    small = WaitingJob(id="small", device_bytes=15, submitted=1)
    other = WaitingJob(id="other", device_bytes=15, submitted=2)
    # Two ran before the job became overdue, ten seconds ago. Beside the claim of 80 there is room for one small job.
    running = [RunningJob(id=str(at), device="cuda:0", device_bytes=30, ran_s=20) for at in range(2)]
    assert started("fit", [late, small, other], running, age_s=100) == ["small"]
    # Before it is overdue, small jobs pass it.
    assert started("fit", [late, small, other], running, age_s=1000) == ["small", "other"]
    # What was started since counts against the room that may be given away.
    running = [running[0], RunningJob(id="1", device="cuda:0", device_bytes=15, ran_s=5)]
    assert started("fit", [late, small, other], running, age_s=100) == []


def test_an_overdue_job_goes_first_and_measured_speeds_do_not_stop_it() -> None:
    late = WaitingJob(id="late", device_bytes=20, submitted=3, waited_s=110, share=0.3)
    running = [RunningJob(id=str(at), device="cuda:0", share=0.4, speed=0.7) for at in range(2)]
    assert started("fit", [late, *jobs(1, share=0.1)], running, [AUTO], age_s=100) == ["late"]
    assert started("fit", [late, *jobs(1, share=0.1)], running, [AUTO], age_s=200) == []


def test_what_no_device_could_run_is_said_in_a_sentence() -> None:
    assert never_fits(jobs(100)[0], [GPU]) is None
    assert "101 bytes of device memory where cuda:0 has 100" in (never_fits(jobs(101)[0], [GPU]) or "")
    assert "32 cores" in (never_fits(jobs(1, cores=32)[0], [GPU]) or "")


def test_an_unknown_policy_is_refused() -> None:
    with refused("unknown-name lmfc lmcf"):
        POLICIES["lmfc"]


def test_the_policy_in_the_documentation_works(added) -> None:
    page = (Path(__file__).parents[2] / "docs" / "queue.md").read_text()
    (code,) = re.findall(r"```text\n(@dataclass.*?class LargestFirst.*?)```", page, re.S)
    names = {"AGE_S": AGE_S, "Packing": Packing, "by_size": by_size, "dataclass": dataclass}
    exec(code, names)
    added(POLICIES, "largest-first", names["LargestFirst"])
    assert started("largest-first", jobs(50, 30, 60, 10, 20)) == ["2:60", "1:30", "3:10"]
