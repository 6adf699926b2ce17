"""The plan of a job's execution on one machine."""

import time
from dataclasses import dataclass

import torch

from penstock.cost.machine import Machine
from penstock.cost.machine_model import machine_model
from penstock.cost.model import CostModel
from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.plan.execution import BatchKind, ExecutionPlan, search
from penstock.train.assembly import session_of
from penstock.train.execution_plan.job_space import devices_of, space_of
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


def plan_execution(
    job: Job, graph: Graph | None = None, model: CostModel | None = None, device_memory: int | None = None
) -> PlannedExecution:
    """Compare all executions of a job on the machine of a cost model, by default this one's.

    Batches are drawn on the host to be counted. Nothing is trained and no GPU is touched, so a GPU's profile serves on
    a machine without one; `device_memory` is that GPU's, in bytes, and everything fits where it is None.
    """
    began, model = time.perf_counter(), machine_model() if model is None else model
    if not devices_of(job.device, model):
        raise PenstockError(
            f"The profile has no operators of {job.device}: measure a machine that has it with `penstock profile"
            " --operators -o FILE`, and name that file with --profile.",
            code="missing-data",
        )
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}))
    with run_context(on_host):
        session = session_of(on_host, torch.device("cpu"), graph)
        kind = kind_of_batches(session)
        session.job = job
        plan = search(model, kind, space_of(session, model, device_memory))
    return PlannedExecution(plan, kind, model.machine, round(time.perf_counter() - began, 3))
