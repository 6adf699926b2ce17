"""Whether tasks can be packed on machines, and how many of each on which: an exact answer, over counts.

Tasks with equal demands are one class. What matters of a packing of the first i machines is how many of each class it
holds; and since less always fits where more does, only the largest number of the commonest class for given numbers of
the others. That table is filled machine by machine. `RemainingCapacity` places tasks one by one such that the remaining
ones still fit.
"""

from itertools import product

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.plan.placement.problem import PlacementProblem

_SLACK = 1e-9  # of a capacity: sums of decimal amounts may miss it by a rounding
_MOST_STATES = 4_000_000


def pack(demands: Array, wanted: Array, free: Array) -> Array | None:
    """How many of each of K classes go on each machine, int64 [M, K]; None where no packing exists.

    Machines are filled in the order given, and those after the first that completes a packing stay empty. `demands` is
    [K, R] per task, `wanted` the tasks of each class, `free` [M, R] what the machines have left.
    """
    best, choices = _fill(demands, wanted, free)
    if best < wanted.max(initial=0):
        return None
    return _walk_back(np.append(wanted, [0, 0]), choices, len(free))[:, : len(wanted)]


def most_of_commonest(demands: Array, wanted: Array, free: Array) -> int:
    """How many tasks of the commonest class fit when all others are packed; -1 where the others alone do not fit."""
    return _fill(demands, wanted, free)[0]


def packs(demands: Array, wanted: Array, free: Array) -> bool:
    """Whether a packing exists; fast where sums already exclude it."""
    if ((wanted[:, None] * demands).sum(axis=0) > free.sum(axis=0) * (1 + _SLACK) + _SLACK).any():
        return False
    return bool(_fill(demands, wanted, free)[0] >= wanted.max(initial=0))


def fits(demand: Array, free: Array) -> bool:
    """Whether one demand [R] is within what is free [R]."""
    return bool((demand <= free + _SLACK * np.maximum(np.abs(free), 1)).all())


def classes_of(demands: Array) -> tuple[Array, Array]:
    """The different rows of [U, R] demands as [K, R], and the class of every row."""
    kinds, class_of = np.unique(demands, axis=0, return_inverse=True)
    return kinds, class_of.reshape(-1)


_Choices = list[tuple[Array, Array, Array]]


def _fill(demands: Array, wanted: Array, free: Array) -> tuple[int, _Choices]:
    """The most tasks of the commonest class with all others packed, and each machine's (choice, patterns, rooms)."""
    # Two classes without tasks, so that there always are a commonest and another.
    demands, wanted = np.append(demands, np.zeros((2, free.shape[1])), axis=0), np.append(wanted, [0, 0])
    common = int(wanted.argmax())
    others = np.delete(np.arange(len(wanted)), common)
    shape = tuple(int(count) + 1 for count in wanted[others])
    if np.prod(np.array(shape, np.float64)) > _MOST_STATES:
        raise PenstockError(
            f"The tasks have {len(wanted) - 2} different demands, too many to pack exactly: give tasks of one kind the"
            " same demands.",
            code="too-large",
        )
    total = int(wanted[common])
    table = np.full(shape, -1, np.int64)
    table[(0,) * len(shape)] = 0
    full = (-1,) * len(shape)
    choices: _Choices = []
    known: dict[bytes, tuple[Array, Array]] = {}
    for left in free:
        key = left.tobytes()
        if key not in known:
            known[key] = _patterns(demands[others], demands[common], wanted[others], total, left)
        patterns, rooms = known[key]
        table, choice = _add_machine(table, patterns, rooms, total)
        choices.append((choice, patterns, rooms))
        if table[full] >= total:
            break
    return int(table[full]), choices


def _add_machine(table: Array, patterns: Array, rooms: Array, total: int) -> tuple[Array, Array]:
    """The table with one more machine, and the pattern that each entry puts on it."""
    new = np.full(table.shape, -1, np.int64)
    choice = np.full(table.shape, -1, np.int32)
    for number, (pattern, room) in enumerate(zip(patterns, rooms, strict=True)):
        before = table[tuple(slice(0, size - count) for size, count in zip(table.shape, pattern, strict=True))]
        inside = tuple(slice(int(count), None) for count in pattern)
        reached = np.where(before >= 0, np.minimum(before + room, total), -1)
        better = reached > new[inside]
        new[inside][better] = reached[better]
        choice[inside][better] = number
    return new, choice


def _patterns(demands: Array, common: Array, wanted: Array, total: int, free: Array) -> tuple[Array, Array]:
    """Every combination of counts of the other classes that one machine holds, and its room for the commonest beside
    them.
    """
    free = free + _SLACK * np.maximum(np.abs(free), 1)
    most = [min(int(count), _times(demand, free)) for demand, count in zip(demands, wanted, strict=True)]
    found, rooms = [], []
    for counts in product(*(range(count + 1) for count in most)):
        left = free - np.array(counts, np.float64) @ demands
        if (left >= 0).all():
            found.append(counts)
            rooms.append(min(total, _times(common, left)))
    return np.array(found, np.int64).reshape(len(found), len(wanted)), np.array(rooms, np.int64)


def _times(demand: Array, free: Array) -> int:
    """How often a demand fits; a task without demands always does."""
    asked = demand > 0
    return int((free[asked] / demand[asked]).min()) if asked.any() else 1 << 40


def _walk_back(wanted: Array, choices: _Choices, machines: int) -> Array:
    counts = np.zeros((machines, len(wanted)), np.int64)
    common = int(wanted.argmax())
    others = np.delete(np.arange(len(wanted)), common)
    place = tuple(int(count) for count in wanted[others])
    missing = int(wanted[common])
    for machine in range(len(choices) - 1, -1, -1):
        choice, patterns, rooms = choices[machine]
        number = choice[place]
        counts[machine, others] = patterns[number]
        counts[machine, common] = min(missing, int(rooms[number]))
        missing -= int(counts[machine, common])
        place = tuple(count - int(taken) for count, taken in zip(place, patterns[number], strict=True))
    return counts


class RemainingCapacity:
    """Units not yet placed and the machines' remaining capacities; any order of `place` ends in a
    feasible placement.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.units = problem.home.copy()  # the placement so far, -1 where open
        self.free = problem.free.copy()
        self._demands = problem.demands
        self._kinds, movable_class = classes_of(problem.demands[problem.movable])
        self._class_of = np.full(problem.units, -1, np.int64)
        self._class_of[problem.movable] = movable_class
        self._wanted = np.bincount(movable_class, minlength=len(self._kinds))

    def place(self, units: Array, machine: int) -> bool:
        """Place open units on a machine if they fit and all others can still be packed; returns whether that was so."""
        demand, free = self._demands[units].sum(axis=0), self.free.copy()
        if not fits(demand, free[machine]):
            return False
        free[machine] = np.maximum(free[machine] - demand, 0)
        wanted = self._wanted - np.bincount(self._class_of[units], minlength=len(self._kinds))
        if not packs(self._kinds, wanted, free):
            return False
        self.free, self._wanted = free, wanted
        self.units[units] = machine
        return True
