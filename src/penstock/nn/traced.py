"""Computations that are only traced: tensors have no numbers, kernels are not run, and memory is what is looked at.

Under `tracing` a layer allocates what it would allocate, through torch, and computes nothing. Kernels of the host read
arrays: there a traced tensor is stood for by an array of its shape and type that takes no memory and keeps the tensor
alive, as an array of a real tensor does.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array


class Trace(NamedTuple):
    """What a trace cannot see in tensors that have no numbers."""

    density: float = 1.0
    """The share of the input features that are not zero."""
    on_device: bool = False
    """Whether the tensors stand for those of a GPU."""


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Within it nothing is computed."""
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)


def is_traced() -> bool:
    """Whether nothing is computed, only traced."""
    return _trace.get() is not None


def current_trace() -> Trace | None:
    """What is known under `tracing`; None outside."""
    return _trace.get()


def array_of(x: Tensor) -> Array:
    """The memory of a contiguous tensor as an array; of a traced tensor a stand-in."""
    if not x.is_meta:
        numbers: Array = x.numpy()
        return numbers
    found = stand_in(tuple(x.shape), _NUMPY[x.dtype])
    found.tensor = x
    return found


def room(shape: int | Sequence[int], dtype: Any) -> Array:
    """An array of unset numbers, allocated by torch: so a trace of memory sees it."""
    return array_of(torch.empty(shape, dtype=_TORCH[np.dtype(dtype)]))


def tensor_of(array: Array) -> Tensor:
    """The tensor whose memory an array of `array_of` or `room` is; of any other array, one that shares it."""
    if not isinstance(array, _StandIn):
        return torch.from_numpy(array)
    assert array.tensor is not None
    return array.tensor


def stand_in(shape: int | Sequence[int], dtype: Any) -> "_StandIn":
    """An array of zeros that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(_StandIn)


class _StandIn(np.ndarray[Any, Any]):
    """Every number of it is the same one. Views keep the tensor alive that it stands for."""

    tensor: Tensor | None

    def __array_finalize__(self, of: Any) -> None:
        self.tensor = getattr(of, "tensor", None)


_TORCH = {
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
}
_NUMPY = {kind: np_kind for np_kind, kind in _TORCH.items()}
_trace: ContextVar[Trace | None] = ContextVar("_trace", default=None)
