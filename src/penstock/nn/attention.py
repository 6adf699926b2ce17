"""Attention over a block, forward and backward: softmax over each list, weighted sum, one number per edge and head."""

from collections.abc import Callable
from dataclasses import replace
from functools import singledispatch
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.nn import kernels, masked
from penstock.nn.aggregation import aggregate, as_rows, check_rows, differentiable, gather, transposed
from penstock.nn.derived import destination_reads, edge_lists, source_reads, with_self_loops
from penstock.nn.device import attention as on_device
from penstock.nn.masked import MaskedBlock
from penstock.nn.threads import row_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import room, tensor_of


def attend(
    block: Block,
    scores_src: Tensor,
    scores_dst: Tensor,
    values: Tensor,
    slope: float = 0.2,
    kept: Tensor | None = None,
    loops: bool = False,
) -> Tensor:
    """GAT: [num_dst, heads * size] of values [num_src, heads * size], with the softmax over each destination's edges of
    leaky(scores_src[source] + scores_dst[destination]), both [rows, heads].

    With the block's weights, an edge counts that many times: w * exp(e) / sum of w * exp(e). `kept` [edges, heads]
    multiplies the attention coefficients (dropout). With `loops` every destination reads itself once, after its
    neighbours (`with_self_loops`), which has no `kept`. A row without edges gives zeros.
    """
    _check(block, values, scores_dst, scores_src.shape[1])
    return _attend(block, scores_src, scores_dst, values, slope, kept, loops)


@singledispatch
def _attend(
    block: Block, of_src: Tensor, of_dst: Tensor, values: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    lists = with_self_loops(block) if loops else block
    return differentiable(_Additive, of_src, of_dst, values, lists, slope, _numbers(kept))


@_attend.register
def _(
    block: MaskedBlock, of_src: Tensor, of_dst: Tensor, values: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    lists = cast(MaskedBlock, with_self_loops(block)) if loops else block
    return masked.attend(lists, masked.ends(lists, of_src, of_dst), values, slope, kept, None)


_attend.register(DeviceBlock, on_device.attend)


def attend_jointly(
    block: Block,
    left: Tensor,
    right: Tensor,
    direction: Tensor,
    slope: float = 0.2,
    kept: Tensor | None = None,
    loops: bool = False,
) -> Tensor:
    """GATv2: as `attend` with scores direction[h] . leaky(left[source] + right[destination]) and values `left`.

    left [num_src, heads * size], right [num_dst, heads * size], direction [heads, size].
    """
    _check(block, left, right, direction.shape[0])
    return _attend_jointly(block, left, right, direction, slope, kept, loops)


@singledispatch
def _attend_jointly(
    block: Block, left: Tensor, right: Tensor, direction: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    lists = with_self_loops(block) if loops else block
    return differentiable(_Joint, left, right, direction, lists, slope, _numbers(kept))


@_attend_jointly.register
def _(
    block: MaskedBlock, left: Tensor, right: Tensor, direction: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    lists = cast(MaskedBlock, with_self_loops(block)) if loops else block
    return masked.attend(lists, masked.ends(lists, left, right), left, slope, kept, direction)


_attend_jointly.register(DeviceBlock, on_device.attend_jointly)


def attend_inputs(
    block: Block,
    x: Tensor,
    left: Tensor,
    right: Tensor,
    x_dst: Tensor | None = None,
    slope: float = 0.2,
    kept: Tensor | None = None,
    loops: bool = False,
) -> Tensor:
    """GAT before its transformation, on the host: [num_dst, heads * width], every head's weighted mean of the rows x
    [num_src, width], which get no gradient, as `attend` gives it.

    Scores are leaky(left[h] . x[source] + right[h] . x_dst[destination]), both [heads, width]; without `x_dst`
    destinations are the first rows of x.
    """
    check_rows(block, x)
    own = x[: block.num_dst] if x_dst is None else x_dst
    scores = functional.linear(x, left), functional.linear(own, right)
    lists = with_self_loops(block) if loops else block
    return differentiable(_Additive, *scores, x.detach(), lists, slope, _numbers(kept), True)


def attend_by_scores(block: Block, scores: Tensor, values: Tensor, kept: Tensor | None = None) -> Tensor:
    """As `attend`, with the softmax of scores [edges, heads] that were computed for each edge."""
    check_rows(block, values)
    if scores.shape[0] != block.num_edges or values.shape[1] % scores.shape[1]:
        raise PenstockError(
            f"Scores of shape {tuple(scores.shape)} do not fit {block.num_edges:,} edges and values of"
            f" {values.shape[1]} columns.",
            code="shape-mismatch",
        )
    return _attend_by_scores(block, scores, values, kept)


@singledispatch
def _attend_by_scores(block: Block, scores: Tensor, values: Tensor, kept: Tensor | None) -> Tensor:
    return differentiable(_Scored, scores, values, block, _numbers(kept))


@_attend_by_scores.register
def _(block: MaskedBlock, scores: Tensor, values: Tensor, kept: Tensor | None) -> Tensor:
    return masked.attend(block, scores, values, 1.0, kept, None)


@_attend_by_scores.register
def _(block: DeviceBlock, scores: Tensor, values: Tensor, kept: Tensor | None) -> Tensor:
    """Attention in operations of torch, by sums over lists; for blocks without padding."""
    lists: Any = replace(edge_lists(block), weights=None, totals=None)
    readers, weights = destination_reads(block), cast(Any, block.weights)
    highest = gather(readers, aggregate(lists, scores.detach(), "max"))
    parts = torch.exp(scores - highest)
    parts = parts if weights is None else parts * weights[:, None]
    shares = parts / gather(readers, gather(lists, parts)).clamp_min(torch.finfo(parts.dtype).tiny)
    shares = shares if kept is None else shares * kept
    rows = gather(source_reads(block), values).view(*shares.shape, -1) * shares[:, :, None]
    return gather(lists, rows.view(len(shares), values.shape[1]))


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, values: Tensor, block: Block, kept: Array | None) -> Tensor:
        given = as_rows(scores)
        ctx.attention = attention = _Attention(block, _by_head(values, scores.shape[1]), kept)

        def score(first: int, last: int) -> None:
            some = slice(block.indptr[first], block.indptr[last])
            attention.shares[some] = given[some]

        return attention.forward(score)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention = ctx.attention
        rows = _by_head(grad, attention.shares.shape[1])
        of_score = attention.by_destination(rows, lambda *_: None)
        out = attention.by_source(rows, lambda *_: None) if ctx.needs_input_grad[1] else None
        return tensor_of(of_score), out, None, None


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        of_src: Tensor,
        of_dst: Tensor,
        values: Tensor,
        block: Block,
        slope: float,
        kept: Array | None,
        shared: bool = False,
    ) -> Tensor:
        """With `shared` values [num_src, width] are those of every head, and get no gradient."""
        src, dst = as_rows(of_src), as_rows(of_dst)
        attention = _Attention(block, _by_head(values, 1 if shared else src.shape[1]), kept, src.shape[1])
        leak = attention.values.dtype.type(slope)
        ctx.attention, ctx.given = attention, (src, dst, leak)

        def score(first: int, last: int) -> None:
            kernels.additive_scores(block.indptr, block.indices, src, dst, leak, attention.shares, first, last)

        return attention.forward(score)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, (src, dst, leak) = ctx.attention, ctx.given
        block, rows = attention.block, _by_head(grad, src.shape[1])
        out_src, out_dst = room(src.shape, src.dtype), room(dst.shape, dst.dtype)

        def leaked(of_score: Array, _: int, first: int, last: int) -> None:
            kernels.leak_gradients(block.indptr, block.indices, src, dst, leak, of_score, out_dst, first, last)

        of_score = attention.by_destination(rows, leaked)
        lists = transposed(block, len(src))

        def scores(_: Array, first: int, last: int) -> None:
            kernels.return_scores(lists.indptr, lists.edges, of_score, out_src, first, last)

        out = attention.by_source(rows, scores, ctx.needs_input_grad[2])
        return tensor_of(out_src), tensor_of(out_dst), out, None, None, None, None


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, left: Tensor, right: Tensor, direction: Tensor, block: Block, slope: float, kept: Array | None
    ) -> Tensor:
        heads = len(direction)
        attention = _Attention(block, _by_head(left, heads), kept)
        leak = attention.values.dtype.type(slope)
        given = attention.values, _by_head(right, heads), as_rows(direction), leak
        ctx.attention, ctx.given = attention, given

        def score(first: int, last: int) -> None:
            kernels.joint_scores(block.indptr, block.indices, *given, attention.shares, first, last)

        return attention.forward(score)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        attention, (left, right, direction, leak) = ctx.attention, ctx.given
        block, rows = attention.block, _by_head(grad, len(direction))
        out_right = room(right.shape, right.dtype)
        # Chunks do not depend on threads, so neither does the sum over them.
        partial = np.zeros((len(attention.chunks()), *direction.shape), left.dtype)

        def joint(of_score: Array, number: int, first: int, last: int) -> None:
            outs = out_right, partial[number]
            kernels.joint_gradients(
                block.indptr, block.indices, left, right, direction, leak, of_score, *outs, first, last
            )

        of_score = attention.by_destination(rows, joint)
        lists = transposed(block, len(left))

        def scores(out: Array, first: int, last: int) -> None:
            ends = lists.indptr, lists.indices, lists.edges
            kernels.return_joint(*ends, left, right, direction, leak, of_score, out, first, last)

        out = attention.by_source(rows, scores) if ctx.needs_input_grad[0] else None
        return out, _flat(out_right), torch.from_numpy(np.asarray(partial.sum(axis=0))), None, None, None


class _Attention:
    """The attention coefficients (shares) of one block's edges, and the passes that both kinds of attention make.

    The callbacks of each kind run on each chunk with the common part, while the chunk's rows are in the cache.
    """

    def __init__(self, block: Block, values: Array, kept: Array | None, heads: int = 0) -> None:
        """`heads`: how many there are, where all of them read the one of the values."""
        self.block, self.values = block, values
        heads = heads or values.shape[1]
        self.shares = room((block.num_edges, heads), values.dtype)
        self._kept = np.empty((0, heads), values.dtype) if kept is None else np.asarray(kept, values.dtype)
        self._weights = np.asarray(() if block.weights is None else block.weights, values.dtype)

    def chunks(self) -> list[tuple[int, int]]:
        """Ranges of destination rows that are computed at a time."""
        return row_chunks(self.block.indptr, self.shares.shape[1] * self.values.shape[2])

    def forward(self, score: Callable[[int, int], object]) -> Tensor:
        """The weighted sums of values; `score` writes a chunk's scores into `shares`, which are then normalised."""
        block, shape = self.block, (self.block.num_dst, self.shares.shape[1], self.values.shape[2])
        out = room(shape, self.values.dtype)

        def work(_: int, first: int, last: int) -> None:
            score(first, last)
            given = self._weights, self._kept, self.values, self.shares, out
            kernels.attend_rows(block.indptr, block.indices, *given, first, last)

        run_chunks(work, self.chunks())
        return _flat(out)

    def by_destination(self, grad: Array, onward: Callable[[Array, int, int, int], object]) -> Array:
        """Gradients of the scores; `onward` is called with them chunk by chunk."""
        block, of_score = self.block, room(self.shares.shape, self.shares.dtype)

        def work(number: int, first: int, last: int) -> None:
            given = self._kept, self.values, self.shares, grad, of_score
            kernels.score_gradients(block.indptr, block.indices, *given, first, last)
            onward(of_score, number, first, last)

        run_chunks(work, self.chunks())
        return of_score

    def by_source(self, grad: Array, scores: Callable[[Array, int, int], object], needed: bool = True) -> Tensor | None:
        """The gradient of the values, if it is `needed`; `scores` adds what comes through the scores."""
        lists, out = transposed(self.block, len(self.values)), room(self.values.shape if needed else 0, grad.dtype)

        def work(_: int, first: int, last: int) -> None:
            if needed:
                ends = lists.indptr, lists.indices, lists.edges
                kernels.return_values(*ends, self._kept, self.shares, grad, out, first, last)
            scores(out, first, last)

        run_chunks(work, row_chunks(lists.indptr, self.values.shape[1] * self.values.shape[2]))
        return _flat(out) if needed else None


def _check(block: Block, values: Tensor, of_dst: Tensor, heads: int) -> None:
    check_rows(block, values)
    if values.shape[1] % heads:
        raise PenstockError(f"{values.shape[1]} columns are not divisible by {heads} heads.", code="shape-mismatch")
    if len(of_dst) != block.num_dst:
        raise PenstockError(
            f"The block has {block.num_dst:,} destination rows, but attention was given {len(of_dst):,}.",
            code="shape-mismatch",
        )


def _by_head(x: Tensor, heads: int) -> Array:
    """[rows, heads, size] of [rows, heads * size]."""
    return as_rows(x).reshape(len(x), heads, x.shape[1] // heads)


def _flat(rows: Array) -> Tensor:
    return tensor_of(rows).view(len(rows), rows.shape[1] * rows.shape[2])


def _numbers(kept: Tensor | None) -> Array | None:
    return None if kept is None else as_rows(kept)
