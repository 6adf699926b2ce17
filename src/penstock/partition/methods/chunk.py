"""`chunk`: consecutive vertex numbers. Free, and good exactly when the numbering already has locality."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.partition.problem import Problem


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
