"""Page-locked host memory of exactly the size asked for.

torch's own pinned allocations are rounded up to a power of two: 28 GB would take 32. So memory is mapped here and
registered with CUDA, and is registered no more when the last tensor on it dies.
"""

import math
import mmap
import weakref
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array


def page_locked(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    fill: Callable[[Tensor], object] | None = None,
) -> Tensor:
    """A host tensor that a CUDA device can read in place; zeros, or what `fill` writes. Plain memory for other devices.

    It is locked after it is filled: threads that fill it make its pages much faster than the locking would.
    """
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype)
    memory = _mapped(size)
    tensor = torch.from_numpy(memory).view(dtype).view(shape)
    if fill is not None:
        fill(tensor)
    if device.type == "cuda":
        _lock(memory)
    return tensor


def _mapped(size: int) -> Array:
    """Bytes of a private mapping, on large pages where the system has them: they are locked much faster."""
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise PenstockError(
            f"There is no room for {size / 1e9:.1f} GB in host memory ({error}): set features to host, or free memory.",
            code="out-of-memory",
        ) from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8)


def _lock(memory: Array) -> None:
    address = memory.ctypes.data
    answer = torch.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0)  # type: ignore[no-untyped-call]
    if int(answer) != 0:
        raise PenstockError(
            f"{memory.nbytes / 1e9:.1f} GB of host memory could not be page-locked for the GPU ({answer}): place what"
            " is pinned on host or device, or free memory.",
            code="out-of-memory",
        )
    # Tensors hold the array, and the array's weak references are told before its memory goes. Nothing is left to do
    # at exit, when the driver may be gone already.
    weakref.finalize(memory, _unlock, address).atexit = False


def _unlock(address: int) -> None:
    # A gather that was launched may still be reading.
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]
