"""What came of a queue: when each job started and ended, and what that means for those who wait for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.service.simulation.document import GB


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
        """From arrival to end."""
        return self.end_s - self.arrival_s

    @property
    def queueing_s(self) -> float:
        """From arrival to start."""
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
    """The mean, 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
