"""Dropout on a device, with the CPU's bits: the key is a number, or a tensor on the device that
differs in every batch.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from penstock.nn.device.gather import KeptRows, number_of
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import launches

_WORDS = 512
"""Random words of one program, four values each."""
_SEARCHES = 256
"""Edges whose destination one program searches."""


@dataclass(frozen=True)
class DropKey:
    """The key of one call's draws: `number`, or where there is a `tensor`, the `call`-th of that stream.

    `names[i]` (int32 or int64, on the rows' device) is the name of row i; without them it is i.
    """

    number: int = 0
    tensor: Tensor | None = None
    call: int = 0
    names: Tensor | None = None


class Dropping(NamedTuple):
    """What dropout does: values whose 16 random bits, drawn by `key`, are below `limit` are multiplied by `scale`."""

    key: DropKey = DropKey()
    limit: int = 1 << 16
    scale: float = 1.0


class NormFigures(NamedTuple):
    """How rows are normalised: by `figures` [2, width], every column's mean and 1 / its standard deviation, times
    `weight` plus `bias`; rows from `known` on become zeros.
    """

    figures: Tensor
    weight: Tensor
    bias: Tensor
    known: Tensor


def drop_rows(x: Tensor, dropping: Dropping, rectify: bool, out: Tensor, norm: NormFigures | None = None) -> None:
    """out = scale * x (or max(x, 0)) where a value is kept, else 0; out may be x. `norm` normalises x first."""
    (key, limit, scale), (rows, width) = dropping, x.shape
    words = rows * -(-width // 4)
    if not words or not launches(x, key.names, out):
        return
    from penstock.nn.device import drop_kernels as kernels

    given = x, *drawn_by(key), *(norm or (None,) * 4), out, words
    sizes = {
        "LIMIT": limit,
        "SCALE": scale,
        "WIDTH": width,
        "RECTIFIES": rectify,
        "NUMBER": number_of(x),
        "BLOCK": _WORDS,
    }
    kernels.drop_rows[(-(-words // _WORDS),)](*given, **sizes)


def drawn_by(key: DropKey) -> tuple[Any, ...]:
    """A key as kernels take it: names, the stream's key in memory and the call, the halves of a number."""
    return key.names, key.tensor, key.call, _signed(key.number & 0xFFFFFFFF), _signed(key.number >> 32)


def name_edges(block: DeviceBlock, targets: Tensor, sources: Tensor) -> Tensor:
    """[room for edges] int64: the name of an edge's destination * 2^32 + that of its source; 0 past the last edge.

    `targets` name the destination rows and `sources` the source rows, which are of one type or of two.
    """
    places = block.num_edges
    out = torch.empty(places, dtype=torch.int64, device=targets.device)
    if places and launches(block.lists, out, out, out):
        from penstock.nn.device import drop_kernels as kernels

        sizes = block.num_dst, places, (block.num_dst + 1).bit_length()
        grid = (-(-places // _SEARCHES),)
        kernels.name_edges[grid](block.lists, block.indices, targets, sources, out, *sizes, BLOCK=_SEARCHES)
    return out


def pass_where_positive(y: Tensor, grad: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale * grad where y > 0, else 0; `out` may be grad."""
    out = torch.empty_like(y) if out is None else out
    if out.numel() and launches(y, grad, out):
        from penstock.nn.device import drop_kernels as kernels

        grid = (-(-out.numel() // 2048),)
        kernels.pass_where_positive[grid](y, grad, out, out.numel(), SCALE=scale, NUMBER=number_of(y), BLOCK=2048)
    return out


def _signed(half: int) -> int:
    """32 bits as a signed number, which a launch accepts whatever its size."""
    return half - (1 << 32) if half >= 1 << 31 else half


# The output of a ReLU and dropout whose backward pass is left to the reader of the rows, which applies it while it
# computes their gradient. A pass of its own would read and write the largest matrix of a batch.


@dataclass(eq=False)
class Rectified:
    """drop(relu(z)) as `rows`, connected in autograd to z directly; what was kept is positive.

    Readers that take it return the gradient of z itself, as `product` does. All others must use `settled`.
    """

    rows: Tensor
    scale: float
    behind: int = 0
    """Columns at the end, a one and zeros, which get no gradient."""

    @property
    def kept(self) -> KeptRows:
        """Which values of a gradient pass the ReLU and dropout."""
        return KeptRows(self.rows.detach(), self.scale)

    def settled(self) -> Tensor:
        """The rows, with the usual gradient."""
        return cast(Tensor, cast(Any, _Settled).apply(self.rows, self.scale))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> torch.Size:
        """The shape of the rows."""
        return self.rows.shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the rows."""
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        """The device of the rows."""
        return self.rows.device

    @property
    def requires_grad(self) -> bool:
        """Whether the rows require gradients."""
        return self.rows.requires_grad

    def dim(self) -> int:
        """2: the rows form a matrix."""
        return 2


def rectified(z: Tensor, dropping: Dropping) -> Rectified:
    """drop(relu(z)) in place of z, which must not be used afterwards."""
    return Rectified(cast(Tensor, cast(Any, _InPlace).apply(z.contiguous(), dropping)), dropping.scale)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, dropping: Dropping) -> Tensor:
        ctx.mark_dirty(z)
        drop_rows(z.detach(), dropping, True, z.detach())
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Pass the gradient through: the reader of the rows has applied the ReLU's part."""
        return grad, None


class _Settled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(rows)
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        return pass_where_positive(rows, grad.contiguous(), ctx.scale), None
