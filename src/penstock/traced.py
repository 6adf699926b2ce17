"""Computations that are only traced: tensors have no numbers, kernels are not run, and memory is what is looked at.

Under `tracing` a layer allocates what it would allocate, through torch, and computes nothing. Kernels of the host read
arrays: there a traced tensor is stood for by an array of its shape and type that takes no memory and keeps the tensor
alive, as an array of a real tensor does.

Where the memory of a GPU is traced, tensors are on torch's `meta` device, streams are `TracedStream`s, and what is
recorded as a CUDA graph takes its memory from a pool of its own (`recording`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from itertools import count
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
    empty_cache: Callable[[], None] | None = None
    """Called where the allocator of a GPU gives free memory back to the driver."""
    moves: Callable[[int, int], None] | None = None
    """Told the bytes that a kernel would read and write in order, and those of rows that it would pick."""


class MemoryPlace(NamedTuple):
    """Where a GPU's allocator takes memory from: blocks belong to a stream, and to a recording's pool if any."""

    stream: int = 0
    pool: int = 0


_MAIN = MemoryPlace()


class TracedStream:
    """A stream that nothing runs on; what is allocated on it is its own."""

    def __init__(self) -> None:
        self.number = next(_numbers)

    def wait_event(self, event: Any) -> None:
        """Everything has happened already."""

    def wait_stream(self, stream: Any) -> None:
        """Everything has happened already."""

    def synchronize(self) -> None:
        """Everything has happened already."""

    def record_event(self) -> None:
        """There is nothing to wait for."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """What is allocated in it belongs to this stream."""
        token = _place.set(MemoryPlace(self.number, _place.get().pool))
        try:
            yield
        finally:
            _place.reset(token)


@contextmanager
def recording(stream: TracedStream | None, pool: int | None) -> Iterator[int]:
    """Within it a CUDA graph is recorded: memory is from a private pool, a new one where none is given; its number."""
    trace = _trace.get()
    if trace is not None and trace.empty_cache is not None:
        trace.empty_cache()
    number = next(_numbers) if pool is None else pool
    token = _place.set(MemoryPlace(_RECORDING if stream is None else stream.number, number))
    try:
        yield number
    finally:
        _place.reset(token)


def current_place() -> MemoryPlace:
    """Where memory is taken from at this moment."""
    return _place.get()


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    """Within it nothing is computed."""
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)


@contextmanager
def weights_only_counted() -> Iterator[None]:
    """Within it new models and scorers have weights without numbers, which take no memory and no time."""
    token = _counted.set(True)
    try:
        yield
    finally:
        _counted.reset(token)


def new_weights() -> AbstractContextManager[Any]:
    """Around the making of weights: within `weights_only_counted` they are on torch's `meta` device."""
    return torch.device("meta") if _counted.get() else nullcontext()


def is_traced() -> bool:
    """Whether nothing is computed, only traced."""
    return _trace.get() is not None


def launches(*moved: Tensor | None, rows: int = 0, of: Tensor | None = None) -> bool:
    """Whether a kernel is launched that reads or writes `moved` whole, and so many `rows` of the matrix `of`.

    Under a trace it is not: what it would move is noted.
    """
    trace = _trace.get()
    if trace is None:
        return True
    if trace.moves is not None:
        picked = 0 if of is None else rows * of.shape[-1] * of.element_size()
        trace.moves(sum(each.nbytes for each in moved if each is not None), picked)
    return False


def current_trace() -> Trace | None:
    """What is known under `tracing`; None outside."""
    return _trace.get()


FEATURES, TOPOLOGY, BATCHES = "features", "topology", "batches"
"""What memory is allocated for, as its maker says (`memory_for`)."""


@contextmanager
def memory_for(category: str) -> Iterator[None]:
    """What is allocated in it is for this category, as a prediction of memory lists it."""
    token = _category.set(category)
    try:
        yield
    finally:
        _category.reset(token)


def current_category() -> str:
    """What memory is allocated for at this moment; empty where nobody has said."""
    return _category.get()


def is_gpu(device: torch.device) -> bool:
    """Whether a device is a GPU, or stands for one in a trace."""
    trace = _trace.get()
    return device.type == "cuda" or (trace is not None and trace.on_device and device.type == "meta")


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
_place: ContextVar[MemoryPlace] = ContextVar("_place", default=_MAIN)
_counted: ContextVar[bool] = ContextVar("_counted", default=False)
_category: ContextVar[str] = ContextVar("_category", default="")
_numbers = count(1)
_RECORDING = -1
"""The stream on which torch records where none is given, one for the whole process."""
