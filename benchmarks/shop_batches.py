"""Groups of batches as job shops, with the times of a machine whose operators were measured.

Batches are drawn from a graph and counted; the cost model of a profile (`penstock profile --operators`) says what each
operator of each takes there. A batch has a route for each way to read its first layer's inputs from host memory that
the plan of an execution compares. The host's cores are one machine: an operator of one core takes that part of it.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch

from penstock.cost.model import CostModel, counted_block
from penstock.graph.folder import Graph
from penstock.pipeline.schedule import Schedule
from penstock.plan.execution import BatchKind, Space, search
from penstock.plan.execution.choice import ExecutionChoice
from penstock.plan.execution.first_layer import CORES, DOWN, GPU, UP, BatchOperators, batch_operators
from penstock.simulate.shop import Choice, Shop
from penstock.simulate.shop.shop import Route
from penstock.train.assembly import session_of
from penstock.train.auto_values import with_order_costs
from penstock.train.execution_plan import space_of
from penstock.train.job import Job
from penstock.train.job_batches import kind_of_batches, sample_sizes
from penstock.train.run_context import run_context
from penstock.train.session import Session

MACHINES = (CORES, UP, DOWN, GPU)
LINKS = [MACHINES.index(UP) + 1, MACHINES.index(DOWN) + 1]


def groups_of_batches(
    model: CostModel, job: Job, graph: Graph, groups: int, sizes: tuple[int, int], seed: int
) -> Iterator[Shop]:
    """So many groups of a job's batches, of sizes between two; times are whole microseconds."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(sizes[0], sizes[1] + 1, groups).tolist()
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}))
    with run_context(on_host):
        session = session_of(on_host, torch.device("cpu"), graph)
        kind = kind_of_batches(session)
        session.job = job
        space = space_of(session, model, None)
        choices = _choices(model, kind, space)
        kinds = list(_kinds(session, kind, sum(counts)))
    cores, drawn = float(model.machine.cores), iter(kinds)
    for number, count in enumerate(counts):
        batches = tuple(
            tuple(
                _route(batch_operators(model, each, choice, space.ways[choice.first_layer].work), cores)
                for choice in choices
            )
            for each in islice(drawn, count)
        )
        yield Shop(f"{job.model} {graph.name} {number}", MACHINES, batches, 1e-6)


def _choices(model: CostModel, kind: BatchKind, space: Space) -> list[ExecutionChoice]:
    """The fastest order of each way to read features from host memory, for steps of a GPU."""
    found: dict[tuple[Any, ...], ExecutionChoice] = {}
    for each in search(model, kind, space).alternatives:
        choice = each.choice
        if choice.device == "cuda" and choice.features != "device" and choice.groups == 1 and not choice.cache_rows:
            found.setdefault((choice.first_layer, choice.features, choice.sampled_by), choice)
    return list(found.values())


def _kinds(session: Session, kind: BatchKind, count: int) -> Iterator[BatchKind]:
    """Batches of the job's schedule, epoch after epoch, each with its own sizes."""
    job, task = session.job, session.task
    fanouts = tuple(fanout for fanout in job.fanouts if isinstance(fanout, int))
    for planned in islice(Schedule(task.items, task.batch_size, job.seed).from_position(), count):
        batch: Any = task.sample(planned)
        blocks = tuple(counted_block(block) for block in batch.blocks)
        yield replace(kind, blocks=blocks, sample=sample_sizes(session, batch, fanouts))


def _route(operators: BatchOperators, cores: float) -> Route:
    """Operators one after the other; those that follow each other on one machine are one."""
    found: list[tuple[int, float]] = []
    for each in (each for stage in operators.stages for each in stage):
        (resource,) = each.lane.resources
        seconds = each.use(resource) / (cores if resource == CORES else 1.0)
        machine = MACHINES.index(resource)
        if found and found[-1][0] == machine:
            found[-1] = machine, found[-1][1] + seconds
        else:
            found.append((machine, seconds))
    return tuple((Choice(machine, float(max(1, round(1e6 * seconds)))),) for machine, seconds in found)
