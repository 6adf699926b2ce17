"""`spread`: tasks of each kind are placed as evenly as resources allow, whatever their traffic."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.plan.placement.packing import RemainingCapacity
from penstock.plan.placement.problem import PlacementProblem


def even_placement(problem: PlacementProblem) -> Array:
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
