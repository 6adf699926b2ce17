"""Drawing where the lists are: one part of a cut graph, whose vertices go by their new numbers."""

import threading
from collections.abc import Mapping
from typing import Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.folder import Partition
from penstock.sampling.exclusion import NOTHING, Exclusion, exclusion_of
from penstock.sampling.lists import Drawn, Lists, Readers
from penstock.sampling.typed import Relation, edge_type_named


class OwnedPart:
    """The lists of one part. Any thread may ask; sums of weights are made once for every relation and field."""

    def __init__(self, graph: Graph, names: Mapping[str, Array]) -> None:
        """`names` are the original numbers of the part's vertices, by node type."""
        for name, nodes in graph.nodes.items():
            if name not in names or len(names[name]) != nodes.count:
                raise PenstockError(
                    f"{graph.name!r} has {nodes.count:,} vertices of type {name!r}"
                    f" and {len(names.get(name, ())):,} original numbers: take both from one partition."
                )
        self.graph, self._names = graph, names
        self._lists: dict[tuple[EdgeType, str | None], Lists] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, partition: Partition, index: int) -> Self:
        """A part of a partition, mapped."""
        ranges = {name: slice(*partition.book.range(index, name)) for name in partition.book.node_types}
        return cls(partition.part(index), {name: partition.original(name)[rows] for name, rows in ranges.items()})

    def lists(self, relation: Relation, replace: bool = False, weight: str | None = None) -> "PartLists":
        """The lists of a relation, drawn uniformly or in proportion to a field."""
        kind = edge_type_named(self.graph, relation)
        with self._lock:
            if (kind, weight) not in self._lists:
                where = f"{edge_key(kind)} of {self.graph.name!r}"
                self._lists[kind, weight] = Lists(self.graph.edges[kind], where, self._names[kind[2]], replace, weight)
            lists = self._lists[kind, weight].replacing(replace)
        return PartLists(self.graph, kind, lists)


class PartLists:
    """Draws from one relation's lists in one part. Vertices and excluded edges have the cut graph's numbers."""

    def __init__(self, graph: Graph, kind: EdgeType, lists: Lists) -> None:
        self.weighted = lists.weighted
        self._lists, self._nodes, self._kind = lists, graph.nodes[kind[2]], kind
        self.num_sources, self._name = graph.nodes[kind[0]].total, graph.name

    def draw(self, vertices: Array, key: np.uint64, fanout: int, excluded: Array | None = None) -> Drawn:
        """One hop's draws for vertices of this part; `excluded` are edges [2, m], sources above destinations."""
        return self._lists.draw(self._readers(vertices, excluded), key, fanout, False)

    def totals(self, vertices: Array, excluded: Array | None = None) -> Array:
        """The number, or the weight, of the edges that each vertex may draw, as float32."""
        return self._lists.totals(self._readers(vertices, excluded))

    def most(self, vertices: Array, fanout: int) -> int:
        """Edges that a draw has at most."""
        return self._lists.most(self._local(vertices), fanout)

    def check(self, vertices: Array, excluded: Array | None = None) -> None:
        """Refuse what is not of this part: kernels believe what they are given."""
        what = f"{self._name!r} cannot draw {edge_key(self._kind)}"
        first, last = self._nodes.first, self._nodes.first + self._nodes.count
        if vertices.ndim != 1 or vertices.dtype not in (np.int32, np.int64):
            raise PenstockError(
                f"{what}: vertices of shape {vertices.shape} and type {vertices.dtype} are no flat list."
            )
        if len(vertices) and (vertices.min() < first or vertices.max() >= last):
            raise PenstockError(f"{what}: a vertex is outside its {first}..{last - 1}; ask the part that owns it.")
        if excluded is None:
            return
        if excluded.ndim != 2 or len(excluded) != 2 or excluded.dtype != np.int64:
            raise PenstockError(
                f"{what}: excluded edges of shape {excluded.shape} and type {excluded.dtype} are no pairs."
            )
        sources, destinations = excluded
        if excluded.shape[1] and (sources.min() < 0 or sources.max() >= self.num_sources):
            raise PenstockError(f"{what}: an excluded edge has a source outside 0..{self.num_sources - 1}.")
        if excluded.shape[1] and (destinations.min() < first or destinations.max() >= last):
            raise PenstockError(f"{what}: an excluded edge has a destination outside its {first}..{last - 1}.")

    def _readers(self, vertices: Array, excluded: Array | None) -> Readers:
        return Readers(self._local(vertices), exclusion=self._exclusion(excluded))

    def _local(self, vertices: Array) -> Array:
        dtype = index_dtype(self._nodes.total)
        rows: Array = np.subtract(vertices, np.int64(self._nodes.first), dtype=dtype, casting="unsafe")
        return rows

    def _exclusion(self, excluded: Array | None) -> Exclusion:
        if excluded is None or not excluded.size:
            return NOTHING
        local = excluded - np.array([[0], [self._nodes.first]])
        return exclusion_of(local, self.num_sources, self._nodes.count)
