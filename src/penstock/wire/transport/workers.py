"""Threads that seal and open records beside the thread that owns the sockets."""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.transport.ciphers import TAG_BYTES
from penstock.wire.transport.layout import RECORD_BYTES

log = logging.getLogger("penstock.wire")

_KEPT = 16
"""Buffers that are kept for the next records."""
_CORES_EACH, _MOST = 4, 4


def default_threads() -> int:
    """One for every four cores, four at most. With fewer cores the sockets' thread does it by itself."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST, cores // _CORES_EACH)


class Workers:
    """Threads of one process's end of the wire, and the buffers that records are sealed into."""

    def __init__(self, name: str, threads: int) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._buffers: deque[Array] = deque(maxlen=_KEPT)
        self._threads = [
            threading.Thread(target=self._run, name=f"wire-{name}-seals-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def inline(self) -> bool:
        """Whether there are no worker threads, so that callers seal and open records themselves."""
        return not self._threads

    def do(self, job: Callable[[], None]) -> None:
        """Have it done by the next thread that is free. A job must not raise."""
        self._jobs.put(job)

    def buffer(self) -> Array:
        """Memory for the longest record, sealed."""
        try:
            return self._buffers.pop()
        except IndexError:
            return np.empty(RECORD_BYTES + TAG_BYTES, np.uint8)

    def give_back(self, buffer: Array) -> None:
        """Return a buffer for use by another record."""
        self._buffers.append(buffer)

    def close(self) -> None:
        """Let the threads end what they are at."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception:
                log.exception("A record could not be sealed or opened.")
