"""Graphs with one node type and one edge type, for samplers that support no others.

Samplers read whole lists: those of some vertices for a batch (`reader`), or all of them once beforehand (`in_order`).
`WholeGraph` has all lists; `sampling.parts` has a graph whose lists are held by the owners of its parts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.folder import Graph
from penstock.graph.hashing import unit_draws
from penstock.graph.integrity import check_graph
from penstock.kernels import njit
from penstock.sampling.lists import check_seeds


class NeighbourLists(NamedTuple):
    """Whole lists of some vertices: the i-th has `indices[indptr[rows[i]]:indptr[rows[i] + 1]]`; without rows, the i-th
    list.
    """

    indptr: Array
    indices: Array
    rows: Array


class Reader(Protocol):
    """Reads lists for one batch; lists that were read for it before are not fetched again."""

    def read(self, vertices: Array) -> NeighbourLists:
        """The lists of some vertices, in any order, with repeats."""


class Homogeneous(ABC):
    """Offsets of all lists, the names of vertices in the hash (empty: their own numbers), and access to the lists."""

    def __init__(self, name: str, node_type: str, indptr: Array, names: Array) -> None:
        self.name, self.node_type, self.indptr, self.names = name, node_type, indptr, names
        self.count = len(indptr) - 1

    @abstractmethod
    def reader(self) -> Reader:
        """A reader for one batch, used by one thread."""

    @abstractmethod
    def in_order(self) -> Iterator[tuple[Array, NeighbourLists]]:
        """All lists once, in the natural order: some vertices (empty: all, in order) and their lists."""

    @abstractmethod
    def whole(self) -> "WholeGraph":
        """The graph with all its lists in this process."""

    def natural_order(self) -> Array:
        """Vertices by ascending name; empty: their own order. Sums in this order do not depend on the numbering."""
        return np.argsort(self.names, kind="stable")

    def degrees(self, vertices: Array) -> Array:
        """Lengths of the whole lists of some vertices."""
        lengths: Array = self.indptr[1:][vertices] - self.indptr[:-1][vertices]
        return lengths

    def totals(self, vertices: Array) -> Array:
        """The lengths as float32, as a block's `totals`."""
        return self.degrees(vertices).astype(np.float32)

    def positions(self, lists: NeighbourLists, vertices: Array, indptr: Array, found: Array) -> Array:
        """Positions in the graph's lists of what was found, row by row, at some positions of the vertices' `lists`."""
        if lists.indptr is self.indptr:
            return found
        moved: Array = found + np.repeat(self.indptr[vertices] - lists.indptr[lists.rows], np.diff(indptr))
        return moved

    def seeds(self, seeds: Array) -> Array:
        """Validated seeds in the kernels' type."""
        return check_seeds(seeds, self.count, self.node_type, index_dtype(self.count))

    def train_mask(self, train: Array) -> Array:
        """Whether each vertex is a training vertex, for samplers that find their seeds in subgraphs."""
        if not len(train):
            raise PenstockError(
                "There are no training vertices: give their numbers, such as graph.split('train').", code="missing-data"
            )
        mask = np.zeros(self.count, np.bool_)
        mask[self.seeds(train)] = True
        return mask


class WholeGraph(Homogeneous):
    """A graph whose lists are all in this process."""

    def __init__(self, name: str, node_type: str, indptr: Array, names: Array, indices: Array) -> None:
        super().__init__(name, node_type, indptr, names)
        self.indices = indices

    def reader(self) -> "WholeGraph":
        """Every batch reads the same lists."""
        return self

    def read(self, vertices: Array) -> NeighbourLists:
        """The lists themselves: nothing is copied."""
        return NeighbourLists(self.indptr, self.indices, vertices)

    def in_order(self) -> Iterator[tuple[Array, NeighbourLists]]:
        """All neighbour lists in one piece."""
        order = self.natural_order()
        yield order, NeighbourLists(self.indptr, self.indices, order)

    def whole(self) -> "WholeGraph":
        return self


def whole_graph(graph: Graph, sampler: str, original: Array | None = None) -> WholeGraph:
    """A graph as `sampler` sees it; `original` are the names of its vertices where it was renumbered."""
    graph.require_one_relation(f"Sampler {sampler}", "use the neighbour sampler, or merge the types")
    graph.require_edges()
    if graph.is_part:
        raise PenstockError(
            f"Sampler {sampler} needs the whole graph, and {graph.name!r} is a part: open the whole graph.",
            code="whole-graph-needed",
        )
    if original is not None and len(original) != graph.num_nodes:
        raise PenstockError(
            f"There are {len(original):,} original numbers for {graph.num_nodes:,} vertices: give one for each.",
            code="shape-mismatch",
        )
    check_graph(graph)
    names = np.empty(0, np.int64) if original is None else np.ascontiguousarray(original, np.int64)
    return WholeGraph(graph.name, graph.node_types[0], graph.indptr, names, graph.indices)


def homogeneous(graph: Graph | Homogeneous, sampler: str, original: Array | None = None) -> Homogeneous:
    """A graph as `sampler` sees it; a `Homogeneous` one, which has its own names, is returned unchanged."""
    return graph if isinstance(graph, Homogeneous) else whole_graph(graph, sampler, original)


# The importance of vertices as sources, and draws in proportion to it. The importance of u is the squared norm of its
# column in the row-normalised adjacency: the sum of (1 / d_v)^2 over the edges u -> v, d_v being the length of v's
# list. One pass over the lists computes it for all, eight bytes per vertex.


def importance(graph: Homogeneous, self_loops: bool = False) -> Array:
    """Squared column norms (float64) of every vertex; with `self_loops` every list has its own vertex as well."""
    mass = np.zeros(graph.count)
    for vertices, lists in graph.in_order():
        _add_squares(vertices, *lists, self_loops, mass)
    return mass


class Distribution:
    """Draws vertices with repeats in proportion to their mass: prefix sums and a search, eight bytes per vertex."""

    def __init__(self, mass: Array, order: Array) -> None:
        self._order = order
        self._running = np.cumsum(mass[order] if len(order) else mass)
        self.total = float(self._running[-1]) if len(mass) else 0.0
        # Rounding may carry a draw to the total itself; it then belongs to the last vertex that has any mass.
        self._last = int(np.searchsorted(self._running, self.total, "left"))

    def sums(self) -> tuple[Array, Array]:
        """The running sums by vertex; and their total with the last vertex that may be drawn."""
        assert not len(self._order)
        return self._running, np.array([self.total, self._last], np.float64)

    def draw(self, key: np.uint64, amount: int) -> tuple[Array, Array]:
        """`amount` vertices, and the probability of each in a single draw. None if there is no mass at all."""
        points = unit_draws(key, amount if self.total > 0 else 0)
        places = np.minimum(np.searchsorted(self._running, points * self.total, "right"), self._last)
        below = np.where(places > 0, self._running[places - 1], 0.0)
        chances = (self._running[places] - below) / self.total if self.total > 0 else points
        return self._order[places] if len(self._order) else places, chances


@njit(nogil=True, cache=True)
def _add_squares(vertices: Array, indptr: Array, indices: Array, rows: Array, self_loops: bool, mass: Array) -> None:
    for i in range(vertices.shape[0] if vertices.shape[0] else mass.shape[0]):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        length = indptr[row + 1] - indptr[row] + self_loops
        if length == 0:
            continue
        share = (1.0 / length) ** 2
        for k in range(indptr[row], indptr[row + 1]):
            mass[indices[k]] += share
        if self_loops:
            mass[v] += share
