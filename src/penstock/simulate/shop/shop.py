"""A flexible job shop: in memory, as text (`.fjs`), and a lower bound of its schedules."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from penstock.errors import PenstockError
from penstock.graph.files import open_regular

# What has to be done in a flexible job shop.


class Choice(NamedTuple):
    """A machine that can do an operation, by its number from 0, and the time it takes there."""

    machine: int
    time: float


Operation = tuple[Choice, ...]
"""The machines that can do it."""
Route = tuple[Operation, ...]
"""Operations one after the other."""
Job = tuple[Route, ...]
"""Alternative routes of a job, of which a schedule takes one. A batch has one for each rewriting; in a text file each
job has one.
"""


@dataclass(frozen=True)
class Shop:
    """Jobs and machines; every machine does one operation at a time and finishes what it began."""

    name: str
    machines: tuple[str, ...]
    jobs: tuple[Job, ...]
    unit: float = 1.0
    """Seconds per unit of time, for display."""

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
        """The shop with only some of its jobs, in the order given."""
        return Shop(self.name, self.machines, tuple(self.jobs[job] for job in jobs), self.unit)


def quickest(operation: Operation) -> Choice:
    """The choice that takes the least time; ties go to the first."""
    return min(operation, key=lambda choice: choice.time)


def alone(route: Route) -> float:
    """The time of a route that waits for nothing."""
    return sum(quickest(operation).time for operation in route)


def best_route(job: Job) -> int:
    """The route that takes the least time without waiting; ties go to the first."""
    return min(range(len(job)), key=lambda number: alone(job[number]))


# The usual text format of flexible job shops (Brandimarte's `.fjs`).
#
# The first line has the number of jobs, the number of machines and often a third number, which is the mean number of
# machines for each operation and is ignored. Every further line is a job: the number of its operations, and for each of
# them the number of machines that can do it followed by pairs of machine and time. Empty lines are skipped. Machines
# are numbered from 1, or from 0 as in newer collections: from 0 if any is called 0. A file that names neither 0 nor the
# last number can be read both ways, which differ in the machines' names alone, and is read as numbered from 1.

_LARGEST = 1 << 24
"""The most bytes of a file that are read: the largest public ones have some ten thousand."""


def read_fjs(path: Path) -> Shop:
    """The shop in a file; its machines are numbered from 0 here, however the file numbers them."""
    try:
        with open_regular(path) as file:
            raw = file.read(_LARGEST + 1)
    except OSError as error:
        raise PenstockError(
            f"{path} cannot be read ({error.strerror or error}): name a file in the .fjs format.", code="file-not-found"
        ) from None
    if len(raw) > _LARGEST:
        raise PenstockError(f"{path} is larger than 16 MiB: give a smaller shop.", code="too-large")
    lines = [(number, line.split()) for number, line in enumerate(raw.decode("ascii", "replace").splitlines(), 1)]
    lines = [(number, words) for number, words in lines if words]
    if not lines or len(lines[0][1]) < 2:
        raise _malformed(path, 1, "the first line needs the number of jobs and the number of machines")
    first = lines[0][1]
    jobs, machines = (_whole(path, lines[0][0], word) for word in first[:2])
    if len(lines) - 1 != jobs:
        raise _malformed(path, lines[0][0], f"it announces {jobs} jobs, and {len(lines) - 1} lines with jobs follow")
    routes = tuple((_route(path, number, words),) for number, words in lines[1:])
    named = [choice.machine for (route,) in routes for operation in route for choice in operation]
    if 0 not in named:
        routes = tuple((tuple(tuple(Choice(m - 1, t) for m, t in each) for each in route),) for (route,) in routes)
    elif max(named) >= machines:
        numbers = f"from 1 to {machines} or from 0 to {machines - 1}"
        raise _malformed(path, 1, f"of {machines} machines, 0 and {max(named)} are named: number them {numbers}")
    return Shop(path.stem, tuple(f"machine {number}" for number in range(1, machines + 1)), routes)


def fjs_text(shop: Shop) -> str:
    """A shop of one route for each job as text; times are written as whole numbers."""
    if any(len(job) > 1 for job in shop.jobs):
        raise PenstockError(
            f"{shop.name} has jobs with several routes, which the text format cannot hold: choose one for each job.",
            code="unsupported-combination",
        )
    choices = sum(len(operation) for (route,) in shop.jobs for operation in route)
    lines = [f"{len(shop.jobs)} {len(shop.machines)} {choices / shop.operations:.2f}"]
    for (route,) in shop.jobs:
        words = [len(route)]
        for operation in route:
            words.append(len(operation))
            for machine, time in operation:
                words += [machine + 1, round(time)]
        lines.append(" ".join(map(str, words)))
    return "\n".join(lines) + "\n"


def _route(path: Path, line: int, words: list[str]) -> Route:
    numbers = iter([_whole(path, line, word) for word in words])
    try:
        route = tuple(
            tuple(Choice(next(numbers), float(next(numbers))) for _ in range(next(numbers)))
            for _ in range(next(numbers))
        )
    except (StopIteration, RuntimeError):
        raise _malformed(path, line, "it ends before all its operations are there") from None
    if next(numbers, None) is not None:
        raise _malformed(path, line, "it has numbers behind its last operation")
    for place, operation in enumerate(route, 1):
        machines = [choice.machine for choice in operation]
        twice = next((machine for machine in machines if machines.count(machine) > 1), None)
        if twice is not None:
            raise _malformed(path, line, f"operation {place} names machine {twice} twice")
    return route


def _whole(path: Path, line: int, word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 16):
        raise _malformed(path, line, f"{word[:40]!r} is not a whole number")
    return int(word)


def _malformed(path: Path, line: int, what: str) -> PenstockError:
    return PenstockError(
        f"{path}, line {line}: {what}; write the .fjs format of docs/simulating.md.", code="invalid-document"
    )


# A lower bound of a shop's schedules.


def shop_bound(shop: Shop) -> float:
    """The largest of three bounds: the longest job, machines with what only they can do, and all work divided."""
    longest = max(min(map(alone, job)) for job in shop.jobs)
    return max(longest, _alone_at_machines(shop), _divided(shop))


def _alone_at_machines(shop: Shop) -> float:
    """For every machine the work that only it can do, plus the shortest time before and after it."""
    best = 0.0
    for machine in range(len(shop.machines)):
        loads, heads, tails = 0.0, [], []
        for job in shop.jobs:
            if len(job) > 1:
                continue
            times = [quickest(operation).time for operation in job[0]]
            forced = [place for place, operation in enumerate(job[0]) if {c.machine for c in operation} == {machine}]
            if forced:
                loads += sum(times[place] for place in forced)
                heads.append(sum(times[: forced[0]]))
                tails.append(sum(times[forced[-1] + 1 :]))
        if heads:
            best = max(best, min(heads) + loads + min(tails))
    return best


def _divided(shop: Shop) -> float:
    """The time of all machines if routes and operations could be divided among them freely: a linear program."""
    # Variables: a share of every route, a share of every choice, and the time.
    routes = [(job, route) for job, ways in enumerate(shop.jobs) for route in ways]
    operations: list[tuple[int, Operation]] = [
        (number, operation) for number, (_, route) in enumerate(routes) for operation in route
    ]
    choices = [(place, choice) for place, (_, operation) in enumerate(operations) for choice in operation]
    first_choice, time = len(routes), len(routes) + len(choices)
    equal = [(job, number, 1.0) for number, (job, _) in enumerate(routes)]
    for place, (number, _) in enumerate(operations):
        equal.append((len(shop.jobs) + place, number, -1.0))
    equal += [(len(shop.jobs) + place, first_choice + at, 1.0) for at, (place, _) in enumerate(choices)]
    most = [(choice.machine, first_choice + at, choice.time) for at, (_, choice) in enumerate(choices)]
    most += [(machine, time, -1.0) for machine in range(len(shop.machines))]
    sums = np.zeros(len(shop.jobs) + len(operations))
    sums[: len(shop.jobs)] = 1.0
    goal = np.zeros(time + 1)
    goal[time] = 1.0
    found = linprog(
        goal,
        A_ub=_matrix(most, len(shop.machines), time + 1),
        b_ub=np.zeros(len(shop.machines)),
        A_eq=_matrix(equal, len(sums), time + 1),
        b_eq=sums,
        method="highs",
    )
    # The solver's answer has a tolerance: a bound must not exceed the true one.
    return float(found.fun) * (1 - 1e-7) if found.status == 0 else 0.0


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_matrix:
    row, column, value = zip(*entries, strict=True)
    return coo_matrix((value, (row, column)), shape=(rows, columns))
