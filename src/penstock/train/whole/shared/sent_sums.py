"""Sums of rows that a worker adds up for another: their lists, and the way of their gradients back to the rows."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.sampling.block import Block
from penstock.train.whole.shared.partial_sums import AskedSums


class Places:
    """Where vertices stand in a list that is in no order."""

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
    """Sums of one node type's rows that another worker is sent together."""

    numbers: Array
    """By which the reader knows them."""
    added: RowLists
    """The rows that are added up: each sum reads some of them."""
    returned: dict[int, RowLists]
    """The rows of each bin among these, which add up the gradients of the sums that they are in."""


def sums_by_bin(asked: AskedSums, places: Places, bounds: Array, by_bin: bool) -> dict[int, SentSums]:
    """The sums that are complete when a bin is, if bins are computed in order; not `by_bin`: all with the last bin."""
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
    """Lists of edges that are in no order."""
    order = np.argsort(targets, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=num_dst))]).astype(np.int64)
    return Block(indptr, sources[order].astype(np.int32), num_src, None if weights is None else weights[order])
