"""Draws from lists of which only some edges may be drawn: those with a weight, in time, and not excluded.

A list to which a condition applies is passed once to collect its candidates, and the draw is made among these. Weights
and times apply to all lists (`draw_admissible`); exclusion to the few that have an excluded edge, which are drawn again
after all have drawn freely (`redraw_excluded`).
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit
from penstock.sampling.exclusion import NOTHING, Exclusion, drop_excluded, find_excluded
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
    weights = conditions.weights
    candidates = np.empty(0, np.int64)
    out_indptr[0] = 0
    for row in range(len(vertices)):
        v, used = vertices[row], out_indptr[row]
        row_key = mix(key ^ np.uint64(v if original.shape[0] == 0 else original[v]))
        if len(trees):
            row_key = mix(row_key ^ (np.uint64(trees[row] + 1) * _STEP))
        candidates = _with_room(candidates, indptr[v + 1] - indptr[v])
        count = _collect(indptr, indices, v, row, conditions, candidates)
        if len(weights):
            chosen = choose_weighted(
                row_key, indptr[v], weights, candidates, count, fanout, replace, positions, out_weights, used
            )
        else:
            chosen = _choose_among(row_key, candidates, count, fanout, replace, positions, used)
        out_indptr[row + 1] = used + chosen
    return int(out_indptr[len(vertices)])


@njit(nogil=True, cache=True)
def redraw_excluded(
    indptr: Array,
    indices: Array,
    original: Array,
    key: np.uint64,
    fanout: int,
    replace: bool,
    vertices: Array,
    rows: Array,
    conditions: Conditions,
    out_indptr: Array,
    positions: Array,
) -> int:
    """Draw some rows again, without what is excluded, over the result of `draw_uniform`; returns how many are drawn.

    A row never draws more than it did; where it draws less, what follows moves up.
    """
    candidates = np.empty(0, np.int64)
    chosen = np.empty(len(rows), np.int64)
    for k in range(len(rows)):
        v, used = vertices[rows[k]], out_indptr[rows[k]]
        row_key = mix(key ^ np.uint64(v if original.shape[0] == 0 else original[v]))
        candidates = _with_room(candidates, indptr[v + 1] - indptr[v])
        count = _collect(indptr, indices, v, rows[k], conditions, candidates)
        chosen[k] = _choose_among(row_key, candidates, count, fanout, replace, positions, used)
    begin, end, used, k = out_indptr[0], 0, 0, 0
    for row in range(len(vertices)):
        end = out_indptr[row + 1]
        amount = end - begin
        if k < len(rows) and rows[k] == row:
            amount = chosen[k]
            k += 1
        if begin > used:
            for i in range(amount):
                positions[used + i] = positions[begin + i]
        used += amount
        out_indptr[row + 1] = used
        begin = end
    return int(used)


@njit(nogil=True, cache=True)
def total_whole(indptr: Array, vertices: Array, sums: Array, totals: Array) -> None:
    """The number of the edges of each row's list, or their weight, where `sums` has it by vertex."""
    if len(sums):
        for row in range(len(vertices)):
            totals[row] = sums[vertices[row]]
    else:
        for row in range(len(vertices)):
            totals[row] = indptr[vertices[row] + 1] - indptr[vertices[row]]


@njit(nogil=True, cache=True)
def total_admissible(
    indptr: Array, indices: Array, vertices: Array, rows: Array, conditions: Conditions, totals: Array
) -> None:
    """The number, or the weight, of the edges that some rows may draw."""
    weights = conditions.weights
    candidates = np.empty(0, np.int64)
    for row in rows:
        v = vertices[row]
        candidates = _with_room(candidates, indptr[v + 1] - indptr[v])
        count = _collect(indptr, indices, v, row, conditions, candidates)
        total = 0.0 if len(weights) else float(count)
        if len(weights):
            for k in range(count):
                total += weights[candidates[k]]
        totals[row] = total


@njit(nogil=True, cache=True)
def _collect(indptr: Array, indices: Array, v: int, row: int, conditions: Conditions, candidates: Array) -> int:
    """Write the positions of v's admissible edges; returns how many."""
    weights, edge_times, vertex_times, limits, (_, destinations, offsets, excluded) = conditions
    weighted, by_edge, by_vertex = len(weights) > 0, len(edge_times) > 0, len(vertex_times) > 0
    count = 0
    for position in range(indptr[v], indptr[v + 1]):
        admissible = True
        if weighted:
            admissible &= weights[position] > 0
        if by_edge:
            admissible &= edge_times[position] <= limits[row]
        if by_vertex:
            admissible &= vertex_times[indices[position]] <= limits[row]
        candidates[count] = position
        count += admissible
    first, last = find_excluded(destinations, offsets, v)
    if first < last:
        count = drop_excluded(indices, excluded[first:last], candidates, count)
    return count


@njit(nogil=True, cache=True)
def _choose_among(
    key: np.uint64, candidates: Array, count: int, fanout: int, replace: bool, positions: Array, used: int
) -> int:
    """`choose` of the first `count` candidates."""
    chosen = choose(key, 0, count, fanout, replace, positions, used)
    for k in range(used, used + chosen):
        positions[k] = candidates[positions[k]]
    return chosen


@njit(nogil=True, cache=True)
def _with_room(candidates: Array, amount: int) -> Array:
    return candidates if amount <= len(candidates) else np.empty(2 * amount, np.int64)
