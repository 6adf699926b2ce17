"""The subgraph that some vertices induce: all edges among them, or between some of two types."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.block import Block
from penstock.sampling.homogeneous import Homogeneous, Reader
from penstock.sampling.lists import PerThread


class Induced(NamedTuple):
    """In-neighbour lists over the rows of `vertices`; `edges` are the edges' positions in the graph's lists."""

    vertices: Array
    indptr: Array
    indices: Array
    edges: Array


class Inducer:
    """Makes subgraphs of one graph, on any thread; each thread keeps four bytes per vertex."""

    def __init__(self, graph: Homogeneous) -> None:
        self._graph = graph
        self._places: PerThread[Array] = PerThread(lambda: np.full(graph.count, -1, np.int32))

    def induce(self, vertices: Array, reader: Reader) -> Induced:
        """The subgraph of some different vertices, rows in their order, lists in the graph's order."""
        vertices = self._graph.seeds(vertices)
        lists = reader.read(vertices)
        indptr, indices, edges = _induce(*lists, vertices, self._places.get())
        return Induced(vertices, indptr, indices, self._graph.positions(lists, vertices, indptr, edges))


def induce_between(
    indptr: Array, indices: Array, num_sources: int, sources: Array, destinations: Array
) -> tuple[Array, Array]:
    """[2, edges] rows of all edges of a relation between some different vertices, by destination; and their positions.

    Takes four bytes for each vertex of the sources' type while it runs.
    """
    place = np.full(num_sources, -1, np.int32)
    place[sources] = np.arange(len(sources), dtype=np.int32)
    lists = np.asarray(destinations, np.int64)
    found, rows, edges = _induce_lists(indptr, indices, lists, place)
    targets = np.repeat(np.arange(len(destinations)), np.diff(found))
    return np.stack([rows.astype(np.int64), targets]), edges


def blocks_on(graph: Homogeneous, inside: Induced, weights: Array | None, seeds: int, layers: int) -> list[Block]:
    """`layers` blocks on one subgraph, outermost first: all rows to all rows, and the last to the first `seeds`.

    They share their arrays. Totals are the rows' degrees in the whole graph.
    """
    totals = graph.totals(inside.vertices)
    rows, last = len(inside.vertices), int(inside.indptr[seeds])
    whole = Block(inside.indptr, inside.indices, rows, weights, totals, inside.edges)
    final = Block(
        inside.indptr[: seeds + 1],
        inside.indices[:last],
        rows,
        None if weights is None else weights[:last],
        totals,
        inside.edges[:last],
    )
    return [whole] * (layers - 1) + [final]


@njit(nogil=True, cache=True, writes=("place",))
def _induce(indptr: Array, indices: Array, lists: Array, vertices: Array, place: Array) -> tuple[Array, Array, Array]:
    """Offsets, rows and positions of the edges among some vertices; `place` is all -1 before and after."""
    for row in range(vertices.shape[0]):
        place[vertices[row]] = row
    found = _induce_lists(indptr, indices, lists, place)
    for v in vertices:
        place[v] = -1
    return found


@njit(nogil=True, cache=True)
def _induce_lists(indptr: Array, indices: Array, lists: Array, place: Array) -> tuple[Array, Array, Array]:
    """Offsets, rows and positions of the edges of some lists from the vertices that have a place."""
    out_indptr = np.zeros(lists.shape[0] + 1, np.int64)
    for row in range(lists.shape[0]):
        length = 0
        for k in range(indptr[lists[row]], indptr[lists[row] + 1]):
            length += place[indices[k]] >= 0
        out_indptr[row + 1] = out_indptr[row] + length
    rows = np.empty(out_indptr[-1], np.int32)
    edges = np.empty(out_indptr[-1], np.int64)
    used = 0
    for each in lists:
        for k in range(indptr[each], indptr[each + 1]):
            if place[indices[k]] >= 0:
                rows[used] = place[indices[k]]
                edges[used] = k
                used += 1
    return out_indptr, rows, edges
