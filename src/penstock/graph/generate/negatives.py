"""Pairs that are no edges, to rank held-out edges against."""

import numpy as np
from numba import njit

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, key_of


def unlinked_pairs(indptr: Array, indices: Array, sizes: dict[str, int], seed: int) -> dict[str, Array]:
    """`<name>_negative`: uniform pairs without an edge, as many as `sizes` says."""
    found = {}
    for name, size in sizes.items():
        pairs = np.empty((size, 2), np.int64)
        _draw_pairs(key_of(seed, f"negatives {name}"), indptr, indices, pairs)
        found[f"{name}_negative"] = pairs
    return found


@njit(nogil=True, cache=True)
def _draw_pairs(key: np.uint64, indptr: Array, indices: Array, out: Array) -> None:
    count = indptr.shape[0] - 1
    counter = 0
    for i in range(out.shape[0]):
        while True:
            source = below(draw(key, np.uint64(counter)), count)
            target = below(draw(key, np.uint64(counter + 1)), count)
            counter += 2
            low, high = indptr[target], indptr[target + 1]
            place = low + np.searchsorted(indices[low:high], source)
            if source != target and (place == high or indices[place] != source):
                break
        out[i, 0], out[i, 1] = source, target
