"""When jobs of the queue are expected to end: the policy's own decisions on a clock that runs ahead."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

from penstock.service.policies import UNKNOWN_SHARE, DeviceRoom, JobNeeds, QueuePolicy, RunningJob, WaitingJob
from penstock.service.simulation import relative_speed

_MOST_WAITING = 200
"""Waiting jobs whose ends are predicted, the first ones to have been submitted: each end asks the policy again."""


def expected_ends(
    waiting: Sequence[WaitingJob],
    running: Sequence[RunningJob],
    left_s: Mapping[str, float | None],
    devices: Sequence[DeviceRoom],
    policy: QueuePolicy,
) -> dict[str, float]:
    """Seconds from now to the end of each job whose time is known, and which starts before those whose time is not
    have to end. `left_s` are the seconds that running jobs would still take as fast as they are now.
    """
    if len(waiting) > _MOST_WAITING:
        waiting = sorted(waiting, key=lambda job: (-job.priority, job.submitted))[:_MOST_WAITING]
    on: dict[str, dict[str, RunningJob]] = {device.name: {} for device in devices}
    for job in running:
        on.setdefault(job.device, {})[job.id] = job
    # Seconds of a device that does nothing else.
    left = {job.id: (left_s.get(job.id) or inf) * _speed(on[job.device].values()) for job in running}
    found, now = dict[str, float](), 0.0
    while True:
        ahead = [replace(job, ran_s=job.ran_s + now) for jobs in on.values() for job in jobs.values()]
        for start in policy.choose([replace(job, waited_s=job.waited_s + now) for job in waiting], ahead, devices):
            begun = next(each for each in waiting if each.id == start.id)
            waiting = [each for each in waiting if each is not begun]
            needs = {name: getattr(begun, name) for name in JobNeeds.__dataclass_fields__}
            on[start.device][begun.id] = RunningJob(**needs, device=start.device, ran_s=-now)
            left[begun.id] = inf if begun.expected_s is None else begun.expected_s
        speeds = {name: _speed(jobs.values()) for name, jobs in on.items()}
        passed = min((left[job] / speeds[name] for name, jobs in on.items() for job in jobs), default=inf)
        if passed == inf:
            return found
        now += passed
        for name, jobs in on.items():
            for job_id in list(jobs):
                left[job_id] -= passed * speeds[name]
                if left[job_id] <= 1e-9 * max(1.0, now):
                    found[job_id] = now
                    del jobs[job_id]
            # Speeds that were measured were those beside the jobs that have ended.
            on[name] = {job_id: replace(job, speed=None) for job_id, job in jobs.items()}


def _speed(jobs: Iterable[RunningJob]) -> float:
    """The speed of jobs beside each other on a device, relative to running alone."""
    return relative_speed([UNKNOWN_SHARE if job.share is None else job.share for job in jobs], 0.0)
