"""The workload file: machines, their links, and what runs on them: GNN jobs, a language model, or tasks and flows."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from penstock.graph.documents import StrictDocument, read_yaml, validated
from penstock.hardware.cluster import Background, TransportOptions
from penstock.simulate.llm.document import LlmDocument

Name = Annotated[str, Field(min_length=1, max_length=80)]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Rate = Annotated[float, Field(gt=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=4096)]
Ratio = Annotated[float, Field(ge=1, le=100)]
Held = dict[Name, Amount]

_MOST_FLOWS = 5_000_000
_FURTHEST = 1000
"""The largest number of iterations back that an item may wait for."""


class MachineDocument(StrictDocument):
    """One machine. A resource that is not named is not limited."""

    name: Name
    speed: Rate = Field(default=1.0, description="divides the seconds of the tasks here")
    nic_gbps: Rate | None = Field(default=None, description="Gbit/s, each way")
    in_gbps: Rate | None = Field(default=None, description="Gbit/s into it, where the two ways differ")
    out_gbps: Rate | None = None
    rack: str | int | None = None
    resources: Held = Field(default={}, description="what its tasks together may hold, as {gpus: 2}")
    background: Background | None = Field(default=None, description="what other tenants take of its link and cores")

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> "MachineDocument":
        ways = (self.in_gbps is not None, self.out_gbps is not None)
        if any(ways) == (self.nic_gbps is not None) or any(ways) != all(ways):
            raise ValueError(f"give {self.name} either nic_gbps, or both in_gbps and out_gbps")
        if self.background is not None:
            self.background.check(self.name, self.resources.get("cores"), min(self.rates) * 8 / 1e9)
        return self

    @property
    def rates(self) -> tuple[float, float]:
        """Bytes per second in and out."""
        incoming, outgoing = self.in_gbps or self.nic_gbps, self.out_gbps or self.nic_gbps
        assert incoming is not None and outgoing is not None, "checked when it was made"
        return incoming * 1e9 / 8, outgoing * 1e9 / 8


class TaskDocument(StrictDocument):
    """A task of every iteration."""

    name: Name
    kind: Name = "task"
    machine: Name
    seconds: Amount = Field(description="mean, on a machine of speed 1")
    spread: Ratio = Field(default=1.0, description="the peak over the mean of its seconds; 1: always the mean")
    resources: Held = Field(default={})


class FlowDocument(StrictDocument):
    """A flow of every iteration: starts when its source ends, and is waited for by its target."""

    source: Name = Field(validation_alias="from")
    target: Name = Field(validation_alias="to")
    bytes: Amount
    name: Name | None = Field(default=None, description="SOURCE->TARGET if none")
    kind: Name = "flow"
    coflow: Name | None = Field(default=None, description="flows of one coflow belong together; else those to one task")
    lag: int = Field(default=0, ge=0, le=_FURTHEST, description="how many iterations later its target needs it")
    spread: Ratio = 1.0


class WaitDocument(StrictDocument):
    """A further dependency between tasks or flows."""

    before: Name
    after: Name = Field(description="starts when `before` of `lag` iterations ago has ended")
    lag: int = Field(default=0, ge=0, le=_FURTHEST)


class GnnDocument(StrictDocument):
    """GNN training: the fields of `GnnJob`, and where its tasks run."""

    stores: Count
    workers: Count
    samplers_per_worker: Count = 1
    servers: int = Field(default=1, ge=0, le=4096, description="0: gradients are reduced around a ring")
    store_seconds: Amount = 0.0
    sampler_seconds: Amount = 0.0
    worker_seconds: Amount = 0.0
    server_seconds: Amount = 0.0
    pull_bytes: Amount = 0.0
    batch_bytes: Amount = 0.0
    model_bytes: Amount = 0.0
    near_stores: list[list[Amount]] | None = None
    prefetch: int | None = Field(default=None, ge=1, le=_FURTHEST)
    resources: dict[Name, Held] = Field(default={}, description="kind of task -> what each holds")
    spread: dict[Name, Ratio] = Field(default={}, description="kind of task or flow -> peak over mean")
    placement: Literal["round-robin", "together"] = "round-robin"
    machines: dict[Name, Name | list[Name]] = Field(
        default={}, description="task, or kind of task -> its machine, or machines in turn; before `placement`"
    )

    @model_validator(mode="after")
    def _not_too_many(self) -> "GnnDocument":
        pulls = self.stores * self.workers * self.samplers_per_worker
        if max(pulls, self.workers * (self.servers or 2 * self.workers)) > _MOST_FLOWS:
            raise ValueError(f"the job has more than {_MOST_FLOWS:,} flows an iteration: take fewer tasks")
        return self


class TraceDocument(StrictDocument):
    """Coflows of a trace over the ports of one switch."""

    file: str = Field(min_length=1, description="in the format of the public coflow benchmark; from this file's folder")
    port_gbps: Rate = Field(default=1.0, description="Gbit/s, each way")


class WorkloadDocument(StrictDocument):
    """The whole of a workload file."""

    iterations: int | None = Field(default=None, ge=1, le=1_000_000, description="1 if none; of an llm 3")
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    machines: list[MachineDocument] = Field(default=[], max_length=1024)
    oversubscription: Rate = Field(default=1.0, description="what a rack's machines can send over what its uplink can")
    transport: TransportOptions | None = Field(
        default=None, description="what the network does below a fluid; none: flows are fluids"
    )
    uplink_background_gbps: dict[Name, Amount] = Field(
        default={}, description="rack -> Gbit/s of its uplink that other tenants take, each way"
    )
    gnn: dict[Name, GnnDocument] = Field(default={}, description="jobs by name, or one job")
    tasks: list[TaskDocument] = Field(default=[])
    flows: list[FlowDocument] = Field(default=[])
    waits: list[WaitDocument] = Field(default=[], validation_alias="after")
    trace: TraceDocument | None = Field(default=None, description="recorded coflows, on one switch")
    llm: LlmDocument | None = Field(default=None, description="training of a language model, with its own servers")

    @field_validator("gnn", mode="before")
    @classmethod
    def _one_job(cls, raw: Any) -> Any:
        return {"job": raw} if isinstance(raw, dict) and {"stores", "workers"} & set(raw) else raw

    @model_validator(mode="after")
    def _one_form(self) -> "WorkloadDocument":
        loose = bool(self.tasks or self.flows or self.waits)
        if bool(self.gnn) + loose + (self.llm is not None) + (self.trace is not None) != 1:
            raise ValueError("give one of gnn, llm, trace, and tasks with their flows and after")
        if bool(self.machines) == (self.llm is not None or self.trace is not None):
            raise ValueError(
                "an llm has servers of its own and a trace ports: give no machines"
                if self.machines
                else "give machines"
            )
        if not self.machines and (self.transport is not None or self.uplink_background_gbps):
            raise ValueError("transport and uplink_background_gbps are for machines; an llm has its own `routing`")
        racks = {machine.rack is None for machine in self.machines}
        if len(racks) > 1:
            raise ValueError("give every machine a rack, or none of them")
        return self


def read_workload(path: Path) -> WorkloadDocument:
    """The workload file at `path`, validated as far as possible without building it."""
    return validated(WorkloadDocument, read_yaml(path, "a workload file"), f"{path} is not a valid workload")
