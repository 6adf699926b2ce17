"""The order of a worker's rows, such that other workers can start early and so can this one.

A row that reads few remote rows can be computed after few messages. So a worker tells the owners of its halo how early
it wants each row, owners compute wanted rows in that order, and readers compute their rows in the order in which the
last of their inputs arrives.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.whole.shared.interfaces import CutLists, Rows

_CHUNK = 1 << 16
"""Vertices whose lists are read at a time."""
_RANKS = 256
"""Ranks with which rows are wanted; rows of one rank stand in the order of a search."""


class _Reads(NamedTuple):
    """Entries of some rows' lists that lie in a halo."""

    readers: Array
    """Of each entry, the place of its row among the rows."""
    node_type: str
    places: Array
    """and its place in the halo of this type."""


def ranks_wanted(cut: CutLists, number: int, rows: Rows, halo: Rows) -> Rows:
    """For every halo vertex how early rows of a layer want it: the least rank of those that read it.

    A row's rank is its place among the rows of its type that read a halo, by how many of its rows they read.
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
    """The vertices that other workers ask for, each once, by the least of the ranks that come with them.

    `own` are all of this worker's vertices, ascending, and `places` say how vertices of one rank are ordered.
    """
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

    The first `read_outside` rows of a type, which other workers read, stay first. `arrivals` counts messages.
    `of_sums` are, by the type of their readers, the only readers of halo rows that are sums, and when these arrive.
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
    """`halo` is ascending."""
    for start in range(0, len(vertices), _CHUNK):
        batch = cut.sample(number, {kind: vertices[start : start + _CHUNK]})
        block: Any = batch.blocks[0]
        only = next(iter(batch.vertices))
        for edge_type, part in getattr(block, "relations", {(only, "", kind): block}).items():
            known = halo.get(edge_type[0])
            # Relations to other types have no rows.
            if not part.num_dst or known is None or not len(known):
                continue
            sources = np.asarray(batch.vertices[edge_type[0]], np.int64)
            places = np.minimum(np.searchsorted(known, sources), len(known) - 1)
            is_halo = (known[places] == sources)[part.indices]
            readers = np.repeat(np.arange(start, start + part.num_dst), np.diff(part.indptr))
            yield _Reads(readers[is_halo], edge_type[0], places[part.indices[is_halo]])
