"""Undirected neighbour lists for partitioners: both directions, no self loops, parallel edges as weights."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.csr import transpose_lists
from penstock.kernels import njit


class Adjacency(NamedTuple):
    """Symmetric neighbour lists; `weights` is None when all are equal."""

    indptr: Array
    indices: Array
    weights: Array | None


def undirected(indptr: Array, indices: Array) -> Adjacency:
    """Neighbours in either direction, weighted by how many edges join the two vertices."""
    out_indptr, out_indices = transpose_lists(indptr, indices, len(indptr) - 1)
    simple = _is_simple(indptr, indices)
    if simple and np.array_equal(out_indptr, indptr) and np.array_equal(out_indices, indices):
        # Symmetric as stored, which most training graphs are: the mapped arrays serve as they are.
        return Adjacency(indptr, indices, None)
    lengths = np.zeros(len(indptr), np.int64)
    _union_lengths(indptr, indices, out_indptr, out_indices, lengths)
    union_indptr = np.cumsum(lengths)
    union = np.empty(int(union_indptr[-1]), indices.dtype)
    weights = np.empty(len(union), np.int32)
    _fill_union(indptr, indices, out_indptr, out_indices, union_indptr, union, weights)
    uniform = len(weights) == 0 or weights.min() == weights.max()
    return Adjacency(union_indptr, union, None if uniform else weights)


def induced(adjacency: Adjacency, members: Array, place: Array) -> Adjacency:
    """The subgraph of some vertices, renumbered by their order; `place` is scratch, all -1 before and after."""
    place[members] = np.arange(len(members))
    lengths = np.zeros(len(members) + 1, np.int64)
    _induced_lengths(adjacency.indptr, adjacency.indices, members, place, lengths)
    indptr = np.cumsum(lengths)
    indices = np.empty(int(indptr[-1]), np.int32)
    weighted = adjacency.weights is not None
    source = adjacency.weights if adjacency.weights is not None else np.empty(0, np.int32)
    weights = np.empty(len(indices) if weighted else 0, np.int32)
    _fill_induced(adjacency.indptr, adjacency.indices, source, members, place, indptr, indices, weights, weighted)
    place[members] = -1
    return Adjacency(indptr, indices, weights if weighted else None)


@njit(nogil=True, cache=True)
def _is_simple(indptr: Array, indices: Array) -> bool:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] == row or (k > indptr[row] and indices[k] == indices[k - 1]):
                return False
    return True


@njit(nogil=True, cache=True, inline="always")
def _next(a: int, a_end: int, a_idx: Array, b: int, b_end: int, b_idx: Array) -> tuple[int, int, int, int]:
    """The smallest vertex of two ascending lists, how often both name it, and where both go on."""
    if b >= b_end or (a < a_end and a_idx[a] <= b_idx[b]):
        vertex = a_idx[a]
    else:
        vertex = b_idx[b]
    times = 0
    while a < a_end and a_idx[a] == vertex:
        a += 1
        times += 1
    while b < b_end and b_idx[b] == vertex:
        b += 1
        times += 1
    return vertex, times, a, b


@njit(nogil=True, cache=True)
def _union_lengths(a_ptr: Array, a_idx: Array, b_ptr: Array, b_idx: Array, lengths: Array) -> None:
    for row in range(a_ptr.shape[0] - 1):
        a, b = a_ptr[row], b_ptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            vertex, _, a, b = _next(a, a_ptr[row + 1], a_idx, b, b_ptr[row + 1], b_idx)
            lengths[row + 1] += vertex != row


@njit(nogil=True, cache=True)
def _fill_union(
    a_ptr: Array, a_idx: Array, b_ptr: Array, b_idx: Array, indptr: Array, out: Array, weights: Array
) -> None:
    for row in range(a_ptr.shape[0] - 1):
        a, b, position = a_ptr[row], b_ptr[row], indptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            vertex, times, a, b = _next(a, a_ptr[row + 1], a_idx, b, b_ptr[row + 1], b_idx)
            if vertex != row:
                out[position] = vertex
                weights[position] = times
                position += 1


@njit(nogil=True, cache=True)
def _induced_lengths(indptr: Array, indices: Array, members: Array, place: Array, lengths: Array) -> None:
    for i in range(members.shape[0]):
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            lengths[i + 1] += place[indices[k]] >= 0


@njit(nogil=True, cache=True)
def _fill_induced(
    indptr: Array,
    indices: Array,
    weights: Array,
    members: Array,
    place: Array,
    out_indptr: Array,
    out: Array,
    out_weights: Array,
    weighted: bool,
) -> None:
    for i in range(members.shape[0]):
        position = out_indptr[i]
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            local = place[indices[k]]
            if local >= 0:
                out[position] = local
                if weighted:
                    out_weights[position] = weights[k]
                position += 1
