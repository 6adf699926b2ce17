"""Products of rows with weights whose neighbours in the step are done in the same pass: the ReLU and dropout behind
them, and backward the ReLU and dropout before them.

Weights that are read side by side are joined, and the losses of the last product's rows computed, by a kernel each.

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
TILE: dict[str, int] = {"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "num_warps": 8, "num_stages": 4}
"""The tile of a program of 4-byte numbers."""
NARROW_TILE: dict[str, int] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3}
"""The same of 2-byte numbers."""
NARROW_BACK_TILE: dict[str, int] = {**NARROW_TILE, "BLOCK_M": 64}
"""The same of 2-byte gradients that pass a ReLU."""
SPLIT_TILE: dict[str, int] = {"BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 16, "num_warps": 4, "num_stages": 3}
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
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = gradient_of_rows(grad, weight, ctx.kept, own @ _along_sums(own, own_weight))
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
    out = _with_room(grad, _along_sums(grad, weight), behind)
    if own is not None:
        out[: len(own)].add_(own)
    return out if kept is None else pass_where_positive(kept.positive, out, kept.scale, out)


def _along_sums(grad: Tensor, weight: Tensor) -> Tensor:
    """The weight [out, in] that `grad` is multiplied by, in memory [in, out] where that is faster: Hopper's tensor
    cores read numbers of TF32 only along what they sum over. Products of 152,000 rows took 109 us instead of 137, and
    the copy takes 2.
    """
    in_tf32 = grad.dtype == torch.float32 and not _splits(grad)
    copies = in_tf32 and len(grad) >= FEWEST_ROWS and is_gpu(grad.device)
    return weight.t().contiguous().t() if copies else weight


# Several weights as the columns of one, and the gradients of each of them.


def side_by_side(width: int, *parts: Tensor | None) -> Tensor:
    """[out, width] in the type that products compute in: up to three weights side by side, of which the last may be a
    bias, or None, and zeros.
    """
    return cast(Tensor, cast(Any, _SideBySide).apply(width, *[part for part in parts if part is not None]))


class _SideBySide(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, width: int, *parts: Tensor) -> Tensor:
        given = [part.detach().contiguous() for part in parts]
        ctx.parts = [(part.shape, part.dtype) for part in given]
        out = torch.empty(len(given[0]), width, dtype=compute_dtype(given[0]), device=given[0].device)
        if launches(*given, out):
            _columns("join_columns", given, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        parts = [torch.empty(shape, dtype=dtype, device=grad.device) for shape, dtype in ctx.parts]
        if launches(grad, *parts):
            _columns("part_columns", parts, grad)
        return None, *parts


_NUMBERS = 1024
"""Numbers of a program of what follows."""


def _columns(kernel: str, parts: list[Tensor], whole: Tensor) -> None:
    """Copy columns from the parts to the whole, or back."""
    from penstock.nn.device import product_kernels as kernels

    more = [None] * (3 - len(parts))
    widths = [part.numel() // len(part) for part in parts] + [0] * len(more)
    matrices = (*parts, *more, whole) if kernel == "join_columns" else (whole, *parts, *more)
    grid = (-(-whole.numel() // _NUMBERS),)
    getattr(kernels, kernel)[grid](*matrices, *widths, whole.shape[1], whole.numel(), BLOCK=_NUMBERS)


# The cross entropy of each row.

_MOST_CLASSES = 4096
"""Classes of a row that a program reads at once."""


def class_losses(out: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    """[rows] float32: the cross entropy of each row of a GPU's outputs [rows, classes], by its class's weight."""
    if out.dtype not in (torch.bfloat16, torch.float16, torch.float32) or out.shape[1] > _MOST_CLASSES:
        return functional.cross_entropy(out, labels, weights, reduction="none")
    return cast(Tensor, cast(Any, _ClassLosses).apply(out, labels, weights))


class _ClassLosses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        x, labels = x.detach().contiguous(), labels.contiguous()
        out = torch.empty(len(x), dtype=torch.float32, device=x.device)
        logs = torch.empty_like(out)
        if len(x) and launches(x, labels, out, logs):
            from penstock.nn.device import product_kernels as kernels

            rows, sizes = _class_rows(x)
            kernels.class_losses[rows](x, labels, weights, out, logs, len(x), **sizes)
        ctx.save_for_backward(x, labels, weights, logs)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, labels, weights, logs = ctx.saved_tensors
        grad, out = grad.contiguous(), torch.empty_like(x)
        if len(x) and launches(x, labels, grad, out):
            from penstock.nn.device import product_kernels as kernels

            rows, sizes = _class_rows(x)
            kernels.class_gradients[rows](x, labels, weights, logs, grad, out, len(x), **sizes)
        return out, None, None


def _class_rows(x: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """The programs of a kernel of losses, and its sizes."""
    columns = max(2, 1 << (x.shape[1] - 1).bit_length())
    rows = max(1, 1024 // columns)
    return (-(-len(x) // rows),), {"WIDTH": x.shape[1], "BLOCK_R": rows, "BLOCK_C": columns}


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
    chosen = _tile_of(x, width, precision, kept is not None) | (tile or {})
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
        "WARPS": chosen["num_warps"],
    }
    given = x, weight.contiguous(), *drawn_by(drops.key), own, None if kept is None else kept.positive, out, rows
    grid = (-(-rows // chosen["BLOCK_M"]) * -(-width // chosen["BLOCK_N"]),)
    kernels.product_rows[grid](*given, 0 if own is None else len(own), **sizes, **chosen)
    return out


def _tile_of(x: Tensor, width: int, precision: str, back: bool) -> dict[str, int]:
    """The tile of a product with so many columns, with as many stages as the GPU's shared memory has room for."""
    narrow = NARROW_BACK_TILE if back else NARROW_TILE
    usual = SPLIT_TILE if precision == "tf32x3" else narrow if x.element_size() == 2 else TILE
    columns = min(usual["BLOCK_N"], max(16, 1 << (width - 1).bit_length()))
    room = _shared_bytes(x.device) - _SHARED_BESIDE
    while True:
        stage = (usual["BLOCK_M"] + columns) * usual["BLOCK_K"] * x.element_size()
        stages = min(usual["num_stages"], room // stage)
        if stages > 1 or columns <= 32:
            return {**usual, "BLOCK_N": columns, "num_stages": max(1, stages)}
        columns //= 2


_SHARED_BESIDE = 2048
"""Bytes of shared memory that a program takes beside its tiles."""


def _shared_bytes(device: torch.device) -> int:
    """Bytes of shared memory that a program may take; without a GPU, as in a trace, those of a Hopper."""
    if not torch.cuda.is_available():
        return 232448
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin)
