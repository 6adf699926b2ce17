"""Attention over a block, forward and backward: softmax over each list, weighted sum, one number per edge and head."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn import attention_kernels as kernels
from penstock.nn.aggregate import as_rows, check_rows, differentiable
from penstock.nn.derived import transposed
from penstock.nn.threads import row_chunks, run_chunks
from penstock.sampling.block import Block


def attend(
    block: Block,
    scores_src: Tensor,
    scores_dst: Tensor,
    values: Tensor,
    slope: float = 0.2,
    kept: Tensor | None = None,
) -> Tensor:
    """GAT: [num_dst, heads * size] of values [num_src, heads * size], with the softmax over each destination's edges of
    leaky(scores_src[source] + scores_dst[destination]), both [rows, heads].

    With the block's weights, an edge stands for that many: w * exp(e) / sum of w * exp(e). `kept` [edges, heads]
    multiplies the shares (dropout). A row without edges gives zeros.
    """
    _check(block, values, scores_dst, scores_src.shape[1])
    return differentiable(_Additive, scores_src, scores_dst, values, block, slope, _numbers(kept))


def attend_jointly(
    block: Block, left: Tensor, right: Tensor, direction: Tensor, slope: float = 0.2, kept: Tensor | None = None
) -> Tensor:
    """GATv2: as `attend` with scores direction[h] . leaky(left[source] + right[destination]) and values `left`.

    left [num_src, heads * size], right [num_dst, heads * size], direction [heads, size].
    """
    _check(block, left, right, direction.shape[0])
    return differentiable(_Joint, left, right, direction, block, slope, _numbers(kept))


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, of_src: Tensor, of_dst: Tensor, values: Tensor, block: Block, slope: float, kept: Array | None
    ) -> Tensor:
        src, dst = as_rows(of_src), as_rows(of_dst)
        rows = _by_head(values, src.shape[1])
        attention = _Attention(block, rows, kept)
        leak = rows.dtype.type(slope)
        attention.by_destination(kernels.additive_scores, src, dst, leak, attention.shares)
        ctx.attention, ctx.src, ctx.dst, ctx.leak = attention, src, dst, leak
        return attention.sum_values()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, rows = ctx.attention, _by_head(grad, ctx.src.shape[1])
        of_score = attention.score_gradients(rows)
        out_dst, out_src = np.empty_like(ctx.dst), np.empty_like(ctx.src)
        attention.by_destination(kernels.leak_gradients, ctx.src, ctx.dst, ctx.leak, of_score, out_dst)
        lists = transposed(attention.block, len(out_src))
        attention.run(lists.indptr, kernels.return_scores, lists.indptr, lists.edges, of_score, out_src)
        out = _flat(attention.return_values(rows)) if ctx.needs_input_grad[2] else None
        return torch.from_numpy(out_src), torch.from_numpy(out_dst), out, None, None, None


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, direction: Tensor, block: Block, slope: float, kept: Array | None
    ) -> Tensor:
        heads = direction.shape[0]
        arrays = _by_head(left, heads), _by_head(right, heads), as_rows(direction)
        attention = _Attention(block, arrays[0], kept)
        leak = arrays[0].dtype.type(slope)
        attention.by_destination(kernels.joint_scores, *arrays, leak, attention.shares)
        ctx.attention, ctx.arrays, ctx.leak = attention, arrays, leak
        return attention.sum_values()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, (left, right, direction) = ctx.attention, ctx.arrays
        rows = _by_head(grad, len(direction))
        of_score = attention.score_gradients(rows)
        block, out_right = attention.block, np.empty_like(right)
        chunks = row_chunks(block.indptr, direction.size)
        partial = np.zeros((len(chunks), *direction.shape), left.dtype)

        def work(number: int, first: int, last: int) -> None:
            given = left, right, direction, ctx.leak, of_score, out_right, partial[number]
            kernels.joint_gradients(block.indptr, block.indices, *given, first, last)

        run_chunks(work, chunks)
        out = None
        if ctx.needs_input_grad[0]:
            lists, sums = transposed(block, len(left)), attention.return_values(rows)
            ends = lists.indptr, lists.indices, lists.edges
            attention.run(lists.indptr, kernels.return_joint, *ends, left, right, direction, ctx.leak, of_score, sums)
            out = _flat(sums)
        return out, _flat(out_right), torch.from_numpy(partial.sum(axis=0)), None, None, None


class _Attention:
    """Shares of one block's edges, first as scores, and the passes that both kinds of attention make."""

    def __init__(self, block: Block, values: Array, kept: Array | None) -> None:
        self.block, self.values = block, values
        heads = values.shape[1]
        self.shares = np.empty((block.num_edges, heads), values.dtype)
        self._kept = np.empty((0, heads), values.dtype) if kept is None else np.asarray(kept, values.dtype)
        self._weights = np.asarray(() if block.weights is None else block.weights, values.dtype)

    def sum_values(self) -> Tensor:
        out = np.empty((self.block.num_dst, *self.values.shape[1:]), self.values.dtype)
        self.by_destination(kernels.attend_rows, self._weights, self._kept, self.values, self.shares, out)
        return _flat(out)

    def score_gradients(self, grad: Array) -> Array:
        out = np.empty_like(self.shares)
        self.by_destination(kernels.score_gradients, self._kept, self.values, self.shares, grad, out)
        return out

    def return_values(self, grad: Array) -> Array:
        lists, out = transposed(self.block, len(self.values)), np.empty_like(self.values)
        ends = lists.indptr, lists.indices, lists.edges
        self.run(lists.indptr, kernels.return_values, *ends, self._kept, self.shares, grad, out)
        return out

    def by_destination(self, kernel: Callable[..., object], *arrays: Any) -> None:
        self.run(self.block.indptr, kernel, self.block.indptr, self.block.indices, *arrays)

    def run(self, indptr: Array, kernel: Callable[..., object], *arrays: Any) -> None:
        def work(_: int, first: int, last: int) -> None:
            kernel(*arrays, first, last)

        run_chunks(work, row_chunks(indptr, self.values.shape[1] * self.values.shape[2]))


def _check(block: Block, values: Tensor, of_dst: Tensor, heads: int) -> None:
    check_rows(block, values)
    if values.shape[1] % heads:
        raise PenstockError(f"{values.shape[1]} columns cannot be shared by {heads} heads.")
    if len(of_dst) != block.num_dst:
        raise PenstockError(f"A block writes {block.num_dst:,} rows, but attention was given {len(of_dst):,}.")


def _by_head(x: Tensor, heads: int) -> Array:
    """[rows, heads, size] of [rows, heads * size]."""
    return as_rows(x).reshape(len(x), heads, x.shape[1] // heads)


def _flat(rows: Array) -> Tensor:
    return torch.from_numpy(rows.reshape(len(rows), rows.shape[1] * rows.shape[2]))


def _numbers(kept: Tensor | None) -> Array | None:
    return None if kept is None else as_rows(kept)
