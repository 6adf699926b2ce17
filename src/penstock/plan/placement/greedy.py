"""`greedy`: workers with their samplers, one after the other, to where links stay least busy.

Co-location as in `distdgl`, but the machine is chosen by what all links carry with the newcomer on it, so slow NICs
take less; samplers without room beside their worker choose in the same way.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.plan.placement.annealing import score
from penstock.plan.placement.packing import RemainingCapacity
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.tables import Tables, Walk, move, tables_of, walk_from


def least_busy_placement(problem: PlacementProblem) -> Array:
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
    """Place the first unit and as many of the others as go with it, on the best machine that takes them."""
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
