"""Attention over a device's block, forward and backward: what `nn.attention` does for blocks on the host."""

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.drop import Dropping, drawn_by
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
    block: DeviceBlock,
    left: Tensor,
    right: Tensor,
    direction: Tensor,
    slope: float,
    kept: Tensor | None,
    loops: bool,
    shift: Tensor | None = None,
    bias: Tensor | None = None,
    dropping: Dropping | None = None,
) -> Tensor:
    """GATv2: scores direction[h] . leaky(left[source] + right[destination] + shift), values `left`; then the bias is
    added, and with `dropping` a ReLU and dropout follow, whose backward pass is left to the reader (`Rectified`).
    """
    given = left, right, direction, shift, bias, block, slope, kept, loops, dropping
    return cast(Tensor, cast(Any, _Joint).apply(*given))


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
        scores = of_src.contiguous(), of_dst.contiguous()
        out, norms = launcher.forward(*scores)
        ctx.launcher = launcher
        ctx.save_for_backward(*scores, out, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_src, of_dst, out, norms = ctx.saved_tensors
        launcher, grad = ctx.launcher, grad.contiguous()
        made = torch.empty_like(launcher.values), torch.empty_like(of_src), torch.empty_like(of_dst)
        of_score = launcher.by_source(of_src, of_dst, norms, grad, out, *made[:2])
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
        out, norms = launcher.forward(*_scores(joined, heads, size))
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
        given = *_scores(launcher.values, *shape), norms, grad, out
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
        shift: Tensor | None,
        bias: Tensor | None,
        block: DeviceBlock,
        slope: float,
        kept: Tensor | None,
        loops: bool,
        dropping: Dropping | None,
    ) -> Tensor:
        heads, size = direction.shape
        launcher = _Launcher(block, left.detach().contiguous(), heads, size, slope, kept, loops)
        given = right.contiguous(), direction.contiguous(), None if shift is None else shift.contiguous()
        out, norms = launcher.forward(None, *given, bias, dropping)
        ctx.launcher, ctx.has_bias = launcher, bias is not None
        ctx.save_for_backward(*given, norms)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        right, direction, shift, norms = ctx.saved_tensors
        launcher, grad = ctx.launcher, grad.contiguous()
        kept, of_right, parts = launcher.by_destination(right, direction, shift, norms, grad)
        of_left = launcher.collect(direction, grad, *kept)
        # Some rows' parts of each gradient; these are added in one order.
        of_direction, of_shift, of_bias = parts.sum(dim=0).to(direction.dtype)
        more = None if shift is None else of_shift, of_bias if ctx.has_bias else None
        return of_left, of_right, of_direction.view(direction.shape), *more, *(None,) * 5


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
    ) -> None:
        self.block, self.values, self.heads, self.size = block, values, heads, size
        self._kept = None if kept is None else kept.contiguous()
        self._tile = tile_of(values, heads, size, destination_lists(block))
        self._parts = parts_of(values, heads, size, destination_lists(block))
        self._sizes = {"SLOPE": slope, "LOOPS": loops, "X_STRIDE": values.stride(0)}

    def forward(
        self,
        of_src: Tensor | None,
        of_dst: Tensor,
        direction: Tensor | None = None,
        shift: Tensor | None = None,
        bias: Tensor | None = None,
        dropping: Dropping | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output rows, and for each of them the highest score, 1 / the sum of powers, and room."""
        lists, values, weights = destination_lists(self.block), self.values, cast(Any, self.block.weights)
        out = values.new_empty(lists.rows, self.heads * self.size)
        norms = torch.empty(lists.rows, 3, self.heads, dtype=sum_dtype(values), device=values.device)
        given = lists.indptr, lists.indices, weights, self._kept, values, of_src, of_dst, direction, shift, bias
        if out.numel() and launches(*given, norms, out, rows=len(lists.indices), of=values):
            from penstock.nn.device import attention_kernels as kernels

            drops = dropping or Dropping()
            ends = {"RECTIFIES": dropping is not None, "LIMIT": drops.limit, "SCALE": drops.scale}
            sizes = {
                **self._sizes,
                **self._parts,
                **ends,
                "JOINT": direction is not None,
                "SINGLE": self._has_whole_lists(self._parts["BLOCK_E"]),
            }
            drawn = drawn_by(drops.key)
            sizes |= {"SCORE_STRIDE": of_dst.stride(0), "BLOCK_R": together(lists.rows, _TOGETHER)}
            grid = (-(-lists.rows // sizes["BLOCK_R"]),)
            kernels.attend_rows[grid](*given, *drawn, norms, out, lists.rows, **sizes)
        return out, norms

    def by_source(
        self,
        of_src: Tensor,
        of_dst: Tensor,
        norms: Tensor,
        grad: Tensor,
        out: Tensor,
        out_values: Tensor,
        out_src: Tensor,
        behind: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """GAT's gradients of the edges' scores and of the rows' own; those of the values and of the sources' scores are
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
        read = lists.indptr, lists.indices, lists.edges, weights, self._kept, self.values, of_src, of_dst
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
        self, right: Tensor, direction: Tensor, shift: Tensor | None, norms: Tensor, grad: Tensor
    ) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
        """GATv2: what sources need of every edge, and of every row's edge to itself behind them; the gradient of
        `right`; and parts [.., 3, heads * size] that add up to those of `direction`, of all of `right` and of the rows.
        """
        lists, weights, out = destination_lists(self.block), cast(Any, self.block.weights), torch.empty_like(right)
        tile, places = dict(self._parts), len(lists.indices)
        single = self._has_whole_lists(tile["BLOCK_E"])
        tile["BLOCK_E"] = tile["BLOCK_E"] if single else min(_EDGES, tile["BLOCK_E"])
        tile["BLOCK_R"] = together(lists.rows, _TOGETHER_BACK)
        edges = places + (lists.rows if self._sizes["LOOPS"] else 0)
        of_edges = norms.new_empty(edges, self.heads, 2)
        signs = torch.empty(edges, self.heads, -(-tile["BLOCK_C"] // 4), dtype=torch.uint8, device=self.values.device)
        programs = -(-lists.rows // tile["BLOCK_R"])
        parts = norms.new_empty(programs, 3, self.heads * self.size)
        read = lists.indptr, lists.indices, weights, self._kept, self.values, right, shift, direction, norms, grad
        outs = of_edges, signs, out, parts
        if programs and launches(*read, *outs, rows=places, of=self.values):
            from penstock.nn.device import attention_kernels as kernels

            kernels.return_jointly[(programs,)](*read, *outs, lists.rows, places, **self._sizes, **tile, SINGLE=single)
        return (of_edges, signs), out, parts

    def collect(self, direction: Tensor, grad: Tensor, of_edges: Tensor, signs: Tensor) -> Tensor:
        """GATv2's gradient of the values."""
        rows, out = len(self.values), torch.empty_like(self.values)
        lists = source_lists(self.block, rows)
        words = signs.view(_WORDS[min(8, signs.shape[2])])
        given = lists.indptr, lists.indices, lists.edges, direction, grad, of_edges, words, out
        if out.numel() and launches(*given[:4], *given[5:], rows=len(lists.indices), of=grad):
            from penstock.nn.device import attention_kernels as kernels

            sizes = {**self._sizes, **self._parts, **_SOURCES}
            grid = (-(-rows // sizes["BLOCK_R"]),)
            kernels.collect_jointly[grid](*given, rows, self.block.num_dst, len(lists.indices), **sizes)
        return out

    def _has_whole_lists(self, edges: int) -> bool:
        """Whether a tile of so many edges has a row's whole list, which has the row itself as well."""
        longest = self.block.derived.get("longest", len(cast(Tensor, self.block.indices)))
        return bool(self._sizes["LOOPS"]) and longest < edges


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types whose values have so many bytes."""
_SOURCES: dict[str, int] = {"BLOCK_R": 4, "BLOCK_E": 2}
"""Lists of a tile by sources, most of which have one or two entries, and entries of each."""
_TOGETHER = 8
"""Rows of a program at most: while it computes one it asks for the next one's list."""
_TOGETHER_BACK = 16
"""The same of GATv2's backward pass, whose programs' sums are added up by a pass of their own."""
_PROGRAMS = 1024
"""Programs that keep a GPU busy; where there would be fewer, each has fewer rows."""
_EDGES = 4
"""Edges of a tile of GATv2's backward pass where lists are longer than a tile: more would take more registers than a
thread has, as edges are computed twice there.
"""
_VALUES = 2048
"""Values of a tile at most, if its lists are long enough."""
_COLUMNS = 128
"""Columns of a warp: four of a thread."""


def together(rows: int, most: int) -> int:
    """Rows of a program: a power of two, up to `most`, that leaves enough programs."""
    return 1 << max(0, min(most, rows // _PROGRAMS).bit_length() - 1)


def tile_of(values: Tensor, heads: int, size: int, lists: DeviceLists | SourceLists) -> dict[str, Any]:
    """A tile for rows of so many heads of `size` values: threads for every four values of a row, and as many edges as a
    list has, up to some `_VALUES` values in all.
    """
    length = -(-len(lists.indices) // max(1, len(lists.indptr) - 1))
    columns, room = 1 << max(0, (size - 1).bit_length()), 1 << (heads - 1).bit_length()
    return {
        "HEADS": heads,
        "SIZE": size,
        "BLOCK_E": max(2, min(16, _VALUES // (columns * room), 1 << (length - 1).bit_length())),
        "BLOCK_H": room,
        "BLOCK_C": columns,
        "NUMBER": number_of(values),
        "num_warps": max(1, min(4, columns * room // _COLUMNS)),
    }


def parts_of(values: Tensor, heads: int, size: int, lists: DeviceLists | SourceLists) -> dict[str, Any]:
    """A tile of one warp for rows of up to 256 values: its lanes are all heads' columns, four of a lane, in one or two
    parts, so that a lane has columns of one head and all of a list's edges, and nothing leaves a warp.
    """
    length = -(-len(lists.indices) // max(1, len(lists.indptr) - 1)) + 1
    columns, room = 1 << max(0, (size - 1).bit_length()), 1 << (heads - 1).bit_length()
    parts = 2 if columns * room > _COLUMNS and columns >= 8 else 1
    return {
        "HEADS": heads,
        "SIZE": size,
        "BLOCK_E": max(2, min(8, _VALUES // (columns * room), 1 << (length - 1).bit_length())),
        "BLOCK_H": room,
        "PARTS": parts,
        "BLOCK_C": columns // parts,
        "NUMBER": number_of(values),
        "num_warps": max(1, min(4, columns * room // (parts * _COLUMNS))),
    }


# Attention by inner products, without a row or number for each edge.


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
