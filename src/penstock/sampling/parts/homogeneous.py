"""A cut graph of one type for samplers that read whole lists: they are asked of their owners, batch by batch.

Here are the offsets of all lists, eight bytes a vertex, so that degrees are known without asking. Parts are ranges of
the new numbers: their lists one behind the other are those of the graph in its new numbering.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.partition.folder import Partition
from penstock.sampling.homogeneous import Homogeneous, Reading, WholeGraph
from penstock.sampling.lists import DrawnNeighbours, ListSource, Readers
from penstock.sampling.neighbours import ALL
from penstock.sampling.parts.graph import readable_parts
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.relation import RelationReader
from penstock.sampling.parts.remote import Channels
from penstock.sampling.relabel import HashedRows

_ANY = np.uint64(0)
"""Whole lists are not drawn: any key names them."""
_PIECE = 1 << 22
"""Edges, about, that are asked for at a time where all are read: 16 MiB."""


def parted_graph(
    partition: Partition, sampler: str, local: Mapping[int, OwnedPart], channels: Channels
) -> "PartedGraph":
    """A cut graph as `sampler` sees it; `local` are the parts that are here, `channels` leads to the others' owners."""
    readable = readable_parts(partition, local, channels)
    if len(readable.counts) != 1 or len(readable.relations) != 1:
        raise PenstockError(
            f"Sampler {sampler} supports graphs with one node type and one edge type: use neighbour.",
            code="unsupported-combination",
        )
    ((kind, lists),) = readable.relations.items()
    offsets = RelationReader(partition, local, channels).offsets(kind)
    name, names = str(partition.document.graph), np.ascontiguousarray(partition.original(), np.int64)
    return PartedGraph(name, kind[2], offsets, names, lists)


class PartedGraph(Homogeneous):
    """Vertices go by their new numbers, and by their original ones in the hash."""

    def __init__(self, name: str, node_type: str, indptr: Array, names: Array, lists: ListSource) -> None:
        super().__init__(name, node_type, indptr, names)
        self._lists = lists

    def reader(self) -> "BatchReader":
        """Asks for each list once a batch."""
        return BatchReader(self._lists, self.count)

    def in_order(self) -> Iterator[tuple[Array, Reading]]:
        """Piece by piece: every list travels once, and none is kept."""
        for vertices, found in self._pieces(self.natural_order()):
            yield vertices, Reading(found.indptr, found.sources, np.arange(len(vertices)))

    def whole(self) -> WholeGraph:
        """All lists, four bytes an edge (eight where vertices are many), in the new numbers."""
        indices = np.empty(int(self.indptr[-1]), index_dtype(self.count))
        for vertices, found in self._pieces(np.arange(self.count)):
            first, last = self.indptr[vertices[0]], self.indptr[vertices[-1] + 1]
            if last - first != len(found.sources):
                raise PenstockError(
                    "The owners of the cut graph sent lists of other lengths than they had announced: check that all"
                    " hold parts of one partition.",
                    code="malformed-message",
                )
            indices[first:last] = found.sources
        return WholeGraph(self.name, self.node_type, self.indptr, self.names, indices)

    def _pieces(self, order: Array) -> Iterator[tuple[Array, DrawnNeighbours]]:
        """Vertices in some order with their lists; while a piece is used the next is on its way."""
        ends = np.cumsum(self.degrees(order) + 1)
        cuts = np.searchsorted(ends, np.arange(_PIECE, int(ends[-1]) if len(ends) else 0, _PIECE))
        asked: tuple[Array, Callable[[], DrawnNeighbours]] | None = None
        for first, last in pairwise(np.unique([0, *cuts, len(order)])):
            before, vertices = asked, order[first:last]
            asked = vertices, self._lists.start_draw(Readers(vertices), _ANY, ALL, False)
            if before is not None:
                yield before[0], before[1]()
        if asked is not None:
            yield asked[0], asked[1]()


class BatchReader:
    """The lists that a batch has asked for so far."""

    def __init__(self, lists: ListSource, count: int) -> None:
        self._lists, self._rows = lists, HashedRows(index_dtype(count))
        self._indptr, self._indices = np.zeros(1, np.int64), np.empty(0, index_dtype(count))

    def read(self, vertices: Array) -> Reading:
        """The lists of some vertices; those not known yet are asked of their owners."""
        known = self._rows.known
        rows = self._rows.number_these(vertices)
        new = self._rows.vertices[known : self._rows.known].copy()
        if len(new):
            found = self._lists.start_draw(Readers(new), _ANY, ALL, False)()
            self._indptr = np.concatenate([self._indptr, found.indptr[1:] + self._indptr[-1]])
            self._indices = np.concatenate([self._indices, found.sources])
        return Reading(self._indptr, self._indices, rows)
