"""`distdgl`: every worker is placed with as many of its samplers as resources allow, then near its part.

Workers choose in the order of their numbers: the machine that takes the most of their samplers, among those the one
whose graph store they read most from, among those the one with the fewest workers. Samplers that found no room beside
their worker go where most is free.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.plan.placement.packing import RemainingCapacity
from penstock.plan.placement.problem import PlacementProblem


def colocated_placement(problem: PlacementProblem) -> Array:
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
    """Units still open go, one by one, to the machine that has the largest share of its resources free."""
    scale = np.maximum(problem.capacities, 1e-300)
    for unit in np.flatnonzero(left.units < 0):
        alone = np.array([unit])
        asked = problem.demands[unit] > 0
        share = (left.free / scale)[:, asked].min(axis=1) if asked.any() else np.zeros(problem.machines)
        for machine in np.argsort(-share, kind="stable"):
            if left.place(alone, int(machine)):
                break


def _gather(left: RemainingCapacity, group: Array, near: Array, workers: Array) -> int:
    """Place a worker with as many samplers as go with it; its machine."""
    for beside in range(len(group), 0, -1):
        together = group[:beside]
        for machine in np.lexsort((np.arange(len(workers)), workers, -near)):
            if left.place(together, int(machine)):
                return int(machine)
    raise AssertionError("what packs as a whole lets its next unit in somewhere")
