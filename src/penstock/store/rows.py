"""Kernels that move rows: many short copies without the interpreter's lock."""

import numpy as np
from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array


def gather_rows(table: Array, ids: Array, out: Array | None = None) -> Array:
    """`table[ids]`, into `out` where given; ids outside the table are refused."""
    if out is None:
        out = np.empty((len(ids), *table.shape[1:]), table.dtype)
    elif out.shape != (len(ids), *table.shape[1:]) or out.dtype != table.dtype:
        raise PenstockError(f"Rows of {table.dtype} {table.shape[1:]} do not fit a buffer of {out.dtype} {out.shape}.")
    if len(ids) and not _gather(_words(table), ids, _words(out)):
        raise PenstockError(f"A row asked for is outside 0..{len(table) - 1}.")
    return out


def _words(table: Array) -> Array:
    """The rows as whole machine words: one compiled kernel for every type, and copies that vectorise."""
    flat = table.reshape(len(table), -1)
    if not flat.flags.c_contiguous:
        raise PenstockError("A table whose rows do not lie one after the other cannot be gathered from: copy it.")
    size = flat.shape[1] * flat.itemsize
    word = next(word for word in (np.uint64, np.uint32, np.uint8) if size % np.dtype(word).itemsize == 0)
    return flat.view(word) if flat.shape[1] else flat.view(np.uint8)


@njit(nogil=True, cache=True)
def _gather(table: Array, ids: Array, out: Array) -> bool:
    width = table.shape[1]
    for i in range(len(ids)):
        row = ids[i]
        if row < 0 or row >= table.shape[0]:
            return False
        for k in range(width):
            out[i, k] = table[row, k]
    return True
