"""Threads of the host that work for a device together: on several tables' and batches' rows one after the other."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor


class HostThreads:
    """A number of threads, all of which work on what was given first before they go on to the next."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "row-gather")
        self._ended, self._lock = 0.0, threading.Lock()

    def start(self, works: Sequence[Callable[[], None]], pieces: int) -> "HostTask":
        """Begin with works that threads share: each thread calls all of them, and takes some of their `pieces`."""
        workers = max(1, min(self.threads, pieces))
        return HostTask(self, [self._pool.submit(_timed, works) for _ in range(workers)])

    def busy_seconds(self, began: float, ended: float) -> float:
        """Seconds of a task that no earlier one of the same threads was under way in."""
        with self._lock:
            busy = max(ended - max(began, self._ended), 0.0)
            self._ended = max(self._ended, ended)
        return busy


class HostTask:
    """Work that was begun."""

    def __init__(self, threads: HostThreads, parts: "Sequence[Future[tuple[float, float]]]") -> None:
        self._threads, self._parts = threads, parts

    def wait(self) -> float:
        """Wait until all is done; returns the seconds it took."""
        times = [part.result() for part in self._parts]
        began, ended = min(start for start, _ in times), max(end for _, end in times)
        return self._threads.busy_seconds(began, ended)


def _timed(works: Sequence[Callable[[], None]]) -> tuple[float, float]:
    began = time.perf_counter()
    for work in works:
        work()
    return began, time.perf_counter()
