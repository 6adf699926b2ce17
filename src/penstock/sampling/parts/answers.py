"""Rows grouped by the part that owns them, and the owners' answers put together again in the order of the rows."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.owners import split_by_owner
from penstock.sampling.lists import DrawnNeighbours


class Group(NamedTuple):
    """The rows, ascending, whose vertices one part owns."""

    rows: Array
    vertices: Array


class PartAnswer(NamedTuple):
    """What one part drew for its group: so many sources for every row, one row's behind the other's."""

    counts: Array
    sources: Array
    weights: Array | None = None
    positions: Array | None = None
    """The edges' numbers in the cut graph, where asked for."""


def group_by_owner(vertices: Array, bounds: Array) -> dict[int, Group]:
    """The rows of every part that owns any of the vertices; `bounds` are the book's."""
    split, groups = split_by_owner(vertices, bounds), {}
    for part in np.flatnonzero(np.diff(split.starts)).tolist():
        _, places = split.of(part)
        groups[part] = Group(places, vertices[places])
    return groups


def stitch_draws(
    groups: Mapping[int, Group],
    pieces: Mapping[int, PartAnswer],
    count: int,
    dtype: np.dtype[np.signedinteger],
    weighted: bool,
    positioned: bool = False,
) -> DrawnNeighbours:
    """The draws of `count` rows, sources as `dtype`. A piece has as many sources as its counts say.

    Pieces have weights where `weighted`, and positions where `positioned`.
    """
    indptr = np.zeros(count + 1, np.int64)
    for part, group in groups.items():
        indptr[group.rows + 1] = pieces[part].counts
    np.cumsum(indptr, out=indptr)
    sources = np.empty(indptr[-1], dtype)
    kinds = [piece.weights.dtype for piece in pieces.values() if piece.weights is not None]
    weights = np.empty(indptr[-1], kinds[0] if kinds else np.float32) if weighted else None
    positions = np.empty(indptr[-1], np.int64) if positioned else None
    for part, (rows, _) in groups.items():
        piece = pieces[part]
        place_lists(rows, indptr, piece.sources, sources)
        if weights is not None:
            assert piece.weights is not None
            place_lists(rows, indptr, piece.weights, weights)
        if positions is not None:
            assert piece.positions is not None
            place_lists(rows, indptr, piece.positions, positions)
    return DrawnNeighbours(indptr, sources, positions, weights)


def stitch_rows(groups: Mapping[int, Group], pieces: Mapping[int, Array], count: int) -> Array:
    """One float32 for each row, in the order of the request."""
    values = np.empty(count, np.float32)
    for part, group in groups.items():
        values[group.rows] = pieces[part]
    return values


@njit(nogil=True, cache=True)
def place_lists(rows: Array, indptr: Array, values: Array, out: Array) -> None:
    """Lists that lie one behind the other go to where their rows have room for them."""
    used = 0
    for k in range(len(rows)):
        begin, end = indptr[rows[k]], indptr[rows[k] + 1]
        for place in range(begin, end):
            out[place] = values[used]
            used += 1
