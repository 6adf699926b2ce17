"""A drawn share of the rows that workers send each other: the others count as zero, and those drawn for as much more.

A row that is drawn with chance p and multiplied by 1 / p has itself as its mean over draws. So sums and means over
neighbours, whose lengths are those of the whole lists, have the mean of exact training; what is not linear in the rows
has not. The gradient goes back by the same draw.
"""

from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import mix
from penstock.kernels import njit


class BoundaryDraw:
    """The draw of one step: the same for a vertex in every level and for every reader."""

    def __init__(self, key: Any, share: float) -> None:
        self._key, self.share = np.uint64(key), share
        self._limit = np.uint64(min(int(share * 2.0**64), (1 << 64) - 1))

    def drawn(self, names: Array) -> Array:
        """Which of some vertices, by original number, are drawn."""
        found = np.empty(len(names), np.bool_)
        _draw(self._key, np.asarray(names, np.int64), self._limit, found)
        return found


@njit(nogil=True, cache=True)
def _draw(key: np.uint64, names: Array, limit: np.uint64, out: Array) -> None:
    for i in range(len(names)):
        out[i] = mix(key ^ mix(np.uint64(names[i]))) <= limit
