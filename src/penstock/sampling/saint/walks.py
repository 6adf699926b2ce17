"""Draws of random walks: a root by even chance, then `length` steps, each to an even choice of the in-neighbours.

A walk that comes to an empty list stays there. What the root and the first step visit has closed forms. What later
steps add has not and is counted over walks made beforehand: four bytes an edge for pairs, eight a vertex.
"""

import numpy as np
from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.sampling.homogeneous import Homogeneous
from penstock.sampling.induced import Induced
from penstock.sampling.key import BatchKey
from penstock.sampling.saint.inclusion import count_copies


class WalkDraws:
    """A draw visits the vertices of one walk."""

    def __init__(self, graph: Homogeneous, length: int, counted: int, key: np.uint64) -> None:
        self._graph, self._order, self._length = graph, graph.natural_order(), length
        self.mass = np.zeros(graph.count)
        lists = graph.indptr, graph.indices, graph.names, self._order
        unsorted = _add_first_visits(*lists, self.mass)
        if unsorted >= 0:
            raise PenstockError(
                f"The neighbours of vertex {unsorted} do not ascend by original number: give `original`, the original"
                " number of every vertex."
            )
        self._pairs, self._counted = np.zeros(0, np.int32), counted
        if length > 1:
            self._pairs = np.zeros(len(graph.indices), np.int32)
            visits = np.zeros(graph.count, np.int64)
            _count_later_visits(*lists, key, length, counted, visits, self._pairs)
            self.mass = np.minimum(self.mass + visits / counted, 1.0)

    def visit(self, amount: int, key: BatchKey) -> Array:
        """The vertices of all walks, in order, with repeats."""
        graph = self._graph
        return _walks(graph.indptr, graph.indices, self._order, key.purpose("walks"), self._length, amount)

    def joint(self, inside: Induced) -> Array:
        """Pairs of the root and the first step by closed form, later ones as counted."""
        there, back = count_copies(inside)
        degrees = self._graph.degrees(inside.vertices)
        rows = np.repeat(np.arange(len(inside.vertices)), np.diff(inside.indptr))
        # u may have no list of its own; then `back` is 0 too.
        steps = there / degrees[rows] + back / np.maximum(degrees[inside.indices], 1)
        first: Array = steps / len(self.mass)
        return first + self._pairs[inside.edges] / self._counted if len(self._pairs) else first


@njit(nogil=True, cache=True)
def _add_first_visits(indptr: Array, indices: Array, names: Array, order: Array, mass: Array) -> int:
    """The chance to be the root or the first step; returns a vertex whose list is not ascending, or -1."""
    count = mass.shape[0]
    for i in range(count):
        v = order[i] if order.shape[0] else i
        mass[v] += 1.0 / count
        step = 1.0 / count / max(1, indptr[v + 1] - indptr[v])
        for k in range(indptr[v], indptr[v + 1]):
            if indices[k] != v:
                mass[indices[k]] += step
            if k > indptr[v] and _name(names, indices[k - 1]) > _name(names, indices[k]):
                return int(v)
    return -1


@njit(nogil=True, cache=True)
def _walks(indptr: Array, indices: Array, order: Array, key: np.uint64, length: int, amount: int) -> Array:
    paths = np.empty((amount, length + 1), np.int64)
    for j in range(amount):
        _walk(indptr, indices, order, key, j, paths[j])
    return paths.reshape(-1)


@njit(nogil=True, cache=True)
def _walk(indptr: Array, indices: Array, order: Array, key: np.uint64, number: int, path: Array) -> None:
    """The `number`-th walk of a stream, as long as `path`."""
    first = number * path.shape[0]
    root = int(unit(draw(key, np.uint64(first))) * (indptr.shape[0] - 1))
    path[0] = order[root] if order.shape[0] else root
    for t in range(1, path.shape[0]):
        v = path[t - 1]
        degree = indptr[v + 1] - indptr[v]
        step = int(unit(draw(key, np.uint64(first + t))) * degree)
        path[t] = indices[indptr[v] + step] if degree else v


@njit(nogil=True, cache=True)
def _count_later_visits(
    indptr: Array,
    indices: Array,
    names: Array,
    order: Array,
    key: np.uint64,
    length: int,
    amount: int,
    visits: Array,
    pairs: Array,
) -> None:
    """Walks that visit a vertex after the first step only, and pairs other than the root with the first step."""
    path, distinct = np.empty(length + 1, np.int64), np.empty(length + 1, np.int64)
    for j in range(amount):
        _walk(indptr, indices, order, key, j, path)
        found = 0
        for v in path:
            new = True
            for i in range(found):
                new = new and distinct[i] != v
            if new:
                distinct[found] = v
                found += 1
        # The root, and the first step unless it stayed, are the first distinct vertices.
        early = 2 if path[1] != path[0] else 1
        for i in range(early, found):
            visits[distinct[i]] += 1
        for i in range(1, found):
            for other in range(i):
                if i >= early:
                    _count_pair(indptr, indices, names, distinct[other], distinct[i], pairs)
                    _count_pair(indptr, indices, names, distinct[i], distinct[other], pairs)


@njit(nogil=True, cache=True)
def _count_pair(indptr: Array, indices: Array, names: Array, u: int, v: int, pairs: Array) -> None:
    """Add one to every edge u -> v, if there is any."""
    low, last = indptr[v], indptr[v + 1]
    high, wanted = last, _name(names, u)
    while low < high:
        middle = (low + high) // 2
        if _name(names, indices[middle]) < wanted:
            low = middle + 1
        else:
            high = middle
    while low < last and indices[low] == u:
        pairs[low] += 1
        low += 1


@njit(nogil=True, cache=True)
def _name(names: Array, v: int) -> int:
    return int(v) if names.shape[0] == 0 else int(names[v])
