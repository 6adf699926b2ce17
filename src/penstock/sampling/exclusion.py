"""Edges that a batch must not draw: in link prediction, those that it predicts.

Excluded pairs are sorted by destination. A table of flags, indexed by the low bits of a vertex's number and mostly
empty, shows for nearly all rows that nothing of theirs is excluded; only the others search.
"""

from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit

_SPARSE = 16
"""Flags per destination: about one in this many rows searches without need."""
_FEW = 8
"""Up to this many excluded sources are compared one by one."""


class Exclusion(NamedTuple):
    """`sources[offsets[i]:offsets[i + 1]]`, ascending, must not be drawn for vertex `destinations[i]`."""

    flags: Array
    destinations: Array
    offsets: Array
    sources: Array


NOTHING = Exclusion(np.zeros(1, np.bool_), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))
"""The one exclusion that excludes no edge."""


def exclusion_of(pairs: "Array | Exclusion | None", num_sources: int, num_destinations: int) -> Exclusion:
    """From [2, m] sources above destinations; an `Exclusion` is returned unchanged."""
    if pairs is None:
        return NOTHING
    if isinstance(pairs, Exclusion):
        return pairs
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or len(pairs) != 2 or (pairs.dtype.kind not in "iu" and pairs.size):
        raise PenstockError(
            f"Excluded edges have shape {pairs.shape} and type {pairs.dtype}: give integers of shape [2, m], sources"
            " in the first row and destinations in the second.",
            code="shape-mismatch",
        )
    if pairs.shape[1] == 0:
        return NOTHING
    for ends, count, what in zip(pairs, (num_sources, num_destinations), ("source", "destination"), strict=True):
        if ends.min() < 0 or ends.max() >= count:
            raise PenstockError(f"An excluded edge has a {what} outside 0..{count - 1}.", code="id-out-of-range")
    sources, targets = pairs.astype(np.int64)
    order = np.lexsort((sources, targets))
    destinations, first = np.unique(targets[order], return_index=True)
    flags = np.zeros(1 << int(_SPARSE * len(destinations) - 1).bit_length(), np.bool_)
    flags[destinations & (len(flags) - 1)] = True
    return Exclusion(flags, destinations, np.append(first, len(sources)).astype(np.int64), sources[order])


@njit(nogil=True, cache=True)
def rows_excluded(exclusion: Exclusion, vertices: Array) -> Array:
    """The rows whose lists may have excluded edges, ascending."""
    flags, destinations, offsets, _ = exclusion
    mask, count = len(flags) - 1, 0
    flagged = np.empty(len(vertices), np.int64)
    for row in range(len(vertices)):
        flagged[count] = row
        count += flags[vertices[row] & mask]
    kept = 0
    for k in range(count):
        first, last = find_excluded(destinations, offsets, vertices[flagged[k]])
        if first < last:
            flagged[kept] = flagged[k]
            kept += 1
    return flagged[:kept]


@njit(nogil=True, cache=True, writes=())
def find_excluded(destinations: Array, offsets: Array, vertex: int) -> tuple[int, int]:
    """The range of a vertex's excluded sources."""
    low, high = 0, len(destinations)
    while low < high:
        middle = (low + high) // 2
        if destinations[middle] < vertex:
            low = middle + 1
        else:
            high = middle
    if low == len(destinations) or destinations[low] != vertex:
        return 0, 0
    return offsets[low], offsets[low + 1]


@njit(nogil=True, cache=True)
def drop_excluded(indices: Array, excluded: Array, candidates: Array, count: int) -> int:
    """Keep the first `count` list positions whose sources are not excluded; returns how many."""
    kept = 0
    for k in range(count):
        position = candidates[k]
        source = indices[position]
        low, high = 0, len(excluded)
        while high - low > _FEW:
            middle = (low + high) // 2
            if excluded[middle] <= source:
                low = middle
            else:
                high = middle
        admissible = True
        for i in range(low, high):
            admissible &= excluded[i] != source
        candidates[kept] = position
        kept += admissible
    return kept
