"""A trace of jobs: when they arrive, what they need, how long they take alone, and what the queue is told of it."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import AutoCount, StrictDocument, first_problem, read_yaml
from penstock.service.policies import AGE_S, DeviceRoom, JobNeeds

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
    expected_s: Seconds | None = Field(default=None, description="what the queue is told of alone_s")
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
    """The whole of a trace file."""

    devices: list[TraceDevice] = Field(min_length=1, max_length=1024)
    jobs: list[TraceJob] = Field(min_length=1, max_length=_MOST_JOBS)
    age_s: Seconds = Field(default=AGE_S, description="a job that has waited for longer goes first")
    interference: float = Field(
        default=0.0, ge=0, le=10, description="each neighbour makes a job's steps longer by this part, as caches suffer"
    )
    warm_start_s: Seconds = Field(default=0.0, description="from a job's start to its first step in a warm worker")
    cold_start_s: Seconds = Field(default=0.0, description="the same in a new process")
    times_known: bool = Field(default=False, description="the queue is told alone_s of every job")
    shares_known: bool = Field(default=True, description="the queue is told the share of every job")
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
    fields = read_yaml(path, "a trace of jobs")
    try:
        return QueueTrace.model_validate(fields)
    except ValidationError as error:
        raise PenstockError(
            f"{path} is not a valid trace of jobs: {first_problem(error)}.", code="invalid-document"
        ) from None
