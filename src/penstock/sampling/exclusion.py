"""Edges that a batch must not draw: for link prediction, those whose existence it is asked to predict.

Excluded pairs are sorted by destination. A table of flags, indexed by the low bits of a vertex's number and mostly
empty, tells nearly all vertices that nothing of theirs is excluded; the others search.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

_SPARSE = 16
"""Flags a pair: a vertex without excluded edges searches for them once in as many times."""


class Exclusion(NamedTuple):
    """`sources[offsets[i]:offsets[i + 1]]`, ascending, are not to be drawn for vertex `destinations[i]`."""

    flags: Array
    destinations: Array
    offsets: Array
    sources: Array

    def __bool__(self) -> bool:
        """Whether anything is excluded."""
        return len(self.sources) > 0


NOTHING = Exclusion(np.zeros(1, np.bool_), np.empty(0, np.int64), np.zeros(1, np.int64), np.empty(0, np.int64))


def exclusion_of(pairs: Array | None, num_sources: int, num_destinations: int) -> Exclusion:
    """From [2, m] sources above destinations."""
    if pairs is None:
        return NOTHING
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or len(pairs) != 2 or (pairs.dtype.kind not in "iu" and pairs.size):
        raise PenstockError(
            f"Excluded edges have shape {pairs.shape} and type {pairs.dtype}: give whole numbers [2, m],"
            " sources above destinations."
        )
    if pairs.shape[1] == 0:
        return NOTHING
    for ends, count, what in zip(pairs, (num_sources, num_destinations), ("source", "destination"), strict=True):
        if ends.min() < 0 or ends.max() >= count:
            raise PenstockError(f"An excluded edge has a {what} outside 0..{count - 1}.")
    sources, targets = pairs.astype(np.int64)
    order = np.lexsort((sources, targets))
    destinations, first = np.unique(targets[order], return_index=True)
    flags = np.zeros(1 << int(_SPARSE * len(destinations) - 1).bit_length(), np.bool_)
    flags[destinations & (len(flags) - 1)] = True
    return Exclusion(flags, destinations, np.append(first, len(sources)).astype(np.int64), sources[order])


@njit(nogil=True, cache=True)
def find_excluded(flags: Array, destinations: Array, offsets: Array, vertex: int) -> tuple[int, int]:
    """The range of a vertex's excluded sources."""
    if not flags[vertex & (len(flags) - 1)]:
        return 0, 0
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
