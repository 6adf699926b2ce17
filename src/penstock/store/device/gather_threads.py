"""Threads of the host that gather rows together: several tables' and batches' rows one after the other."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.graph.arrays import Array
from penstock.store.rows import shared_gather

_STEP_BYTES = 1 << 16
"""What a thread takes at a time: a fraction of a millisecond, so that all end at about the same time."""


class GatherThreads:
    """A number of threads, all of which work on what was given first before they go on to the next."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "row-gather")
        self._ended, self._lock = 0.0, threading.Lock()

    def start(self, table: Array, ids: Array, out: Array) -> "GatherTask":
        """Begin with `out[i] = table[ids[i]]`; arrays stay as they are until it has ended."""
        step = max(1, _STEP_BYTES // max(1, out.nbytes // max(1, len(out))))
        gather = shared_gather(table, ids, out, step)
        workers = max(1, min(self.threads, -(-len(ids) // step)))
        parts = [self._pool.submit(_timed, gather) for _ in range(workers)]
        return GatherTask(self, parts)

    def busy_seconds(self, began: float, ended: float) -> float:
        """Seconds of a task that no earlier one of the same threads was under way in."""
        with self._lock:
            busy = max(ended - max(began, self._ended), 0.0)
            self._ended = max(self._ended, ended)
        return busy


class GatherTask:
    """Rows that are being gathered."""

    def __init__(self, threads: GatherThreads, parts: "Sequence[Future[tuple[float, float]]]") -> None:
        self._threads, self._parts = threads, parts

    def wait(self) -> float:
        """Wait for all rows; returns the seconds they took."""
        times = [part.result() for part in self._parts]
        began, ended = min(start for start, _ in times), max(end for _, end in times)
        return self._threads.busy_seconds(began, ended)


def _timed(work: Callable[[], None]) -> tuple[float, float]:
    began = time.perf_counter()
    work()
    return began, time.perf_counter()
