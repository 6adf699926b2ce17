"""The rows that every level has on this worker: those that it computes, and the halo that others send.

They are found from the last level down. The vertices that a level's rows read are rows of the level below: a worker
computes its own, and asks the owners of the others to compute and send them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.nn.layers.entry import SourceScale
from penstock.partition.bins import breadth_first
from penstock.sampling.block import MiniBatch
from penstock.train.whole.shared.interfaces import CutLists, ListExchange, Rows
from penstock.train.whole.shared.partial_sums import (
    NO_SUMS,
    AskedSums,
    CutEdges,
    ReadSums,
    choose_sums,
    cut_edges,
    joined_edges,
)

# The order of a worker's rows, chosen so that workers can start early. A row that reads few remote rows can be computed
# after few messages. So a worker sends the owners of its halo a priority for each row, owners compute requested rows in
# that order, and readers compute their rows in the order in which the last of their inputs arrives.

_CHUNK = 1 << 16
"""Vertices whose lists are read at a time."""
_RANKS = 256
"""The number of priorities; rows of one priority are in breadth-first order."""


class _Reads(NamedTuple):
    """Entries of some rows' lists that lie in a halo."""

    readers: Array
    """For each entry, the position of its row among the rows."""
    node_type: str
    places: Array
    """For each entry, its position in the halo of this type."""


def ranks_wanted(cut: CutLists, number: int, rows: Rows, halo: Rows) -> Rows:
    """The priority of every halo vertex: the least rank of a layer's rows that read it.

    A row's rank is its position among the rows of its type that read a halo, ordered by how many halo rows they read.
    """
    wanted = {kind: np.full(len(ids), _RANKS, np.int64) for kind, ids in halo.items()}
    for kind, vertices in rows.items():
        counts = np.zeros(len(vertices), np.int64)
        for reads in _reads(cut, number, kind, vertices, halo):
            counts += np.bincount(reads.readers, minlength=len(vertices))
        ranks, mine = np.zeros(len(vertices), np.int64), np.flatnonzero(counts)
        ranks[mine[np.argsort(counts[mine], kind="stable")]] = np.arange(len(mine)) * _RANKS // max(len(mine), 1)
        for reads in _reads(cut, number, kind, vertices, halo):
            np.minimum.at(wanted[reads.node_type], reads.places, ranks[reads.readers])
    return wanted


def in_wanted_order(own: Array, places: Array, asked: Sequence[tuple[Array, Array]]) -> Array:
    """The vertices that others ask for, each once, by least rank, then by `places` among all `own`."""
    vertices, ranks = (np.concatenate(each) for each in zip(*asked, strict=True))
    by_rank = np.argsort(ranks, kind="stable")
    found, first = np.unique(vertices[by_rank], return_index=True)
    in_order: Array = found[np.lexsort((places[np.searchsorted(own, found)], ranks[by_rank][first]))]
    return in_order


def order_of_arrival(
    cut: CutLists,
    number: int,
    rows: Rows,
    halo: Rows,
    arrivals: Mapping[str, Array],
    read_outside: Mapping[str, int],
    of_sums: Mapping[str, Sequence[tuple[Array, Array]]],
) -> Rows:
    """For every type a permutation of a layer's rows by when their last halo row arrives.

    The first `read_outside` rows of a type, which other workers read, stay first. `arrivals` counts messages. `of_sums`
    gives, by the type of their readers, the only readers of halo rows that are sums, and when these arrive.
    """
    found = {}
    for kind, vertices in rows.items():
        last = np.full(len(vertices), -1, np.int64)
        for reads in _reads(cut, number, kind, vertices, halo):
            np.maximum.at(last, reads.readers, arrivals[reads.node_type][reads.places])
        order = np.argsort(vertices)
        for readers, when in of_sums.get(kind, ()):
            np.maximum.at(last, order[np.searchsorted(vertices, readers, sorter=order)], when)
        found[kind] = np.lexsort((last, np.arange(len(vertices)) >= read_outside[kind]))
    return found


def _reads(cut: CutLists, number: int, kind: str, vertices: Array, halo: Rows) -> Iterator[_Reads]:
    """Entries of the vertices' lists that lie in the ascending `halo`."""
    for start in range(0, len(vertices), _CHUNK):
        batch = cut.sample(number, {kind: vertices[start : start + _CHUNK]})
        for edge_type, part in batch.blocks[0].named(cut.relations).relations.items():
            known = halo.get(edge_type[0])
            if known is None or not len(known):
                continue
            sources = np.asarray(batch.vertices[edge_type[0]], np.int64)
            places = np.minimum(np.searchsorted(known, sources), len(known) - 1)
            is_halo = (known[places] == sources)[part.indices]
            readers = np.repeat(np.arange(start, start + part.num_dst), np.diff(part.indptr))
            yield _Reads(readers[is_halo], edge_type[0], places[part.indices[is_halo]])


# The order of a worker's vertices in every level is breadth-first, so that a bin's vertices share the rows they read.


def search_order(cut: CutLists, rank: int) -> Rows:
    """By node type, the position of each of this worker's vertices in a breadth-first search among them."""
    own = {kind: cut.own(kind) for kind in cut.types}
    starts = dict(zip(cut.types, np.cumsum([0, *map(len, own.values())]).tolist(), strict=False))
    count = sum(map(len, own.values()))
    ends = [np.empty((2, 0), np.int64)]
    for kind, vertices in own.items():
        for first, last in pairwise([*range(0, len(vertices), _CHUNK), len(vertices)]):
            ends += _edges(cut, rank, own, starts, {kind: vertices[first:last]}, starts[kind] + first)
    sources, targets = np.concatenate(ends, axis=1)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=count))])
    order = breadth_first(indptr, sources[np.argsort(targets, kind="stable")], np.zeros(count, np.int32))
    return {kind: order[starts[kind] : starts[kind] + len(own[kind])] for kind in cut.types}


def in_order(own: Array, places: Array, vertices: Array) -> Array:
    """Some of a worker's vertices, sorted by position; `own` are all of them, ascending."""
    return vertices[np.argsort(places[np.searchsorted(own, vertices)])]


def _edges(cut: CutLists, rank: int, own: Rows, starts: dict[str, int], rows: Rows, first: int) -> list[Array]:
    """Edges between a worker's vertices that some of them read, with both ends as positions among all of these."""
    batch = cut.sample(0, rows)
    found = []
    for (source, _, _), part in batch.blocks[0].named(cut.relations).relations.items():
        vertices = np.asarray(batch.vertices[source], np.int64)[part.indices]
        inside = cut.ranks(source, vertices) == rank
        places = starts[source] + np.searchsorted(own[source], vertices[inside])
        found.append(np.stack([places, first + part.destinations()[inside]]))
    return found


Replicate = Callable[[int, Rows, Rows], Rows]
"""(level, other workers' vertices that are read here, own vertices that are) -> by node type, a mask of the others'
vertices to compute here.
"""


@dataclass(eq=False)
class LevelRows:
    """One level's rows on one worker, by node type."""

    computed: Rows
    """Vertices whose rows this worker computes: first those that others read, by priority, then the rest in
    breadth-first order.
    """
    loads: Rows
    """The load of each: one plus the number of edges that it reads."""
    replicated: int = 0
    """How many of them are other workers' vertices; these come last."""
    halo: Rows = field(default_factory=dict)
    """Vertices whose rows others send, ascending."""
    sums: dict[str, ReadSums] = field(default_factory=dict)
    """Sums of rows that others send, by node type."""
    asked: list[Rows] = field(default_factory=list)
    """By rank, the vertices of this worker that another one reads, ascending."""
    asked_sums: list[dict[str, AskedSums]] = field(default_factory=list)
    """By rank, the sums of this worker's rows that another one reads."""

    @property
    def received(self) -> int:
        """The number of rows and sums that others send."""
        return sum(map(len, self.halo.values())) + sum(len(sums.keys) for sums in self.sums.values())


def find_levels(
    cut: CutLists,
    lists: ListExchange,
    name: str,
    layers: int,
    wanted: Rows,
    all_vertices: bool,
    replicate: Replicate | None = None,
    scale: SourceScale | None = None,
) -> list[LevelRows]:
    """The rows of every level from the inputs (level 0, whose rows are read and not computed) to the last.

    `wanted` are this worker's vertices of the last level. `name` distinguishes the exchanges from those of other steps.
    With `scale` others may send sums of their rows.
    """
    position = search_order(cut, lists.rank)
    last = {kind: wanted.get(kind, _NONE) for kind in cut.types}
    levels = [LevelRows({kind: in_order(cut.own(kind), position[kind], ids) for kind, ids in last.items()}, {})]
    for number in reversed(range(layers)):
        above = levels[0]
        lists_read = _read(cut, lists.rank, number, above.computed, scale if number else None)
        above.loads = lists_read.loads
        if number == 0:
            levels.insert(0, LevelRows(lists_read.vertices, {}))
            break
        rows = above.computed
        below = _level_below(
            cut, lists, f"{name}/{number}", number, rows, lists_read, all_vertices, replicate, position
        )
        levels.insert(0, below)
    return levels


def lengths_of(cut: CutLists, number: int, kind: str, vertices: Array) -> Array:
    """The number of edges that a layer reads for each of some vertices."""
    return np.concatenate([_NONE, *(_lengths(batch) for batch in batches_of(cut, number, kind, vertices))])


class _ReadLists(NamedTuple):
    """The lists of a level's rows on this worker."""

    loads: Rows
    """The load of every row: one plus its edges."""
    vertices: Rows
    """All vertices that are read, ascending."""
    cut_edges: CutEdges | None
    """None where they are not needed."""


def _read(cut: CutLists, rank: int, number: int, rows: Rows, scale: SourceScale | None) -> _ReadLists:
    loads, found, edges = {}, dict.fromkeys(rows, _NONE), list[CutEdges]()
    for kind, vertices in rows.items():
        lengths = [_NONE]
        for batch in batches_of(cut, number, kind, vertices):
            lengths.append(_lengths(batch) + 1)
            for source, ids in batch.vertices.items():
                found[source] = np.union1d(found[source], np.asarray(ids, np.int64))
            if scale is not None:
                edges.append(cut_edges(cut, rank, batch, scale))
        loads[kind] = np.concatenate(lengths)
    return _ReadLists(loads, found, joined_edges(edges) if edges else None)


def batches_of(cut: CutLists, number: int, kind: str, vertices: Array) -> Iterator[MiniBatch]:
    """The whole lists that a layer reads of some vertices, in batches."""
    for start in range(0, len(vertices), _CHUNK):
        yield cut.sample(number, {kind: vertices[start : start + _CHUNK]})


def _lengths(batch: MiniBatch) -> Array:
    """The lengths of the lists of a batch's seeds, which are of one type, over all relations."""
    total = np.zeros(batch.num_seeds, np.int64)
    for part in batch.blocks[0].parts:
        total += np.diff(part.indptr)
    return total


def _level_below(
    cut: CutLists,
    lists: ListExchange,
    name: str,
    number: int,
    rows: Rows,
    lists_read: _ReadLists,
    all_vertices: bool,
    replicate: Replicate | None,
    position: Rows,
) -> LevelRows:
    read = lists_read.vertices
    owner = {kind: cut.ranks(kind, ids) for kind, ids in read.items()}
    halo = {kind: ids[owner[kind] != lists.rank] for kind, ids in read.items()}
    copies = {kind: np.zeros(len(ids), np.bool_) for kind, ids in halo.items()}
    if replicate is not None:
        copies = replicate(number, halo, {kind: ids[owner[kind] == lists.rank] for kind, ids in read.items()})
    replicas = {kind: ids[copies[kind]] for kind, ids in halo.items()}
    halo = {kind: ids[~copies[kind]] for kind, ids in halo.items()}
    sums, wanted = dict[str, ReadSums](), [dict.fromkeys(cut.types, NO_SUMS)] * lists.world
    if lists_read.cut_edges is not None:
        # A replica in the level above reads its own row, which cannot be part of a sum.
        copied = {kind: ids[cut.ranks(kind, ids) != lists.rank] for kind, ids in rows.items()}
        alone = {kind: np.concatenate([ids, copied.get(kind, _NONE)]) for kind, ids in replicas.items()}
        sums, wanted = choose_sums(cut, lists.world, _received(cut, lists_read.cut_edges, alone))
    told = _tell(cut, lists, f"{name}/needs", halo, ranks_wanted(cut, number, rows, halo), wanted)
    computed = {}
    for kind in cut.types:
        sent = in_wanted_order(cut.own(kind), position[kind], [(each.read[kind], each.early[kind]) for each in told])
        own = cut.own(kind) if all_vertices else np.union1d(read[kind][owner[kind] == lists.rank], sent)
        inner = in_order(cut.own(kind), position[kind], np.setdiff1d(own, sent, assume_unique=True))
        # Rows that others read are computed first.
        computed[kind] = np.concatenate([sent, inner, replicas[kind]])
    halo = {kind: ids[~sums[kind].are_summed(ids)] if kind in sums else ids for kind, ids in halo.items()}
    replicated = sum(map(len, replicas.values()))
    asked = [{kind: np.setdiff1d(ids, each.sums[kind].sources) for kind, ids in each.read.items()} for each in told]
    return LevelRows(computed, {}, replicated, halo, sums, asked, [each.sums for each in told])


def _received(cut: CutLists, edges: CutEdges, alone: Rows) -> CutEdges:
    """Edges from other workers' vertices whose rows are neither computed here nor needed individually."""
    taken = np.ones(len(edges.sources), np.bool_)
    for number, (source, _, _) in enumerate(cut.relations):
        here = np.flatnonzero(edges.relations == number)
        taken[here] = ~np.isin(edges.sources[here], alone[source])
    return edges.only(taken)


class _Told(NamedTuple):
    """What another worker reads of this one's rows in a level."""

    read: Rows
    early: Rows
    """The priority of each of these rows."""
    sums: dict[str, AskedSums]
    """The rows that it reads in sums."""


def _tell(
    cut: CutLists, lists: ListExchange, name: str, halo: Rows, early: Rows, sums: list[dict[str, AskedSums]]
) -> list[_Told]:
    """Send every worker which of its rows this one reads, and how; returns, by rank, what others read of this one."""
    owners = {kind: cut.ranks(kind, ids) for kind, ids in halo.items()}
    told = lists.exchange(
        name,
        [
            [
                *(way[kind][owners[kind] == rank] for way in (halo, early) for kind in cut.types),
                *(each for kind in cut.types for each in sums[rank][kind].as_lists()),
            ]
            for rank in range(lists.world)
        ],
    )
    types = len(cut.types)
    return [
        _Told(
            dict(zip(cut.types, each[:types], strict=True)),
            dict(zip(cut.types, each[types : 2 * types], strict=True)),
            {
                kind: AskedSums.of_lists(each[2 * types + 4 * place : 2 * types + 4 * place + 4])
                for place, kind in enumerate(cut.types)
            },
        )
        for each in told
    ]


_NONE = np.empty(0, np.int64)
