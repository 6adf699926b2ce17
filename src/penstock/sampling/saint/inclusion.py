"""Chances that vertices and pairs are in a subgraph, and what follows: the weights of its edges.

All kinds of GraphSAINT make `size` independent draws, each of which visits a vertex, an edge's ends, or a walk's
vertices. If one draw visits v with chance m_v, and both u and v with chance m_uv, then v is in the subgraph with chance
p_v = 1 - (1 - m_v)^size, and both are with chance p_u + p_v - (1 - (1 - m_u - m_v + m_uv)^size).
"""

from math import expm1, log1p

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.csr import transpose_lists
from penstock.kernels import njit
from penstock.sampling.induced import Induced


def inclusion(mass: Array, size: int) -> Array:
    """The chance to be visited by one of `size` draws, from the chances of one draw."""
    return _inclusion(mass, size)


def edge_weights(inside: Induced, mass: Array, joint: Array, size: int) -> Array:
    """1 / P(source in | destination in) of every edge (float32): weighted sums are unbiased where v is in.

    `mass` is of the rows, `joint` of the edges, both for one draw.
    """
    return _weights(inside.indptr, inside.indices, mass, joint, size)


def count_copies(inside: Induced) -> tuple[Array, Array]:
    """Of every edge u -> v of a subgraph: how many there are from u to v, and how many from v to u."""
    out_indptr, out_indices = transpose_lists(inside.indptr, inside.indices, len(inside.vertices))
    there = _tally(inside.indptr, inside.indices, inside.indptr, inside.indices)
    back = _tally(inside.indptr, inside.indices, out_indptr, out_indices)
    return there, back


@njit(nogil=True, cache=True)
def _visited(mass: float, size: int) -> float:
    """1 - (1 - mass)^size without loss for small masses."""
    return 1.0 if mass >= 1.0 else -expm1(size * log1p(-mass))


@njit(nogil=True, cache=True)
def _inclusion(mass: Array, size: int) -> Array:
    out = np.empty(mass.shape[0])
    for i in range(mass.shape[0]):
        out[i] = _visited(mass[i], size)
    return out


@njit(nogil=True, cache=True)
def _weights(indptr: Array, indices: Array, mass: Array, joint: Array, size: int) -> Array:
    out = np.empty(indices.shape[0], np.float32)
    for v in range(indptr.shape[0] - 1):
        own = _visited(mass[v], size)
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            # An estimated m_uv may exceed m_u or m_v, which the true one cannot.
            either = max(mass[u] + mass[v] - joint[k], mass[u], mass[v])
            both = _visited(mass[u], size) + own - _visited(either, size)
            out[k] = 1.0 if u == v else own / both
    return out


@njit(nogil=True, cache=True)
def _tally(indptr: Array, indices: Array, other_indptr: Array, other_indices: Array) -> Array:
    """How often each edge's source stands in another list of the same row."""
    times = np.zeros(indptr.shape[0] - 1, np.int32)
    out = np.empty(indices.shape[0], np.int32)
    for row in range(indptr.shape[0] - 1):
        for k in range(other_indptr[row], other_indptr[row + 1]):
            times[other_indices[k]] += 1
        for k in range(indptr[row], indptr[row + 1]):
            out[k] = times[indices[k]]
        for k in range(other_indptr[row], other_indptr[row + 1]):
            times[other_indices[k]] = 0
    return out
