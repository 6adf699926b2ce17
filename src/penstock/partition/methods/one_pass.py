"""Methods that need one pass over the vertices and no partitioner: `random` and `chunk`."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.partition.problem import Problem

# `chunk`: consecutive vertex numbers. It costs nothing, and is good if the numbering already has locality.


def assign_chunk(problem: Problem) -> Array:
    """Cut each node type's numbers where the mean of all constraints' shares passes 1/K, 2/K, ..."""
    weights = problem.constraints.weights
    share = np.zeros(problem.whole.count)
    for row in weights:
        share += row / max(1, row.sum(dtype=np.int64))
    assignment = np.empty(problem.whole.count, np.int32)
    for kind, view in problem.whole.by_type(share).items():
        passed = np.cumsum(view) - view / 2
        total = max(float(view.sum()), 1e-30)
        parts = np.minimum(passed / total * problem.parts, problem.parts - 1).astype(np.int32)
        start = problem.whole.offsets[kind]
        assignment[start : start + len(view)] = parts
    return assignment


# `random`: at random, but with equal counts. The baseline that every other method must beat.


def assign_random(problem: Problem) -> Array:
    """Deal vertices to parts in a random order, group by group, so that 0/1 constraints divide evenly too."""
    draws = unit_draws(key_of(problem.seed, "random parts"), problem.whole.count)
    groups = np.zeros(problem.whole.count, np.int64)
    for row in problem.constraints.weights:
        if row.max(initial=0) <= 1:
            groups = 2 * groups + row
    dealt = np.lexsort((draws, groups))
    assignment = np.empty(problem.whole.count, np.int32)
    assignment[dealt] = np.arange(problem.whole.count) % problem.parts
    return assignment
