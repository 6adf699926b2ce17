"""Traced computations: tensors without values, kernels that do not run, so that memory can be predicted.

Under `tracing` a layer allocates what it would allocate, through torch, and computes nothing. Kernels of the host read
arrays: for them a traced tensor is replaced by an array of its shape and type that takes no memory and keeps the tensor
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
    """What a trace has to know because tensors without values do not show it."""

    density: float = 1.0
    """The share of the input features that are not zero."""
    on_device: bool = False
    """Whether the tensors stand for those of a GPU."""
    empty_cache: Callable[[], None] | None = None
    """Called where the allocator of a GPU gives free memory back to the driver."""
    moves: Callable[[int, int], None] | None = None
    """Called with the bytes that a kernel would read and write sequentially, and those of rows that it would gather."""


class MemoryPlace(NamedTuple):
    """Where an allocator takes memory from: a GPU's blocks belong to a stream, and to a recording's pool if any; the
    host's to the thread that computes, or to others.
    """

    stream: int = 0
    pool: int = 0


_MAIN = MemoryPlace()
OTHER_THREADS = MemoryPlace(-2)
"""The heaps of the host's threads that read batches and chunks ahead."""


class TracedStream:
    """A stream on which nothing runs; memory that is allocated on it belongs to it."""

    def __init__(self) -> None:
        self.number = next(_numbers)

    def wait_event(self, event: Any) -> None:
        """Return at once: nothing runs on a traced stream."""

    def wait_stream(self, stream: Any) -> None:
        """Return at once: nothing runs on a traced stream."""

    def synchronize(self) -> None:
        """Return at once: nothing runs on a traced stream."""

    def record_event(self) -> None:
        """Return None: there is nothing to wait for."""

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within it, memory is allocated on this stream."""
        token = _place.set(MemoryPlace(self.number, _place.get().pool))
        try:
            yield
        finally:
            _place.reset(token)


@contextmanager
def recording(stream: TracedStream | None, pool: int | None) -> Iterator[int]:
    """Within it a CUDA graph is recorded, whose memory is from the private pool `pool`, or a new one; yields its
    number.
    """
    trace = _trace.get()
    if trace is not None and trace.empty_cache is not None:
        trace.empty_cache()
    number = next(_numbers) if pool is None else pool
    token = _place.set(MemoryPlace(_RECORDING if stream is None else stream.number, number))
    try:
        yield number
    finally:
        _place.reset(token)


@contextmanager
def by_other_threads() -> Iterator[None]:
    """Within it, memory of the host is allocated by other threads than the one that computes."""
    token = _place.set(OTHER_THREADS)
    try:
        yield
    finally:
        _place.reset(token)


def current_place() -> MemoryPlace:
    """The stream and pool that memory is allocated from now."""
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
    """Within it, new models and scorers have weights without values, which take no memory and no time."""
    token = _counted.set(True)
    try:
        yield
    finally:
        _counted.reset(token)


def new_weights() -> AbstractContextManager[Any]:
    """A context for making weights: under `weights_only_counted` they are on torch's `meta` device."""
    return torch.device("meta") if _counted.get() else nullcontext()


def is_traced() -> bool:
    """Whether computations are traced rather than run."""
    return _trace.get() is not None


def number_of(loss: Tensor) -> float:
    """The loss as a number; for a traced loss, which has no value, a finite number."""
    return 0.0 if is_traced() else float(loss.detach())


def launches(*moved: Tensor | None, rows: int = 0, of: Tensor | None = None) -> bool:
    """Whether to launch a kernel that reads or writes `moved` whole, and `rows` rows of the matrix `of`.

    Under a trace the answer is no, unless it compiles kernels, and the bytes that it would move are recorded.
    """
    trace = _trace.get()
    if trace is None:
        return True
    if trace.moves is not None:
        picked = 0 if of is None else rows * of.shape[-1] * of.element_size()
        trace.moves(sum(each.nbytes for each in moved if each is not None), picked)
    return _compiles.get()


@contextmanager
def compiling() -> Iterator[None]:
    """Within it a trace launches a GPU's kernels, which are compiled then and do not run (`gpu_kernels`)."""
    token = _compiles.set(True)
    try:
        yield
    finally:
        _compiles.reset(token)


def compiles_kernels() -> bool:
    """Whether launches of a GPU's kernels only compile them now."""
    return _compiles.get() and is_traced()


def skips_kernels() -> bool:
    """Whether a GPU's kernels are not launched now: under a trace that does not compile them."""
    return is_traced() and not _compiles.get()


def current_trace() -> Trace | None:
    """The trace under `tracing`; None outside."""
    return _trace.get()


FEATURES, TOPOLOGY, BATCHES = "features", "topology", "batches"
"""The categories of memory that `memory_for` marks."""


@contextmanager
def memory_for(category: str) -> Iterator[None]:
    """Within it, allocated memory counts for this category of a memory prediction."""
    token = _category.set(category)
    try:
        yield
    finally:
        _category.reset(token)


def current_category() -> str:
    """The category that allocated memory counts for now; empty outside of `memory_for`."""
    return _category.get()


def is_gpu(device: torch.device) -> bool:
    """Whether a device is a GPU, or represents one in a trace."""
    trace = _trace.get()
    return device.type == "cuda" or (trace is not None and trace.on_device and device.type == "meta")


def array_of(x: Tensor) -> Array:
    """The memory of a contiguous tensor as an array; of a traced tensor, a stand-in without memory."""
    if not x.is_meta:
        numbers: Array = x.numpy()
        return numbers
    found = stand_in(tuple(x.shape), _NUMPY[x.dtype])
    found.tensor = x
    return found


def room(shape: int | Sequence[int], dtype: Any) -> Array:
    """An uninitialised array, allocated by torch, so that a trace of memory counts it."""
    return array_of(torch.empty(shape, dtype=_TORCH[np.dtype(dtype)]))


def tensor_of(array: Array) -> Tensor:
    """The tensor whose memory an array of `array_of` or `room` uses; of any other array, one that shares its memory."""
    if not isinstance(array, _StandIn):
        return torch.from_numpy(array)
    assert array.tensor is not None
    return array.tensor


def placed(array: Array, device: torch.device, dtype: torch.dtype | None = None, non_blocking: bool = False) -> Tensor:
    """An array's values on a device, converted on the host; of an array without values, a traced tensor of its size."""
    if not isinstance(array, _StandIn):
        values = torch.from_numpy(array)
        return (values if dtype is None else values.to(dtype)).to(device, non_blocking=non_blocking)
    if array.tensor is None:
        return torch.empty(array.shape, dtype=dtype or _TORCH[array.dtype], device=device)
    return array.tensor[: len(array)].to(dtype or array.tensor.dtype)


def stand_in(shape: int | Sequence[int], dtype: Any) -> "_StandIn":
    """An array of zeros of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape).view(_StandIn)


class _StandIn(np.ndarray[Any, Any]):
    """An array all of whose elements are one number in memory. Views keep the traced tensor alive."""

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
_compiles: ContextVar[bool] = ContextVar("_compiles", default=False)
_category: ContextVar[str] = ContextVar("_category", default="")
_numbers = count(1)
_RECORDING = -1
"""The stream on which torch records where none is given, one for the whole process."""
