"""What a scheduling policy is asked and what it answers.

A policy is a pure function of what waits, what runs and which devices there are: it keeps no state, starts nothing and
reads no clock. The service asks it after every change (a job was submitted, ended or cancelled, a memory prediction
arrived, speeds were measured) and carries out the answer; the simulator asks it on a simulated clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

AGE_S = 1800.0
"""Seconds after which a waiting job counts as overdue: it goes before all others, and memory is kept for it."""


@dataclass(frozen=True, kw_only=True)
class JobNeeds:
    """What a job takes of a device and of its machine while it runs."""

    id: str
    kind: str = ""
    """What computes it, such as cpu or cuda: it runs on devices of that kind only."""
    device_bytes: int = 0
    """Memory on the device as reserved, all included (CUDA context too); 0 on a CPU."""
    host_bytes: int = 0
    cores: float = 0.0
    share: float | None = None
    """Share of the device's throughput that the job uses when it runs alone, from 0 to 1; None where unknown."""
    predicted: bool = False
    """Whether the share was only predicted: where speeds are measured, these count instead."""
    alone: bool = False
    """Whether the job must have the device to itself."""


@dataclass(frozen=True, kw_only=True)
class WaitingJob(JobNeeds):
    """A job that could start as soon as there is room."""

    submitted: int
    """Order of submission; no two jobs have the same."""
    priority: int = 0
    """Jobs of a higher priority go first."""
    waited_s: float = 0.0
    expected_s: float | None = None
    """Seconds the job would take alone, from a profile or from history; None where unknown."""


@dataclass(frozen=True, kw_only=True)
class RunningJob(JobNeeds):
    """A job on a device."""

    device: str
    ran_s: float = 0.0
    """Seconds since it started."""
    speed: float | None = None
    """Its steps per second, relative to running alone, measured since its neighbours last changed: 1 is undisturbed,
    0.5 half as fast. None where too few steps were done since, or its rate alone is not known."""


@dataclass(frozen=True, kw_only=True)
class DeviceRoom:
    """A device with all it has to give, whatever runs on it. Host memory and cores are those of the machine: devices
    that name the same machine share them."""

    name: str
    kind: str = ""
    bytes: int = 0
    """Memory that jobs may reserve, less what is kept back; 0 for a CPU."""
    host_bytes: int
    cores: float
    concurrent: int | None = None
    """How many jobs may run at once; None decides by throughput (`concurrent: auto`)."""
    machine: str = ""


@dataclass(frozen=True)
class Start:
    """The decision to start a waiting job on a device now."""

    id: str
    device: str


class Policy(Protocol):
    """Decides which waiting jobs start now, and where. `policies/__init__.py` lists them."""

    name: str
    barriers: bool
    """Whether jobs run in groups: a device takes no job before the last one of its group has ended. All jobs that one
    answer starts on a device are a group."""

    def __init__(self, age_s: float = AGE_S) -> None: ...

    def choose(
        self, waiting: Sequence[WaitingJob], running: Sequence[RunningJob], devices: Sequence[DeviceRoom]
    ) -> list[Start]:
        """The jobs to start now, each on a device that has room for it beside all others started and running."""
        ...


def by_size(job: WaitingJob) -> tuple[float, ...]:
    """A sort key: priority, then memory (that of the host for a job that needs no other), then order of submission."""
    return (-job.priority, job.device_bytes, job.host_bytes, job.submitted)
