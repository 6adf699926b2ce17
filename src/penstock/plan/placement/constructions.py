"""Policies that construct one placement: `ifs`, `distdgl`, `spread` and `greedy`."""

from collections.abc import Callable

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.kernels import njit
from penstock.plan.placement.annealing import score
from penstock.plan.placement.evaluator import Budget, Evaluator, Found
from penstock.plan.placement.packing import RemainingCapacity, classes_of, pack
from penstock.plan.placement.problem import PlacementProblem, Tables, Walk, move, tables_of, walk_from

# `distdgl`: every worker is placed with as many of its samplers as resources allow, then near its part. Workers choose
# in the order of their numbers: the machine that takes the most of their samplers, among those the one whose graph
# store they read most from, among those the one with the fewest workers. Samplers without room beside their worker go
# where most is free.


def colocated_placement(problem: PlacementProblem, seed: int = 0) -> Array:
    """The machine of every unit, int32."""
    left = RemainingCapacity(problem)
    workers = np.zeros(problem.machines, np.int64)
    for group, near in zip(problem.groups, bytes_near(problem), strict=True):
        machine = _gather(left, group, near, workers)
        workers[machine] += 1
    place_rest(problem, left)
    return left.units.astype(np.int32)


def bytes_near(problem: PlacementProblem) -> Array:
    """Bytes of an iteration between every group and the pinned tasks of every machine, float64 [groups, M]."""
    load = problem.workload
    group_of = np.full(problem.units, -1)
    for number, group in enumerate(problem.groups):
        group_of[group] = number
    near = np.zeros((len(problem.groups), problem.machines))
    for one, other in ((load.sources, load.targets), (load.targets, load.sources)):
        group, home = group_of[problem.unit_of[one]], problem.home[problem.unit_of[other]]
        known = (group >= 0) & (home >= 0)
        np.add.at(near, (group[known], home[known]), np.round(load.flow_bytes[known]))
    return near


def place_rest(problem: PlacementProblem, left: RemainingCapacity) -> None:
    """Place the remaining units, one by one, on the machine that has the largest share of its resources free."""
    scale = np.maximum(problem.capacities, 1e-300)
    for unit in np.flatnonzero(left.units < 0):
        alone = np.array([unit])
        asked = problem.demands[unit] > 0
        share = (left.free / scale)[:, asked].min(axis=1) if asked.any() else np.zeros(problem.machines)
        for machine in np.argsort(-share, kind="stable"):
            if left.place(alone, int(machine)):
                break


def _gather(left: RemainingCapacity, group: Array, near: Array, workers: Array) -> int:
    """Place a worker with as many samplers as possible; returns its machine."""
    for beside in range(len(group), 0, -1):
        together = group[:beside]
        for machine in np.lexsort((np.arange(len(workers)), workers, -near)):
            if left.place(together, int(machine)):
                return int(machine)
    raise AssertionError("what packs as a whole lets its next unit in somewhere")


# `greedy`: workers with their samplers, one after the other, to where links stay least busy. Co-location is as in
# `distdgl`, but the machine is chosen by the load of all links with the new tasks on it, so slow NICs get less;
# samplers without room beside their worker choose in the same way.


def least_busy_placement(problem: PlacementProblem, seed: int = 0) -> Array:
    """The machine of every unit, int32."""
    tables = tables_of(problem)
    left = RemainingCapacity(problem)
    walk = walk_from(tables, problem.home)
    for group in problem.groups:
        _place_beside(tables, walk, left, group)
        for unit in group[left.units[group] < 0]:
            _place_beside(tables, walk, left, np.array([unit], np.int32))
    for unit in np.flatnonzero(left.units < 0):
        _place_beside(tables, walk, left, np.array([unit], np.int32))
    return left.units.astype(np.int32)


def _place_beside(tables: Tables, walk: Walk, left: RemainingCapacity, units: Array) -> None:
    """Place the first unit and as many of the others as possible with it, on the best machine that takes them."""
    for beside in range(len(units), 0, -1):
        together = units[:beside]
        scores = np.empty(len(tables.capacities))
        _try_everywhere(tables, walk, together, scores)
        for machine in np.argsort(scores, kind="stable"):
            if left.place(together, int(machine)):
                for unit in together:
                    move(tables, walk, int(unit), int(machine))
                return


@njit(nogil=True, cache=True)
def _try_everywhere(tables: Tables, walk: Walk, units: Array, scores: Array) -> None:
    """The score with these units on each machine; they are not placed afterwards."""
    for machine in range(scores.shape[0]):
        for unit in units:
            move(tables, walk, unit, machine)
        scores[machine] = score(tables, walk)
    for unit in units:
        move(tables, walk, unit, -1)


# `ifs`: the first packing that the dynamic programme of DGTP's Algorithm 2 finds. Machines are in a random order and as
# few of them as possible are used. DGTP counts samplers, workers and parameter servers; here tasks with equal demands
# are counted together, which is the same where kinds differ in demands and supports any workload.


def initial_placement(problem: PlacementProblem, seed: int = 0) -> Array:
    """The machine of every unit, int32; tasks of a class go to the machines in the order of their numbers."""
    order = np.argsort(unit_draws(key_of(seed, "ifs"), problem.machines), kind="stable")
    demands, class_of = classes_of(problem.demands[problem.movable])
    counts = pack(demands, np.bincount(class_of, minlength=len(demands)), problem.free[order])
    if counts is None:
        raise PenstockError(
            "No packing of the tasks exists, though the problem was checked: report this.", code="unexpected-failure"
        )
    units = problem.home.copy()
    for number in range(len(demands)):
        units[problem.movable[class_of == number]] = np.repeat(order, counts[:, number])
    return units.astype(np.int32)


# `spread`: tasks of each kind are placed as evenly as resources allow, whatever their traffic.


def even_placement(problem: PlacementProblem, seed: int = 0) -> Array:
    """The machine of every unit, int32: each goes to the machine with the fewest of its kind."""
    left = RemainingCapacity(problem)
    held: dict[str, Array] = {}
    for unit in problem.movable:
        count = held.setdefault(problem.kinds[unit], np.zeros(problem.machines, np.int64))
        for machine in np.argsort(count, kind="stable"):
            if left.place(np.array([unit]), int(machine)):
                count[machine] += 1
                break
    return left.units.astype(np.int32)


# The same as policies.

PlacementPolicy = Callable[[PlacementProblem, Evaluator, Budget, int], Found]


def _constructed(construct: Callable[[PlacementProblem, int], Array]) -> PlacementPolicy:
    """A policy that makes one placement at once, from the problem and the seed."""
    return lambda problem, evaluator, budget, seed: Found(construct(problem, seed), 0)


initial = _constructed(initial_placement)
colocated = _constructed(colocated_placement)
even = _constructed(even_placement)
least_busy = _constructed(least_busy_placement)
