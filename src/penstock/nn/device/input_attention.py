"""GAT's first layer on a device: features are weighed head by head where they are, and transformed afterwards."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.gather import TableRows, destination_lists, number_of, sum_dtype
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import launches

_VALUES = 8192
"""Values of the features that a tile has at most."""
_TILES = 32
"""Rows whose part of the gradients a program adds up."""
_REGISTERS = 128
"""Registers of a thread in the backward pass: some values spill, and twice as many programs run at once."""


def suits_inputs(heads: int, width_in: int, width_out: int, longest: int | None) -> bool:
    """Whether a device weighs inputs before it transforms them: where lists fit into a tile, and the weighed rows, of
    which there is one for each head and destination, are not much wider than transformed ones.
    """
    if longest is None or 1 << (longest - 1).bit_length() > _VALUES // _columns(width_in):
        return False
    return heads * width_in <= 2 * width_out


def attend_inputs(
    block: DeviceBlock, x: Tensor | TableRows, directions: Tensor, weight: Tensor, slope: float, loops: bool
) -> Tensor:
    """[num_dst, heads * size]: every head's weighted mean of the rows x, which get no gradient, transformed.

    `directions` [2 * heads, in] give the scores of sources and of destinations, `weight` [heads, size, in + behind]
    transforms a head's mean followed by a one and zeros.
    """
    return cast(Tensor, cast(Any, _Inputs).apply(directions, weight, block, x, slope, loops))


class _Inputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        directions: Tensor,
        weight: Tensor,
        block: DeviceBlock,
        x: Tensor | TableRows,
        slope: float,
        loops: bool,
    ) -> Tensor:
        heads, size, wide = weight.shape
        lists, (table, ids, direct) = destination_lists(block), _parts_of(x)
        weighed = torch.empty(heads, lists.rows, wide, dtype=weight.dtype, device=table.device)
        shares = torch.empty(len(lists.indices), heads, dtype=sum_dtype(table), device=table.device)
        own_shares = shares.new_empty(lists.rows, heads) if loops else None
        ctx.sizes = _sizes(table, heads, block.derived["longest"], wide, direct, slope, loops)
        ctx.read, ctx.weights = (lists.indptr, lists.indices, ids, table), cast(Any, block.weights)
        directions, moved = directions.contiguous(), (lists.indptr, lists.indices, ids, weighed, shares, own_shares)
        if weighed.numel() and launches(*moved, rows=len(lists.indices) + lists.rows, of=table):
            from penstock.nn.device import input_attention_kernels as kernels

            given = lists.indptr, lists.indices, ctx.weights, ids, table, directions, weighed, shares, own_shares
            kernels.attend_inputs[(lists.rows,)](*given, lists.rows, **ctx.sizes)
        # Not returned as a view, which what follows could not change in place.
        out = weighed.new_empty(lists.rows, heads * size)
        torch.bmm(weighed, weight.mT, out=out.view(lists.rows, heads, size).transpose(0, 1))
        ctx.save_for_backward(weight, weighed, shares, own_shares)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, weighed, shares, own_shares = ctx.saved_tensors
        heads, rows, _ = weighed.shape
        by_head = grad.contiguous().view(rows, heads, -1).transpose(0, 1)
        # One product for each head, since a batched one would not divide the sum over rows among processors.
        of_weight = torch.stack([mine.t() @ each for mine, each in zip(by_head, weighed, strict=True)])
        of_weighed = torch.bmm(by_head, weight)
        sizes = ctx.sizes | {"BLOCK_D": 1 << (2 * heads - 1).bit_length(), "TILES": _TILES}
        programs = -(-rows // _TILES)
        parts = shares.new_empty(programs, 2 * heads, sizes["WIDTH"])
        moved = *ctx.read[:3], of_weighed, shares, own_shares, parts
        if parts.numel() and launches(*moved, rows=len(shares) + rows, of=ctx.read[3]):
            from penstock.nn.device import input_attention_kernels as kernels

            given = *ctx.read, of_weighed, shares, own_shares, parts
            kernels.return_directions[(programs,)](*given, rows, **sizes, maxnreg=_REGISTERS)
        return parts.sum(dim=0), of_weight, None, None, None, None


def _parts_of(x: Tensor | TableRows) -> tuple[Tensor, Tensor | None, bool]:
    """The matrix, the rows of it that the block's are, and whether lists name them."""
    if isinstance(x, TableRows):
        return x.table, x.ids, x.direct
    return x.detach().contiguous(), None, False


def _columns(width: int) -> int:
    return 1 << max(4, (width - 1).bit_length())


def _sizes(
    table: Tensor, heads: int, longest: int, wide: int, direct: bool, slope: float, loops: bool
) -> dict[str, Any]:
    """The constants of a launch: a program has a row and all edges of its list, a thread four columns of them, so that
    sums over up to 128 columns stay within a warp.
    """
    width = table.shape[1]
    columns, edges = _columns(width), 1 << (max(2, longest) - 1).bit_length()
    return {
        "SLOPE": slope,
        "HEADS": heads,
        "WIDTH": width,
        "X_STRIDE": table.stride(0),
        "BEHIND": wide - width,
        "DIRECT": direct,
        "LOOPS": loops,
        "NUMBER": number_of(table),
        "BLOCK_R": 1,
        "BLOCK_E": edges,
        "BLOCK_F": columns,
        "num_warps": max(1, min(4, columns // 128)),
    }
