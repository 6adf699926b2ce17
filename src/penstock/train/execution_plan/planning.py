"""The plan of a job's execution on one machine, or on each of several."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from penstock.cost.machine import Machine
from penstock.cost.machine_model import machine_model
from penstock.cost.model import CostModel, Extrapolation
from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.plan.execution import BatchKind, ExecutionChoice, ExecutionPlan, outside_measured, search
from penstock.train.assembly import session_of
from penstock.train.device.traced import TracedMemory
from penstock.train.execution_plan.job_space import DeviceRoom, devices_of, schedule_of, space_of
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches
from penstock.train.product_order import with_order_costs
from penstock.train.run_context import run_context


@dataclass(frozen=True)
class PlannedExecution:
    """The plan of a job, and what it was made from."""

    plan: ExecutionPlan
    kind: BatchKind
    machine: Machine
    seconds: float
    """That planning took."""
    room: DeviceRoom | None = None
    """What the job takes of the machine's GPU, where it has one."""
    outside: tuple[Extrapolation, ...] = ()
    """Sizes of the chosen execution that are smaller or larger than all that were measured, the farthest first."""

    @property
    def epoch_s(self) -> float:
        """Predicted seconds of an epoch by the chosen execution."""
        return self.plan.chosen.predicted.seconds * self.kind.batches


def plan_execution(
    job: Job, graph: Graph | None = None, model: CostModel | None = None, device_memory: int | None = None
) -> PlannedExecution:
    """Compare all executions of a job on the machine of a cost model, by default this one's.

    Batches are drawn on the host to be counted. Nothing is trained and no GPU is touched, so a GPU's profile serves on
    a machine without one; `device_memory` is that GPU's, in bytes, and everything fits where it is None.
    """
    (found,) = plan_executions(job, [(machine_model() if model is None else model, device_memory)], graph)
    if isinstance(found, PenstockError):
        raise found
    return found


def plan_executions(
    job: Job, machines: Iterable[tuple[CostModel, int | None]], graph: Graph | None = None
) -> Iterator[PlannedExecution | PenstockError]:
    """The plan for each of several machines, given by their cost models and the bytes of their GPUs.

    Batches are drawn and counted once. A machine that cannot execute the job has the reason instead of a plan.
    """
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}))
    with run_context(on_host):
        session = session_of(on_host, torch.device("cpu"), graph)
        kind = kind_of_batches(session)
        session.job = job
        # What steps take of a GPU is the same on all of them.
        traced = TracedMemory(session, schedule_of(session))
        for model, device_memory in machines:
            began = time.perf_counter()
            if not devices_of(job.device, model):
                yield PenstockError(
                    f"The profile has no operators of {job.device}: name a machine that has it with --machine, such as"
                    " h200, or measure one with `penstock profile --operators -o FILE` and name that file.",
                    code="missing-data",
                )
                continue
            try:
                space, room = space_of(session, model, device_memory, traced)
                plan = search(model, kind, space)
            except PenstockError as error:
                if error.code not in ("missing-data", "out-of-memory"):
                    raise
                yield error
                continue
            chosen = plan.chosen
            outside = outside_measured(model, kind, chosen, space.ways[chosen.choice.first_layer].work)
            yield PlannedExecution(
                plan, kind, model.machine, round(time.perf_counter() - began, 3), room, tuple(outside)
            )


def fields_of(choice: ExecutionChoice) -> dict[str, Any]:
    """The fields of a job that carry out a choice; on a CPU those of a device are left out."""
    found: dict[str, Any] = {
        "device": choice.device,
        "first_layer": choice.first_layer,
        "order": list(choice.order),
        "groups": choice.groups,
        "sample_threads": choice.sample_threads,
    }
    if choice.device == "cpu":
        return found
    placement: dict[str, Any] = {"features": choice.features}
    if choice.features == "pinned":
        placement["cache_rows"] = choice.cache_rows
    return {**found, "sample_on": "device" if choice.sampled_by == "cuda" else "host", "placement": placement}
