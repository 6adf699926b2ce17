"""Which owner has which rows, and their answers put together again in the order of the rows."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.lists import DrawnNeighbours


class Group(NamedTuple):
    """The rows, ascending, whose vertices one part owns."""

    rows: Array
    vertices: Array


class Piece(NamedTuple):
    """What one part drew for its group: so many sources for every row, one row's behind the other's."""

    counts: Array
    sources: Array
    weights: Array | None = None


def split_by_owner(bounds: Array, vertices: Array) -> dict[int, Group]:
    """Rows by the part that owns their vertices; `bounds` are the parts' first new numbers and the count of all."""
    parts = len(bounds) - 1
    owners, starts = np.empty(len(vertices), np.int32), np.zeros(parts + 1, np.int64)
    _find_owners(bounds, vertices, owners, starts)
    np.cumsum(starts, out=starts)
    rows, grouped = np.empty(len(vertices), np.int64), np.empty(len(vertices), vertices.dtype)
    _group(owners, vertices, starts[:-1].copy(), rows, grouped)
    filled = np.flatnonzero(np.diff(starts)).tolist()
    return {p: Group(rows[starts[p] : starts[p + 1]], grouped[starts[p] : starts[p + 1]]) for p in filled}


def stitch_draws(
    groups: Mapping[int, Group],
    pieces: Mapping[int, Piece],
    count: int,
    dtype: np.dtype[np.signedinteger],
    weighted: bool,
) -> DrawnNeighbours:
    """The draws of `count` rows, sources as `dtype`. A piece has as many sources as its counts say."""
    indptr = np.zeros(count + 1, np.int64)
    for part, group in groups.items():
        indptr[group.rows + 1] = pieces[part].counts
    np.cumsum(indptr, out=indptr)
    sources = np.empty(indptr[-1], dtype)
    kinds = [piece.weights.dtype for piece in pieces.values() if piece.weights is not None]
    weights = np.empty(indptr[-1], kinds[0] if kinds else np.float32) if weighted else None
    for part, (rows, _) in groups.items():
        piece = pieces[part]
        place_lists(rows, indptr, piece.sources, sources)
        if weights is not None:
            assert piece.weights is not None
            place_lists(rows, indptr, piece.weights, weights)
    return DrawnNeighbours(indptr, sources, None, weights)


def stitch_rows(groups: Mapping[int, Group], pieces: Mapping[int, Array], count: int) -> Array:
    """One float32 a row."""
    values = np.empty(count, np.float32)
    for part, group in groups.items():
        values[group.rows] = pieces[part]
    return values


@njit(nogil=True, cache=True)
def _find_owners(bounds: Array, vertices: Array, owners: Array, starts: Array) -> None:
    """The part of every vertex; how many a part p has is added to `starts[p + 1]`."""
    # Halves without a branch: which one a vertex is in is as good as random.
    for row in range(len(vertices)):
        vertex, low, width = vertices[row], 0, len(bounds) - 1
        while width > 1:
            half = width // 2
            low += half * (bounds[low + half] <= vertex)
            width -= half
        owners[row] = low
        starts[low + 1] += 1


@njit(nogil=True, cache=True)
def _group(owners: Array, vertices: Array, fill: Array, rows: Array, grouped: Array) -> None:
    for row in range(len(vertices)):
        place = fill[owners[row]]
        fill[owners[row]] = place + 1
        rows[place], grouped[place] = row, vertices[row]


@njit(nogil=True, cache=True)
def place_lists(rows: Array, indptr: Array, values: Array, out: Array) -> None:
    """Lists that lie one behind the other go to where their rows have room for them."""
    used = 0
    for k in range(len(rows)):
        begin, end = indptr[rows[k]], indptr[rows[k] + 1]
        for place in range(begin, end):
            out[place] = values[used]
            used += 1
