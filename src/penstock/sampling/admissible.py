"""Draws from lists of which only some edges may be drawn: those with a weight, in time, and not excluded.

A list to which a condition applies is passed once to collect its candidates, and the draw is made among these. A list
to which none applies draws just as it would in `draw_uniform`.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.sampling.exclusion import NOTHING, Exclusion, find_excluded
from penstock.sampling.kernels import choose
from penstock.sampling.weighted import choose_weighted

_STEP = np.uint64(0x9E3779B97F4A7C15)


class Conditions(NamedTuple):
    """What an edge needs to be drawn; an empty array asks nothing.

    A positive weight; a time of its own, or of its source, that is not later than the row's limit; not to be excluded.
    """

    weights: Array = np.empty(0, np.float32)
    edge_times: Array = np.empty(0, np.int64)
    vertex_times: Array = np.empty(0, np.int64)
    limits: Array = np.empty(0, np.int64)
    exclusion: Exclusion = NOTHING


@njit(nogil=True, cache=True)
def draw_admissible(
    indptr: Array,
    indices: Array,
    original: Array,
    key: np.uint64,
    fanout: int,
    replace: bool,
    vertices: Array,
    trees: Array,
    conditions: Conditions,
    out_indptr: Array,
    positions: Array,
    out_weights: Array,
) -> int:
    """As `draw_uniform`, under conditions; returns how many are drawn.

    `trees[row]`, where there are any, makes rows of one vertex draw apart. `out_weights` has the room of `positions`
    where estimator weights come out: weights, and not drawn with replacement.
    """
    flags, destinations, offsets, _ = conditions.exclusion
    weighted, timed = len(conditions.weights) > 0, len(conditions.limits) > 0
    candidates = np.empty(0, np.int64)
    out_indptr[0] = 0
    for row in range(len(vertices)):
        v, used = vertices[row], out_indptr[row]
        name = v if original.shape[0] == 0 else original[v]
        row_key = mix(key ^ np.uint64(name))
        if len(trees):
            row_key = mix(row_key ^ (np.uint64(trees[row] + 1) * _STEP))
        start, degree = indptr[v], indptr[v + 1] - indptr[v]
        first, last = find_excluded(flags, destinations, offsets, v)
        if not (weighted or timed or first < last):
            out_indptr[row + 1] = used + choose(row_key, start, degree, fanout, replace, positions, used)
            continue
        if degree > len(candidates):
            candidates = np.empty(2 * degree, np.int64)
        count = _collect(indptr, indices, v, row, first, last, conditions, candidates)
        if weighted:
            chosen = choose_weighted(
                row_key, start, conditions.weights, candidates, count, fanout, replace, positions, out_weights, used
            )
        else:
            chosen = choose(row_key, 0, count, fanout, replace, positions, used)
            for k in range(used, used + chosen):
                positions[k] = candidates[positions[k]]
        out_indptr[row + 1] = used + chosen
    return int(out_indptr[len(vertices)])


@njit(nogil=True, cache=True)
def total_admissible(
    indptr: Array, indices: Array, vertices: Array, sums: Array, conditions: Conditions, totals: Array
) -> None:
    """The number, or the weight, of the edges that each row may draw. `sums` are those of whole lists of weights."""
    flags, destinations, offsets, _ = conditions.exclusion
    weights, timed = conditions.weights, len(conditions.limits) > 0
    candidates = np.empty(0, np.int64)
    for row in range(len(vertices)):
        v = vertices[row]
        degree = indptr[v + 1] - indptr[v]
        first, last = find_excluded(flags, destinations, offsets, v)
        if not (timed or first < last):
            totals[row] = sums[v] if len(sums) else degree
            continue
        if degree > len(candidates):
            candidates = np.empty(2 * degree, np.int64)
        count = _collect(indptr, indices, v, row, first, last, conditions, candidates)
        total = 0.0
        for k in range(count):
            total += weights[candidates[k]] if len(weights) else 1.0
        totals[row] = total


@njit(nogil=True, cache=True)
def total_whole(indptr: Array, vertices: Array, sums: Array, totals: Array) -> None:
    """`total_admissible` without time or exclusion."""
    if len(sums):
        for row in range(len(vertices)):
            totals[row] = sums[vertices[row]]
    else:
        for row in range(len(vertices)):
            totals[row] = indptr[vertices[row] + 1] - indptr[vertices[row]]


@njit(nogil=True, cache=True)
def _collect(
    indptr: Array, indices: Array, v: int, row: int, first: int, last: int, conditions: Conditions, candidates: Array
) -> int:
    """Write the positions of v's admissible edges; `first` to `last` is the range of its excluded sources."""
    weights, edge_times, vertex_times, limits, (_, _, _, excluded) = conditions
    count = 0
    for position in range(indptr[v], indptr[v + 1]):
        if len(weights) and not weights[position] > 0:
            continue
        if len(edge_times) and not edge_times[position] <= limits[row]:
            continue
        if len(vertex_times) and not vertex_times[indices[position]] <= limits[row]:
            continue
        if first < last and _contains(excluded, first, last, indices[position]):
            continue
        candidates[count] = position
        count += 1
    return count


@njit(nogil=True, cache=True)
def _contains(ascending: Array, low: int, high: int, wanted: int) -> bool:
    """Whether a number is in ascending[low:high]."""
    end = high
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < end and ascending[low] == wanted
