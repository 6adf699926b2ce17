"""Which pairs are true edges: by binary search in the lists and in sorted held-out pairs."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import NUMBERS_IN_MEMORY, Array
from penstock.graph.convert.edges import pair_array
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph, check_order
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit

# Which relation is the reverse of another. A model that predicts (u, v) must not read (v, u) where the two are one
# fact, so batches exclude reverses and splits hold them out together.

Reverse = Literal["auto", "none", "same"] | EdgeType
"""`same`: the relation itself, as in symmetric graphs; an edge type: that one; `auto`: found from the lists."""


def find_reverse(graph: Graph, edge_type: EdgeType) -> Reverse:
    """`same` if every edge has its reverse in the relation, else the edge type that is the exact
    reverse, else `none`.
    """
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
    """The edge type asked for, or the only one; the graph is validated, as edges are searched in its lists."""
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
        return _holds_reverses(edges, edges)
    return _holds_reverses(edges, other) and _holds_reverses(other, edges)


def _holds_reverses(other: EdgeSet, edges: EdgeSet) -> bool:
    """Whether `other` holds the reverse of every edge."""
    lists = edges.indptr, edges.indices, other.indptr, other.indices
    # Cursors are one pass, but take as much memory as offsets do. They are for lists whose offsets may be in memory.
    kernel = _all_turned if other.indptr.nbytes <= max(NUMBERS_IN_MEMORY, other.indices.nbytes) else _all_found_turned
    return bool(kernel(*lists))


@njit(nogil=True, cache=True, writes=())
def _all_turned(indptr: Array, indices: Array, other_indptr: Array, other_indices: Array) -> bool:
    """Whether the other lists hold the reverse of every edge. Linear: cursors in the other lists only move forward."""
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


@njit(nogil=True, cache=True, writes=())
def _all_found_turned(indptr: Array, indices: Array, other_indptr: Array, other_indices: Array) -> bool:
    """As `_all_turned`, with a search for every edge instead of cursors."""
    nothing = np.empty(0, np.int64)
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if not is_edge(other_indptr, other_indices, nothing, 0, row, indices[k]):
                return False
    return True


End = Literal["source", "destination"]


@dataclass(frozen=True, eq=False)
class KnownEdges:
    """The true edges of one relation.

    `kept_out` are held-out pairs as ascending destination * num_sources + source. The lists must ascend, as those of a
    whole graph do. With `times`, one for each edge of the lists, an edge is true from its own time on.
    """

    indptr: Array
    indices: Array
    kept_out: Array
    num_sources: int
    num_destinations: int
    times: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def contains(self, sources: Array, destinations: Array) -> Array:
        """Whether each pair is a true edge."""
        found = np.empty(len(sources), np.bool_)
        _contains(self.indptr, self.indices, self.kept_out, self.num_sources, sources, destinations, found)
        return found

    def candidates(self, end: End) -> int:
        """The number of vertices of an end's type."""
        return self.num_destinations if end == "destination" else self.num_sources

    def partners(self, anchors: Array, end: End) -> tuple[Array, Array]:
        """`(indptr, vertices)`: the different vertices at `end` of the true edges of each anchor, ascending.

        Anchors are different vertices at the other end. Takes one pass over the edges where the end is the destination,
        and memory only for the partners.
        """
        width = self.candidates(end)
        if end == "destination":
            places = np.full(self.num_sources, -1, np.int64)
            places[anchors] = np.arange(len(anchors))
            keys = np.empty(_count_of(places, self.indices), np.int64)
            _gather_out(self.indptr, self.indices, places, width, keys)
            kept_end, kept_anchor = np.divmod(self.kept_out, self.num_sources)
        else:
            places = np.full(self.num_destinations, -1, np.int64)
            places[anchors] = np.arange(len(anchors))
            keys = np.empty(int((self.indptr[anchors + 1] - self.indptr[anchors]).sum()), np.int64)
            _gather_in(self.indptr, self.indices, anchors, width, keys)
            kept_anchor, kept_end = np.divmod(self.kept_out, self.num_sources)
        asked = places[kept_anchor] >= 0
        keys = np.unique(np.concatenate([keys, places[kept_anchor[asked]] * width + kept_end[asked]]))
        return np.searchsorted(keys, np.arange(len(anchors) + 1) * width), keys % width


def known_edges(
    graph: Graph,
    edge_type: EdgeType | None = None,
    held_out: Iterable[Array] = (),
    reverse: Reverse = "auto",
    times: Array | None = None,
) -> KnownEdges:
    """The lists of an edge type, true from their `times` on, and held-out pairs, both ways if symmetric."""
    edge_type = chosen_edge_type(graph, edge_type)
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph: links can only be looked up in the whole graph.",
            code="whole-graph-needed",
        )
    edges = graph.edges[edge_type]
    counts = graph.nodes[edge_type[0]].count, graph.nodes[edge_type[2]].count
    pairs = [checked_pairs(some, *counts, f"Held-out pairs of {edge_key(edge_type)}") for some in held_out]
    if pairs and checked_reverse(graph, edge_type, reverse) == "same":
        pairs += [some[:, ::-1] for some in pairs]
    keys = [some[:, 1] * counts[0] + some[:, 0] for some in pairs]
    kept_out = np.unique(np.concatenate(keys)) if keys else np.empty(0, np.int64)
    known = KnownEdges(edges.indptr, edges.indices, kept_out, *counts)
    return known if times is None else replace(known, times=times)


def checked_pairs(pairs: Array, num_sources: int, num_destinations: int, where: str) -> Array:
    """(source, destination) pairs as int64 [m, 2], validated to be existing vertices."""
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise PenstockError(
            f"{where} have shape {pairs.shape}: give one (source, destination) in each row, [m, 2].",
            code="shape-mismatch",
        )
    return pair_array(pairs[:, 0], pairs[:, 1], num_sources, num_destinations, where)


@njit(nogil=True, cache=True, writes=())
def is_edge(indptr: Array, indices: Array, kept_out: Array, num_sources: int, source: int, destination: int) -> bool:
    """Whether a pair is in the lists or among the held-out pairs."""
    low, high = indptr[destination], indptr[destination + 1]
    place = lower_bound(indices, low, high, source)
    if place < high and indices[place] == source:
        return True
    if kept_out.shape[0] == 0:
        return False
    name = destination * num_sources + source
    place = lower_bound(kept_out, 0, kept_out.shape[0], name)
    return bool(place < kept_out.shape[0] and kept_out[place] == name)


@njit(nogil=True, cache=True)
def is_edge_by(indptr: Array, indices: Array, times: Array, source: int, destination: int, limit: float) -> bool:
    """Whether a pair is in the lists with a time that is not later than the limit."""
    low, high = indptr[destination], indptr[destination + 1]
    place = lower_bound(indices, low, high, source)
    while place < high and indices[place] == source:
        if times[place] <= limit:
            return True
        place += 1
    return False


@njit(nogil=True, cache=True, writes=())
def lower_bound(values: Array, low: int, high: int, wanted: int) -> int:
    """The first position in ascending values[low:high] that holds `wanted` or more."""
    while low < high:
        middle = (low + high) // 2
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def _contains(
    indptr: Array, indices: Array, kept_out: Array, num_sources: int, sources: Array, destinations: Array, found: Array
) -> None:
    for i in range(sources.shape[0]):
        found[i] = is_edge(indptr, indices, kept_out, num_sources, sources[i], destinations[i])


@njit(nogil=True, cache=True)
def _count_of(places: Array, indices: Array) -> int:
    total = 0
    for k in range(indices.shape[0]):
        total += places[indices[k]] >= 0
    return total


@njit(nogil=True, cache=True)
def _gather_out(indptr: Array, indices: Array, places: Array, width: int, keys: Array) -> None:
    used = 0
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            place = places[indices[k]]
            if place >= 0:
                keys[used] = place * width + row
                used += 1


@njit(nogil=True, cache=True)
def _gather_in(indptr: Array, indices: Array, anchors: Array, width: int, keys: Array) -> None:
    used = 0
    for i in range(anchors.shape[0]):
        for k in range(indptr[anchors[i]], indptr[anchors[i] + 1]):
            keys[used] = i * width + indices[k]
            used += 1
