"""The paths from host memory to a device: who moves rows along them, how they are divided, and what came along each."""

import threading
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from penstock.paths.path_use import PathUse
from penstock.store.device.gather_threads import GatherThreads
from penstock.store.device.moments import Moment
from penstock.store.device.path_division import Divided, Division

Item = TypeVar("Item")
PATHS = ("pinned", "gathered")
"""Names of the paths of rows that are in no cache, by their numbers."""
CACHE = "cache"
"""The path of rows that the device's cache has."""


class Span(NamedTuple):
    """Work on a stream between two moments, and the rows that it moved."""

    path: str
    rows: int
    size: int
    before: Moment
    after: Moment


class Arrival(NamedTuple):
    """Rows of a batch that are under way on one of the two paths."""

    span: Span
    division: Division
    divided: Divided
    gathered: tuple[float, float] | None
    """Of rows that the host has gathered: when, and how many seconds they took."""
    asked: Moment
    """When they were asked for, as the device counts."""

    def has_passed(self) -> bool:
        """Whether the rows have arrived."""
        return self.span.after.has_passed() and self.asked.has_passed()


class HostPaths:
    """What tables in host memory share on one device: streams, threads that gather, the division of rows.

    Rows that the device reads by itself and copies of gathered ones go over streams of their own, beside those that
    draw and compute. A third stream, which nothing else is launched on, tells when rows were asked for as the device
    counts.
    """

    def __init__(self, device: torch.device, threads: int, division: Division, make_stream: Callable[[], Any]) -> None:
        self.device, self.division = device, division
        self.threads = GatherThreads(threads)
        self.reading, self.copying, self._clock = make_stream(), make_stream(), make_stream()
        self.copy_lock = threading.Lock()
        """Held from a copy to the staging memory until what reads it was launched."""
        self._staging = torch.empty(0, dtype=torch.uint8, device=device)
        self._use: dict[str, PathUse] = {}
        self._arriving: list[Arrival] = []
        self._near: list[Span] = []
        self._lock = threading.Lock()

    def ask(self) -> Moment:
        """This moment, as the device counts."""
        asked = Moment(self.device, timed=True)
        asked.mark_on(self._clock)
        return asked

    def staging(self, size: int) -> Tensor:
        """Bytes of the device to which gathered rows are copied; used on the stream `copying` alone."""
        if self._staging.nbytes < size:
            self.copy_lock = threading.Lock()
        """Held from a copy to the staging memory until what reads it was launched."""
        self._staging = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._staging[:size]

    def launched(self, arrival: Arrival) -> None:
        """Rows are on their way: what they take is heard of when they have arrived."""
        with self._lock:
            self._arriving.append(arrival)

    def launched_near(self, span: Span) -> None:
        """Rows of the cache are on their way."""
        with self._lock:
            self._near.append(span)

    def hear(self) -> None:
        """Count what has arrived, and let the division learn from it. Waits for nothing."""
        with self._lock:
            near, self._near = _by_passing(self._near, lambda span: span.after.has_passed())
            for span in near:
                self._count(span, span.before.seconds_to(span.after))
            arrived, self._arriving = _by_passing(self._arriving, Arrival.has_passed)
            for each in arrived:
                self._learn(each)

    def use(self) -> dict[str, PathUse]:
        """What came along each path so far. Rows that are still under way are not in it."""
        self.hear()
        with self._lock:
            return {name: self._use[name] for name in (CACHE, *PATHS) if name in self._use}

    def _learn(self, arrival: Arrival) -> None:
        span, path = arrival.span, PATHS.index(arrival.span.path)
        took, busy = arrival.asked.seconds_to(span.after), span.before.seconds_to(span.after)
        seconds = busy
        if arrival.gathered is not None:
            # Copies go on while the next rows are gathered: the slower of the two is the path's pace.
            seconds = busy + arrival.gathered[1]
            busy = max(busy, arrival.gathered[1])
        arrival.division.completed(arrival.divided, path, max(took, 0.0), busy)
        self._count(span, seconds)

    def _count(self, span: Span, seconds: float) -> None:
        self._use[span.path] = self._use.get(span.path, PathUse()).plus(span.rows, span.size, seconds)


def _by_passing(waiting: list[Item], has_passed: Callable[[Item], bool]) -> tuple[list[Item], list[Item]]:
    """Those whose streams have come to their ends, and the others."""
    passed = [has_passed(each) for each in waiting]
    arrived = [each for each, is_so in zip(waiting, passed, strict=True) if is_so]
    return arrived, [each for each, is_so in zip(waiting, passed, strict=True) if not is_so]
