"""The clock: jobs arrive, start as the policy says, slow each other down, and end."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from penstock.service.policies import Policy, RunningJob, Start, WaitingJob, never_fits
from penstock.service.simulation.document import QueueTrace, TraceDevice, TraceJob
from penstock.service.simulation.outcome import GroupOutcome, JobOutcome, QueueOutcome
from penstock.service.simulation.sharing import relative_speed, throughput

_INSTANT = 1e-9
"""Moments that differ by less than this part, or by less than so many seconds, are the same."""


def simulate_queue(
    trace: QueueTrace,
    policy: Policy,
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
    """A job of the trace with what is left of it."""

    id: str
    order: int
    given: TraceJob
    starting_s: float
    """Seconds before its first step; in these it holds memory and computes nothing."""
    left_s: float
    device: str = ""
    start_s: float = 0.0

    @property
    def device_bytes(self) -> int:
        return self.given.needs.device_bytes


class _QueueRun:
    def __init__(self, trace: QueueTrace, policy: Policy, devices: Sequence[TraceDevice], start_s: float) -> None:
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
        """What came of it, once all jobs have ended."""
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
        """When something happens next: an arrival, an end, a first step, a measurement, or a job becomes overdue."""
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
    """What is left; a rest that is only rounding is nothing."""
    return left - passed if left - passed > _INSTANT * max(1.0, left) else 0.0
