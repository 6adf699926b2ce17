"""Memory for what batches bring along, allocated once and used again."""

import threading
import weakref
from collections import deque

import numpy as np
import torch

from penstock.graph.arrays import Array

_SLACK = 1.25
"""Room for somewhat larger batches than the first, so that buffers soon stop growing."""


class BufferPool:
    """Flat buffers lent out as arrays of any shape and type. There are as many as are out at once, never more."""

    def __init__(self, page_locked: bool = False) -> None:
        """`page_locked`: memory that a device copies from while the processor goes on."""
        self._free: list[Array] = []
        self._page_locked = page_locked
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """(an array of the shape, the buffer to give back)."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        buffer = self._fitting(size)
        return buffer[:size].view(dtype).reshape(shape), buffer

    def give(self, buffer: Array) -> None:
        """The buffer may be used again."""
        with self._lock:
            self._free.append(buffer)

    def _fitting(self, size: int) -> Array:
        with self._lock:
            for place, buffer in enumerate(self._free):
                if buffer.nbytes >= size:
                    return self._free.pop(place)
            if self._free:
                # Too small, all of them: one makes way for a larger one.
                self._free.pop(0)
        room = int(size * _SLACK) + 64
        if self._page_locked:
            return torch.empty(room, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(room, np.uint8)


class ReclaimedBuffers(BufferPool):
    """Buffers for batches that their reader may keep: each comes back when the last tensor over its array is gone.

    Whoever lets go of a tensor may be any thread, and Python's collector may do it while the pool is being asked, so
    what comes back is put in a queue that needs no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._returned: deque[Array] = deque()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """See `BufferPool.take`; the buffer need not be given back."""
        while self._returned:
            super().give(self._returned.popleft())
        array, buffer = super().take(shape, dtype)
        weakref.finalize(array, self._returned.append, buffer).atexit = False
        return array, buffer

    def give(self, buffer: Array) -> None:
        """Do nothing: the batch may still be in use."""
