"""What has to be done in a flexible job shop."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import PenstockError


class Choice(NamedTuple):
    """A machine that can do an operation, by its number from 0, and the time it takes there."""

    machine: int
    time: float


Operation = tuple[Choice, ...]
"""The machines that can do it."""
Route = tuple[Operation, ...]
"""Operations one after the other."""
Job = tuple[Route, ...]
"""Ways to do a job, of which a schedule takes one. A batch has one for each rewriting; a text file has one for each
job."""


@dataclass(frozen=True)
class Shop:
    """Jobs and machines; every machine does one operation at a time and finishes what it began."""

    name: str
    machines: tuple[str, ...]
    jobs: tuple[Job, ...]
    unit: float = 1.0
    """Seconds of a unit of time, for showing."""

    def __post_init__(self) -> None:
        if not self.jobs:
            raise PenstockError(f"{self.name} has no jobs: give at least one.", code="missing-data")
        for number, job in enumerate(self.jobs, 1):
            if not job or not all(job):
                raise PenstockError(
                    f"{self.name}: job {number} has no operations: give at least one.", code="missing-data"
                )
            for route in job:
                for operation in route:
                    self._check(number, operation)

    def _check(self, job: int, operation: Operation) -> None:
        if not operation:
            raise PenstockError(
                f"{self.name}: an operation of job {job} has no machine: give at least one.", code="missing-data"
            )
        for machine, time in operation:
            if not 0 <= machine < len(self.machines):
                raise PenstockError(
                    f"{self.name}: job {job} names machine {machine + 1}, and there are {len(self.machines)}: give a"
                    f" number from 1 to {len(self.machines)}.",
                    code="id-out-of-range",
                )
            if not (math.isfinite(time) and time >= 0):
                raise PenstockError(
                    f"{self.name}: an operation of job {job} takes {time}: give a finite number that is not negative.",
                    code="value-out-of-range",
                )

    @property
    def operations(self) -> int:
        """Operations of all jobs, each by its first route."""
        return sum(len(job[0]) for job in self.jobs)

    def part(self, jobs: tuple[int, ...]) -> "Shop":
        """The shop with some of its jobs only, in the order given."""
        return Shop(self.name, self.machines, tuple(self.jobs[job] for job in jobs), self.unit)


def quickest(operation: Operation) -> Choice:
    """The choice that takes the least time; of several the first."""
    return min(operation, key=lambda choice: choice.time)


def alone(route: Route) -> float:
    """The time of a route that waits for nothing."""
    return sum(quickest(operation).time for operation in route)


def best_route(job: Job) -> int:
    """The route that takes the least time where nothing is waited for; of several the first."""
    return min(range(len(job)), key=lambda number: alone(job[number]))
