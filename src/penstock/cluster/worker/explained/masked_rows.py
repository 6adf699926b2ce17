"""The rows of an explanation graph under masks, differentiable by the masks, in one pass each way.

Row 0 is the pooled vertex's, which is the mean of the local rows. A remote row x under masks m (its own) and f (of
columns) is m (f x + (1 - f) mean).
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.graph.arrays import Array
from penstock.kernels import njit


def masked_rows(mean: Tensor, remote: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """[1 + remote rows, width] of the masks `rows` and `columns`."""
    result: Tensor = cast(Any, _MaskedRows).apply(rows, columns, mean, remote)
    return result


class _MaskedRows(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, columns: Tensor, mean: Tensor, remote: Tensor) -> Tensor:
        m, f, local, x = (each.detach().numpy() for each in (rows, columns, mean, remote))
        context.given = m, f, local, x
        out = np.empty((1 + len(x), len(local)), x.dtype)
        _mask(m, f, local, x, out)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        rows, columns, mean, remote = context.given
        by_rows, by_columns = np.empty_like(rows), np.zeros_like(columns)
        _differentiate(rows, columns, mean, remote, gradient.contiguous().numpy(), by_rows, by_columns)
        return torch.from_numpy(by_rows), torch.from_numpy(by_columns), None, None


@njit(nogil=True, cache=True)
def _mask(rows: Array, columns: Array, mean: Array, remote: Array, out: Array) -> None:
    width = mean.shape[0]
    for k in range(width):
        out[0, k] = mean[k]
    for i in range(rows.shape[0]):
        for k in range(width):
            out[i + 1, k] = rows[i] * (mean[k] + columns[k] * (remote[i, k] - mean[k]))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _differentiate(
    rows: Array, columns: Array, mean: Array, remote: Array, gradient: Array, by_rows: Array, by_columns: Array
) -> None:
    width = mean.shape[0]
    for i in range(rows.shape[0]):
        total = mean.dtype.type(0)
        for k in range(width):
            apart = remote[i, k] - mean[k]
            total += gradient[i + 1, k] * (mean[k] + columns[k] * apart)
            by_columns[k] += gradient[i + 1, k] * rows[i] * apart
        by_rows[i] = total
