"""The paths from host memory to a device: who moves rows along them, how they are divided, and what came along each."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from penstock.paths.path_use import PathUse
from penstock.store.device.host_threads import HostThreads
from penstock.store.device.moments import Moment
from penstock.store.device.path_division import Division

PATHS = ("pinned", "gathered")
"""Names of the paths of rows that are in no cache, by their numbers."""
CACHE = "cache"
"""The path of rows that the device's cache has."""
AGGREGATED = "aggregated"
"""The path of rows that the host adds up first: their sums, and rows of destinations themselves."""


class Span(NamedTuple):
    """Work on a stream between two moments, and the rows that it moved."""

    path: str
    rows: int
    size: int
    before: Moment
    after: Moment


class HostPaths:
    """What tables in host memory share on one device: streams, threads of the host, the division of rows.

    Rows that the device reads by itself and copies of gathered ones go over streams of their own, beside those that
    draw and compute.
    """

    def __init__(self, device: torch.device, threads: int, division: Division, make_stream: Callable[[], Any]) -> None:
        self.device, self.division = device, division
        self.threads = HostThreads(threads)
        self.reading, self.copying = make_stream(), make_stream()
        self.copy_lock = threading.Lock()
        """Held from a copy to the staging memory until what reads it was launched."""
        self._staging = torch.empty(0, dtype=torch.uint8, device=device)
        self._use: dict[str, PathUse] = {}
        self._arriving: list[tuple[Span, float]] = []
        self._lock = threading.Lock()

    def staging(self, size: int) -> Tensor:
        """Bytes of the device to which gathered rows are copied; used on the stream `copying` alone."""
        if self._staging.nbytes < size:
            self._staging = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._staging[:size]

    def release(self) -> None:
        """Free the staging memory; it is made anew when it is needed."""
        with self.copy_lock:
            self._staging = self._staging[:0].clone()

    def launched(self, span: Span, gathered: float = 0.0) -> None:
        """Rows are on their way: they are counted when they have arrived, with the seconds of gathering them before."""
        with self._lock:
            self._arriving.append((span, gathered))

    def count_arrived(self) -> None:
        """Count what has arrived. Waits for nothing."""
        with self._lock:
            arrived = [each for each in self._arriving if each[0].after.has_passed()]
            self._arriving = [each for each in self._arriving if each not in arrived]
            for span, gathered in arrived:
                seconds = gathered + span.before.seconds_to(span.after)
                self._use[span.path] = self._use.get(span.path, PathUse()).plus(span.rows, span.size, seconds)

    def use(self) -> dict[str, PathUse]:
        """What came along each path so far. Rows that are still under way are not in it."""
        self.count_arrived()
        with self._lock:
            return {name: self._use[name] for name in (CACHE, *PATHS, AGGREGATED) if name in self._use}
