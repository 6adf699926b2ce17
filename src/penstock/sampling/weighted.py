"""Draws in proportion to edge weights, from the candidates of one list.

With replacement a draw is a search in the prefix sums of the candidates' weights, made anew for every list: a cumulated
array of the whole graph would save a pass over the list, but costs eight bytes an edge, rounds where a small weight
follows a large sum, and is of no use for a list of which some edges may not be drawn.

Without replacement it is priority sampling (Duffield, Lund and Thorup): an edge of weight w has the priority w / u with
u uniform in (0, 1]; the k largest are kept, the next is the threshold t, and max(w, t) stands for w. The sum of these
over the drawn is exactly unbiased for the sum over the list, and its variance is near the least that k draws can have.
"""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.hashing import mix, unit
from penstock.kernels import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)


def weights_of(edges: EdgeSet, field: str, where: str) -> tuple[Array, Array]:
    """The weights of the edges and the sum of each list's, checked: one finite number, not negative, an edge."""
    if field not in edges.fields:
        has = ", ".join(edges.fields) or "none"
        raise PenstockError(
            f"The edges of {where} have no field {field!r} to use as weights (fields: {has}).", code="field-missing"
        )
    weights = edges.fields[field]
    if weights.ndim != 1 or weights.dtype.kind not in "iuf":
        raise PenstockError(
            f"Field {field!r} of {where} cannot be used as weights: it must hold one number for each edge.",
            code="wrong-type",
        )
    sums = np.empty(len(edges.indptr) - 1, np.float32)
    bad = _sum_lists(edges.indptr, weights, sums)
    if bad >= 0:
        # Also of trusted graphs: a draw by NaN or negative weights has no meaning.
        wrong = int(np.count_nonzero(~((weights >= 0) & (weights < np.inf))))
        raise PenstockError(
            f"Field {field!r} of {where} has {wrong:,} weights that are NaN, infinite or negative, first {weights[bad]}"
            f" at edge {bad}: weights must be finite and not negative; 0 leaves an edge out.",
            code="not-finite",
        )
    if not np.isfinite(sums).all():
        raise PenstockError(
            f"The weights {field!r} of {where} add up beyond float32: divide them by a constant.",
            code="value-out-of-range",
        )
    return weights, sums


@njit(nogil=True, cache=True)
def _sum_lists(indptr: Array, weights: Array, sums: Array) -> int:
    """Sum every list's weights; returns the position of a weight that is no weight, or -1."""
    for v in range(len(sums)):
        total = 0.0
        for k in range(indptr[v], indptr[v + 1]):
            if not (weights[k] >= 0 and weights[k] < np.inf):
                return k
            total += weights[k]
        sums[v] = total
    return -1


@njit(nogil=True, cache=True)
def choose_weighted(
    key: np.uint64,
    start: int,
    weights: Array,
    candidates: Array,
    count: int,
    fanout: int,
    replace: bool,
    positions: Array,
    out_weights: Array,
    used: int,
) -> int:
    """Write `fanout` of the first `count` candidates behind the `used` first positions; returns how many.

    Candidates have positive weights and draw by their place in the list, which starts at `start`. Estimator weights go
    to `out_weights`, unless drawn with replacement.
    """
    if count == 0:
        return 0
    if fanout < 0 or (count <= fanout and not replace):
        for k in range(count):
            positions[used + k] = candidates[k]
            out_weights[used + k] = weights[candidates[k]]
        return count
    if replace:
        _choose_with_repeats(key, weights, candidates, count, positions[used : used + fanout])
        return fanout
    _choose_by_priority(
        key, start, weights, candidates, count, positions[used : used + fanout], out_weights[used : used + fanout]
    )
    return fanout


@njit(nogil=True, cache=True)
def _choose_with_repeats(key: np.uint64, weights: Array, candidates: Array, count: int, positions: Array) -> None:
    sums = np.empty(count, np.float64)
    total = 0.0
    for k in range(count):
        total += weights[candidates[k]]
        sums[k] = total
    for j in range(len(positions)):
        wanted = unit(mix(key + np.uint64(j + 1) * _STEP)) * total
        low, high = 0, count - 1
        while low < high:
            middle = (low + high) // 2
            if sums[middle] > wanted:
                high = middle
            else:
                low = middle + 1
        positions[j] = candidates[low]


@njit(nogil=True, cache=True)
def _choose_by_priority(
    key: np.uint64, start: int, weights: Array, candidates: Array, count: int, positions: Array, out_weights: Array
) -> None:
    """The k largest priorities; the heap holds one more, whose root is the threshold."""
    size = len(positions) + 1
    heap, items = np.full(size, -1.0), np.empty(size, np.int64)
    for k in range(count):
        position = candidates[k]
        weight, lot = weights[position], 1.0 - unit(mix(key + np.uint64(position - start + 1) * _STEP))
        if weight <= heap[0] * lot:
            continue
        hole, priority = 0, weight / lot
        while True:
            child = 2 * hole + 1
            if child + 1 < size and heap[child + 1] < heap[child]:
                child += 1
            if child >= size or heap[child] >= priority:
                break
            heap[hole], items[hole] = heap[child], items[child]
            hole = child
        heap[hole], items[hole] = priority, position
    for k in range(1, size):
        positions[k - 1] = items[k]
        out_weights[k - 1] = max(float(weights[items[k]]), heap[0])
