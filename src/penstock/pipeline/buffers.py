"""Memory for what batches bring along, allocated once and used again."""

import threading

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
