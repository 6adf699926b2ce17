"""True edges among negatives that many positives share.

A search for every positive and every negative would take longer than sampling the batch. Lists are short, so each is
walked once, and its vertices are looked up among the sorted ones of the other side.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.sampling.links.known import End, KnownEdges, lower_bound
from penstock.sampling.links.negatives import Positives

_LONG = 8
"""A list this many times longer than what is looked up in it is searched, not walked."""


def mask_true_edges(known: KnownEdges, positives: Positives, end: End, vertices: Array, group: int, mask: Array) -> int:
    """Set `mask` [positives, k] to False where `vertices` [groups, k] at `end` make true edges; returns how many were
    True before."""
    at_destination = end == "destination"
    kept = _in_groups(positives.source if at_destination else positives.destination, group)
    owners, sought = (vertices, kept) if at_destination else (kept, vertices)
    order = np.argsort(sought, axis=1, kind="stable")
    return _mask(
        known.indptr,
        known.indices,
        known.kept_out,
        known.num_sources,
        owners,
        np.take_along_axis(sought, order, 1).ravel(),
        order.ravel(),
        at_destination,
        group,
        mask,
    )


def _in_groups(vertices: Array, group: int) -> Array:
    """[groups, group], the last row filled up with -1."""
    rows = np.full((-(-len(vertices) // group), group), -1, np.int64)
    rows.ravel()[: len(vertices)] = vertices
    return rows


@njit(nogil=True, cache=True)
def _mask(
    indptr: Array,
    indices: Array,
    kept_out: Array,
    num_sources: int,
    owners: Array,
    sought: Array,
    order: Array,
    at_destination: bool,
    group: int,
    mask: Array,
) -> int:
    """Walk the in-list of every owner [groups, a] for what is sought: ascending in each of `groups` equal slices."""
    clashes, width = 0, len(sought) // max(len(owners), 1)
    for g in range(owners.shape[0]):
        first, last = g * width, (g + 1) * width
        for x in range(owners.shape[1]):
            owner = owners[g, x]
            if owner < 0:
                continue
            row, column = (g * group, x) if at_destination else (g * group + x, -1)
            low, high = indptr[owner], indptr[owner + 1]
            if high - low > _LONG * width:
                for y in range(first, last):
                    place = lower_bound(indices, low, high, sought[y])
                    if place < high and indices[place] == sought[y]:
                        clashes += _mark(sought, order, y, y + 1, sought[y], row, column, mask)
            else:
                for k in range(low, high):
                    if k == low or indices[k] != indices[k - 1]:
                        clashes += _mark(sought, order, first, last, indices[k], row, column, mask)
            place = lower_bound(kept_out, 0, kept_out.shape[0], owner * num_sources)
            while place < kept_out.shape[0] and kept_out[place] < (owner + 1) * num_sources:
                source = kept_out[place] - owner * num_sources
                clashes += _mark(sought, order, first, last, source, row, column, mask)
                place += 1
    return clashes


@njit(nogil=True, cache=True)
def _mark(sought: Array, order: Array, first: int, last: int, vertex: int, row: int, column: int, mask: Array) -> int:
    """Mask a vertex wherever it stands in sought[first:last]: in a column's rows, or in a row's columns."""
    marked = 0
    y = lower_bound(sought, first, last, vertex)
    while y < last and sought[y] == vertex:
        i, j = (row + order[y], column) if column >= 0 else (row, order[y])
        marked += mask[i, j]
        mask[i, j] = False
        y += 1
    return marked
