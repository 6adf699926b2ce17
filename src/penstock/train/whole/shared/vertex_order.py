"""The order of a worker's vertices in every level: that of a search, so that a bin's vertices read the same rows."""

from itertools import pairwise

import numpy as np

from penstock.graph.arrays import Array
from penstock.partition.search_order import breadth_first
from penstock.train.whole.shared.interfaces import CutLists, Rows

_CHUNK = 1 << 16
"""Vertices whose lists are read at a time."""


def search_order(cut: CutLists, rank: int) -> Rows:
    """By node type, the place of each of this worker's vertices in a breadth-first search that stays among them."""
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
    """Some of a worker's vertices, sorted by their places; `own` are all of them, ascending."""
    return vertices[np.argsort(places[np.searchsorted(own, vertices)])]


def _edges(cut: CutLists, rank: int, own: Rows, starts: dict[str, int], rows: Rows, first: int) -> list[Array]:
    """The edges that some of a worker's vertices read from its vertices: both ends, as places among all of these."""
    batch = cut.sample(0, rows)
    block = batch.blocks[0]
    found = []
    for kind, part in getattr(block, "relations", {None: block}).items():
        if not part.num_dst:
            continue
        source = next(iter(rows)) if kind is None else kind[0]
        vertices = np.asarray(batch.vertices[source], np.int64)[part.indices]
        inside = cut.ranks(source, vertices) == rank
        places = starts[source] + np.searchsorted(own[source], vertices[inside])
        found.append(np.stack([places, first + part.destinations()[inside]]))
    return found
