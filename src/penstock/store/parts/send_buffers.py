"""Send buffers: gathered into, lent to the wire, and used again when their bytes have left."""

import threading

import numpy as np

from penstock.graph.arrays import Array

PART_BYTES = 1 << 20
"""Of a part of an answer, and of a buffer; a single row may be larger."""
_KEPT = 32
"""Buffers that wait for use; the wire's back-pressure bounds how many are out."""


class SendBuffers:
    """Flat buffers of at least PART_BYTES. Any thread takes and gives."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Array:
        """A buffer of `size` bytes or more."""
        if size <= PART_BYTES:
            with self._lock:
                if self._free:
                    return self._free.pop()
        return np.empty(max(size, PART_BYTES), np.uint8)

    def give(self, buffer: Array) -> None:
        """Return a buffer whose bytes were sent."""
        with self._lock:
            if len(self._free) < _KEPT and buffer.nbytes == PART_BYTES:
                self._free.append(buffer)

    @property
    def waiting(self) -> int:
        """The number of free buffers."""
        with self._lock:
            return len(self._free)


def rows_a_part(row_bytes: int) -> int:
    """Rows in a part of an answer: the same in every process, as an answer's parts may come from two of them."""
    return max(1, PART_BYTES // max(1, row_bytes))
