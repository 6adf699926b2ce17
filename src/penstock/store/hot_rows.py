"""Which rows of a table are read most."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit


def by_counts(counts: Array, rows: int) -> Array:
    """The `rows` vertices with the highest counts, int64: of reads in a presampling pass, or of lists they are in."""
    rows = max(0, min(rows, len(counts)))
    if not rows:
        return np.empty(0, np.int64)
    # The lowest count that is taken is found without ordering the others.
    lowest = np.partition(counts, len(counts) - rows)[len(counts) - rows]
    taken = counts > lowest
    taken[np.flatnonzero(counts == lowest)[: rows - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


@njit(nogil=True, cache=True)
def count_in_lists(lists: Array, first: int, counts: Array) -> None:
    """Add to `counts[i]` how often vertex `first + i` occurs in neighbour lists."""
    for i in range(len(lists)):
        place = lists[i] - first
        if 0 <= place < len(counts):
            counts[place] += 1
