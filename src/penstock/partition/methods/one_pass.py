"""Methods that need one pass over the vertices and no partitioner: `random`, `chunk` and `stream`."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.blocks import ranges
from penstock.graph.hashing import key_of, unit_draws
from penstock.kernels import njit
from penstock.partition.problem import Problem

# `stream`: one pass over the vertices (or a few), for graphs whose partitioner state would not fit. It keeps only the
# part of every vertex and the loads. A vertex goes where most of its already placed in-neighbours are, less a penalty
# that rises with the part's load (Fennel, with the penalty taken over all constraints).

_BLOCK = 1 << 18


def assign_stream(problem: Problem) -> Array:
    """Place vertices in the order of their numbers; the lists are read once per pass, in order.

    A second pass places each vertex anew, now knowing where all its neighbours went.
    """
    whole, parts = problem.whole, problem.parts
    weights = problem.constraints.weights
    totals = np.maximum(weights.sum(1, dtype=np.int64).astype(np.float64), 1.0)
    capacities = problem.capacities()
    loads = np.zeros((len(weights), parts))
    assignment = np.full(whole.count, -1, np.int32)
    degree = len(whole.indices) / max(1, whole.count)
    step = problem.progress.step("streaming vertices", whole.count * problem.passes, "vertices")
    with step:
        for _ in range(problem.passes):
            for start, stop in ranges(whole.count, _BLOCK):
                _place(whole.indptr, whole.indices, start, stop, weights, totals, capacities, degree, loads, assignment)
                problem.progress.advance(stop - start)
    return assignment


@njit(nogil=True, cache=True, writes=("loads", "assignment"))
def _place(
    indptr: Array,
    indices: Array,
    start: int,
    stop: int,
    weights: Array,
    totals: Array,
    capacities: Array,
    degree: float,
    loads: Array,
    assignment: Array,
) -> None:
    parts = loads.shape[1]
    near = np.zeros(parts, np.int64)
    for v in range(start, stop):
        near[:] = 0
        for k in range(indptr[v], indptr[v + 1]):
            if assignment[indices[k]] >= 0:
                near[assignment[indices[k]]] += 1
        if assignment[v] >= 0:
            for c in range(loads.shape[0]):
                loads[c, assignment[v]] -= weights[c, v]
        best, best_score, spare, spare_load = -1, -np.inf, 0, np.inf
        for p in range(parts):
            load, fits = _fullness(weights, totals, capacities, loads, v, p)
            if load < spare_load:
                spare, spare_load = p, load
            # Fennel's penalty with exponent 1.5 is degree * 0.75 * sqrt(load), load relative to an even share.
            score = near[p] - 0.75 * degree * np.sqrt(load)
            if fits and score > best_score:
                best, best_score = p, score
        chosen = best if best >= 0 else spare
        assignment[v] = chosen
        for c in range(loads.shape[0]):
            loads[c, chosen] += weights[c, v]


@njit(nogil=True, cache=True, inline="always")
def _fullness(weights: Array, totals: Array, capacities: Array, loads: Array, v: int, p: int) -> tuple[float, bool]:
    """The part's largest load relative to an even share, over the constraints that v adds to; and whether v fits."""
    load, fits = 0.0, True
    for c in range(loads.shape[0]):
        if weights[c, v] > 0:
            load = max(load, loads[c, p] * loads.shape[1] / totals[c])
            fits &= loads[c, p] + weights[c, v] <= capacities[c]
    return load, fits


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
