"""A queue on a simulated clock: a trace of jobs under any policy, before anything runs."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from penstock.graph.documents import AutoCount, StrictDocument, read_yaml, validated
from penstock.service import POLICIES
from penstock.service.policies import (
    AGE_S,
    DeviceRoom,
    JobNeeds,
    QueuePolicy,
    RunningJob,
    Start,
    WaitingJob,
    never_fits,
    relative_speed,
    throughput,
)

# A trace of jobs: their arrivals and needs, their times alone, and what the queue knows about them.

GB = 10**9
Name = Annotated[str, Field(min_length=1, max_length=80)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Gigabytes = Annotated[float, Field(ge=0, le=1e6)]
Share = Annotated[float, Field(gt=0, le=1)]

_MOST_JOBS = 100_000


class TraceDevice(StrictDocument):
    """A device; devices with the same `machine` share its host memory and cores."""

    name: Name
    memory_gb: Gigabytes = Field(default=0, description="memory that jobs may reserve; 0 for a CPU")
    host_gb: Gigabytes = Field(default=1e6, description="host memory of its machine")
    cores: float = Field(default=1e6, gt=0, le=1e6)
    machine: str = Field(default="", max_length=80)
    concurrent: AutoCount = Field(default=0, description="jobs at once, or auto: as throughput allows")

    @property
    def room(self) -> DeviceRoom:
        """The device as policies see it."""
        return DeviceRoom(
            name=self.name,
            bytes=round(self.memory_gb * GB),
            host_bytes=round(self.host_gb * GB),
            cores=self.cores,
            concurrent=self.concurrent or None,
            machine=self.machine,
        )


class TraceJob(StrictDocument):
    """A job, or several equal ones that arrive together."""

    name: Name
    arrival_s: Seconds = 0.0
    alone_s: Annotated[float, Field(gt=0, le=1e9)] = Field(description="seconds of its steps, with a device to itself")
    share: Share = Field(default=1.0, description="share of the device's throughput that it uses alone")
    memory_gb: Gigabytes = 0.0
    host_gb: Gigabytes = 0.0
    cores: float = Field(default=0.0, ge=0, le=1e6)
    priority: int = Field(default=0, ge=-1000, le=1000)
    expected_s: Seconds | None = Field(default=None, description="the alone_s that the queue assumes")
    count: int = Field(default=1, ge=1, le=_MOST_JOBS)

    @property
    def needs(self) -> JobNeeds:
        """What policies see of it while it waits and while it runs."""
        return JobNeeds(
            id=self.name,
            device_bytes=round(self.memory_gb * GB),
            host_bytes=round(self.host_gb * GB),
            cores=self.cores,
            share=self.share,
        )


class QueueTrace(StrictDocument):
    """The content of a trace file."""

    devices: list[TraceDevice] = Field(min_length=1, max_length=1024)
    jobs: list[TraceJob] = Field(min_length=1, max_length=_MOST_JOBS)
    age_s: Seconds = Field(default=AGE_S, description="a job that has waited for longer goes first")
    interference: float = Field(
        default=0.0, ge=0, le=10, description="each neighbour makes a job's steps longer by this part, as caches suffer"
    )
    warm_start_s: Seconds = Field(default=0.0, description="from a job's start to its first step in a warm worker")
    cold_start_s: Seconds = Field(default=0.0, description="the same in a new process")
    times_known: bool = Field(default=False, description="the queue knows alone_s of every job")
    shares_known: bool = Field(default=True, description="the queue knows the share of every job")
    measured_after_s: Seconds = Field(
        default=5.0, description="jobs' speeds are measured this long after their neighbours changed"
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> "QueueTrace":
        for what, names in (
            ("device", [each.name for each in self.devices]),
            ("job", [each.name for each in self.jobs]),
        ):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ValueError(f"two {what}s are called {twice}: give each a name of its own, or one of them a count")
        if sum(job.count for job in self.jobs) > _MOST_JOBS:
            raise ValueError(f"the trace has more than {_MOST_JOBS:,} jobs: take fewer")
        return self


def read_queue_trace(path: Path) -> QueueTrace:
    """The trace file at `path`, checked."""
    return validated(QueueTrace, read_yaml(path, "a trace of jobs"), f"{path} is not a valid trace of jobs")


# Bounds that no schedule can beat, from the jobs' true times: on the makespan and on the mean completion. Both relax
# the devices to one machine as fast as all of them together, which can switch between jobs at any time. There a job
# takes `share x alone_s` of throughput and `memory / all memory x alone_s` of memory, whatever runs beside it. On such
# a machine the shortest remaining job first is optimal for the mean completion.


def least_makespan(trace: QueueTrace) -> float:
    """A lower bound on the seconds from the first arrival to the last end."""
    jobs = _possible(trace)
    if not jobs:
        return 0.0
    first = min(job.arrival_s for job in jobs)
    longest = max(job.arrival_s + job.alone_s for job in jobs)
    return max([longest, *(_drained(work) for work in _works(trace, jobs))]) - first


def least_mean_completion(trace: QueueTrace) -> float:
    """A lower bound on the mean seconds from arrival to end."""
    jobs = _possible(trace)
    if not jobs:
        return 0.0
    sums = [sum(job.alone_s for job in jobs), *(_shortest_first(work) for work in _works(trace, jobs))]
    return max(sums) / len(jobs)


def _possible(trace: QueueTrace) -> list[TraceJob]:
    """The jobs that some device can run, repeated by their counts."""
    rooms = [device.room for device in trace.devices]
    fitting = [job for job in trace.jobs if never_fits(job.needs, rooms) is None]
    return [job for job in fitting for _ in range(job.count)]


def _works(trace: QueueTrace, jobs: Sequence[TraceJob]) -> list[list[tuple[float, float]]]:
    """For throughput and for memory: arrival and seconds of all devices for each job."""
    devices = len(trace.devices)
    memory = sum(device.memory_gb for device in trace.devices)
    works = [[(job.arrival_s, job.share * job.alone_s / devices) for job in jobs]]
    if memory:
        works.append([(job.arrival_s, job.memory_gb / memory * job.alone_s) for job in jobs])
    return works


def _drained(work: Sequence[tuple[float, float]]) -> float:
    """When a machine that is never idle while there is work has done it all."""
    now = 0.0
    for arrival, needed in sorted(work):
        now = max(now, arrival) + needed
    return now


def _shortest_first(work: Sequence[tuple[float, float]]) -> float:
    """The sum of completion times with the shortest remaining job first, on one machine that can switch at any time."""
    arrivals = sorted(work)
    waiting: list[list[float]] = []
    now = total = 0.0
    at = 0
    while at < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[at][0])
        while at < len(arrivals) and arrivals[at][0] <= now:
            heapq.heappush(waiting, [arrivals[at][1], arrivals[at][0]])
            at += 1
        until = arrivals[at][0] if at < len(arrivals) else float("inf")
        needed, arrival = waiting[0]
        if now + needed <= until:
            heapq.heappop(waiting)
            now += needed
            total += now - arrival
        else:
            heapq.heapreplace(waiting, [needed - (until - now), arrival])
            now = until
    return total


# The outcome of a queue: when each job started and ended, and its figures.


@dataclass(frozen=True)
class JobOutcome:
    """A job that ran: seconds on the simulated clock."""

    name: str
    device: str
    arrival_s: float
    start_s: float
    end_s: float
    device_bytes: int
    alone_s: float

    @property
    def completion_s(self) -> float:
        """Seconds from the job's arrival to its end."""
        return self.end_s - self.arrival_s

    @property
    def queueing_s(self) -> float:
        """Seconds from the job's arrival to its start."""
        return self.start_s - self.arrival_s


@dataclass(frozen=True)
class GroupOutcome:
    """Jobs that were started together on an idle device by a policy with barriers."""

    device: str
    start_s: float
    jobs: list[str]
    device_bytes: int


@dataclass
class QueueOutcome:
    """A whole trace under one policy."""

    method: str
    jobs: list[JobOutcome] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Jobs that no device could ever run, and why."""
    groups: list[GroupOutcome] = field(default_factory=list)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    """By device: the most memory that its jobs held at once."""
    work_s: float = 0.0
    """Seconds of devices at full throughput that were turned into steps."""
    byte_s: float = 0.0
    """Bytes held times seconds, over all devices."""
    devices: int = 1
    device_bytes: int = 0

    @property
    def makespan_s(self) -> float:
        """From the first arrival to the last end."""
        if not self.jobs:
            return 0.0
        return max(job.end_s for job in self.jobs) - min(job.arrival_s for job in self.jobs)

    def fields(self) -> dict[str, Any]:
        """The figures of this method, for JSON and tables."""
        completions = sorted(job.completion_s for job in self.jobs)
        span = self.makespan_s * self.devices
        memory = self.makespan_s * self.device_bytes
        return {
            "method": self.method,
            "jobs": len(self.jobs),
            "refused": self.refused,
            "makespan_s": self.makespan_s,
            "mean_completion_s": mean(completions),
            "p95_completion_s": completions[max(0, -(-95 * len(completions) // 100) - 1)] if completions else 0.0,
            "mean_queueing_s": mean([job.queueing_s for job in self.jobs]),
            "utilisation": self.work_s / span if span else 0.0,
            "memory_used": self.byte_s / memory if memory else 0.0,
            "peak_memory_gb": {device: held / GB for device, held in self.peak_bytes.items()},
            "groups": [
                {"device": group.device, "start_s": group.start_s, "jobs": group.jobs, "gb": group.device_bytes / GB}
                for group in self.groups
            ],
            "completions_s": completions,
        }

    def rows(self) -> list[dict[str, Any]]:
        """When each job started and ended, in the order of their starts."""
        return [
            {"name": job.name, "device": job.device, "start_s": job.start_s, "end_s": job.end_s}
            | {"completion_s": job.completion_s, "queueing_s": job.queueing_s, "gb": job.device_bytes / GB}
            for job in sorted(self.jobs, key=lambda job: (job.start_s, job.name))
        ]


def mean(values: Sequence[float]) -> float:
    """The mean; 0 of an empty list."""
    return sum(values) / len(values) if values else 0.0


# The clock: jobs arrive, start as the policy says, slow each other down, and end.

_INSTANT = 1e-9
"""Times that differ by less than this part, or by less than so many seconds, are equal."""


def simulate_queue(
    trace: QueueTrace,
    policy: QueuePolicy,
    method: str | None = None,
    devices: Sequence[TraceDevice] | None = None,
    start_s: float | None = None,
) -> QueueOutcome:
    """The trace under the policy. `devices` and `start_s` (seconds from a job's start to its first step) replace those
    of the trace; `method` is the name of the outcome."""
    run = _QueueRun(trace, policy, devices or trace.devices, trace.warm_start_s if start_s is None else start_s)
    return run.finished(method or policy.name)


@dataclass(eq=False)
class _Job:
    """A job of the trace with its remaining work."""

    id: str
    order: int
    given: TraceJob
    starting_s: float
    """Seconds before its first step, in which it holds memory and computes nothing."""
    left_s: float
    device: str = ""
    start_s: float = 0.0

    @property
    def device_bytes(self) -> int:
        return self.given.needs.device_bytes


class _QueueRun:
    def __init__(self, trace: QueueTrace, policy: QueuePolicy, devices: Sequence[TraceDevice], start_s: float) -> None:
        self._trace = trace
        self._policy = policy
        self._rooms = [device.room for device in devices]
        self._now = 0.0
        self._arriving = _jobs_of(trace, start_s)
        self._waiting: dict[str, _Job] = {}
        self._running: dict[str, list[_Job]] = {device.name: [] for device in devices}
        self._changed_s: dict[str, float] = {}
        """By device: when its jobs last changed."""
        self._outcome = QueueOutcome("", devices=len(devices), device_bytes=sum(room.bytes for room in self._rooms))

    def finished(self, method: str) -> QueueOutcome:
        """The outcome, once all jobs have ended."""
        while self._arriving or self._waiting or any(self._running.values()):
            self._arrive()
            self._end()
            self._start(self._decide())
            self._advance(self._next_s())
        self._outcome.method = method
        return self._outcome

    @property
    def _instant_s(self) -> float:
        return _INSTANT * max(1.0, self._now)

    def _arrive(self) -> None:
        while self._arriving and self._arriving[-1].given.arrival_s <= self._now + self._instant_s:
            job = self._arriving.pop()
            reason = never_fits(self._as_waiting(job), self._rooms)
            if reason is None:
                self._waiting[job.id] = job
            else:
                self._outcome.refused[job.id] = reason

    def _end(self) -> None:
        for device, jobs in self._running.items():
            ended = [job for job in jobs if job.starting_s <= 0 and job.left_s <= self._instant_s]
            for job in ended:
                jobs.remove(job)
                self._changed_s[device] = self._now
                self._outcome.jobs.append(
                    JobOutcome(
                        job.id, device, job.given.arrival_s, job.start_s, self._now, job.device_bytes, job.given.alone_s
                    )
                )

    def _decide(self) -> list[Start]:
        if not self._waiting:
            return []
        waiting = [self._as_waiting(job) for job in self._waiting.values()]
        running = [self._as_running(job) for jobs in self._running.values() for job in jobs]
        return self._policy.choose(waiting, running, self._rooms)

    def _start(self, starts: Sequence[Start]) -> None:
        groups: dict[str, list[_Job]] = {}
        for start in starts:
            job = self._waiting.pop(start.id)
            job.device, job.start_s = start.device, self._now
            self._running[start.device].append(job)
            self._changed_s[start.device] = self._now
            groups.setdefault(start.device, []).append(job)
        for device, jobs in groups.items():
            held = sum(job.device_bytes for job in self._running[device])
            self._outcome.peak_bytes[device] = max(held, self._outcome.peak_bytes.get(device, 0))
            if self._policy.barriers:
                self._outcome.groups.append(GroupOutcome(device, self._now, [job.id for job in jobs], held))

    def _next_s(self) -> float:
        """The time of the next event: an arrival, an end, a first step, a measurement, or a job
        that becomes overdue.
        """
        times = [self._arriving[-1].given.arrival_s] if self._arriving else []
        for device, jobs in self._running.items():
            speed = self._speed(device)
            times += [self._now + (job.starting_s if job.starting_s > 0 else job.left_s / speed) for job in jobs]
            if self._waiting and jobs:
                times.append(self._changed_s[device] + self._trace.measured_after_s)
        times += [job.given.arrival_s + self._trace.age_s + self._instant_s for job in self._waiting.values()]
        return min((time for time in times if time > self._now), default=inf)

    def _advance(self, to_s: float) -> None:
        if to_s == inf:
            assert not (self._waiting or self._arriving), f"{self._policy.name} starts none of the jobs that wait"
            return
        passed = to_s - self._now
        for device, jobs in self._running.items():
            speed, shares = self._speed(device), self._computing(device)
            self._outcome.work_s += passed * throughput(shares, self._trace.interference)
            self._outcome.byte_s += passed * sum(job.device_bytes for job in jobs)
            for job in jobs:
                if job.starting_s > 0:
                    job.starting_s = _less(job.starting_s, passed)
                    if not job.starting_s:
                        self._changed_s[device] = to_s
                else:
                    job.left_s = _less(job.left_s, passed * speed)
        self._now = to_s

    def _computing(self, device: str) -> list[float]:
        return [job.given.share for job in self._running[device] if job.starting_s <= 0]

    def _speed(self, device: str) -> float:
        return relative_speed(self._computing(device), self._trace.interference)

    def _as_waiting(self, job: _Job) -> WaitingJob:
        given = job.given
        return WaitingJob(
            **self._needs(job),
            submitted=job.order,
            priority=given.priority,
            waited_s=self._now - given.arrival_s,
            expected_s=given.alone_s if self._trace.times_known else given.expected_s,
        )

    def _as_running(self, job: _Job) -> RunningJob:
        settled = self._now >= self._changed_s[job.device] + self._trace.measured_after_s - self._instant_s
        return RunningJob(
            **self._needs(job),
            device=job.device,
            ran_s=self._now - job.start_s,
            speed=self._speed(job.device) if settled and job.starting_s <= 0 else None,
        )

    def _needs(self, job: _Job) -> dict[str, Any]:
        told = {"share": job.given.share if self._trace.shares_known else None}
        return vars(job.given.needs) | {"id": job.id} | told


def _jobs_of(trace: QueueTrace, start_s: float) -> list[_Job]:
    """All jobs, the last to arrive first; jobs that arrive together keep the order of the trace."""
    names = [
        (job, job.name if job.count == 1 else f"{job.name} {number + 1}")
        for job in trace.jobs
        for number in range(job.count)
    ]
    names.sort(key=lambda each: each[0].arrival_s)
    jobs = [_Job(name, order, job, start_s, job.alone_s) for order, (job, name) in enumerate(names)]
    return jobs[::-1]


def _less(left: float, passed: float) -> float:
    """What is left; a remainder of rounding becomes zero."""
    return left - passed if left - passed > _INSTANT * max(1.0, left) else 0.0


# The methods that are compared: every policy with warm workers, and one job after the other with warm and with cold
# ones.

SEQUENTIAL = "sequential"
SEQUENTIAL_COLD = "sequential-cold"
METHODS = (*POLICIES, SEQUENTIAL, SEQUENTIAL_COLD)
"""The policies, then one job at a time on each device in the order of arrival: in a worker that is kept warm, and in a
new process for every job."""


def simulate_method(trace: QueueTrace, method: str) -> QueueOutcome:
    """The trace under a policy, or one job after the other."""
    if method not in (SEQUENTIAL, SEQUENTIAL_COLD):
        if method not in POLICIES:
            raise POLICIES.unknown(method, SEQUENTIAL, SEQUENTIAL_COLD)
        return simulate_queue(trace, POLICIES[method](trace.age_s))
    devices = [device.model_copy(update={"concurrent": 1}) for device in trace.devices]
    start_s = trace.cold_start_s if method == SEQUENTIAL_COLD else trace.warm_start_s
    return simulate_queue(trace, POLICIES["base"](trace.age_s), method, devices, start_s)
