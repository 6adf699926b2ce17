"""Which relation holds the same edges the other way round.

A model that predicts (u, v) must not read (v, u) where the two are one fact, so batches exclude reverses and splits
hold them out together.
"""

from typing import Literal

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.graph import Graph
from penstock.graph.integrity import check_graph, check_order
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit

Reverse = Literal["auto", "none", "same"] | EdgeType
"""`same`: the relation itself, as in symmetric graphs; an edge type: that one; `auto`: looked for in the lists."""


def find_reverse(graph: Graph, edge_type: EdgeType) -> Reverse:
    """`same` if every edge has its reverse beside it, else the edge type that is the exact reverse, else `none`."""
    check_graph(graph)
    check_order(graph, edge_type)
    source, _, destination = edge_type
    edges = graph.edges[edge_type]
    if source == destination and _is_reverse(edges, edges):
        return "same"
    for other, candidate in graph.edges.items():
        turned = (other[0], other[2]) == (destination, source)
        if other == edge_type or not turned or edges.count != candidate.count:
            continue
        check_order(graph, other)
        if _is_reverse(edges, candidate):
            return other
    return "none"


def checked_reverse(graph: Graph, edge_type: EdgeType, reverse: Reverse) -> Reverse:
    """`none`, `same` or an edge type that can be the reverse; `auto` is resolved."""
    source, _, destination = edge_type
    if reverse == "auto":
        return find_reverse(graph, edge_type)
    if reverse == "none":
        return reverse
    if reverse == "same" or reverse == edge_type:
        if source != destination:
            raise PenstockError(
                f"{edge_key(edge_type)} cannot be its own reverse, because its ends have different types: name the"
                " reverse edge type.",
                code="unsupported-combination",
            )
        return "same"
    if reverse not in graph.edges:
        has = ", ".join(map(edge_key, graph.edge_types))
        raise PenstockError(
            f"There is no edge type {reverse} to be the reverse of {edge_key(edge_type)}: use one of {has}.",
            code="unknown-name",
        )
    if (reverse[0], reverse[2]) != (destination, source):
        raise PenstockError(
            f"{edge_key(reverse)} cannot be the reverse of {edge_key(edge_type)}: it must lead from {destination!r}"
            f" to {source!r}.",
            code="mismatched-inputs",
        )
    return reverse


def chosen_edge_type(graph: Graph, edge_type: EdgeType | None) -> EdgeType:
    """The edge type asked for, or the only one; the graph is checked, as edges are looked up in its lists."""
    if edge_type is None and len(graph.edges) == 1:
        edge_type = next(iter(graph.edges))
    if edge_type in graph.edges:
        check_graph(graph)
        check_order(graph, edge_type)
        return edge_type
    has = ", ".join(map(edge_key, graph.edge_types)) or "none"
    if edge_type is None:
        raise PenstockError(
            f"Graph {graph.name!r} has several edge types: name the one to predict ({has}).", code="option-missing"
        )
    raise PenstockError(f"Graph {graph.name!r} has no edge type {edge_type}: use one of {has}.", code="unknown-name")


def _is_reverse(edges: EdgeSet, other: EdgeSet) -> bool:
    if edges is other:
        return bool(_all_turned(edges.indptr, edges.indices, edges.indptr, edges.indices))
    return bool(
        _all_turned(edges.indptr, edges.indices, other.indptr, other.indices)
        and _all_turned(other.indptr, other.indices, edges.indptr, edges.indices)
    )


@njit(nogil=True, cache=True)
def _all_turned(indptr: Array, indices: Array, other_indptr: Array, other_indices: Array) -> bool:
    """Whether every edge is in the other lists turned round. Linear: cursors in the other lists only move forward."""
    cursors = other_indptr[:-1].copy()
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            neighbour = indices[k]
            cursor, end = cursors[neighbour], other_indptr[neighbour + 1]
            while cursor < end and other_indices[cursor] < row:
                cursor += 1
            cursors[neighbour] = cursor
            if cursor == end or other_indices[cursor] != row:
                return False
    return True
