"""Attention over a device's block, forward and backward: what `nn.attention` does for blocks on the host."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.gather import destination_lists, source_lists
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import launches


def attend(
    block: DeviceBlock, of_src: Tensor, of_dst: Tensor, values: Tensor, slope: float, kept: Tensor | None
) -> Tensor:
    """GAT: scores leaky(of_src[source] + of_dst[destination]), both [rows, heads]."""
    return cast(Tensor, cast(Any, _Additive).apply(of_src, of_dst, values, block, slope, kept))


def attend_jointly(
    block: DeviceBlock, left: Tensor, right: Tensor, direction: Tensor, slope: float, kept: Tensor | None
) -> Tensor:
    """GATv2: scores direction[h] . leaky(left[source] + right[destination]), values `left`."""
    return cast(Tensor, cast(Any, _Joint).apply(left, right, direction, block, slope, kept))


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_src: Tensor, of_dst: Tensor, values: Tensor, block: DeviceBlock, slope: float, kept: Tensor | None
    ) -> Tensor:
        attention = _Attention(block, values, of_src.shape[1], slope, False, kept)
        scores = of_src.contiguous(), of_dst.contiguous(), None
        out, shares = attention.forward(*scores)
        ctx.attention = attention
        ctx.save_for_backward(scores[0], scores[1], shares)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_src, of_dst, shares = ctx.saved_tensors
        out_src, out_dst = torch.empty_like(of_src), torch.empty_like(of_dst)
        grad = grad.contiguous()
        of_score = ctx.attention.by_destination(of_src, of_dst, None, shares, grad, out_dst, None)
        out = ctx.attention.by_source(len(of_src), of_dst, None, shares, of_score, grad, out_src)
        return out_src, out_dst, out, None, None, None


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, direction: Tensor, block: DeviceBlock, slope: float, kept: Tensor | None
    ) -> Tensor:
        attention = _Attention(block, left, len(direction), slope, True, kept)
        right, direction = right.contiguous(), direction.contiguous()
        out, shares = attention.forward(None, right, direction)
        ctx.attention = attention
        ctx.save_for_backward(right, direction, shares)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        right, direction, shares = ctx.saved_tensors
        out_right, grad = torch.empty_like(right), grad.contiguous()
        # Each row has its part of the direction's gradient; these are added in one order.
        parts = torch.empty(right.shape, dtype=shares.dtype, device=right.device)
        of_score = ctx.attention.by_destination(None, right, direction, shares, grad, out_right, parts)
        out = None
        if ctx.needs_input_grad[0]:
            out = ctx.attention.by_source(ctx.attention.rows, right, direction, shares, of_score, grad, None)
        out_direction = parts.sum(dim=0).view(direction.shape).to(direction.dtype)
        return out, out_right, out_direction, None, None, None


class _Attention:
    """The launches that both kinds of attention make on one block."""

    def __init__(
        self, block: DeviceBlock, values: Tensor, heads: int, slope: float, joint: bool, kept: Tensor | None
    ) -> None:
        self.block, self.values, self.rows = block, values.detach().contiguous(), len(values)
        self._kept = None if kept is None else kept.contiguous()
        self._double = values.dtype == torch.float64
        size = values.shape[1] // heads
        columns, room = 1 << max(0, (size - 1).bit_length()), 1 << (heads - 1).bit_length()
        self._sizes: dict[str, Any] = {
            "SLOPE": slope,
            "HEADS": heads,
            "SIZE": size,
            "JOINT": joint,
            # Threads per row, four values each, and some 2,048 values per tile.
            "BLOCK_E": max(2, min(16, 2048 // (columns * room))),
            "num_warps": max(1, min(4, columns * room // 128)),
            "BLOCK_H": room,
            "BLOCK_C": columns,
        }

    def forward(self, of_src: Tensor | None, of_dst: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output rows, and the attention coefficients."""
        lists, device = destination_lists(self.block), self.values.device
        weights: Any = self.block.weights
        out = self.values.new_empty(lists.rows, self.values.shape[1])
        number = torch.float64 if self._double else torch.float32
        shares = torch.empty(len(lists.indices), self._sizes["HEADS"], dtype=number, device=device)
        given = lists.indptr, lists.indices, weights, self._kept, self.values, of_src, of_dst, direction
        if out.numel() and launches(*given, shares, out, rows=len(lists.indices), of=self.values):
            from penstock.nn.device import attention_kernels as kernels

            kernels.attend_rows[(lists.rows,)](*given, shares, out, **self._sizes, NUMBER=_number(self._double))
        return out, shares

    def by_destination(
        self,
        of_src: Tensor | None,
        of_dst: Tensor,
        direction: Tensor | None,
        shares: Tensor,
        grad: Tensor,
        out_dst: Tensor,
        out_direction: Tensor | None,
    ) -> Tensor:
        """Gradients of the scores; those of the destinations' part and of the direction are written to the outs."""
        lists, of_score = destination_lists(self.block), torch.empty_like(shares)
        given = lists.indptr, lists.indices, self._kept, self.values, of_src, of_dst, direction, shares, grad
        outs = of_score, out_dst, out_direction
        if grad.numel() and launches(*given, *outs, rows=len(lists.indices), of=self.values):
            from penstock.nn.device import attention_kernels as kernels

            kernels.return_to_destinations[(lists.rows,)](*given, *outs, **self._sizes, NUMBER=_number(self._double))
        return of_score

    def by_source(
        self,
        rows: int,
        of_dst: Tensor,
        direction: Tensor | None,
        shares: Tensor,
        of_score: Tensor,
        grad: Tensor,
        out_src: Tensor | None,
    ) -> Tensor:
        """The gradient of the values, including the part through the scores; GAT's for the sources is written to the
        out.
        """
        lists, out = source_lists(self.block, rows), torch.empty_like(self.values)
        given = lists.indptr, lists.indices, lists.edges, self._kept, self.values, of_dst, direction
        if out.numel() and launches(*given, shares, of_score, out, out_src, rows=len(lists.indices), of=grad):
            from penstock.nn.device import attention_kernels as kernels

            kernels.return_to_sources[(rows,)](
                *given, shares, of_score, grad, out, out_src, **self._sizes, NUMBER=_number(self._double)
            )
        return out


def _number(double: bool) -> Any:
    """The dtype of sums in Triton."""
    import triton.language as tl

    return tl.float64 if double else tl.float32
