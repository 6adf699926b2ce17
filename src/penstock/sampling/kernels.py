"""Kernels of neighbour sampling: one hop of one batch a call, without the interpreter's lock.

A hop reads the vertices known so far, draws in-neighbours of each and numbers new vertices in order of appearance. It
works in small groups of rows and three passes over each: choose list positions, fetch what stands there, number it.
Each pass is a loop of independent loads, so that the processor has many cache misses under way at once; in a single
pass every edge would wait for its own. (Passing arrays through nested inlined functions makes Numba count references
in the inner loop, which costs more than the work; hence the plain loops.)
"""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)
_GROUP = 128
"""Rows a group: their positions and neighbours stay in the first-level cache for usual fan-outs."""
_SCANNED = 32
"""Up to this fan-out a repeated draw is found by looking through those already made."""


@njit(nogil=True, cache=True)
def sample_hop(
    indptr: Array,
    indices: Array,
    original: Array,
    key: np.uint64,
    fanout: int,
    replace: bool,
    place: Array,
    vertices: Array,
    known: int,
    out_indptr: Array,
    out_indices: Array,
) -> int:
    """Draw `fanout` in-neighbours (all, if negative) of the first `known` vertices; returns how many are known after.

    `place[v]` is the row of vertex v in this batch or -1. `original[v]` names v in the hash; empty: v itself.
    `out_indices` has room for `count_edges`.
    """
    found, used = known, 0
    out_indptr[0] = 0
    positions = np.empty(0, np.int64)
    for first in range(0, known, _GROUP):
        last = min(first + _GROUP, known)
        most = count_edges(indptr, vertices[first:last], fanout, replace)
        if most > positions.shape[0]:
            positions = np.empty(2 * most, np.int64)
        for row in range(first, last):
            v = vertices[row]
            name = v if original.shape[0] == 0 else original[v]
            start, degree = indptr[v], indptr[v + 1] - indptr[v]
            chosen = _choose(
                mix(key ^ np.uint64(name)), start, degree, fanout, replace, positions, out_indptr[row] - used
            )
            out_indptr[row + 1] = out_indptr[row] + chosen
        drawn = out_indptr[last] - used
        for k in range(drawn):
            out_indices[used + k] = indices[positions[k]]
        for k in range(used, used + drawn):
            vertex = out_indices[k]
            row = place[vertex]
            if row < 0:
                row = found
                place[vertex] = row
                vertices[row] = vertex
                found += 1
            out_indices[k] = row
        used += drawn
    return found


@njit(nogil=True, cache=True)
def forget(place: Array, vertices: Array, known: int) -> None:
    """Clear the rows of a finished batch, and only those."""
    for row in range(known):
        place[vertices[row]] = -1


@njit(nogil=True, cache=True)
def number_seeds(seeds: Array, place: Array, vertices: Array) -> int:
    """Give the seeds the first rows; returns how many, or the negative place of one that repeats, minus one."""
    count = len(seeds)
    for row in range(count):
        if place[seeds[row]] >= 0:
            forget(place, vertices, row)
            return -row - 1
        place[seeds[row]] = row
        vertices[row] = seeds[row]
    return count


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
def _choose(key: np.uint64, start: int, degree: int, fanout: int, replace: bool, positions: Array, used: int) -> int:
    """Write list positions of one vertex behind the `used` first; returns how many.

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
    if fanout <= _SCANNED:
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
