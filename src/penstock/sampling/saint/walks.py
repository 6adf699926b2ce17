"""Draws of random walks: a root by even chance, then `length` steps, each to an even choice of the in-neighbours.

A walk that comes to an empty list stays there. What the root and the first step visit has closed forms. What later
steps add has not and is counted over walks made beforehand: four bytes an edge for pairs, eight a vertex, and all lists
where it is counted.
"""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit
from penstock.sampling.homogeneous import Homogeneous, Reader
from penstock.sampling.induced import Induced
from penstock.sampling.key import BatchKey
from penstock.sampling.saint.inclusion import count_copies


class WalkDraws:
    """A draw visits the vertices of one walk."""

    def __init__(self, graph: Homogeneous, length: int, counted: int, key: np.uint64) -> None:
        self._graph, self._order, self._length = graph, graph.natural_order(), length
        self.mass = np.zeros(graph.count)
        for vertices, lists in graph.in_order():
            unsorted = _add_first_visits(vertices, *lists, graph.names, self.mass)
            if unsorted >= 0:
                raise PenstockError(
                    f"The neighbours of vertex {unsorted} are not sorted by original number: pass `original`, the"
                    " original number of every vertex.",
                    code="option-missing",
                )
        self._pairs, self._counted = np.zeros(0, np.int32), counted
        if length > 1:
            whole, visits = graph.whole(), np.zeros(graph.count, np.int64)
            self._pairs = np.zeros(len(whole.indices), np.int32)
            here = whole.indptr, whole.indices, whole.names, self._order
            _count_later_visits(*here, key, length, counted, visits, self._pairs)
            self.mass = np.minimum(self.mass + visits / counted, 1.0)

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices of all walks, in order, with repeats."""
        stream, paths = key.purpose("walks"), np.empty((amount, self._length + 1), np.int64)
        _start(stream, self._order, self._graph.count, paths)
        for t in range(1, self._length + 1):
            _step(*reader.read(paths[:, t - 1].copy()), stream, t, paths)
        return paths.ravel()

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
def _add_first_visits(vertices: Array, indptr: Array, indices: Array, rows: Array, names: Array, mass: Array) -> int:
    """The chance to be the root or the first step; returns a vertex whose list is not ascending, or -1."""
    count = mass.shape[0]
    for i in range(vertices.shape[0] if vertices.shape[0] else count):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        mass[v] += 1.0 / count
        step = 1.0 / count / max(1, indptr[row + 1] - indptr[row])
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] != v:
                mass[indices[k]] += step
            if k > indptr[row] and _name(names, indices[k - 1]) > _name(names, indices[k]):
                return int(v)
    return -1


@njit(nogil=True, cache=True)
def _start(key: np.uint64, order: Array, count: int, paths: Array) -> None:
    """The roots of all walks of a stream."""
    for j in range(paths.shape[0]):
        paths[j, 0] = _root(key, j * paths.shape[1], order, count)


@njit(nogil=True, cache=True)
def _step(indptr: Array, indices: Array, rows: Array, key: np.uint64, t: int, paths: Array) -> None:
    """The t-th step of all walks of a stream; `rows` are those of the vertices they have come to."""
    for j in range(paths.shape[0]):
        row = rows[j]
        place = _choice(key, j * paths.shape[1] + t, indptr[row + 1] - indptr[row])
        paths[j, t] = indices[indptr[row] + place] if place >= 0 else paths[j, t - 1]


@njit(nogil=True, cache=True)
def _walk(indptr: Array, indices: Array, order: Array, key: np.uint64, number: int, path: Array) -> None:
    """The `number`-th walk of a stream, as long as `path`."""
    first = number * path.shape[0]
    path[0] = _root(key, first, order, indptr.shape[0] - 1)
    for t in range(1, path.shape[0]):
        v = path[t - 1]
        place = _choice(key, first + t, indptr[v + 1] - indptr[v])
        path[t] = indices[indptr[v] + place] if place >= 0 else v


@njit(nogil=True, cache=True)
def _root(key: np.uint64, number: int, order: Array, count: int) -> int:
    root = int(unit(draw(key, np.uint64(number))) * count)
    return int(order[root]) if order.shape[0] else root


@njit(nogil=True, cache=True)
def _choice(key: np.uint64, number: int, degree: int) -> int:
    """A place in a list of some length; -1 in an empty one."""
    return int(unit(draw(key, np.uint64(number))) * degree) if degree else -1


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
