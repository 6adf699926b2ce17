"""Distances between rows by the sum of absolute differences, or by the root of the sum of squares, without gradients.

There is no exact matrix product for them: |a|² + |b|² - 2ab loses the digits by which close rows differ, and ranks are
decided by these. A kernel makes each distance at once, of some candidates at a time that stay in the cache while all
queries pass.
"""

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.blocks import ranges
from penstock.kernels import njit
from penstock.nn.threads import run_chunks

_FAST = {"reassoc", "contract", "nsz"}
_CACHED = 1 << 16
"""Bytes of candidates that stay in the cache."""
_PIECES = 64
"""Pieces that threads take as they become free."""


def norm_distances(queries: Tensor, candidates: Tensor, norm: int) -> Tensor:
    """[m, k] distances of queries [m, width] and candidates [k, width], float32 on the host; `norm` is 1 or 2."""
    points, rows = (np.ascontiguousarray(each.detach().numpy()) for each in (queries, candidates))
    out = np.empty((len(points), len(rows)), np.float32)
    kernel, block = (_sums if norm == 1 else _roots), max(1, _CACHED // max(1, 4 * rows.shape[1]))
    pieces = list(ranges(len(rows), max(block, -(-len(rows) // _PIECES))))
    run_chunks(lambda _, first, last: kernel(points, rows, first, last, block, out), pieces)
    return torch.from_numpy(out)


@njit(nogil=True, cache=True, fastmath=_FAST)
def _sums(points: Array, rows: Array, first: int, last: int, block: int, out: Array) -> None:
    for start in range(first, last, block):
        for i in range(points.shape[0]):
            own = points[i]
            for j in range(start, min(start + block, last)):
                other, total = rows[j], np.float32(0)
                for k in range(own.shape[0]):
                    total += abs(own[k] - other[k])
                out[i, j] = total


@njit(nogil=True, cache=True, fastmath=_FAST)
def _roots(points: Array, rows: Array, first: int, last: int, block: int, out: Array) -> None:
    for start in range(first, last, block):
        for i in range(points.shape[0]):
            own = points[i]
            for j in range(start, min(start + block, last)):
                other, total = rows[j], np.float32(0)
                for k in range(own.shape[0]):
                    apart = own[k] - other[k]
                    total += apart * apart
                out[i, j] = np.sqrt(total)
