"""Dropout, alone or behind a rectifier, in one pass. Which numbers are dropped is a hash of a key and their place.

torch's own draws a number at a time from a generator and takes longer than the aggregation. The key comes from torch's
generator, so that a seed repeats a run; the result does not depend on threads.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.aggregation import as_rows, check_matrix, differentiable
from penstock.nn.kernels import drop_rows, pass_where_positive
from penstock.nn.threads import plain_chunks, run_chunks

_STEPS = 1 << 16
"""Shares are kept to this precision."""


def drop(x: Tensor, share: float) -> Tensor:
    """x with a share of its numbers set to zero, the others scaled up to keep the expectation."""
    if share == 0:
        return x
    check_matrix(x)
    return differentiable(_Drop, x, share, _key())


def relu_drop(x: Tensor, share: float) -> Tensor:
    """drop(relu(x), share), in the place of x, which must not be used afterwards."""
    if share == 0:
        return torch.relu_(x)
    check_matrix(x)
    return differentiable(_ReluDrop, x.contiguous(), share, _key())


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, key: np.uint64) -> Tensor:
        ctx.share, ctx.key = share, key
        return _dropped(x, share, key)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _dropped(grad, ctx.share, ctx.key), None, None


class _ReluDrop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, share: float, key: np.uint64) -> Tensor:
        ctx.mark_dirty(x)
        ctx.share = share
        _drop_into(as_rows(x), x.detach().numpy(), share, key, True)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """What is positive was kept."""
        (y,) = ctx.saved_tensors
        result = torch.empty_like(y)
        kept, rows, out = as_rows(y), as_rows(grad), result.numpy()
        scale = rows.dtype.type(_scale(ctx.share))

        def work(_: int, first: int, last: int) -> None:
            pass_where_positive(kept, rows, scale, out, first, last)

        run_chunks(work, plain_chunks(*rows.shape))
        return result, None, None


def _dropped(x: Tensor, share: float, key: np.uint64) -> Tensor:
    rows = as_rows(x)
    result = x.new_empty(x.shape)
    _drop_into(rows, result.numpy(), share, key, False)
    return result


def _drop_into(rows: Any, out: Any, share: float, key: np.uint64, rectify: bool) -> None:
    limit, scale = _limit(share), rows.dtype.type(_scale(share))

    def work(_: int, first: int, last: int) -> None:
        drop_rows(rows, key, limit, scale, rectify, out, first, last)

    run_chunks(work, plain_chunks(*rows.shape))


def _limit(share: float) -> int:
    return max(1, round((1 - share) * _STEPS))


def _scale(share: float) -> float:
    return _STEPS / _limit(share)


def _key() -> np.uint64:
    return np.uint64(int(torch.randint(2**63 - 1, ())))
