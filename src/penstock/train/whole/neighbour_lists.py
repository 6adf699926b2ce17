"""Lists of neighbours by their places in an order of vertices, and the same edges listed by the vertices that are read.

Every level of a step is a prefix of one order, so that one array of lists serves all layers. It is made by reading the
graph's lists once, on all cores. On a device it is filled piece by piece: the host holds the lists of the rows that
are turned round, and one piece of the others.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.blocks import default_threads, run_blocks
from penstock.graph.data import EdgeSet
from penstock.kernels import njit
from penstock.nn.kernels import cut_evenly

_PIECE = 1 << 26
"""Entries that are brought to a device at once: 256 MiB."""
_WORK = 1 << 20
"""Entries that a thread renumbers at a time, about."""


class PlacedLists(NamedTuple):
    """Row i has the entries `indices[indptr[i]:indptr[i + 1]]`, which are places in an order of vertices."""

    indptr: Array
    """int64, on the host."""
    indices: Tensor
    """int32, where the model is computed."""


def list_offsets(edges: EdgeSet, vertices: Array) -> Array:
    """Where the lists of some vertices begin and end if they stand one after the other (int64)."""
    found = np.zeros(len(vertices) + 1, np.int64)
    run_blocks(lambda a, b: _lengths(edges.indptr, vertices, found, a, b), len(vertices), _WORK)
    return np.cumsum(found, out=found)


def placed_lists(
    edges: EdgeSet, order: Array, offsets: Array, turned: int, device: torch.device
) -> tuple[PlacedLists, Array]:
    """The lists of the first vertices of an order, and on the host those of the first `turned` of them.

    `offsets` say how many lists there are, and where they begin (`list_offsets`).
    """
    entries = int(offsets[-1])
    places = np.empty(int(order.max(initial=-1)) + 1, np.int32)
    run_blocks(lambda a, b: _number(order, places, a, b), len(order), _WORK)

    def write(first: int, last: int, out: Array) -> None:
        """Renumber the lists of rows [first, last)."""
        lists, shift = offsets[first : last + 1], int(offsets[first])
        bounds = cut_evenly(lists - shift, max(1, len(out) // _WORK))

        def work(piece: int, _: int) -> None:
            rows = bounds[piece], bounds[piece + 1]
            _renumber(edges.indptr, edges.indices, order[first:last], places, lists, shift, out, *rows)

        run_blocks(work, len(bounds) - 1, 1)

    indices = torch.empty(entries, dtype=torch.int32, device=device)
    kept = np.empty(0, np.int32)
    for first, last in [(0, turned), *_pieces(offsets, turned)]:
        into = indices[int(offsets[first]) : int(offsets[last])]
        piece = into.numpy() if device.type == "cpu" else np.empty(len(into), np.int32)
        write(first, last, piece)
        if device.type != "cpu":
            into.copy_(torch.from_numpy(piece))
        kept = piece if first == 0 else kept
    return PlacedLists(offsets, indices), kept


def turned_round(indptr: Array, indices: Array, sources: int, device: torch.device) -> PlacedLists:
    """For each of the first `sources` places, the rows of some lists that read it, ascending.

    A counting sort. Every thread reads all entries twice, in order, and counts and writes those of its own places, so
    that nothing is written by two threads and the result does not depend on how many there are.
    """
    parts = default_threads()
    bounds = np.linspace(0, sources, parts + 1).astype(np.int64)
    found = np.zeros(sources + 1, np.int64)

    def count(part: int, _: int) -> None:
        _count_entries(indices, bounds[part], bounds[part + 1], found[1:])

    run_blocks(count, parts, 1)
    np.cumsum(found, out=found)
    readers = np.empty(len(indices), np.int32)

    def write(part: int, _: int) -> None:
        low, high = bounds[part : part + 2]
        _write_readers(indptr, indices, low, high, found[low:high].copy(), readers)

    run_blocks(write, parts, 1)
    return PlacedLists(found, torch.from_numpy(readers).to(device))


def _pieces(offsets: Array, first: int) -> list[tuple[int, int]]:
    """Rows from `first` on, cut so that pieces have about as many entries as are brought to a device at once."""
    entries = int(offsets[-1] - offsets[first])
    bounds = first + cut_evenly(offsets[first:] - offsets[first], max(1, -(-entries // _PIECE)))
    return [(int(a), int(b)) for a, b in pairwise(bounds) if b > a]


@njit(nogil=True, cache=True)
def _lengths(indptr: Array, vertices: Array, out: Array, first: int, last: int) -> None:
    for row in range(first, last):
        out[row + 1] = indptr[vertices[row] + 1] - indptr[vertices[row]]


@njit(nogil=True, cache=True)
def _number(order: Array, places: Array, first: int, last: int) -> None:
    for place in range(first, last):
        places[order[place]] = place


@njit(nogil=True, cache=True)
def _renumber(
    indptr: Array,
    indices: Array,
    vertices: Array,
    places: Array,
    starts: Array,
    shift: int,
    out: Array,
    first: int,
    last: int,
) -> None:
    for row in range(first, last):
        to = starts[row] - shift
        for k in range(indptr[vertices[row]], indptr[vertices[row] + 1]):
            out[to] = places[indices[k]]
            to += 1


@njit(nogil=True, cache=True)
def _count_entries(indices: Array, low: int, high: int, out: Array) -> None:
    for k in range(indices.shape[0]):
        if low <= indices[k] < high:
            out[indices[k]] += 1


@njit(nogil=True, cache=True)
def _write_readers(indptr: Array, indices: Array, low: int, high: int, starts: Array, out: Array) -> None:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if low <= indices[k] < high:
                at = indices[k] - low
                out[starts[at]] = row
                starts[at] += 1
