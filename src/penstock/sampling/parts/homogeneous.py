"""A partitioned graph of one type for samplers that read whole lists, requested from their owners batch by batch.

The offsets of all lists are kept here, eight bytes per vertex, so that degrees are known without a request. Parts are
ranges of the new numbers: their concatenated lists are those of the graph in its new numbering.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.kernels import njit
from penstock.partition.folder import Partition
from penstock.sampling.block import BatchKey, Block, MiniBatch
from penstock.sampling.homogeneous import Homogeneous, NeighbourLists, WholeGraph
from penstock.sampling.lists import DirectRows, DrawnNeighbours, HashedRows, ListSource, Readers, Rows
from penstock.sampling.neighbours import ALL
from penstock.sampling.parts.graph import readable_parts
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.relation import RelationReader
from penstock.sampling.parts.remote import Channels

_ANY = np.uint64(0)
"""Whole lists involve no random draw, so any key serves."""
_PIECE = 1 << 22
"""The approximate number of edges per request where all are read: 16 MiB."""


def parted_graph(
    partition: Partition, sampler: str, local: Mapping[int, OwnedPart], channels: Channels
) -> "PartedGraph":
    """A partitioned graph as `sampler` sees it; `local` are the parts in this process, `channels` leads to the others'
    owners.
    """
    readable = readable_parts(partition, local, channels)
    readable.require_one_relation(f"Sampler {sampler}", "use neighbour")
    ((kind, lists),) = readable.relations.items()
    offsets = RelationReader(partition, local, channels).offsets(kind)
    name, names = str(partition.document.graph), np.ascontiguousarray(partition.original(), np.int64)
    return PartedGraph(name, kind[2], offsets, names, lists)


class PartedGraph(Homogeneous):
    """A partitioned graph; vertices have their new numbers, and their original ones in the hash."""

    def __init__(self, name: str, node_type: str, indptr: Array, names: Array, lists: ListSource) -> None:
        super().__init__(name, node_type, indptr, names)
        self._lists = lists

    def reader(self) -> "BatchReader":
        """A reader that requests each list once per batch."""
        return BatchReader(self._lists, self.count)

    def in_order(self) -> Iterator[tuple[Array, NeighbourLists]]:
        """All lists piece by piece: each is sent once, and none is kept."""
        for vertices, found in self._pieces(self.natural_order()):
            yield vertices, NeighbourLists(found.indptr, found.sources, np.arange(len(vertices)))

    def whole(self) -> WholeGraph:
        """All lists, four bytes per edge (eight in very large graphs), in the new numbers."""
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
        """Vertices in some order with their lists; the next piece is requested while one is used."""
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
    """The lists that a batch has requested so far."""

    def __init__(self, lists: ListSource, count: int) -> None:
        self._lists, self._rows = lists, HashedRows(index_dtype(count))
        self._indptr, self._indices = np.zeros(1, np.int64), np.empty(0, index_dtype(count))

    def read(self, vertices: Array) -> NeighbourLists:
        """The lists of some vertices; unknown ones are requested from their owners."""
        known = self._rows.known
        rows = self._rows.number_these(vertices)
        new = self._rows.vertices[known : self._rows.known].copy()
        if len(new):
            found = self._lists.start_draw(Readers(new), _ANY, ALL, False)()
            self._indptr = np.concatenate([self._indptr, found.indptr[1:] + self._indptr[-1]])
            self._indices = np.concatenate([self._indices, found.sources])
        return NeighbourLists(self._indptr, self._indices, rows)


# Batches of a partitioned graph that are drawn as a whole, and of which a worker keeps its share. Layers of FastGCN and
# LADIES are drawn for all seeds together, and subgraphs contain whichever training vertices they contain: every worker
# draws the whole batch, which costs it the lists, and keeps what its own seeds need of it (`share_of`), so that no
# other features are fetched.


class SharedSampler:
    """Samples a share of every batch; `items` are those of an epoch, where the sampler finds its own seeds."""

    def __init__(
        self,
        graph: PartedGraph,
        sampler: Any,
        share: Callable[[Array], Array] | None = None,
        every_row: bool = False,
        every_input: bool = False,
        edges: bool = False,
    ) -> None:
        """`sampler` draws a batch for all workers, from seeds or items. `share` returns the positions of this worker's
        vertices among those given by number in the partitioned graph; None: all are. With `every_row` a share holds
        all rows of all layers but the last; with `every_input` also this worker's share of the batch's vertices, so
        that all workers together have all of them. With `edges` blocks have the numbers of their edges, where known.
        """
        self.node_type, self.items = graph.node_type, getattr(sampler, "items", None)
        self._names, self._sampler, self._share = graph.names, sampler, share
        self._every_row, self._every_input, self._edges = every_row, every_input, edges

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """This worker's share of the batch of some different seeds or items, with the number of the whole batch's
        seeds.
        """
        batch: MiniBatch = self._sampler.sample(seeds, key)
        if not self._edges:
            for block in batch.blocks:
                block.edges = None
        if self._share is None:
            batch.whole = batch.num_seeds
        else:
            inputs = self._share(batch.vertices[self.node_type]) if self._every_input else None
            batch = share_of(batch, self._share(batch.seeds[self.node_type]), self._every_row, inputs)
        batch.names = {self.node_type: self._names[batch.vertices[self.node_type]]}
        return batch


def share_of(batch: MiniBatch, places: Array, every_row: bool = False, inputs: Array | None = None) -> MiniBatch:
    """The seeds at some different positions, and everything that their layers read; with `every_row`, all rows of every
    layer but the last, for normalisation over the batch's rows.

    `inputs` are positions of vertices that the share includes even if none of its rows reads them. Lists keep their
    order and weights, so that the rows which are computed equal those in the whole batch. Rows are renumbered.
    """
    name, vertices = batch.node_type, batch.vertices[batch.node_type]
    rows, blocks = DirectRows(len(vertices)), list[Block]()
    rows.start(np.ascontiguousarray(places, np.int64))
    for below, block in reversed(list(zip([None, *batch.blocks[:-1]], batch.blocks, strict=True))):
        more = inputs if below is None else np.arange(below.num_dst) if every_row else None
        blocks.append(_kept(block, rows, more))
    return MiniBatch(
        {name: batch.seeds[name][places]},
        {name: vertices[rows.vertices[: rows.known]]},
        blocks[::-1],
        seed_weights=None if batch.seed_weights is None else batch.seed_weights[places],
        key=batch.key,
        whole=batch.num_seeds,
    )


def _kept(block: Block, rows: Rows, more: Array | None = None) -> Block:
    """The lists of the rows known so far; the rows that they read become known, and so do `more`."""
    indptr, positions = _lists_of(block.indptr, rows.vertices[: rows.known])
    indices = rows.number(block.indices[positions], indptr)
    if more is not None:
        rows.number(np.array(more, np.int64), np.zeros(1, np.int64))
    weights = None if block.weights is None else block.weights[positions]
    totals = None if block.totals is None else block.totals[rows.vertices[: rows.known]]
    edges = None if block.edges is None else block.edges[positions]
    return Block(indptr, indices, rows.known, weights, totals, edges)


@njit(nogil=True, cache=True)
def _lists_of(indptr: Array, rows: Array) -> tuple[Array, Array]:
    """Offsets of some rows' lists when concatenated, and the positions of their entries."""
    out_indptr = np.zeros(rows.shape[0] + 1, np.int64)
    for i in range(rows.shape[0]):
        out_indptr[i + 1] = out_indptr[i] + indptr[rows[i] + 1] - indptr[rows[i]]
    positions = np.empty(out_indptr[-1], np.int64)
    for i in range(rows.shape[0]):
        for k in range(out_indptr[i + 1] - out_indptr[i]):
            positions[out_indptr[i] + k] = indptr[rows[i]] + k
    return out_indptr, positions
