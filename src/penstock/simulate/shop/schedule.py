"""Who does what when: a schedule, and how one is made from an order of operations."""

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.simulate.shop.shop import Shop


class Step(NamedTuple):
    """One operation of a schedule; job, operation and machine are numbers from 0."""

    job: int
    operation: int
    machine: int
    start: float
    end: float


class Pick(NamedTuple):
    """The next operation of a job, given to one of its machines."""

    job: int
    machine: int


@dataclass(frozen=True)
class Schedule:
    """A schedule of a shop: the route of every job, and the steps in order of their start."""

    routes: tuple[int, ...]
    steps: tuple[Step, ...]
    proved: float | None = None
    """A time that no schedule beats, where the scheduler has proved one."""

    @property
    def makespan(self) -> float:
        """When the last operation ends."""
        return max((step.end for step in self.steps), default=0.0)

    @property
    def picks(self) -> list[Pick]:
        """The steps as an order in which they can be placed again."""
        return [Pick(step.job, step.machine) for step in self.steps]


def placed(shop: Shop, routes: tuple[int, ...], picks: Iterable[Pick], filling: bool = False) -> Schedule:
    """Operations placed one after the other, each as early as its job and its machine allow.

    An operation goes behind all others of its machine, or with `filling` into the first gap that is long enough.
    """
    ready, done = [0.0] * len(shop.jobs), [0] * len(shop.jobs)
    busy: list[list[tuple[float, float]]] = [[] for _ in shop.machines]
    steps = []
    for job, machine in picks:
        operation = shop.jobs[job][routes[job]][done[job]]
        time = next(choice.time for choice in operation if choice.machine == machine)
        start = _start(busy[machine], ready[job], time, filling)
        steps.append(Step(job, done[job], machine, start, start + time))
        insort(busy[machine], (start, start + time))
        ready[job], done[job] = start + time, done[job] + 1
    return Schedule(routes, tuple(sorted(steps, key=lambda step: (step.start, step.end, step.job, step.operation))))


def _start(busy: list[tuple[float, float]], ready: float, time: float, filling: bool) -> float:
    if not filling:
        return max(ready, busy[-1][1]) if busy else ready
    start = ready
    for begin, end in busy:
        if start + time <= begin:
            break
        start = max(start, end)
    return start
