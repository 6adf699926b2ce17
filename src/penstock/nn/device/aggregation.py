"""Aggregation over a device's block, forward and backward: what `nn.aggregation` does for blocks on the host."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import (
    KeptRows,
    Own,
    Scale,
    TableRows,
    destination_lists,
    gather,
    gather_largest,
    listed_by_source,
)
from penstock.sampling.device.block import DeviceBlock

BEHIND = 8
"""Columns after the joined rows, the first of them ones: as many as keep rows of any type aligned to 16 bytes."""


def aggregate(block: DeviceBlock, x: Tensor, reduce: str) -> Tensor:
    """[num_dst, width]: the estimate of each whole list's mean or sum, or the maximum of the drawn edges."""
    if reduce == "max":
        return cast(Tensor, cast(Any, _Largest).apply(x, block))
    return scaled(block, x, None, _scale(block, reduce), None)


def aggregate_beside(block: DeviceBlock, x: Tensor, reduce: str) -> tuple[Tensor, Tensor]:
    """`aggregate` and the destinations' own rows, whose gradients then reach x in one pass."""
    if reduce == "max":
        return aggregate(block, x, reduce), x[: block.num_dst]
    result: tuple[Tensor, Tensor] = cast(Any, _GatherBeside).apply(x, block, _scale(block, reduce))
    return result


def aggregate_joined(
    block: DeviceBlock, x: Tensor | TableRows | Rectified, reduce: str, dtype: torch.dtype | None = None
) -> Tensor:
    """[num_dst, 2 * width + BEHIND]: `aggregate` (mean or sum), the own rows, a one and zeros side by side.

    One product then takes both and adds the bias, whose gradient is part of that of the weights.
    """
    scale = _scale(block, reduce)
    if isinstance(x, TableRows):
        given = destination_lists(block), x.table, _weights(block), None, scale
        return gather(*given, ids=x.ids, out_dtype=dtype, beside=True, behind=BEHIND, direct=x.direct)
    rows, kept = (x.rows, x.kept) if isinstance(x, Rectified) else (x, None)
    return cast(Tensor, cast(Any, _GatherJoined).apply(rows, block, scale, kept))


def normalised_sum(block: DeviceBlock, x: Tensor) -> Tensor:
    """GCN's sum over the list and the vertex itself, divided by the root of both ends' degrees + 1."""
    return scaled(block, x, *_roots(block))


def normalised_joined(
    block: DeviceBlock, x: Tensor | TableRows | Rectified, dtype: torch.dtype | None = None
) -> Tensor:
    """[num_dst, width + BEHIND]: `normalised_sum`, a one and zeros side by side (`aggregate_joined`)."""
    read, write, own = _roots(block)
    if isinstance(x, TableRows):
        mine = Own(x.table, own, x.ids[: block.num_dst])
        given = destination_lists(block), x.table, _weights(block), read, write, mine
        return gather(*given, ids=x.ids, out_dtype=dtype, behind=BEHIND, direct=x.direct)
    rows, kept = (x.rows, x.kept) if isinstance(x, Rectified) else (x, None)
    return cast(Tensor, cast(Any, _Gather).apply(rows, block, read, write, own, BEHIND, kept))


def _roots(block: DeviceBlock) -> tuple[Scale, Scale, Tensor]:
    """GCN's factors of what is read, of sums, and of the vertex itself.

    Where lists hold vertices instead of rows, `derived["vertex_totals"]` has the totals of all of them.
    """
    if "roots" not in block.derived:
        vertices = block.derived.get("vertex_totals")
        totals = known_totals(block, block.num_dst if vertices is not None else block.num_src)
        roots = torch.rsqrt(totals + 1)
        own = roots[: block.num_dst]
        estimated = block.weights is None
        write = Scale(own * totals[: block.num_dst], mean=True) if estimated else Scale(own)
        read = Scale(roots if vertices is None else torch.rsqrt(vertices + 1))
        block.derived["roots"] = read, write, own * own
    found: tuple[Scale, Scale, Tensor] = block.derived["roots"]
    return found


def scaled(block: DeviceBlock, x: Tensor, read: Scale | None, write: Scale | None, own: Tensor | None) -> Tensor:
    """write[i] * sum of w[e] * read[j] * x[j] over the edges e = (j, i), + own[i] * x[i]."""
    return cast(Tensor, cast(Any, _Gather).apply(x, block, read, write, own))


def known_totals(block: DeviceBlock, rows: int) -> Tensor:
    """The whole lists' totals of the first `rows` rows."""
    totals: Any = block.totals
    if totals is None or len(totals) < rows:
        has = "no totals" if totals is None else f"totals of {len(totals):,} rows"
        raise PenstockError(
            f"A block has {has} where the layer needs {rows:,}: sample with totals for the source rows.",
            code="shape-mismatch",
        )
    return cast(Tensor, totals[:rows])


def _scale(block: DeviceBlock, reduce: str) -> Scale | None:
    """The factor that turns each row's sum of weights[e] * x into the estimate of its list's mean or sum; None: one."""
    if reduce == "mean":
        return Scale(mean=True) if block.weights is None else Scale(known_totals(block, block.num_dst), divides=True)
    if block.weights is not None or block.totals is None:
        return None
    return Scale(known_totals(block, block.num_dst), mean=True)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        block: DeviceBlock,
        read: Scale | None,
        write: Scale | None,
        own: Tensor | None,
        behind: int = 0,
        kept: KeptRows | None = None,
    ) -> Tensor:
        ctx.block, ctx.shape, ctx.scales, ctx.kept = block, x.shape, (read, write, own), kept
        mine = None if own is None else Own(x[: block.num_dst], own)
        return gather(destination_lists(block), x, _weights(block), read, write, mine, behind=behind)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if not ctx.needs_input_grad[0]:
            return (None,) * 7
        (read, write, own), (rows, width) = ctx.scales, ctx.shape
        grad = grad[:, :width]
        mine = None if own is None else Own(grad, own)
        return _return_rows(ctx.block, rows, read, write, mine, grad, ctx.kept), *(None,) * 6


class _GatherBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: DeviceBlock, scale: Scale | None) -> tuple[Tensor, Tensor]:
        ctx.block, ctx.rows, ctx.scale = block, len(x), scale
        result = gather(destination_lists(block), x, _weights(block), write=scale)
        return result, x.detach()[: block.num_dst]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, own: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return _return_rows(ctx.block, ctx.rows, None, ctx.scale, Own(own), grad), None, None


class _GatherJoined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: DeviceBlock, scale: Scale | None, kept: KeptRows | None) -> Tensor:
        ctx.block, ctx.rows, ctx.scale, ctx.kept, ctx.width = block, len(x), scale, kept, x.shape[1]
        return gather(destination_lists(block), x, _weights(block), write=scale, beside=True, behind=BEHIND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        of_neighbours, of_own = grad[:, : ctx.width], grad[:, ctx.width : 2 * ctx.width]
        given = ctx.block, ctx.rows, None, ctx.scale, Own(of_own), of_neighbours, ctx.kept
        return _return_rows(*given), None, None, None


class _Largest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, block: DeviceBlock) -> Tensor:
        result, winner = gather_largest(destination_lists(block), x)
        ctx.block, ctx.rows = block, len(x)
        ctx.save_for_backward(winner)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        """Every source collects the gradients of the maxima that it provided."""
        if not ctx.needs_input_grad[0]:
            return None, None
        (winner,) = ctx.saved_tensors
        return gather(listed_by_source(ctx.block, ctx.rows), grad, winner=winner), None


def _return_rows(
    block: DeviceBlock,
    rows: int,
    read: Scale | None,
    write: Scale | None,
    own: Own | None,
    grad: Tensor,
    kept: KeptRows | None = None,
) -> Tensor:
    """The gradient of `rows` source rows: a gather along their lists, with the scales swapped."""
    if read is not None and read.values is not None and len(read.values) < rows:
        read = Scale(functional.pad(read.values, (0, rows - len(read.values))), read.divides, read.mean)
    lists = listed_by_source(block, rows)
    return gather(lists, grad, _weights(block), write, read, own, read_lists=block.lists, kept=kept)


def _weights(block: DeviceBlock) -> Tensor | None:
    weights: Any = block.weights
    return cast(Tensor | None, weights)
