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
from penstock.train.whole.shared.vertex_order import in_order, search_order

_CHUNK = 1 << 16
"""Vertices whose lists are read at a time."""

Replicate = Callable[[int, str, Array], Array]
"""(level, node type, vertices of others that are read here) -> a mask of those to compute here."""


@dataclass(eq=False)
class LevelRows:
    """One level's rows on one worker, by node type."""

    computed: Rows
    """Vertices whose rows this worker computes: those that others read first, and each kind as a search finds them."""
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
        levels.insert(0, _level_below(cut, lists, f"{name}/{number}", number, read, all_vertices, replicate, position))
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
    read: Rows,
    all_vertices: bool,
    replicate: Replicate | None,
    position: Rows,
) -> LevelRows:
    ranks = {kind: cut.ranks(kind, ids) for kind, ids in read.items()}
    halo = {kind: ids[ranks[kind] != lists.rank] for kind, ids in read.items()}
    copies = {
        kind: np.zeros(len(ids), np.bool_) if replicate is None else replicate(number, kind, ids)
        for kind, ids in halo.items()
    }
    replicas = {kind: ids[copies[kind]] for kind, ids in halo.items()}
    halo = {kind: ids[~copies[kind]] for kind, ids in halo.items()}
    owners = {kind: cut.ranks(kind, ids) for kind, ids in halo.items()}
    told = lists.exchange(
        f"{name}/needs",
        [[halo[kind][owners[kind] == rank] for kind in cut.types] for rank in range(lists.world)],
    )
    asked = [dict(zip(cut.types, each, strict=True)) for each in told]
    computed = {}
    for kind in cut.types:
        sent = _union(each[kind] for each in asked)
        own = cut.own(kind) if all_vertices else np.union1d(read[kind][ranks[kind] == lists.rank], sent)
        inner = np.setdiff1d(own, sent, assume_unique=True)
        # What others read is computed first.
        ordered = [in_order(cut.own(kind), position[kind], ids) for ids in (sent, inner)]
        computed[kind] = np.concatenate([*ordered, replicas[kind]])
    return LevelRows(computed, {}, sum(map(len, replicas.values())), halo, asked)


def _union(parts: object) -> Array:
    found = [part for part in parts if len(part)]  # type: ignore[attr-defined]
    return np.unique(np.concatenate(found)) if found else _NONE


_NONE = np.empty(0, np.int64)
