"""A heterogeneous graph as one set of vertices: how partitioners and metrics look at it."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.graph.integrity import check_graph, check_order
from penstock.kernels import njit


@dataclass(frozen=True)
class WholeAdjacency:
    """In-neighbour lists over all vertices, type after type.

    With one node and one edge type these are the graph's own mapped arrays; otherwise a merged copy of the topology.
    """

    graph: Graph
    offsets: dict[str, int]
    indptr: Array
    indices: Array

    @property
    def count(self) -> int:
        """Vertices of all types."""
        return len(self.indptr) - 1

    def by_type(self, values: Array) -> dict[str, Array]:
        """A per-vertex array cut by node type (views)."""
        return {name: values[start : start + self.graph.nodes[name].count] for name, start in self.offsets.items()}


def whole_of(graph: Graph) -> WholeAdjacency:
    """All vertices of a graph, numbered type after type."""
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph: partition the whole graph instead.",
            code="whole-graph-needed",
        )
    check_graph(graph)
    for edge_type in graph.edges:
        check_order(graph, edge_type)
    return merged_lists(graph)


def merged_lists(graph: Graph) -> WholeAdjacency:
    """All vertices of a graph whose lists were checked, and may be in any order."""
    offsets, total = {}, 0
    for name, nodes in graph.nodes.items():
        offsets[name] = total
        total += nodes.count
    if graph.is_homogeneous and graph.edges:
        return WholeAdjacency(graph, offsets, graph.indptr, graph.indices)
    return WholeAdjacency(graph, offsets, *_merged_lists(graph, offsets, total))


def merged_relations(whole: WholeAdjacency) -> Array:
    """The relation of every entry of the lists, by its place among the graph's edge types (int16).

    Of entries that name the same neighbour the relations ascend.
    """
    graph, kinds = whole.graph, len(whole.graph.edges)
    entries, fill = np.empty(len(whole.indices), np.int64), whole.indptr[:-1].copy()
    for number, ((source, _, target), edges) in enumerate(graph.edges.items()):
        starts = whole.offsets[source], whole.offsets[target]
        _copy_entries(edges.indptr, edges.indices, *starts, kinds, number, fill, entries)
    _sort_lists(whole.indptr, entries)
    return (entries % kinds).astype(np.int16)


def _merged_lists(graph: Graph, offsets: dict[str, int], total: int) -> tuple[Array, Array]:
    lengths = np.zeros(total, np.int64)
    for (_, _, target), edges in graph.edges.items():
        start = offsets[target]
        lengths[start : start + graph.nodes[target].count] += np.diff(edges.indptr)
    indptr = np.zeros(total + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), index_dtype(total))
    fill = indptr[:-1].copy()
    for (source, _, target), edges in graph.edges.items():
        _copy_lists(edges.indptr, edges.indices, offsets[source], offsets[target], fill, indices)
    if len(graph.edges) > 1:
        _sort_lists(indptr, indices)
    return indptr, indices


@njit(nogil=True, cache=True)
def _copy_lists(indptr: Array, indices: Array, source: int, target: int, fill: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        position = fill[target + row]
        for k in range(indptr[row], indptr[row + 1]):
            out[position] = source + indices[k]
            position += 1
        fill[target + row] = position


@njit(nogil=True, cache=True)
def _copy_entries(
    indptr: Array, indices: Array, source: int, target: int, kinds: int, kind: int, fill: Array, out: Array
) -> None:
    """As `_copy_lists`, with the neighbour and the relation in one number."""
    for row in range(indptr.shape[0] - 1):
        position = fill[target + row]
        for k in range(indptr[row], indptr[row + 1]):
            out[position] = np.int64(source + indices[k]) * kinds + kind
            position += 1
        fill[target + row] = position


@njit(nogil=True, cache=True)
def _sort_lists(indptr: Array, indices: Array) -> None:
    # Equal neighbours (through two relations) must stand together for the kernels that count them once.
    for row in range(indptr.shape[0] - 1):
        indices[indptr[row] : indptr[row + 1]].sort()
