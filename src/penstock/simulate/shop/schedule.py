"""Schedules of a job shop: made from an order of operations, checked, drawn as simulations; and first in, first out."""

from bisect import insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument
from penstock.hardware.machines import star
from penstock.simulate.shop.shop import Shop, best_route
from penstock.simulate.simulation import simulate
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload import Item, WorkloadBuilder

# A schedule, and how one is made from an order of operations.


class ScheduledOperation(NamedTuple):
    """One operation of a schedule; job, operation and machine are numbers from 0."""

    job: int
    operation: int
    machine: int
    start: float
    end: float


class Pick(NamedTuple):
    """The next operation of a job, assigned to one of its machines."""

    job: int
    machine: int


@dataclass(frozen=True)
class ShopSchedule:
    """A schedule of a shop: the route of every job, and the steps in order of their start."""

    routes: tuple[int, ...]
    steps: tuple[ScheduledOperation, ...]
    proved: float | None = None
    """A lower bound on the makespan, if the scheduler has proved one."""

    @property
    def makespan(self) -> float:
        """When the last operation ends."""
        return max((step.end for step in self.steps), default=0.0)

    @property
    def picks(self) -> list[Pick]:
        """The operations in an order in which they can be placed again."""
        return [Pick(step.job, step.machine) for step in self.steps]


def placed(shop: Shop, routes: tuple[int, ...], picks: Iterable[Pick], filling: bool = False) -> ShopSchedule:
    """Place operations one after the other, each as early as its job and its machine allow.

    An operation goes after all others of its machine, or with `filling` into the first gap that is long enough.
    """
    ready, done = [0.0] * len(shop.jobs), [0] * len(shop.jobs)
    busy: list[list[tuple[float, float]]] = [[] for _ in shop.machines]
    steps = []
    for job, machine in picks:
        operation = shop.jobs[job][routes[job]][done[job]]
        time = next(choice.time for choice in operation if choice.machine == machine)
        start = _start(busy[machine], ready[job], time, filling)
        steps.append(ScheduledOperation(job, done[job], machine, start, start + time))
        insort(busy[machine], (start, start + time))
        ready[job], done[job] = start + time, done[job] + 1
    return ShopSchedule(routes, tuple(sorted(steps, key=lambda step: (step.start, step.end, step.job, step.operation))))


def _start(busy: list[tuple[float, float]], ready: float, time: float, filling: bool) -> float:
    if not filling:
        return max(ready, busy[-1][1]) if busy else ready
    start = ready
    for begin, end in busy:
        if start + time <= begin:
            break
        start = max(start, end)
    return start


# Checks a schedule against its shop, without knowing how it was made.

_ROUNDING = 1e-9
"""The relative rounding error that sums of times may have."""


def check_schedule(shop: Shop, schedule: ShopSchedule) -> None:
    """Raise an error for a schedule that omits or repeats an operation, or does it elsewhere, too fast, too early or
    two at once.
    """
    if len(schedule.routes) != len(shop.jobs):
        raise _wrong(f"it chooses routes for {len(schedule.routes)} jobs of {len(shop.jobs)}")
    of_jobs: list[list[ScheduledOperation]] = [[] for _ in shop.jobs]
    on_machines: list[list[ScheduledOperation]] = [[] for _ in shop.machines]
    for step in schedule.steps:
        if not (0 <= step.job < len(shop.jobs) and 0 <= step.machine < len(shop.machines)):
            raise _wrong(f"it names job {step.job + 1} on machine {step.machine + 1}, which are not in the shop")
        of_jobs[step.job].append(step)
        on_machines[step.machine].append(step)
    for job, steps in enumerate(of_jobs):
        _check_job(shop, schedule, job, steps)
    for machine, steps in enumerate(on_machines):
        _check_machine(shop.machines[machine], steps)


def _check_job(shop: Shop, schedule: ShopSchedule, job: int, steps: list[ScheduledOperation]) -> None:
    number = schedule.routes[job]
    if not 0 <= number < len(shop.jobs[job]):
        raise _wrong(f"job {job + 1} has no route {number + 1}")
    route = shop.jobs[job][number]
    steps = sorted(steps, key=lambda step: step.operation)
    if [step.operation for step in steps] != list(range(len(route))):
        raise _wrong(f"job {job + 1} needs each of its {len(route)} operations once")
    before = 0.0
    for step, operation in zip(steps, route, strict=True):
        what = f"operation {step.operation + 1} of job {job + 1}"
        times = dict(operation)
        if step.machine not in times:
            raise _wrong(f"{what} is on {shop.machines[step.machine]}, which cannot do it")
        slack = _ROUNDING * max(1.0, abs(step.end))
        if abs(step.end - step.start - times[step.machine]) > slack:
            raise _wrong(f"{what} takes {step.end - step.start:g} instead of {times[step.machine]:g}")
        if step.start < before - slack:
            raise _wrong(f"{what} starts at {step.start:g}, before its job is ready at {before:g}")
        before = step.end


def _check_machine(name: str, steps: list[ScheduledOperation]) -> None:
    steps = sorted((step for step in steps if step.end > step.start), key=lambda step: step.start)
    for one, other in pairwise(steps):
        if other.start < one.end - _ROUNDING * max(1.0, one.end):
            raise _wrong(
                f"{name} does operations of jobs {one.job + 1} and {other.job + 1} at once, from {other.start:g} to"
                f" {one.end:g}"
            )


def _wrong(what: str) -> PenstockError:
    return PenstockError(f"The schedule is not valid: {what}; make it again.", code="infeasible")


# A schedule as a simulated workload, so that pages, traces and critical paths of simulations are made of it too.


def timeline_of(shop: Shop, schedule: ShopSchedule) -> tuple[Timeline, Array]:
    """The timeline of a schedule in seconds, and the machine of every task.

    The simulator is given the orders of jobs and machines, not the times: it finds these by itself, and no operation
    waits longer than these orders require.
    """
    builder = WorkloadBuilder(shop.name)
    of_job: dict[int, Item] = {}
    of_machine: dict[int, Item] = {}
    placement = []
    for step in schedule.steps:
        name = f"job {step.job + 1}, operation {step.operation + 1}"
        seconds = (step.end - step.start) * shop.unit
        item = builder.task(name, f"job {step.job + 1}", seconds)
        placement.append(step.machine)
        for before in (of_job.get(step.job), of_machine.get(step.machine)):
            if before is not None:
                builder.wait(before, item)
        of_job[step.job] = of_machine[step.machine] = item
    rates = np.ones(len(shop.machines))
    found = np.array(placement, np.int32)
    return simulate(builder.build(), star(rates, rates, shop.machines), found, segments=True), found


# The interface of schedulers of job shops.


class NoOptions(StrictDocument):
    """The options of a scheduler without any."""


@dataclass(frozen=True)
class Scheduler:
    """One way to schedule: `schedule(shop, options)`."""

    name: str
    schedule: Callable[[Shop, Any], ShopSchedule]
    options: type[StrictDocument] = NoOptions


# First in, first out: the operation that is ready first is begun first, on the machine where it ends first.


def in_order_of_arrival(shop: Shop, options: NoOptions) -> ShopSchedule:
    """Jobs by number, each by the route that is shortest alone; ties go to the first job."""
    routes = tuple(best_route(job) for job in shop.jobs)
    free, picks = [0.0] * len(shop.machines), []
    arrived = [(0.0, job, 0) for job in range(len(shop.jobs))]
    heapify(arrived)
    while arrived:
        ready, job, done = heappop(arrived)
        route = shop.jobs[job][routes[job]]
        end, machine = min((max(ready, free[machine]) + time, machine) for machine, time in route[done])
        free[machine] = end
        picks.append(Pick(job, machine))
        if done + 1 < len(route):
            heappush(arrived, (end, job, done + 1))
    return placed(shop, routes, picks)


FIFO = Scheduler("fifo", in_order_of_arrival)
