"""How many chunks of a batch's rows the device reads by itself, and how many the host gathers and copies.

Both paths deliver the same bits, so a division changes when rows arrive and nothing else.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from penstock.graph.arrays import Array
from penstock.paths.chunk_selector import Chosen, ChunkSelector

PINNED, GATHERED = 0, 1
"""The two paths of rows that are in no cache."""
_EITHER, _ONLY = 0, (1, 2)
"""Kinds of chunks: one that may take either path, and one for each path alone."""
_GUESS_US = 25.0
"""What a chunk takes before anything was measured: half a megabyte at 20 GB/s."""
_FORGET_US = 1e5
"""Time in which half of what a path's chunks took beyond what was expected is forgotten: some twenty batches."""
_NEWEST = 0.25
"""Weight of a batch's chunk time in the average: a change is known after a few batches."""
_PROBED = 8
"""Chunks of a batch from which on each path gets one at least, so that its speed stays known."""


class Divided(NamedTuple):
    """Chunks of each path, and the decisions where there were any."""

    chunks: tuple[int, int]
    chosen: tuple[Chosen, Chosen] | None = None


class Division(Protocol):
    """Divides a batch's chunks between the two paths. Threads may ask at once."""

    def divide(self, chunks: int) -> Divided:
        """For a batch whose rows are wanted now."""

    def completed(self, divided: Divided, path: int, took: float, busy: float) -> None:
        """A path's chunks have arrived: seconds since the division, and those in which the path worked on them."""

    def forget(self, divided: Divided, path: int) -> None:
        """A path's chunks will not arrive."""


class FixedDivision:
    """The same share of every batch is read by the device."""

    def __init__(self, pinned_share: float) -> None:
        self._share = pinned_share

    def divide(self, chunks: int) -> Divided:
        """See `Division.divide`."""
        pinned = round(self._share * chunks)
        return Divided((pinned, chunks - pinned))

    def completed(self, divided: Divided, path: int, took: float, busy: float) -> None:
        """Nothing is learned."""

    def forget(self, divided: Divided, path: int) -> None:
        """Nothing was expected."""


class MeasuredDivision:
    """Both paths end at the same time, by what their chunks took lately and what is still under way on them.

    A path serves one chunk after the other; what one takes is an average of decaying weights, so that it follows cores
    and a bus that others use too. The rule of `penstock.paths` then sends each chunk where it is expected to arrive
    first. A path that is slow keeps one chunk of each batch, by which it is heard of when it is fast again.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._selector = ChunkSelector([0, 2, 3, 4], [PINNED, GATHERED, PINNED, GATHERED], _GUESS_US, _FORGET_US, clock)
        self._chunk_us: list[float | None] = [None, None]
        # Kernels are compiled before a batch waits for them.
        self._selector.completed(self._selector.choose(np.empty(0, np.int32)), 0.0, clock())

    def divide(self, chunks: int) -> Divided:
        """See `Division.divide`."""
        kinds = np.full(chunks, _EITHER, np.int32)
        if chunks >= _PROBED:
            kinds[:2] = _ONLY
        chosen = self._selector.choose(kinds)
        path = _PATH[chosen.paths]
        members = [np.flatnonzero(path == each) for each in (PINNED, GATHERED)]
        both = chosen.some(members[PINNED]), chosen.some(members[GATHERED])
        return Divided((len(members[PINNED]), len(members[GATHERED])), both)

    def completed(self, divided: Divided, path: int, took: float, busy: float) -> None:
        """See `Division.completed`."""
        assert divided.chosen is not None
        chosen, count = divided.chosen[path], divided.chunks[path]
        if not count:
            return
        with self._lock:
            last, new = self._chunk_us[path], 1e6 * busy / count
            self._chunk_us[path] = us = new if last is None else last + _NEWEST * (new - last)
        self._selector.set_chunk_time(path, us)
        # The path was busy up to the end, with one chunk after the other.
        left = np.arange(count - 1, -1, -1) / count
        self._selector.completed(chosen, 1e6 * np.maximum(took - busy * left, 0.0), chosen.began + took)

    def forget(self, divided: Divided, path: int) -> None:
        """See `Division.forget`."""
        assert divided.chosen is not None
        self._selector.forget(divided.chosen[path])


_PATH: Array = np.array([PINNED, GATHERED, PINNED, GATHERED])
"""Which of the two paths each of the selector's is."""
