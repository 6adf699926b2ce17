"""Attention over a device's block, forward and backward: what `nn.attention` does for blocks on the host."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.gather import DeviceLists, destination_lists, number_of, source_lists, sum_dtype
from penstock.sampling.device.block import DeviceBlock, SourceLists
from penstock.traced import launches

ALIGNED = 8
"""Columns of a product are a multiple of it, so that its rows begin where a thread can read 16 bytes of any type."""


def attend(
    block: DeviceBlock, of_src: Tensor, of_dst: Tensor, values: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    """GAT: scores leaky(of_src[source] + of_dst[destination]), both [rows, heads]."""
    return cast(Tensor, cast(Any, _Additive).apply(of_src, of_dst, values, block, slope, kept, loops))


def attend_jointly(
    block: DeviceBlock, left: Tensor, right: Tensor, direction: Tensor, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    """GATv2: scores direction[h] . leaky(left[source] + right[destination]), values `left`."""
    return cast(Tensor, cast(Any, _Joint).apply(left, right, direction, block, slope, kept, loops))


def attend_joined(
    block: DeviceBlock, joined: Tensor, heads: int, size: int, slope: float, kept: Tensor | None, loops: bool
) -> Tensor:
    """GAT of [num_src, heads * size + 2 * heads + room]: values, their scores as sources and as destinations.

    One product computes all of them, and its gradient is one matrix.
    """
    return cast(Tensor, cast(Any, _Joined).apply(joined, heads, size, block, slope, kept, loops))


class _Additive(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        of_src: Tensor,
        of_dst: Tensor,
        values: Tensor,
        block: DeviceBlock,
        slope: float,
        kept: Tensor | None,
        loops: bool,
    ) -> Tensor:
        heads = of_src.shape[1]
        launcher = _Launcher(block, values.detach().contiguous(), heads, values.shape[1] // heads, slope, kept, loops)
        scores = of_src.contiguous(), of_dst.contiguous(), None
        out, norms = launcher.forward(*scores)
        ctx.launcher = launcher
        ctx.save_for_backward(*scores[:2], out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_src, of_dst, out, norms = ctx.saved_tensors
        launcher, grad = ctx.launcher, grad.contiguous()
        made = torch.empty_like(launcher.values), torch.empty_like(of_src), torch.empty_like(of_dst)
        of_score = launcher.by_source(of_src, of_dst, None, norms, grad, out, *made[:2])
        launcher.sum_scores(*of_score, made[2])
        return made[1], made[2], made[0], None, None, None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        joined: Tensor,
        heads: int,
        size: int,
        block: DeviceBlock,
        slope: float,
        kept: Tensor | None,
        loops: bool,
    ) -> Tensor:
        joined = joined.detach().contiguous()
        ctx.launcher = launcher = _Launcher(block, joined, heads, size, slope, kept, loops)
        out, norms = launcher.forward(*_scores(joined, heads, size), None)
        ctx.save_for_backward(out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, norms = ctx.saved_tensors
        launcher, grad = ctx.launcher, grad.contiguous()
        shape = launcher.heads, launcher.size
        made = torch.empty_like(launcher.values)
        out_src, out_dst = _scores(made, *shape)
        behind = made.shape[1] - shape[0] * (shape[1] + 1)
        given = *_scores(launcher.values, *shape), None, norms, grad, out
        of_score = launcher.by_source(*given, made, out_src, behind)
        launcher.sum_scores(*of_score, out_dst)
        return made, None, None, None, None, None, None


def _scores(joined: Tensor, heads: int, size: int) -> tuple[Tensor, Tensor]:
    """The columns of scores as sources, and as destinations."""
    first = heads * size
    return joined[:, first : first + heads], joined[:, first + heads : first + 2 * heads]


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        left: Tensor,
        right: Tensor,
        direction: Tensor,
        block: DeviceBlock,
        slope: float,
        kept: Tensor | None,
        loops: bool,
    ) -> Tensor:
        heads, size = direction.shape
        launcher = _Launcher(block, left.detach().contiguous(), heads, size, slope, kept, loops, joint=True)
        right, direction = right.contiguous(), direction.contiguous()
        out, norms = launcher.forward(None, right, direction)
        ctx.launcher = launcher
        ctx.save_for_backward(right, direction, out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        right, direction, out, norms = ctx.saved_tensors
        launcher, grad = ctx.launcher, grad.contiguous()
        made = torch.empty_like(launcher.values)
        of_score = launcher.by_source(None, right, direction, norms, grad, out, made, None)
        out_right, parts = launcher.by_destination(right, direction, *of_score)
        # Some rows' parts of the direction's gradient each; these are added in one order.
        out_direction = parts.sum(dim=0).view(direction.shape).to(direction.dtype)
        return made, out_right, out_direction, None, None, None, None


class _Launcher:
    """The launches that both kinds of attention make on one block."""

    def __init__(
        self,
        block: DeviceBlock,
        values: Tensor,
        heads: int,
        size: int,
        slope: float,
        kept: Tensor | None,
        loops: bool,
        joint: bool = False,
    ) -> None:
        self.block, self.values, self.heads, self.size = block, values, heads, size
        self._kept = None if kept is None else kept.contiguous()
        self._tile = tile_of(values, heads, size, destination_lists(block))
        self._sizes = {"SLOPE": slope, "JOINT": joint, "LOOPS": loops, "X_STRIDE": values.stride(0)}

    def forward(self, of_src: Tensor | None, of_dst: Tensor, direction: Tensor | None) -> tuple[Tensor, Tensor]:
        """The output rows, and for each of them the highest score, 1 / the sum of powers, and room."""
        lists, values, weights = destination_lists(self.block), self.values, cast(Any, self.block.weights)
        out = values.new_empty(lists.rows, self.heads * self.size)
        norms = torch.empty(lists.rows, 3, self.heads, dtype=sum_dtype(values), device=values.device)
        given = lists.indptr, lists.indices, weights, self._kept, values, of_src, of_dst, direction, norms, out
        if out.numel() and launches(*given, rows=len(lists.indices), of=values):
            from penstock.nn.device import attention_kernels as kernels

            kernels.attend_rows[(lists.rows,)](*given, **self._sizes, **self._tile, SCORE_STRIDE=of_dst.stride(0))
        return out, norms

    def by_source(
        self,
        of_src: Tensor | None,
        of_dst: Tensor,
        direction: Tensor | None,
        norms: Tensor,
        grad: Tensor,
        out: Tensor,
        out_values: Tensor,
        out_src: Tensor | None,
        behind: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """The gradients of the edges' scores and of the rows' own; those of the values and of the sources' scores are
        written to the outs, the latter followed by `behind` zeros.
        """
        rows, targets = len(self.values), self.block.num_dst
        lists, weights = source_lists(self.block, rows), cast(Any, self.block.weights)
        tile = tile_of(self.values, self.heads, self.size, lists)
        of_score = norms.new_empty(len(lists.indices), self.heads)
        of_loop = norms.new_empty(targets, self.heads) if self._sizes["LOOPS"] else None
        if grad.numel() and launches(grad, out, norms):
            from penstock.nn.device import attention_kernels as kernels

            rows_of = max(1, 1024 // (tile["BLOCK_H"] * tile["BLOCK_C"]))
            shape = {name: tile[name] for name in ("HEADS", "SIZE", "NUMBER", "BLOCK_H", "BLOCK_C")}
            kernels.mean_gradients[(-(-targets // rows_of),)](grad, out, norms, targets, **shape, BLOCK_R=rows_of)
        read = lists.indptr, lists.indices, lists.edges, weights, self._kept, self.values, of_src, of_dst, direction
        outs = of_score, of_loop, out_values, out_src
        if out_values.numel() and launches(*read, norms, *outs, rows=len(lists.indices), of=grad):
            from penstock.nn.device import attention_kernels as kernels

            kernels.return_to_sources[(rows,)](
                *read, norms, grad, *outs, targets, **self._sizes, **tile, SCORE_STRIDE=of_dst.stride(0), BEHIND=behind
            )
        return of_score, of_loop

    def sum_scores(self, of_score: Tensor, of_loop: Tensor | None, out_dst: Tensor) -> None:
        """GAT's gradient of the destinations' scores."""
        lists, tile = destination_lists(self.block), self._tile
        if out_dst.numel() and launches(lists.indptr, of_score, of_loop, out_dst):
            from penstock.nn.device import attention_kernels as kernels

            sizes = {"HEADS": self.heads, "SCORE_STRIDE": out_dst.stride(0), "NUMBER": tile["NUMBER"]}
            tiles = {"BLOCK_R": 32, "BLOCK_E": 8, "BLOCK_H": tile["BLOCK_H"]}
            grid = (-(-lists.rows // 32),)
            kernels.sum_scores[grid](lists.indptr, of_score, of_loop, out_dst, lists.rows, **sizes, **tiles)

    def by_destination(
        self, right: Tensor, direction: Tensor, of_score: Tensor, of_loop: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """GATv2's gradient of `right`, and parts that add up to that of `direction`."""
        lists, out = destination_lists(self.block), torch.empty_like(right)
        programs = -(-lists.rows // _TOGETHER)
        parts = of_score.new_empty(programs, self.heads * self.size)
        given = lists.indptr, lists.indices, self.values, right, direction, of_score, of_loop, out, parts
        if programs and launches(*given, rows=len(lists.indices), of=self.values):
            from penstock.nn.device import attention_kernels as kernels

            sizes = {name: self._sizes[name] for name in ("SLOPE", "X_STRIDE")}
            kernels.return_to_destinations[(programs,)](*given, lists.rows, **sizes, **self._tile, BLOCK_R=_TOGETHER)
        return out, parts


_TOGETHER = 16
"""Rows whose sums a program adds up."""


def tile_of(values: Tensor, heads: int, size: int, lists: DeviceLists | SourceLists) -> dict[str, Any]:
    """A tile for rows of so many heads of `size` values: threads for every four values of a row, and as many edges as a
    list has, up to some 2,048 values in all.
    """
    length = -(-len(lists.indices) // max(1, len(lists.indptr) - 1))
    columns, room = 1 << max(0, (size - 1).bit_length()), 1 << (heads - 1).bit_length()
    return {
        "HEADS": heads,
        "SIZE": size,
        "BLOCK_E": max(2, min(16, 2048 // (columns * room), 1 << (length - 1).bit_length())),
        "BLOCK_H": room,
        "BLOCK_C": columns,
        "NUMBER": number_of(values),
        "num_warps": max(1, min(4, columns * room // 128)),
    }
