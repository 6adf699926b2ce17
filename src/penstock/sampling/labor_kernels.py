"""Kernel of LABOR-0: one hop of one batch a call, without the interpreter's lock."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit


@njit(nogil=True, cache=True)
def draw_shared(
    indptr: Array, indices: Array, names: Array, key: np.uint64, fanout: int, readers: Array
) -> tuple[Array, Array]:
    """Draw in-neighbours of some vertices: offsets, and positions in the lists.

    A list of at most `fanout` is taken whole. `names[u]` names u in the hash; empty: u itself.
    """
    out_indptr = np.zeros(readers.shape[0] + 1, np.int64)
    positions = np.empty(64 + 16 * readers.shape[0], np.int64)
    used = 0
    for row in range(readers.shape[0]):
        first, last = indptr[readers[row]], indptr[readers[row] + 1]
        if used + last - first > positions.shape[0]:
            wider = np.empty(2 * (used + last - first), np.int64)
            wider[:used] = positions[:used]
            positions = wider
        if last - first <= fanout:
            for k in range(first, last):
                positions[used] = k
                used += 1
        else:
            chance = fanout / (last - first)
            for k in range(first, last):
                # Written always, kept or not: a branch that goes either way costs more than the store.
                positions[used] = k
                name = indices[k] if names.shape[0] == 0 else names[indices[k]]
                used += unit(draw(key, np.uint64(name))) < chance
        out_indptr[row + 1] = used
    return out_indptr, positions[:used].copy()
