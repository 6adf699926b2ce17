"""Sums of neighbours' rows that their owner adds up and sends instead of the rows, where that is less.

A layer that is linear in its neighbours' rows may read, instead of all rows that a vertex v reads of a worker, their
sum. To the reader such a sum is one more row of the level below, which v alone reads; its gradient is what the owner of
the rows adds to each of theirs. Forward and backward the same number of rows travels, so one choice serves both.

Sums have negative numbers among the vertices: -1 is the first. Only graphs of one type have them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.nn.layers.entry import SourceScale
from penstock.partition.row_cover import edges_to_sum
from penstock.sampling.block import Block
from penstock.train.whole.shared.interfaces import CutLists

_SPAN = 1 << 40
"""More than there are vertices."""


class CutEdges(NamedTuple):
    """Edges that lead from other workers' vertices to this worker's rows of a level."""

    sources: Array
    targets: Array
    factors: Array
    """What each source's row is multiplied by."""

    def only(self, some: Array) -> "CutEdges":
        """Some of the edges, by places or by a mask."""
        return CutEdges(self.sources[some], self.targets[some], self.factors[some])


class AskedSums(NamedTuple):
    """Sums of rows that one worker asks another for."""

    numbers: Array
    lengths: Array
    sources: Array
    """The vertices of all sums, one sum after the other,"""
    factors: Array
    """and what their rows are multiplied by."""

    def as_lists(self) -> list[Array]:
        """Lists of whole numbers, for an exchange."""
        return [self.numbers, self.lengths, self.sources, self.factors.view(np.int64)]

    @classmethod
    def of_lists(cls, lists: Sequence[Array]) -> "AskedSums":
        """What `as_lists` gave."""
        numbers, lengths, sources, bits = lists
        return cls(numbers, lengths, sources, np.ascontiguousarray(bits).view(np.float64))


@dataclass(eq=False)
class ReadSums:
    """The sums that one worker reads in one level."""

    keys: Array
    """For each sum its sender and its reader in one number, ascending."""
    summed: Array
    """Vertices whose rows travel in sums alone, ascending."""

    def are_summed(self, vertices: Array) -> Array:
        """Which of some vertices' rows travel in sums."""
        if not len(self.summed):
            return np.zeros(len(vertices), np.bool_)
        at = np.minimum(np.searchsorted(self.summed, vertices), len(self.summed) - 1)
        found: Array = self.summed[at] == vertices
        return found

    def numbers(self, keys: Array) -> Array:
        """The sums' numbers among vertices."""
        found: Array = -1 - np.searchsorted(self.keys, keys)
        return found


def sum_keys(senders: Array, targets: Array) -> Array:
    """Names for the sums of what vertices read of workers: by sender, then by vertex."""
    found: Array = senders * _SPAN + targets
    return found


def sum_readers(read: ReadSums, vertices: Array) -> Array:
    """The vertices that read some of a level's rows by being their only reader, as sums have one; -1 for other rows."""
    found = np.full(len(vertices), -1, np.int64)
    found[vertices < 0] = read.keys[-1 - vertices[vertices < 0]] % _SPAN
    return found


def cut_edges(cut: CutLists, rank: int, batch: Any, scale: SourceScale) -> CutEdges:
    """The edges of a batch of whole lists that come from other workers' vertices."""
    ((kind, ids),) = batch.vertices.items()
    block, vertices = batch.blocks[0], np.asarray(ids, np.int64)
    outside = cut.ranks(kind, vertices)[block.indices] != rank
    at = block.indices[outside]
    factors = scale(np.asarray(block.totals, np.float64)[at])
    if block.weights is not None:
        factors = factors * block.weights[outside]
    return CutEdges(vertices[at], vertices[block.destinations()[outside]], factors)


def choose_sums(cut: CutLists, world: int, edges: CutEdges) -> tuple[ReadSums, list[AskedSums]]:
    """Which rows travel in sums, and what each worker is asked to add up."""
    (kind,) = cut.types
    senders = cut.ranks(kind, edges.sources)
    keys = sum_keys(senders, edges.targets)
    chosen = np.flatnonzero(edges_to_sum(edges.sources, keys, senders))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    edges, keys, senders = edges.only(chosen), keys[chosen], senders[chosen]
    read = ReadSums(np.unique(keys), np.unique(edges.sources))
    asked = []
    for rank in range(world):
        of_rank = edges.only(senders == rank)
        some, lengths = np.unique(keys[senders == rank], return_counts=True)
        asked.append(AskedSums(read.numbers(some), lengths, of_rank.sources, of_rank.factors))
    return read, asked


def with_sums(cut: CutLists, read: ReadSums, block: Block, vertices: Array) -> tuple[Block, Array]:
    """A block of whole lists and its sources, with sums in place of the rows that travel in them.

    Every row reads its own neighbours first and then its sums, by sender.
    """
    (kind,) = cut.types
    kept = (np.arange(len(vertices)) < block.num_dst) | ~read.are_summed(vertices)
    direct, to = kept[block.indices], block.destinations()
    if direct.all():
        return block, vertices
    away = vertices[block.indices[~direct]]
    keys, first = np.unique(sum_keys(cut.ranks(kind, away), vertices[to[~direct]]), return_index=True)
    places, count = np.cumsum(kept) - 1, int(kept.sum())
    targets = np.concatenate([to[direct], to[~direct][first]])
    sources = np.concatenate([places[block.indices[direct]], count + np.arange(len(keys))])
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=block.num_dst))])
    known = np.ones(len(to), np.float32) if block.weights is None else block.weights
    weights = np.concatenate([known[direct], np.ones(len(keys), known.dtype)])
    # A sum has no list: layers take it as it is.
    totals = None if block.totals is None else np.append(block.totals[kept], np.zeros(len(keys), block.totals.dtype))
    made = Block(
        indptr.astype(block.indptr.dtype),
        sources[order].astype(block.indices.dtype),
        count + len(keys),
        weights[order],
        totals,
    )
    return made, np.concatenate([vertices[kept], read.numbers(keys)])


_NONE = np.empty(0, np.int64)
NO_SUMS = AskedSums(_NONE, _NONE, _NONE, np.empty(0))
