"""Products of rows with weights whose neighbours in the step are done in the same pass: the ReLU and dropout behind
them, and backward the ReLU and dropout before them.

cuBLAS would write the result, and a kernel of ours read and write it again; for few rows it still does. Products in
strict float32 are sums of three TF32 ones, which have float32's accuracy: a number is the sum of two of TF32, and the
product of the small ones is left out. Gradients of weights, which sum over all rows, are cuBLAS's: it is faster there.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from penstock.nn.device.drop import Dropping, Rectified, drawn_by, drop_rows, pass_where_positive
from penstock.nn.device.gather import KeptRows, compute_dtype, number_of
from penstock.traced import is_gpu, launches

Ending = Callable[[Tensor], Dropping]
"""What the ReLU and dropout behind a layer do to rows, as many as the given ones; called once, when they are next."""

FEWEST_ROWS = 1 << 13
"""Rows of the smallest product that a kernel of ours computes."""
TILE: dict[str, int] = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "num_warps": 8, "num_stages": 3}
"""The tile of a program, in 4-byte numbers; BLOCK_K is twice as much of narrower ones."""
GRADIENT_TILE: dict[str, int] = {**TILE, "BLOCK_N": 128}
"""The same where the rows' mask is read as well, for which registers would not suffice."""
SPLIT_TILE: dict[str, int] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 8, "num_stages": 2}
"""The same of products whose numbers are split."""


def product(x: Tensor | Rectified, weight: Tensor, end: Ending | None = None, behind: int = 0) -> Any:
    """x times the transposed weight [out, in]; with an `end` followed by a ReLU and dropout, as `Rectified` rows.

    `behind` more columns, a one and zeros, follow the rectified ones, so that the next weight may have a bias among its
    columns.
    """
    rows, kept, weight = _given(x, weight)
    dropping = None if end is None else end(rows)
    more = x.behind if isinstance(x, Rectified) else 0
    out = cast(Tensor, cast(Any, _Product).apply(rows, weight, kept, more, dropping, behind))
    return out if dropping is None else Rectified(out, dropping.scale, behind)


def only_rectified(rows: Tensor) -> Dropping:
    """The end of a layer without dropout."""
    return Dropping()


def pair_of_products(x: Tensor | Rectified, weight: Tensor, own_weight: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x times one weight, and its first `count` rows times another, whose gradients reach x in one pass."""
    rows, kept, weight = _given(x, weight)
    result: tuple[Tensor, Tensor] = cast(Any, _Pair).apply(rows, weight, own_weight.to(rows.dtype), count, kept)
    return result


def _given(x: Tensor | Rectified, weight: Tensor) -> tuple[Tensor, KeptRows | None, Tensor]:
    rows, kept = (x.rows, x.kept) if isinstance(x, Rectified) else (x, None)
    dtype = compute_dtype(weight)
    return rows.to(dtype), kept, weight.to(dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, kept: KeptRows | None, more: int, dropping: Dropping | None, behind: int
    ) -> Tensor:
        ctx.kept, ctx.more, ctx.width = kept, more, len(weight)
        ctx.save_for_backward(x, weight)
        if fuses(x, weight) and (dropping is not None or _splits(x)):
            return launched_product(x.detach(), weight.detach(), dropping, behind=behind)
        if dropping is None:
            return functional.linear(x, weight)
        out = _with_room(x, weight.t(), behind)
        out[:, len(weight) : len(weight) + 1].fill_(1)
        drop_rows(out, dropping, True, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad, of_x = grad[:, : ctx.width], None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_rows(grad, weight, ctx.kept, behind=ctx.more)
        return of_x, grad.t() @ x if ctx.needs_input_grad[1] else None, None, None, None, None


def _with_room(x: Tensor, weight: Tensor, behind: int) -> Tensor:
    """x times the weight, followed by so many columns of zeros."""
    if not behind:
        return x @ weight
    out = x.new_zeros(len(x), weight.shape[1] + behind)
    torch.mm(x, weight, out=out[:, : weight.shape[1]])
    return out


class _Pair(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, own_weight: Tensor, count: int, kept: KeptRows | None
    ) -> tuple[Tensor, Tensor]:
        ctx.kept, ctx.count = kept, count
        ctx.save_for_backward(x, weight, own_weight)
        return functional.linear(x, weight), functional.linear(x[:count], own_weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, own: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, own_weight = ctx.saved_tensors
        of_x = gradient_of_rows(grad, weight, ctx.kept, own @ own_weight) if ctx.needs_input_grad[0] else None
        return of_x, grad.t() @ x, own.t() @ x[: ctx.count], None, None


def gradient_of_rows(
    grad: Tensor, weight: Tensor, kept: KeptRows | None, own: Tensor | None = None, behind: int = 0
) -> Tensor:
    """grad times the weight, plus `own` in the first rows, where `kept` lets it pass; zeros in the last columns, which
    the rows have for a bias.
    """
    weight = weight[:, : weight.shape[1] - behind]
    if fuses(grad, weight) and (kept is not None or _splits(grad)):
        return launched_product(grad, weight.t().contiguous(), None, kept, own, behind)
    out = _with_room(grad, weight, behind)
    if own is not None:
        out[: len(own)].add_(own)
    return out if kept is None else pass_where_positive(kept.positive, out, kept.scale, out)


def fuses(x: Tensor, weight: Tensor) -> bool:
    """Whether a kernel of ours computes a product of these rows: on a GPU, of many rows that can be read 16 bytes at
    once, in a type that tensor cores have. A gradient may be a number that is repeated, or columns of something else.
    """
    suits = x.dtype in (torch.bfloat16, torch.float16, torch.float32) and len(x) >= FEWEST_ROWS and is_gpu(x.device)
    if not suits or x.stride(1) != 1:
        return False
    return all(size * x.element_size() % 16 == 0 for size in (x.stride(0), weight.shape[1]))


def _splits(x: Tensor) -> bool:
    """Whether products in strict float32 are asked for, which kernels of ours make of three in TF32."""
    return x.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32


def launched_product(
    x: Tensor,
    weight: Tensor,
    dropping: Dropping | None = None,
    kept: KeptRows | None = None,
    own: Tensor | None = None,
    behind: int = 0,
    precision: str | None = None,
    tile: dict[str, int] | None = None,
) -> Tensor:
    """x times the transposed weight by the kernel of ours, and what `dropping`, or `own` and `kept`, say; a one, or for
    a gradient a zero, and zeros behind.
    """
    (rows, inner), width = x.shape, len(weight)
    out = torch.empty(rows, width + behind, dtype=x.dtype, device=x.device)
    if not out.numel() or not launches(x, weight, own, None if kept is None else kept.positive, out):
        return out
    from penstock.nn.device import product_kernels as kernels

    precision = precision or ("tf32x3" if _splits(x) else "tf32")
    chosen = _tile_of(x, precision, (GRADIENT_TILE if kept is not None and precision == "tf32" else {}) | (tile or {}))
    chosen["BLOCK_N"] = min(chosen["BLOCK_N"], max(16, 1 << (width - 1).bit_length()))
    drops = dropping or Dropping()
    sizes = {
        "WIDTH": width,
        "INNER": inner,
        "X_STRIDE": x.stride(0),
        "BEHIND": behind,
        "FIRST_BEHIND": float(dropping is not None),
        "RECTIFIES": dropping is not None,
        "LIMIT": drops.limit,
        "SCALE": drops.scale if kept is None else kept.scale,
        "PRECISION": precision,
        "NUMBER": number_of(x),
    }
    given = x, weight.contiguous(), *drawn_by(drops.key), own, None if kept is None else kept.positive, out, rows
    grid = (-(-rows // chosen["BLOCK_M"]) * -(-width // chosen["BLOCK_N"]),)
    kernels.product_rows[grid](*given, 0 if own is None else len(own), **sizes, **chosen)
    return out


def _tile_of(x: Tensor, precision: str, tile: dict[str, int]) -> dict[str, Any]:
    chosen: dict[str, Any] = {**(SPLIT_TILE if precision == "tf32x3" else TILE), **tile}
    chosen["BLOCK_K"] = chosen["BLOCK_K"] * 4 // min(4, x.element_size())
    return chosen
