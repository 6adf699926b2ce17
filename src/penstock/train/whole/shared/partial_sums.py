"""Sums of neighbours' rows that their owner adds up and sends instead of the rows, where that is less.

A layer that is linear in its neighbours' rows may read, instead of all rows that a vertex v reads of a worker in a
relation, their sum. To the reader such a sum is one more row of the level below, of the type that the relation comes
from, which v alone reads; its gradient is what the owner of the rows adds to each of theirs. Forward and backward the
same number of rows travels, so one choice serves both.

Sums have negative numbers among the vertices of their type: -1 is the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.layers.entry import SourceScale
from penstock.partition.bins import edges_to_sum
from penstock.sampling.block import Block
from penstock.train.whole.shared.interfaces import CutLists, Rows

_SPAN = 1 << 40
"""A number larger than that of any vertex."""


class CutEdges(NamedTuple):
    """Edges that lead from other workers' vertices to this worker's rows of a level."""

    sources: Array
    targets: Array
    factors: Array
    """The factor of each source's row."""
    relations: Array
    """The relations, by position in `CutLists.relations`."""
    senders: Array
    """The ranks of the workers that own the sources."""

    def only(self, some: Array) -> "CutEdges":
        """Some of the edges, by position or by a mask."""
        return CutEdges(*(each[some] for each in self))


class AskedSums(NamedTuple):
    """Sums of rows of one node type that one worker requests from another."""

    numbers: Array
    lengths: Array
    sources: Array
    """The vertices of all sums, concatenated."""
    factors: Array
    """The factors of their rows."""

    def as_lists(self) -> list[Array]:
        """The sums as lists of integers, for an exchange."""
        return [self.numbers, self.lengths, self.sources, self.factors.view(np.int64)]

    @classmethod
    def of_lists(cls, lists: Sequence[Array]) -> "AskedSums":
        """The sums in the lists that `as_lists` made."""
        numbers, lengths, sources, bits = lists
        return cls(numbers, lengths, sources, np.ascontiguousarray(bits).view(np.float64))


@dataclass(eq=False)
class ReadSums:
    """The sums of one node type's rows that one worker reads in one level."""

    keys: Array
    """For each sum its sender, relation and reader in one number, ascending."""
    summed: Array
    """Vertices whose rows are sent only in sums, ascending."""

    def are_summed(self, vertices: Array) -> Array:
        """Which of some vertices' rows are sent in sums."""
        if not len(self.summed):
            return np.zeros(len(vertices), np.bool_)
        at = np.minimum(np.searchsorted(self.summed, vertices), len(self.summed) - 1)
        found: Array = self.summed[at] == vertices
        return found

    def numbers(self, keys: Array) -> Array:
        """The sums' numbers among vertices."""
        found: Array = -1 - np.searchsorted(self.keys, keys)
        return found


def sum_keys(cut: CutLists, senders: Array, relations: Array | int, targets: Array) -> Array:
    """Keys of the sums that vertices read from workers: ordered by sender, then by relation and vertex."""
    found: Array = (senders * len(cut.relations) + relations) * _SPAN + targets
    return found


def sum_readers(cut: CutLists, read: ReadSums, vertices: Array) -> dict[str, tuple[Array, Array]]:
    """The sums among a level's rows of one type, and their only readers: by the readers' type,
    positions and vertices.
    """
    places = np.flatnonzero(vertices < 0)
    keys = read.keys[-1 - vertices[places]]
    relations, found = keys // _SPAN % len(cut.relations), dict[str, tuple[Array, Array]]()
    for number in np.unique(relations).tolist():
        here, target = relations == number, cut.relations[number][2]
        known = found.get(target, (_NONE, _NONE))
        more = places[here], keys[here] % _SPAN
        found[target] = tuple(map(np.concatenate, zip(known, more, strict=True)))  # type: ignore[assignment]
    return found


def cut_edges(cut: CutLists, rank: int, batch: Any, scale: SourceScale) -> CutEdges:
    """The edges of a batch of whole lists that come from other workers' vertices."""
    vertices = {kind: np.asarray(ids, np.int64) for kind, ids in batch.vertices.items()}
    owners, found = {kind: cut.ranks(kind, ids) for kind, ids in vertices.items()}, [_NO_EDGES]
    for kind, block in batch.blocks[0].named(cut.relations).relations.items():
        source, _, target = kind
        outside = owners[source][block.indices] != rank
        at = block.indices[outside]
        # Source rows of another type have no list in that relation.
        totals = np.asarray(block.totals, np.float64)[at] if source == target else np.zeros(len(at))
        factors = scale(totals)
        if block.weights is not None:
            factors = factors * block.weights[outside]
        ends = vertices[source][at], vertices[target][block.destinations()[outside]]
        numbers = np.full(len(at), cut.relations.index(kind))
        found.append(CutEdges(*ends, factors, numbers, np.asarray(owners[source][at], np.int64)))
    return joined_edges(found)


def joined_edges(parts: Sequence[CutEdges]) -> CutEdges:
    """The edges of all parts, concatenated."""
    return CutEdges(*map(np.concatenate, zip(*parts, strict=True)))


def choose_sums(cut: CutLists, world: int, edges: CutEdges) -> tuple[dict[str, ReadSums], list[dict[str, AskedSums]]]:
    """Choose which rows are sent in sums, and the sums to request from each worker, by the type of the rows."""
    type_of = np.array([cut.types.index(source) for source, _, _ in cut.relations])
    keys = sum_keys(cut, edges.senders, edges.relations, edges.targets)
    rows = type_of[edges.relations] * _SPAN + edges.sources
    chosen = np.flatnonzero(edges_to_sum(rows, keys, edges.senders))
    chosen = chosen[np.argsort(keys[chosen], kind="stable")]
    edges, keys = edges.only(chosen), keys[chosen]
    read, asked = dict[str, ReadSums](), [dict.fromkeys(cut.types, NO_SUMS) for _ in range(world)]
    for place, kind in enumerate(cut.types):
        here = type_of[edges.relations] == place
        if here.any():
            read[kind] = ReadSums(np.unique(keys[here]), np.unique(edges.sources[here]))
        for rank in np.unique(edges.senders[here]).tolist():
            of_rank = here & (edges.senders == rank)
            some, lengths = np.unique(keys[of_rank], return_counts=True)
            mine = edges.only(of_rank)
            asked[rank][kind] = AskedSums(read[kind].numbers(some), lengths, mine.sources, mine.factors)
    return read, asked


def with_sums(cut: CutLists, read: Mapping[str, ReadSums], batch: Any) -> tuple[Block, Rows]:
    """A batch's block of whole lists and its sources by type, with sums replacing the rows that are sent in them.

    In each relation every row reads its own neighbours first and then its sums, by sender.
    """
    block = batch.blocks[0].named(cut.relations)
    vertices = {kind: np.asarray(ids, np.int64) for kind, ids in batch.vertices.items()}
    kept = {
        kind: (np.arange(len(ids)) < block.dst_counts.get(kind, 0)) | ~read[kind].are_summed(ids)
        if kind in read
        else np.ones(len(ids), np.bool_)
        for kind, ids in vertices.items()
    }
    sources = {kind: [ids[kept[kind]]] for kind, ids in vertices.items()}
    made = {}
    for kind, part in block.relations.items():
        source, _, target = kind
        first = sum(map(len, sources[source]))
        made[kind], keys = _relation_with_sums(cut, kind, part, vertices[source], vertices[target], kept[source], first)
        if len(keys):
            sources[source].append(read[source].numbers(keys))
    found = {kind: np.concatenate(parts) for kind, parts in sources.items()}
    for (source, _, target), part in made.items():
        part.num_src = len(found[source])
        if part.totals is not None:
            # A sum has no list: layers read it unchanged.
            known = part.totals[kept[target][: len(part.totals)]]
            part.totals = np.append(known, np.zeros(len(found[target]) - len(known), known.dtype))
    if batch.blocks[0].has_lists:
        (only,) = made.values()
        return only, found
    return Block.of_relations(made, {kind: len(ids) for kind, ids in found.items()}, block.dst_counts), found


def _relation_with_sums(
    cut: CutLists, kind: EdgeType, block: Block, vertices: Array, readers: Array, kept: Array, first: int
) -> tuple[Block, Array]:
    """One relation's block with unchanged totals, whose sums are rows from `first` on; and the numbers of these sums.

    `vertices` and `readers` are the vertices of its source rows and of its rows, `kept` says which source rows stay.
    """
    direct, to, places = kept[block.indices], block.destinations(), np.cumsum(kept) - 1
    if direct.all():
        return replace(block, indices=places[block.indices].astype(block.indices.dtype)), _NONE
    away = block.indices[~direct]
    senders, number = cut.ranks(kind[0], vertices[away]), cut.relations.index(kind)
    keys, some = np.unique(sum_keys(cut, senders, number, readers[to[~direct]]), return_index=True)
    targets = np.concatenate([to[direct], to[~direct][some]])
    sources = np.concatenate([places[block.indices[direct]], first + np.arange(len(keys))])
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=block.num_dst))])
    known = np.ones(len(to), np.float32) if block.weights is None else block.weights
    weights = np.concatenate([known[direct], np.ones(len(keys), known.dtype)])
    made = Block(
        indptr.astype(block.indptr.dtype),
        sources[order].astype(block.indices.dtype),
        block.num_src,
        weights[order],
        block.totals,
    )
    return made, keys


_NONE = np.empty(0, np.int64)
NO_SUMS = AskedSums(_NONE, _NONE, _NONE, np.empty(0))
_NO_EDGES = CutEdges(_NONE, _NONE, np.empty(0), _NONE, _NONE)


# Sums of rows that a worker computes for another: their lists, and how their gradients return to the rows.


class Places:
    """Finds the positions of vertices in an unordered list."""

    def __init__(self, vertices: Array) -> None:
        self._order = np.argsort(vertices, kind="stable")
        self._sorted = vertices[self._order]

    def __getitem__(self, vertices: Array) -> Array:
        return self._order[np.searchsorted(self._sorted, vertices)]


class RowLists(NamedTuple):
    """Rows of a level, and lists between these and sums."""

    rows: Array
    lists: Block


class SentSums(NamedTuple):
    """Sums of one node type's rows that are sent to a reader in one message."""

    numbers: Array
    """The numbers under which the reader knows them."""
    added: RowLists
    """The rows that are summed: each sum reads some of them."""
    returned: dict[int, RowLists]
    """For each bin, its rows among these, which sum the gradients of the sums that they are part of."""


def sums_by_bin(asked: AskedSums, places: Places, bounds: Array, by_bin: bool) -> dict[int, SentSums]:
    """The sums that are complete after each bin, if bins are computed in order; without `by_bin` all after the last."""
    rows = places[asked.sources]
    bins = np.searchsorted(bounds, rows, "right") - 1
    starts = np.concatenate([[0], np.cumsum(asked.lengths)[:-1]]).astype(np.int64)
    last = np.maximum.reduceat(bins, starts) if by_bin else np.full(len(starts), len(bounds) - 2)
    of = np.repeat(np.arange(len(starts)), asked.lengths)
    found = {}
    for place in np.unique(last).tolist():
        chosen = np.flatnonzero(last == place)
        edges = last[of] == place
        at = np.searchsorted(chosen, of[edges])
        found[place] = _sums(asked.numbers[chosen], at, rows[edges], bins[edges], asked.factors[edges])
    return found


def _sums(numbers: Array, sums: Array, rows: Array, bins: Array, factors: Array) -> SentSums:
    weights = None if (factors == 1).all() else factors
    sources, at = np.unique(rows, return_inverse=True)
    returned = {}
    for place in np.unique(bins).tolist():
        mine = bins == place
        readers, to = np.unique(rows[mine], return_inverse=True)
        some = None if weights is None else weights[mine]
        returned[place] = RowLists(readers, _block(to, sums[mine], some, len(readers), len(numbers)))
    return SentSums(numbers, RowLists(sources, _block(sums, at, weights, len(numbers), len(sources))), returned)


def _block(targets: Array, sources: Array, weights: Array | None, num_dst: int, num_src: int) -> Block:
    """A block of edges that are in no order."""
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=num_dst))]).astype(np.int64)
    return Block(indptr, sources[order].astype(np.int32), num_src, None if weights is None else weights[order])
