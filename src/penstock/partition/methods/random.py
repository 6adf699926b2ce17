"""`random`: at random, but with equal counts. The baseline that every other method must beat."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.partition.problem import Problem


def assign_random(problem: Problem) -> Array:
    """Deal vertices to parts in a drawn order, group by group, so that 0/1 constraints divide evenly too."""
    draws = np.empty(problem.whole.count)
    unit_draws(key_of(problem.seed, "random parts"), 0, draws)
    groups = np.zeros(problem.whole.count, np.int64)
    for row in problem.constraints.weights:
        if row.max(initial=0) <= 1:
            groups = 2 * groups + row
    dealt = np.lexsort((draws, groups))
    assignment = np.empty(problem.whole.count, np.int32)
    assignment[dealt] = np.arange(problem.whole.count) % problem.parts
    return assignment
