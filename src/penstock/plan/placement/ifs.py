"""`ifs`: the first packing that the dynamic programme of the source's Algorithm 2 finds.

Machines stand in a random order and as few of them as can be are used. The source counts samplers, workers and
parameter servers; here tasks with equal demands are counted together, which is the same where kinds differ in demands
and lets any workload in.
"""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.plan.placement.packing import classes_of, pack
from penstock.plan.placement.problem import PlacementProblem


def initial_placement(problem: PlacementProblem, seed: int = 0) -> Array:
    """The machine of every unit, int32; tasks of a class go to the machines in the order of their numbers."""
    chances = np.empty(problem.machines)
    unit_draws(key_of(seed, "ifs"), 0, chances)
    order = np.argsort(chances, kind="stable")
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
