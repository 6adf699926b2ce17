"""A process of the service and the job that it works for."""

import signal
import time
from dataclasses import dataclass, field
from typing import Any

from penstock.service.records import JobRecord
from penstock.service.rooms import Room
from penstock.service.speeds import SpeedMeter, Speeds
from penstock.service.workers.starter import StartedTask

GRACE_S = 20.0
"""Seconds for a job to finish its step and write a checkpoint."""


@dataclass
class ActiveTask:
    """A process of the service and the job that it works for."""

    record: JobRecord
    process: StartedTask
    kind: str
    """train or forecast."""
    likeness: str = ""
    room: Room | None = None
    trains: bool = False
    """Whether it has begun to train, which ends its start."""
    outcome: dict[str, Any] | None = None
    too_much: str | None = None
    began: float = field(default_factory=time.monotonic)
    told_to_stop: float | None = None
    now_bytes: int = 0
    """What it holds of the host's memory now, without pages of files."""
    host_bytes: int = 0
    """The most that it has held of the host's memory."""
    device_bytes: int = 0
    """The most that it has reserved of the device, as it says."""
    meter: SpeedMeter = field(default_factory=SpeedMeter)
    metric: dict[str, Any] = field(default_factory=dict)
    """The best validation of the job so far (`JobRecord.metric`), as its process says."""

    @property
    def seconds(self) -> float:
        """How long the job has run, its earlier tries included."""
        return self.record.seconds + time.monotonic() - self.began

    def live(self) -> dict[str, Any]:
        """What is known of the job beyond its record while it runs."""
        return {
            "seconds": round(self.seconds, 1),
            "metric": self.metric or self.record.metric,
            "peak_host_bytes": max(self.host_bytes, self.record.peak_host_bytes or 0),
            "peak_device_bytes": max(self.device_bytes, self.record.peak_device_bytes or 0),
        }

    def shown(self, speeds: Speeds) -> dict[str, Any]:
        """The job on its device as users see it: what it was granted, what it took, how fast it is."""
        return {
            "id": self.record.id,
            "name": self.record.name,
            "granted_device_bytes": self.record.granted_device_bytes,
            "granted_host_bytes": self.record.granted_host_bytes,
            "device_bytes": self.device_bytes,
            "host_bytes": self.now_bytes,
            "peak_host_bytes": self.host_bytes,
            "cores": self.record.cores,
            "steps": self.meter.steps,
            "speed": speeds.of(self.meter, self.likeness),
            "seconds": round(time.monotonic() - self.began, 1),
        }

    def stop(self) -> None:
        """Ask the process to stop; where it does not, it is killed later."""
        if self.told_to_stop is None:
            self.told_to_stop = time.monotonic()
            self.process.name.signal(signal.SIGTERM if self.kind == "train" else signal.SIGKILL)
        elif time.monotonic() - self.told_to_stop > GRACE_S:
            self.process.name.signal(signal.SIGKILL)
