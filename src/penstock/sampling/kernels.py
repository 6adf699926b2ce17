"""Kernels of neighbour sampling: one hop of one batch a call, without the interpreter's lock.

A hop chooses list positions (`draw_uniform` here, `admissible` for the rest), fetches what stands there (`fetch`) and
numbers it (`relabel`), each in a pass of its own over the whole hop: a pass is a loop of independent loads, so that the
processor has many cache misses under way at once. In one pass every edge would wait for its own; fetching group by
group while choosing took twice as long as after it. For the same reason the lists' bounds are read a group of rows
ahead. (Passing arrays through nested inlined functions makes Numba count references in the inner loop, which costs more
than the work; hence the plain loops.)
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)
_GROUP = 128
"""Rows whose lists' bounds are read ahead: they stay in the first-level cache."""
SCANNED = 32
"""Up to this fan-out a repeated draw is found by looking through those already made."""


@njit(nogil=True, cache=True)
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
    """List positions of `fanout` in-neighbours (all, if negative) of every vertex; row i's are behind `out_indptr[i]`.

    `original[v]` names v in the hash; empty: v itself. `positions` has room for `count_edges`.
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


@njit(nogil=True, cache=True)
def fetch(indices: Array, positions: Array, sources: Array) -> None:
    """The sources at some list positions."""
    for k in range(len(positions)):
        sources[k] = indices[positions[k]]


@njit(nogil=True, cache=True)
def count_edges(indptr: Array, vertices: Array, fanout: int, replace: bool) -> int:
    """How many edges a hop draws from some vertices."""
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
    """Write positions out of [start, start + degree) behind the `used` first; returns how many.

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
        # Floyd: draw below a growing bound; a repeat takes the newest position instead.
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
    # Pass through all positions and take each with the share of what is still wanted.
    taken = 0
    for k in range(degree):
        bits = mix(key + np.uint64(k + 1) * _STEP) >> _S32
        if int((bits * np.uint64(degree - k)) >> _S32) < fanout - taken:
            positions[used + taken] = start + k
            taken += 1
    return fanout
