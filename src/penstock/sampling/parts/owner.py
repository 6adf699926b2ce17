"""Draws from the lists of one part of a partitioned graph, by new vertex numbers."""

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import NamedTuple, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.folder import Partition
from penstock.sampling.exclusion import NOTHING, Exclusion, exclusion_of
from penstock.sampling.labor import draw_shared
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import DrawnNeighbours, Lists, Readers
from penstock.sampling.neighbours import Relation, edge_type_named
from penstock.sampling.parts.requests import PLAIN_DRAWS, DrawSettings
from penstock.sampling.temporal import OF_NODES, Clock, clocks_of


class OwnedPart:
    """The lists of one part. Any thread may use it; sums of weights are computed once for every relation and field."""

    def __init__(
        self,
        graph: Graph,
        names: Mapping[str, Array],
        all_names: Mapping[str, Array] | None = None,
        places: Callable[[EdgeType, str], Array] | None = None,
    ) -> None:
        """`names` are the original numbers of the part's vertices, by node type, and `all_names` those of all parts'.

        `places` gives the positions of held-out pairs before partitioning. Without both, edges cannot be held out of
        the lists.
        """
        for name, nodes in graph.nodes.items():
            if name not in names or len(names[name]) != nodes.count:
                raise PenstockError(
                    f"{graph.name!r} has {nodes.count:,} vertices of type {name!r}"
                    f" and {len(names.get(name, ())):,} original numbers: take both from one partition.",
                    code="shape-mismatch",
                )
        check_graph(graph)
        self.graph, self._names, self._all_names, self._places = graph, names, all_names, places
        self._lists: dict[tuple[EdgeType, str | None, str | None, HeldOutRule | None], _Made] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, partition: Partition, index: int) -> Self:
        """A part of a partition, memory-mapped."""
        ranges = {name: slice(*partition.book.range(index, name)) for name in partition.book.node_types}
        names = {name: partition.original(name) for name in ranges}
        own = {name: names[name][rows] for name, rows in ranges.items()}
        return cls(partition.part(index), own, names, lambda kind, name: partition.held_out_places(index, kind, name))

    def kind_named(self, relation: Relation) -> EdgeType:
        """The edge type given by key or as a type."""
        return edge_type_named(self.graph, relation)

    def names_of_lists(self, kind: EdgeType) -> Array:
        """The original numbers of the vertices whose lists of a relation are here."""
        return self._names[kind[2]]

    def names_of_sources(self, kind: EdgeType) -> Array:
        """The original numbers of a relation's sources, in all parts."""
        if self._all_names is None:
            raise _unknown("original numbers of the sources", self.graph.name)
        return self._all_names[kind[0]]

    def places(self, kind: EdgeType, name: str) -> Array:
        """The positions before partitioning of the part's held-out pairs of a split."""
        if self._places is None:
            raise _unknown("positions of held-out pairs", self.graph.name)
        return self._places(kind, name)

    def lists(self, relation: Relation, how: DrawSettings = PLAIN_DRAWS) -> "PartLists":
        """The lists of a relation, drawn as `how` says; of copies without some edges the newest is kept."""
        kind = self.kind_named(relation)
        named = kind, how.weight, how.time, how.absent
        with self._lock:
            if named not in self._lists:
                made = self._made(*named)
                older = [key for key in self._lists if key[:3] == named[:3] and key[3] is not None]
                for key in older if how.absent is not None else ():
                    del self._lists[key]
                self._lists[named] = made
            lists, stored = self._lists[named]
        source_names = None if self._all_names is None else self._all_names[kind[0]]
        return PartLists(self.graph, kind, lists.drawn(how.replace, how.uniform), source_names, stored)

    def _made(self, kind: EdgeType, weight: str | None, time: str | None, absent: HeldOutRule | None) -> "_Made":
        edges, where = self.graph.edges[kind], f"{edge_key(kind)} of {self.graph.name!r}"
        stored = None
        if absent is not None:
            fields = {name: edges.fields[name] for name in edges.fields if name == weight}
            bare = EdgeSet(edges.indptr, edges.indices, fields)
            ends = self.names_of_sources(kind), self._names[kind[2]]
            edges, left = absent.taken_from(bare, *ends), partial(absent.leaves, bare, *ends)
            stored = cache(lambda: np.flatnonzero(left()))
        return _Made(Lists(edges, where, self._names[kind[2]], False, weight, self._clock(kind, time, absent)), stored)

    def _clock(self, kind: EdgeType, time: str | None, absent: HeldOutRule | None) -> Clock | None:
        if time is None:
            return None
        if time.startswith(OF_NODES) or absent is not None:
            raise PenstockError(
                f"Parts of {self.graph.name!r} can be sampled by time only by a field of the edges, with all edges.",
                code="unsupported-combination",
            )
        clocks = clocks_of(self.graph, time)
        if kind not in clocks:
            raise PenstockError(
                f"The edges {edge_key(kind)} of {self.graph.name!r} have no field {time!r} to use as times: ask for"
                " them without time.",
                code="field-missing",
            )
        return clocks[kind]


def _unknown(what: str, name: str) -> PenstockError:
    return PenstockError(f"The {what} of {name!r} are not known: open its partition.", code="missing-data")


class _Made(NamedTuple):
    """Lists, and the positions of their edges in the part's lists, where some edges are left out."""

    lists: Lists
    stored: Callable[[], Array] | None


class Seen(NamedTuple):
    """For every reader, the position of the seed in whose tree it is, and that seed's time."""

    trees: Array
    times: Array


class PartLists:
    """Draws from one relation's lists in one part. Vertices and excluded edges have the partitioned graph's numbers.

    Positions of drawn edges, where asked for, are those in the part's stored lists.
    """

    def __init__(
        self,
        graph: Graph,
        kind: EdgeType,
        lists: Lists,
        source_names: Array | None = None,
        stored: Callable[[], Array] | None = None,
    ) -> None:
        """`source_names` are the original numbers of the sources in all parts, for shared draws (LABOR).

        `stored` returns the positions in the part's lists of the edges in `lists`; None: they are the same.
        """
        self._stored, self.num_edges = stored, graph.edges[kind].count
        self.weighted, self._edges, self._source_names = lists.weighted, graph.edges[kind], source_names
        self._lists, self._nodes, self._kind = lists, graph.nodes[kind[2]], kind
        self.num_sources, self._name = graph.nodes[kind[0]].total, graph.name

    def draw(
        self,
        vertices: Array,
        key: np.uint64,
        fanout: int,
        excluded: Array | None = None,
        seen: Seen | None = None,
        positions: bool = False,
    ) -> DrawnNeighbours:
        """One hop's draws; `excluded` are edges [2, m], `seen` each vertex's tree and time in lists by time."""
        drawn = self._lists.draw(self._readers(vertices, excluded, seen), key, fanout, positions)
        if drawn.positions is None or self._stored is None:
            return drawn
        return drawn._replace(positions=self._stored()[drawn.positions])

    def draw_shared(self, vertices: Array, key: np.uint64, fanout: int) -> DrawnNeighbours:
        """One hop's draws by LABOR, with weights (see `sampling.labor`); a fan-out of -1: all."""
        if self._source_names is None:
            raise _unknown("original numbers of the sources", self._name)
        edges, rows, most = self._edges, self._local(vertices), fanout if fanout >= 0 else np.iinfo(np.int64).max
        indptr, positions = draw_shared(edges.indptr, edges.indices, self._source_names, key, most, rows)
        lengths = (edges.indptr[1:][rows] - edges.indptr[:-1][rows]).astype(np.float32)
        weights = np.repeat(np.maximum(lengths / np.float32(most), np.float32(1)), np.diff(indptr))
        return DrawnNeighbours(indptr, edges.indices[positions], positions, weights)

    def whole(self, vertices: Array, weight: str) -> DrawnNeighbours:
        """All edges of lists that are weighted by a field, including those of weight 0, with weights as float64."""
        edges, rows = self._edges, self._local(vertices)
        starts, lengths = edges.indptr[rows], edges.indptr[rows + 1] - edges.indptr[rows]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        positions = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
        weights = edges.fields[weight][positions].astype(np.float64)
        return DrawnNeighbours(indptr, edges.indices[positions], positions, weights)

    def totals(self, vertices: Array, excluded: Array | None = None, seen: Seen | None = None) -> Array:
        """The number, or the weight, of the edges that each vertex may draw, as float32."""
        return self._lists.totals(self._readers(vertices, excluded, seen))

    def most(self, vertices: Array, fanout: int) -> int:
        """The most edges that a draw can have."""
        return self._lists.most(self._local(vertices), fanout)

    def check(self, vertices: Array, excluded: Array | None = None, seen: Seen | None = None) -> None:
        """Refuse vertices and edges that are not of this part, since kernels do not check."""
        if seen is not None and (
            seen.trees.shape != vertices.shape
            or seen.times.shape != vertices.shape
            or seen.trees.dtype != np.int64
            or seen.times.dtype not in (np.int64, np.float64)
        ):
            raise PenstockError(
                f"{self._name!r} cannot sample by time: give each vertex its tree and its time.", code="option-missing"
            )
        what = f"{self._name!r} cannot draw {edge_key(self._kind)}"
        first, last = self._nodes.first, self._nodes.first + self._nodes.count
        if vertices.ndim != 1 or vertices.dtype not in (np.int32, np.int64):
            raise PenstockError(
                f"{what}: vertices of shape {vertices.shape} and type {vertices.dtype} are not a flat list.",
                code="shape-mismatch",
            )
        if len(vertices) and (vertices.min() < first or vertices.max() >= last):
            raise PenstockError(
                f"{what}: a vertex is outside its {first}..{last - 1}; ask the part that owns it.",
                code="id-out-of-range",
            )
        if excluded is None:
            return
        if excluded.ndim != 2 or len(excluded) != 2 or excluded.dtype != np.int64:
            raise PenstockError(
                f"{what}: excluded edges of shape {excluded.shape} and type {excluded.dtype} are not pairs.",
                code="shape-mismatch",
            )
        sources, destinations = excluded
        if excluded.shape[1] and (sources.min() < 0 or sources.max() >= self.num_sources):
            raise PenstockError(
                f"{what}: an excluded edge has a source outside 0..{self.num_sources - 1}.", code="id-out-of-range"
            )
        if excluded.shape[1] and (destinations.min() < first or destinations.max() >= last):
            raise PenstockError(
                f"{what}: an excluded edge has a destination outside its {first}..{last - 1}.", code="id-out-of-range"
            )

    def _readers(self, vertices: Array, excluded: Array | None, seen: Seen | None) -> Readers:
        readers = Readers(self._local(vertices), exclusion=self._exclusion(excluded))
        return readers if seen is None else readers._replace(trees=seen.trees, limits=seen.times)

    def _local(self, vertices: Array) -> Array:
        dtype = index_dtype(self._nodes.total)
        rows: Array = np.subtract(vertices, np.int64(self._nodes.first), dtype=dtype, casting="unsafe")
        return rows

    def _exclusion(self, excluded: Array | None) -> Exclusion:
        if excluded is None or not excluded.size:
            return NOTHING
        local = excluded - np.array([[0], [self._nodes.first]])
        return exclusion_of(local, self.num_sources, self._nodes.count)
