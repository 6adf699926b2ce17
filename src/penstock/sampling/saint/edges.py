"""Draws of edges: u -> v in proportion to 1 / d_u + 1 / d_v, degrees being lengths of in-lists, counted as 1 at least.

A destination is drawn by the mass of its list, then an edge of the list: eight bytes a vertex instead of an edge.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit
from penstock.sampling.homogeneous import Homogeneous, Reader
from penstock.sampling.importance import Distribution
from penstock.sampling.induced import Induced
from penstock.sampling.key import BatchKey
from penstock.sampling.saint.inclusion import count_copies


class EdgeDraws:
    """A draw visits both ends of an edge. Vertices without any edge are never visited."""

    def __init__(self, graph: Homogeneous) -> None:
        self._graph = graph
        lists, mass = np.zeros(graph.count), np.zeros(graph.count)
        for vertices, some in graph.in_order():
            _add_masses(graph.indptr, vertices, *some, lists, mass)
        self._distribution = Distribution(lists, graph.natural_order())
        self.mass = mass / self._distribution.total if self._distribution.total > 0 else mass

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """Both ends of every edge drawn, in order, with repeats."""
        destinations, _ = self._distribution.draw(key.purpose("lists"), amount)
        lists = reader.read(destinations)
        sources = _draw_sources(self._graph.indptr, *lists, destinations, key.purpose("edges"))
        return np.stack([sources, destinations], 1).ravel()

    def joint(self, inside: Induced) -> Array:
        """The mass of all edges between two vertices, in both directions."""
        there, back = count_copies(inside)
        degrees = np.maximum(1, self._graph.degrees(inside.vertices))
        rows = np.repeat(np.arange(len(inside.vertices)), np.diff(inside.indptr))
        single = 1 / degrees[inside.indices] + 1 / degrees[rows]
        mass: Array = (there + back) * single / self._distribution.total
        return mass


@njit(nogil=True, cache=True)
def _add_masses(
    offsets: Array, vertices: Array, indptr: Array, indices: Array, rows: Array, lists: Array, mass: Array
) -> None:
    """The mass of some vertices' lists, and of all edges at them; `offsets` are those of all lists."""
    for i in range(vertices.shape[0] if vertices.shape[0] else lists.shape[0]):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        for k in range(indptr[row], indptr[row + 1]):
            u = indices[k]
            single = _single(offsets, u, v)
            lists[v] += single
            mass[v] += single
            if u != v:
                mass[u] += single


@njit(nogil=True, cache=True)
def _draw_sources(
    offsets: Array, indptr: Array, indices: Array, rows: Array, destinations: Array, key: np.uint64
) -> Array:
    """An edge of every destination's list by its mass; `offsets` are those of all lists."""
    sources = np.empty(destinations.shape[0], np.int64)
    for j in range(destinations.shape[0]):
        v, row = destinations[j], rows[j]
        total = 0.0
        for k in range(indptr[row], indptr[row + 1]):
            total += _single(offsets, indices[k], v)
        left = unit(draw(key, np.uint64(j))) * total
        for k in range(indptr[row], indptr[row + 1]):
            sources[j] = indices[k]
            left -= _single(offsets, indices[k], v)
            if left < 0:
                break
    return sources


@njit(nogil=True, cache=True)
def _single(offsets: Array, u: int, v: int) -> float:
    single: float = 1.0 / max(1, offsets[u + 1] - offsets[u]) + 1.0 / max(1, offsets[v + 1] - offsets[v])
    return single
