"""The rows that every level has on this worker: those that it computes, and the halo that others send.

Found from the last level down. The vertices that a level's rows read are rows of the level below: a worker's own it
computes, of the others' it tells their owners, who compute them because they are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.sampling.block import MiniBatch
from penstock.train.whole.shared.interfaces import CutLists, Lists, Rows
from penstock.train.whole.shared.row_order import in_wanted_order, ranks_wanted
from penstock.train.whole.shared.vertex_order import in_order, search_order

_CHUNK = 1 << 16
"""Vertices whose lists are read at a time."""

Replicate = Callable[[int, str, Array], Array]
"""(level, node type, vertices of others that are read here) -> a mask of those to compute here."""


@dataclass(eq=False)
class LevelRows:
    """One level's rows on one worker, by node type."""

    computed: Rows
    """Vertices whose rows this worker computes: first those that others read, as they want them, then the others as a
    search finds them."""
    loads: Rows
    """For each of them, one and the number of edges that it reads."""
    replicated: int = 0
    """How many of them are other workers' vertices, which come last."""
    halo: Rows = field(default_factory=dict)
    """Vertices whose rows others send, ascending."""
    asked: list[Rows] = field(default_factory=list)
    """By rank, the vertices of this worker that another reads, ascending."""


def find_levels(
    cut: CutLists, lists: Lists, name: str, layers: int, wanted: Rows, all_vertices: bool, replicate: Replicate | None
) -> list[LevelRows]:
    """For every level from the inputs (level 0, whose rows are read and not computed) to the last.

    `wanted` are this worker's vertices of the last level. `name` tells the exchanges from those of other steps.
    """
    position = search_order(cut, lists.rank)
    last = {kind: wanted.get(kind, _NONE) for kind in cut.types}
    levels = [LevelRows({kind: in_order(cut.own(kind), position[kind], ids) for kind, ids in last.items()}, {})]
    for number in reversed(range(layers)):
        above = levels[0]
        above.loads, read = _read(cut, number, above.computed)
        if number == 0:
            levels.insert(0, LevelRows(read, {}))
            break
        rows = above.computed
        below = _level_below(cut, lists, f"{name}/{number}", number, rows, read, all_vertices, replicate, position)
        levels.insert(0, below)
    return levels


def lengths_of(cut: CutLists, number: int, kind: str, vertices: Array) -> Array:
    """The number of edges that a layer reads for each of some vertices."""
    return np.concatenate([_NONE, *(_lengths(batch) for batch in _batches(cut, number, kind, vertices))])


def _read(cut: CutLists, number: int, rows: Rows) -> tuple[Rows, Rows]:
    """For every vertex one and its edges, and all vertices that are read, ascending."""
    loads, found = {}, dict.fromkeys(rows, _NONE)
    for kind, vertices in rows.items():
        lengths = [_NONE]
        for batch in _batches(cut, number, kind, vertices):
            lengths.append(_lengths(batch) + 1)
            for source, ids in batch.vertices.items():
                found[source] = np.union1d(found[source], np.asarray(ids, np.int64))
        loads[kind] = np.concatenate(lengths)
    return loads, found


def _batches(cut: CutLists, number: int, kind: str, vertices: Array) -> Iterator[MiniBatch[Any]]:
    for start in range(0, len(vertices), _CHUNK):
        yield cut.sample(number, {kind: vertices[start : start + _CHUNK]})


def _lengths(batch: MiniBatch[Any]) -> Array:
    """Of the lists of a batch's seeds, which are of one type, over all relations."""
    block = batch.blocks[0]
    total = np.zeros(batch.num_seeds, np.int64)
    for part in getattr(block, "relations", {None: block}).values():
        # Relations to other types have no rows.
        if part.num_dst:
            total += np.diff(part.indptr)
    return total


def _level_below(
    cut: CutLists,
    lists: Lists,
    name: str,
    number: int,
    rows: Rows,
    read: Rows,
    all_vertices: bool,
    replicate: Replicate | None,
    position: Rows,
) -> LevelRows:
    owner = {kind: cut.ranks(kind, ids) for kind, ids in read.items()}
    halo = {kind: ids[owner[kind] != lists.rank] for kind, ids in read.items()}
    copies = {
        kind: np.zeros(len(ids), np.bool_) if replicate is None else replicate(number, kind, ids)
        for kind, ids in halo.items()
    }
    replicas = {kind: ids[copies[kind]] for kind, ids in halo.items()}
    halo = {kind: ids[~copies[kind]] for kind, ids in halo.items()}
    owners = {kind: cut.ranks(kind, ids) for kind, ids in halo.items()}
    ways = halo, ranks_wanted(cut, number, rows, halo)
    told = lists.exchange(
        f"{name}/needs",
        [[way[kind][owners[kind] == rank] for kind in cut.types for way in ways] for rank in range(lists.world)],
    )
    asked, early = ([dict(zip(cut.types, each[part::2], strict=True)) for each in told] for part in (0, 1))
    computed = {}
    for kind in cut.types:
        pairs = [(vertices[kind], ranks[kind]) for vertices, ranks in zip(asked, early, strict=True)]
        sent = in_wanted_order(cut.own(kind), position[kind], pairs)
        own = cut.own(kind) if all_vertices else np.union1d(read[kind][owner[kind] == lists.rank], sent)
        inner = in_order(cut.own(kind), position[kind], np.setdiff1d(own, sent, assume_unique=True))
        # What others read is computed first.
        computed[kind] = np.concatenate([sent, inner, replicas[kind]])
    return LevelRows(computed, {}, sum(map(len, replicas.values())), halo, asked)


_NONE = np.empty(0, np.int64)
