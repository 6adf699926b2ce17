"""Dropout on a device, with the CPU's bits: the key is a number, or lies on the device and differs in every batch."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_WORDS = 512
"""Random words of one program, four numbers each."""


@dataclass(frozen=True)
class DropKey:
    """Names the draws of one call: `number`, or where there is a `tensor`, the `call`-th of the stream it names."""

    number: int = 0
    tensor: Tensor | None = None
    call: int = 0


def drop_rows(x: Tensor, key: DropKey, limit: int, scale: float, rectify: bool, out: Tensor) -> None:
    """out = scale * x (or max(x, 0)) where a number's 16 random bits are below `limit`, else 0; out may be x."""
    from penstock.nn.device import drop_kernels as kernels

    rows, width = x.shape
    words = rows * -(-width // 4)
    if not words:
        return
    halves = _signed(key.number & 0xFFFFFFFF), _signed(key.number >> 32)
    given = x, key.tensor, key.call, *halves, out, words
    sizes = {
        "LIMIT": limit,
        "SCALE": scale,
        "WIDTH": width,
        "RECTIFIES": rectify,
        "NUMBER": _number(x),
        "BLOCK": _WORDS,
    }
    kernels.drop_rows[(-(-words // _WORDS),)](*given, **sizes)


def pass_where_positive(y: Tensor, grad: Tensor, scale: float) -> Tensor:
    """scale * grad where y > 0, else 0."""
    from penstock.nn.device import drop_kernels as kernels

    out = torch.empty_like(y)
    if out.numel():
        grid = (-(-out.numel() // 2048),)
        kernels.pass_where_positive[grid](y, grad, out, out.numel(), SCALE=scale, NUMBER=_number(y), BLOCK=2048)
    return out


def _signed(half: int) -> int:
    """32 bits as a signed number, which is what a launch takes without looking at its size."""
    return half - (1 << 32) if half >= 1 << 31 else half


def _number(x: Tensor) -> Any:
    import triton.language as tl

    return tl.float64 if x.dtype == torch.float64 else tl.float32
