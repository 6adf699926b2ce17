"""Draws from neighbour lists: uniformly, and from admissible edges only."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit
from penstock.sampling.exclusion import NOTHING, Exclusion, drop_excluded, find_excluded
from penstock.sampling.weighted_draws import (
    FEW,
    SUMMED,
    choose_by_priority,
    choose_by_sums,
    choose_weighted,
    mass,
    mass_scale,
    scratch_for,
)

# Kernels of neighbour sampling: one hop of one batch per call, without the interpreter lock. A hop chooses list
# positions (`draw_uniform`, or `draw_admissible` under conditions), fetches what is there (`fetch`) and numbers it
# (`relabel`), each in a pass of its own over the whole hop: a pass is a loop of independent loads, so that the CPU has
# many cache misses in flight at once. In one pass every edge would wait for its own; fetching group by group while
# choosing took twice as long as after it. For the same reason the lists' bounds are read a group of rows ahead.
# (Passing arrays through nested inlined functions makes Numba count references in the inner loop, which costs more than
# the work; hence the plain loops.)

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)
_GROUP = 128
"""Rows whose lists' bounds are read ahead: they stay in the first-level cache."""
SCANNED = 32
"""Up to this fan-out a repeated draw is found by looking through those already made."""
PERMUTED = 4
"""Lists longer than this many fan-outs are not passed through: positions are those of a permutation."""


@njit(nogil=True, cache=True, writes=("out_indptr", "positions"))
def draw_uniform(
    indptr: Array,
    original: Array,
    key: np.uint64,
    fanout: int,
    replace: bool,
    vertices: Array,
    out_indptr: Array,
    positions: Array,
) -> None:
    """List positions of `fanout` in-neighbours (all, if negative) of every vertex; row i's begin at `out_indptr[i]`.

    `original[v]` is v's name in the hash; empty: v itself. `positions` has room for `count_edges`.
    """
    starts, degrees, names = np.empty(_GROUP, np.int64), np.empty(_GROUP, np.int64), np.empty(_GROUP, np.uint64)
    out_indptr[0] = used = 0
    for first in range(0, len(vertices), _GROUP):
        last = min(first + _GROUP, len(vertices))
        for row in range(first, last):
            v = vertices[row]
            starts[row - first], degrees[row - first] = indptr[v], indptr[v + 1] - indptr[v]
            names[row - first] = v if original.shape[0] == 0 else original[v]
        for row in range(first, last):
            here = row - first
            used += choose(mix(key ^ names[here]), starts[here], degrees[here], fanout, replace, positions, used)
            out_indptr[row + 1] = used


@njit(nogil=True, cache=True, writes=("sources",))
def fetch(indices: Array, positions: Array, sources: Array) -> None:
    """The sources at some list positions."""
    for k in range(len(positions)):
        sources[k] = indices[positions[k]]


@njit(nogil=True, cache=True, writes=())
def count_edges(indptr: Array, vertices: Array, fanout: int, replace: bool) -> int:
    """The number of edges that a hop draws from some vertices."""
    total = 0
    for v in vertices:
        degree = indptr[v + 1] - indptr[v]
        if fanout < 0 or (degree <= fanout and not replace):
            total += degree
        elif degree > 0:
            total += fanout
    return total


@njit(nogil=True, cache=True)
def choose(key: np.uint64, start: int, degree: int, fanout: int, replace: bool, positions: Array, used: int) -> int:
    """Write positions out of [start, start + degree) after the first `used`; returns how many.

    All of them, or `fanout` drawn: with repeats, or each set of different ones equally likely.
    """
    if degree == 0:
        return 0
    if fanout < 0 or (degree <= fanout and not replace):
        for k in range(degree):
            positions[used + k] = start + k
        return degree
    if replace:
        for j in range(fanout):
            bits = mix(key + np.uint64(j + 1) * _STEP) >> _S32
            positions[used + j] = start + int((bits * np.uint64(degree)) >> _S32)
        return fanout
    if fanout <= SCANNED:
        # Floyd's method: draw below a growing bound; a repeat takes the newest position instead.
        for j in range(fanout):
            newest = degree - fanout + j
            bits = mix(key + np.uint64(j + 1) * _STEP) >> _S32
            position = start + int((bits * np.uint64(newest + 1)) >> _S32)
            for i in range(used, used + j):
                if positions[i] == position:
                    position = start + newest
                    break
            positions[used + j] = position
        return fanout
    if degree > PERMUTED * fanout:
        _choose_permuted(key, start, degree, positions[used : used + fanout])
        return fanout
    # Selection sampling: pass through all positions and take each with the probability that is still needed.
    taken = 0
    for k in range(degree):
        bits = mix(key + np.uint64(k + 1) * _STEP) >> _S32
        if int((bits * np.uint64(degree - k)) >> _S32) < fanout - taken:
            positions[used + taken] = start + k
            taken += 1
    return fanout


# Many different positions of a list, each found by itself: the first ones of a permutation of the list that a key names
# (a Feistel network). A position is two parts, `low` bits and the rest, whose number `rest` is just large enough for
# the list; in turn each part is changed by a hash of the other. A result behind the list's end is permuted again.

_ROUND_1 = np.uint64(0xBF58476D1CE4E5B9)
_ROUND_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def _choose_permuted(key: np.uint64, start: int, degree: int, positions: Array) -> None:
    """Write different positions out of [start, start + degree)."""
    count, low = np.uint64(degree), np.uint64(0)
    while count >> (low + low + _ONE) > 0:
        low += _ONE
    mask = (_ONE << low) - _ONE
    rest = (count + mask) >> low
    key_0, key_1 = mix(key + _STEP), mix(key + np.uint64(2) * _STEP)
    key_2, key_3 = mix(key + np.uint64(3) * _STEP), mix(key + np.uint64(4) * _STEP)
    for j in range(len(positions)):
        now = np.uint64(j)
        while True:
            left, right = now & mask, now >> low
            left ^= _scramble(right, key_0) & mask
            right = _turned(right, _scramble(left, key_1), rest)
            left ^= _scramble(right, key_2) & mask
            right = _turned(right, _scramble(left, key_3), rest)
            now = (right << low) | left
            if now < count:
                break
        positions[j] = start + np.int64(now)


@njit(nogil=True, cache=True, inline="always")
def _scramble(value: np.uint64, key: np.uint64) -> np.uint64:
    """32 bits of a hash of a value and a round's key."""
    bits = (value + key) * _ROUND_1
    return ((bits ^ (bits >> _S32)) * _ROUND_2) >> _S32


@njit(nogil=True, cache=True, inline="always")
def _turned(value: np.uint64, bits: np.uint64, count: np.uint64) -> np.uint64:
    """A number below `count`, moved on by a random amount."""
    moved = value + ((bits * count) >> _S32)
    return moved - count if moved >= count else moved


# Draws from lists of which only some edges may be drawn: those with a weight, in time, and not excluded.
#
# A list to which a condition applies is passed once to collect its candidates, and the draw is made among these.
# Weights and times apply to all lists (`draw_weighted`, `draw_admissible`); exclusion to the few that have an
# excluded edge, which are drawn again after all have drawn freely (`redraw_excluded`).


class Conditions(NamedTuple):
    """What an edge needs to be drawn; an empty array is no condition.

    A positive weight; a time of its own, or of its source, that is not later than the row's limit; not to be excluded.
    `sums` are those of all lists' weights, `running` their masses (`weighted_draws.running_masses`) where they decide
    draws.
    """

    weights: Array = np.empty(0, np.float32)
    sums: Array = np.empty(0, np.float32)
    running: Array = np.empty(0, np.int64)
    edge_times: Array = np.empty(0, np.int64)
    vertex_times: Array = np.empty(0, np.int64)
    limits: Array = np.empty(0, np.int64)
    exclusion: Exclusion = NOTHING


@njit(nogil=True, cache=True, writes=("out_indptr", "positions"))
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
) -> int:
    """As `draw_uniform`, under conditions other than weights; returns how many are drawn.

    `trees[row]`, where given, makes rows of one vertex draw independently.
    """
    candidates = np.empty(0, np.int64)
    out_indptr[0] = 0
    for row in range(len(vertices)):
        v, used = vertices[row], out_indptr[row]
        row_key = _row_key(key, v, row, original, trees)
        candidates = _with_room(candidates, indptr[v + 1] - indptr[v])
        count = _collect(indptr, indices, v, row, conditions, candidates)
        out_indptr[row + 1] = used + _choose_among(row_key, candidates, count, fanout, replace, positions, used)
    return int(out_indptr[len(vertices)])


@njit(nogil=True, cache=True, writes=("out_indptr", "positions", "out_weights"))
def draw_weighted(
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
    """As `draw_admissible`, in proportion to weights. `out_weights` has the size of `positions` where estimator weights
    are written: without replacement.
    """
    weights, scratch = conditions.weights, scratch_for(fanout)
    # Every edge with a weight may be drawn where neither time nor an exclusion forbids it: no candidates are collected.
    summed = len(conditions.running) > 0 and not len(conditions.limits)
    _, destinations, offsets, _ = conditions.exclusion
    candidates = np.empty(0, np.int64)
    out_indptr[0] = 0
    for row in range(len(vertices)):
        v, used = vertices[row], out_indptr[row]
        row_key = _row_key(key, v, row, original, trees)
        degree = indptr[v + 1] - indptr[v]
        if summed and 0 < fanout < degree:
            first, last = find_excluded(destinations, offsets, v)
            if first == last and degree > SUMMED * fanout and fanout <= FEW:
                chosen = choose_by_sums(
                    row_key, indptr[v], indptr[v + 1], weights, conditions.sums[v], conditions.running, fanout,
                    replace, positions, out_weights, used, scratch,
                )  # fmt: skip
                out_indptr[row + 1] = used + chosen
                continue
            if (
                first == last
                and not replace
                and choose_by_priority(
                    row_key, indptr[v], weights, candidates[:0], degree, fanout, positions, out_weights, used, scratch
                )
            ):
                out_indptr[row + 1] = used + fanout
                continue
        candidates = _with_room(candidates, degree)
        count = _collect(indptr, indices, v, row, conditions, candidates)
        chosen = choose_weighted(
            row_key, indptr[v], weights, conditions.sums[v], candidates, count, fanout, replace, positions,
            out_weights, used, scratch,
        )  # fmt: skip
        out_indptr[row + 1] = used + chosen
    return int(out_indptr[len(vertices)])


@njit(nogil=True, cache=True, writes=())
def _row_key(key: np.uint64, v: int, row: int, original: Array, trees: Array) -> np.uint64:
    """The key of a row's draws: the vertex's own, or one for the vertex in each tree."""
    mixed = mix(key ^ np.uint64(v if original.shape[0] == 0 else original[v]))
    return mix(mixed ^ (np.uint64(trees[row] + 1) * _STEP)) if len(trees) else mixed


@njit(nogil=True, cache=True, writes=("out_indptr", "positions"))
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
    """Draw some rows again without excluded edges, in place of the result of `draw_uniform`; returns how many are
    drawn.

    A row never draws more than it did; where it draws fewer, what follows is moved up.
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


@njit(nogil=True, cache=True, writes=("totals",))
def total_whole(indptr: Array, vertices: Array, sums: Array, totals: Array) -> None:
    """The number of edges of each row's list, or their weight, where `sums` has it by vertex."""
    if len(sums):
        for row in range(len(vertices)):
            totals[row] = sums[vertices[row]]
    else:
        for row in range(len(vertices)):
            totals[row] = indptr[vertices[row] + 1] - indptr[vertices[row]]


@njit(nogil=True, cache=True, writes=("totals",))
def total_admissible(
    indptr: Array, indices: Array, vertices: Array, rows: Array, conditions: Conditions, totals: Array
) -> None:
    """The number, or the weight, of the admissible edges of some rows."""
    weights = conditions.weights
    candidates = np.empty(0, np.int64)
    for row in rows:
        v = vertices[row]
        candidates = _with_room(candidates, indptr[v + 1] - indptr[v])
        count = _collect(indptr, indices, v, row, conditions, candidates)
        totals[row] = count
        if len(weights):
            scale, total = mass_scale(conditions.sums[v]), 0
            for k in range(count):
                total += mass(weights[candidates[k]], scale)
            totals[row] = float(total) / scale


@njit(nogil=True, cache=True, writes=("candidates",))
def _collect(indptr: Array, indices: Array, v: int, row: int, conditions: Conditions, candidates: Array) -> int:
    """Write the positions of v's admissible edges; returns how many."""
    weights, _, _, edge_times, vertex_times, limits, (_, destinations, offsets, excluded) = conditions
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


@njit(nogil=True, cache=True, writes=("positions",))
def _choose_among(
    key: np.uint64, candidates: Array, count: int, fanout: int, replace: bool, positions: Array, used: int
) -> int:
    """`choose` among the first `count` candidates."""
    chosen = choose(key, 0, count, fanout, replace, positions, used)
    for k in range(used, used + chosen):
        positions[k] = candidates[positions[k]]
    return chosen


@njit(nogil=True, cache=True)
def _with_room(candidates: Array, amount: int) -> Array:
    return candidates if amount <= len(candidates) else np.empty(2 * amount, np.int64)
