"""Batch normalisation on a device, of rows of which the device alone knows how many are the batch's."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from penstock.nn.device.drop import Dropping, NormFigures, drop_rows
from penstock.nn.device.gather import number_of, sum_dtype
from penstock.traced import launches

_PART = 256
"""Rows whose sums one program makes."""


def normalised(norm: nn.BatchNorm1d, rows: Tensor, count: Tensor, skip: Tensor, dropping: Dropping | None) -> Tensor:
    """The first `count` rows, normalised by their own statistics, and zeros behind them. With `dropping`, a ReLU and
    dropout follow in the same pass, whose backward pass is left to the reader of the rows (`Rectified`).

    Running statistics move as torch moves them, unless `skip` is 1 or there are fewer than two rows, which are
    normalised by the running statistics.
    """
    rows = rows.contiguous()
    figures = _figures(norm, rows.detach(), count, skip)
    given = rows, norm.weight, norm.bias, figures, count, dropping
    return cast(Tensor, cast(Any, _Normalise).apply(*given))


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor, figures: Tensor, count: Tensor, dropping: Dropping | None
    ) -> Tensor:
        ctx.save_for_backward(rows, weight, figures, count)
        out, by = torch.empty_like(rows), NormFigures(figures, weight.detach(), bias.detach(), count)
        drop_rows(rows.detach(), dropping or Dropping(), dropping is not None, out, by)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, figures, count = ctx.saved_tensors
        grad, (places, width) = grad.contiguous(), rows.shape
        parts, sums = _parts(rows), figures.new_empty(2, width)
        if rows.numel() and launches(rows, grad, parts):
            from penstock.nn.device import norm_kernels as kernels

            grid, sizes = _tiles(rows)
            kernels.gradient_sums[grid](rows, grad, figures, count, parts, **sizes)
        if rows.numel() and launches(parts, sums):
            from penstock.nn.device import norm_kernels as kernels

            kernels.add_parts[_column_grid(width)](parts, sums, len(parts), WIDTH=width, **_COLUMN_TILE)
        out = torch.empty_like(rows)
        if rows.numel() and launches(rows, grad, out):
            from penstock.nn.device import norm_kernels as kernels

            (_, columns), sizes = _tiles(rows)
            del sizes["PART"]
            grid = -(-places // sizes["BLOCK_R"]), columns
            kernels.return_rows[grid](rows, grad, figures, weight, sums, count, out, places, **sizes)
        return out, sums[1].to(weight.dtype), sums[0].to(weight.dtype), None, None, None


def _figures(norm: nn.BatchNorm1d, rows: Tensor, count: Tensor, skip: Tensor) -> Tensor:
    """[2, width]: every column's mean, and 1 / its standard deviation."""
    assert norm.running_mean is not None and norm.running_var is not None and norm.num_batches_tracked is not None
    assert norm.momentum is not None
    width, parts = rows.shape[1], _parts(rows)
    figures = torch.empty(2, width, dtype=parts.dtype, device=rows.device)
    if rows.numel() and launches(rows, parts):
        from penstock.nn.device import norm_kernels as kernels

        grid, sizes = _tiles(rows)
        kernels.row_moments[grid](rows, count, parts, **sizes)
    if launches(parts, figures):
        from penstock.nn.device import norm_kernels as kernels

        given = parts, count, skip, norm.running_mean, norm.running_var, norm.num_batches_tracked, figures, len(parts)
        sizes = {"MOMENTUM": norm.momentum, "EPS": norm.eps, "WIDTH": width, "PART": _PART, **_COLUMN_TILE}
        kernels.settle_moments[_column_grid(width)](*given, **sizes)
    return figures


_COLUMN_TILE: dict[str, Any] = {"BLOCK_P": 128, "BLOCK_F": 16}
"""A tile of parts and columns: a program adds up few columns, so that many programs share the work."""


def _column_grid(width: int) -> tuple[int]:
    return (-(-width // _COLUMN_TILE["BLOCK_F"]),)


def _parts(rows: Tensor) -> Tensor:
    """Room for two numbers of every column and part, in the type of sums."""
    return torch.empty(-(-len(rows) // _PART), 2, rows.shape[1], dtype=sum_dtype(rows), device=rows.device)


def _tiles(rows: Tensor) -> tuple[tuple[int, int], dict[str, Any]]:
    """The programs over parts and columns, and the sizes of a tile: 32 values for each of its threads."""
    places, width = rows.shape
    columns = min(128, max(16, 1 << (width - 1).bit_length()))
    tile = {"BLOCK_R": 4096 // columns, "BLOCK_F": columns, "num_warps": 4}
    grid = -(-places // _PART), -(-width // columns)
    return grid, {"WIDTH": width, "PART": _PART, "NUMBER": number_of(rows), **tile}
