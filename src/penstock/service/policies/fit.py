"""The next job starts as soon as its memory is free and a device has throughput to give: no groups, no barriers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from penstock.service.policies.overdue import Packing
from penstock.service.policies.policy import AGE_S, DeviceRoom, RunningJob, Start, WaitingJob, by_size


@dataclass(frozen=True)
class Fit:
    """Short jobs first, each as soon as there is room for it on any device."""

    name = "fit"
    barriers = False
    age_s: float = AGE_S

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """Every job that has room, in the order of expected time. A job without room is passed by smaller ones until it
        is overdue."""
        packing = Packing(waiting, running, devices, age_s=self.age_s, barriers=self.barriers)
        for job in sorted(packing.candidates, key=_by_expected_time(waiting)):
            device = packing.best_device(job)
            if device is not None:
                packing.start(job, device)
        return packing.starts


def _by_expected_time(waiting: Sequence[WaitingJob]) -> Callable[[WaitingJob], tuple[float, ...]]:
    """A sort key: priority, then seconds. Memory stands in for a time that is not known, at the rate of the jobs whose
    time is: in the source, memory and time of a job go together."""
    rates = [job.expected_s / size for job in waiting if job.expected_s is not None and (size := _size(job)) > 0]
    seconds_per_byte = median(rates) if rates else 1.0

    def key(job: WaitingJob) -> tuple[float, ...]:
        expected_s = job.expected_s if job.expected_s is not None else _size(job) * seconds_per_byte
        return (-job.priority, expected_s, *by_size(job))

    return key


def _size(job: WaitingJob) -> int:
    return job.device_bytes or job.host_bytes
