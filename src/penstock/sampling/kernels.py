"""Kernels of neighbour sampling: one hop of one batch a call, without the interpreter's lock.

A hop reads the vertices known so far, draws in-neighbours of each and numbers new vertices in order of appearance.
"""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix

_STEP = np.uint64(0x9E3779B97F4A7C15)
_S32 = np.uint64(32)
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
    """
    chosen = np.empty(max(fanout, 1), np.int64)
    found, used = known, 0
    out_indptr[0] = 0
    for row in range(known):
        v = vertices[row]
        start = indptr[v]
        degree = indptr[v + 1] - start
        if fanout < 0 or (degree <= fanout and not replace):
            for k in range(start, start + degree):
                found = _number(indices[k], place, vertices, found, out_indices, used)
                used += 1
        elif degree > 0:
            name = v if original.shape[0] == 0 else original[v]
            _choose(mix(key ^ np.uint64(name)), degree, fanout, replace, chosen)
            for j in range(fanout):
                found = _number(indices[start + chosen[j]], place, vertices, found, out_indices, used)
                used += 1
        out_indptr[row + 1] = used
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
def count_edges(indptr: Array, vertices: Array, known: int, fanout: int, replace: bool) -> int:
    """How many edges a hop can draw at most."""
    total = 0
    for row in range(known):
        degree = indptr[vertices[row] + 1] - indptr[vertices[row]]
        if fanout < 0 or (degree <= fanout and not replace):
            total += degree
        elif degree > 0:
            total += fanout
    return total


@njit(nogil=True, cache=True, inline="always")
def _number(vertex: int, place: Array, vertices: Array, found: int, out: Array, position: int) -> int:
    row = place[vertex]
    if row < 0:
        row = found
        place[vertex] = row
        vertices[row] = vertex
        found += 1
    out[position] = row
    return found


@njit(nogil=True, cache=True, inline="always")
def _below(key: np.uint64, counter: int, bound: int) -> int:
    """The counter-th draw of a vertex, below a bound under 2^32."""
    bits = mix(key + np.uint64(counter + 1) * _STEP) >> _S32
    return int((bits * np.uint64(bound)) >> _S32)


@njit(nogil=True, cache=True)
def _choose(key: np.uint64, degree: int, fanout: int, replace: bool, chosen: Array) -> None:
    """`fanout` positions below `degree`: with repeats, or each set of different ones equally likely."""
    if replace:
        for j in range(fanout):
            chosen[j] = _below(key, j, degree)
    elif fanout <= _SCANNED:
        # Floyd: draw below a growing bound; a repeat takes the newest position instead.
        for j in range(fanout):
            last = degree - fanout + j
            position = _below(key, j, last + 1)
            for i in range(j):
                if chosen[i] == position:
                    position = last
                    break
            chosen[j] = position
    else:
        # Pass through all positions and take each with the share of what is still wanted.
        taken = 0
        for position in range(degree):
            if _below(key, position, degree - position) < fanout - taken:
                chosen[taken] = position
                taken += 1
