"""Attention by inner products over a device's block, forward and backward, without a row or number for each edge."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.attention import tile_of
from penstock.nn.device.gather import destination_lists, source_lists, sum_dtype
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import launches


def attend_dots(
    block: DeviceBlock, keys: Tensor, queries: Tensor, values: Tensor, heads: int, kept: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """[num_dst, width]: the means of values [num_src, width], by the softmax over each destination's edges of
    queries[destination] . keys[source], head by head; and the logarithms of the softmaxes' denominators [num_dst,
    heads], far below all others for a row without edges.

    `kept` [edges, heads] multiplies the coefficients (dropout). Blocks may have more room than they use, and no
    weights.
    """
    result: tuple[Tensor, Tensor] = cast(Any, _Dots).apply(keys, queries, values, block, heads, kept)
    return result


class _Dots(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, queries: Tensor, values: Tensor, block: DeviceBlock, heads: int, kept: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        keys, queries, values = (each.detach().contiguous() for each in (keys, queries, values))
        lists, out, number = destination_lists(block), torch.empty_like(queries), sum_dtype(keys)
        logs = torch.empty(len(queries), heads, dtype=number, device=keys.device)
        ctx.block, ctx.kept = block, None if kept is None else kept.contiguous()
        given = lists.indptr, lists.indices, ctx.kept, keys, queries, values
        if out.numel() and launches(*given[:3], queries, out, logs, rows=2 * len(lists.indices), of=keys):
            from penstock.nn.device import dot_kernels as kernels

            kernels.attend_dots[(lists.rows,)](*given, out, logs, **tile_of(keys, heads, keys.shape[1] // heads, lists))
        ctx.save_for_backward(keys, queries, values, out, logs)
        return out, logs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, of_logs: Tensor) -> tuple[Tensor | None, ...]:
        keys, queries, values, out, logs = ctx.saved_tensors
        grad, heads = grad.contiguous(), logs.shape[1]
        size = keys.shape[1] // heads
        # The mean of the coefficients' gradients is the inner product of the output and its gradient.
        means = (grad * out).view(len(out), heads, -1).sum(dim=2, dtype=logs.dtype) - of_logs
        lists, turned = destination_lists(ctx.block), source_lists(ctx.block, len(keys))
        of_queries, of_keys, of_values = (torch.empty_like(each) for each in (queries, keys, values))
        given = ctx.kept, keys, queries, values, grad, logs, means
        moved: dict[str, Any] = {"rows": 2 * len(lists.indices), "of": keys}
        if out.numel() and launches(lists.indptr, lists.indices, *given[4:], queries, of_queries, **moved):
            from penstock.nn.device import dot_kernels as kernels

            given_lists, sizes = (lists.indptr, lists.indices), tile_of(keys, heads, size, lists)
            kernels.return_dots_to_destinations[(lists.rows,)](*given_lists, *given, of_queries, **sizes)
        if keys.numel() and launches(turned.indptr, turned.indices, turned.edges, of_keys, of_values, **moved):
            from penstock.nn.device import dot_kernels as kernels

            own, sizes = (turned.indptr, turned.indices, turned.edges), tile_of(keys, heads, size, turned)
            kernels.return_dots_to_sources[(len(keys),)](*own, *given, of_keys, of_values, **sizes)
        return of_keys, of_queries, of_values, None, None, None
