"""The paths from host memory to a device: the threads that move rows, the division among paths, and their use."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.paths.chunk_selector import PathUse
from penstock.store.device.moments import Moment

# Threads of the host that serve a device, processing tables' and batches' rows one after the other.


class HostThreads:
    """A number of threads that all work on one task before they go on to the next."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, "row-gather")
        self._ended, self._lock = 0.0, threading.Lock()

    def start(self, works: Sequence[Callable[[], None]], pieces: int) -> "HostTask":
        """Start a task that threads share: each thread calls all of `works`, which take some of the
        `pieces` per call.
        """
        workers = max(1, min(self.threads, pieces))
        return HostTask(self, [self._pool.submit(_timed, works) for _ in range(workers)])

    def busy_seconds(self, began: float, ended: float) -> float:
        """Seconds of a task during which no earlier task of the same threads was in progress."""
        with self._lock:
            busy = max(ended - max(began, self._ended), 0.0)
            self._ended = max(self._ended, ended)
        return busy


class HostTask:
    """A task of `HostThreads` in progress."""

    def __init__(self, threads: HostThreads, parts: "Sequence[Future[tuple[float, float]]]") -> None:
        self._threads, self._parts = threads, parts

    def wait(self) -> float:
        """Wait until it is done; returns the seconds it took."""
        times = [part.result() for part in self._parts]
        began, ended = min(start for start, _ in times), max(end for _, end in times)
        return self._threads.busy_seconds(began, ended)


def _timed(works: Sequence[Callable[[], None]]) -> tuple[float, float]:
    began = time.perf_counter()
    for work in works:
        work()
    return began, time.perf_counter()


# How many chunks of a batch's rows the device reads by itself, and how many the host gathers and copies.
#
# Both paths deliver the same bits, so a division changes when rows arrive and nothing else.

PINNED, GATHERED = 0, 1
"""The two paths of uncached rows."""
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""The shares of a batch's chunks that the device may read, ascending."""
_FIRST = 0.5
_LEAD = 6
"""Batches after a change of the share that are not timed: those divided before it are still in progress."""
_TIMED = 17
"""Batches over which the pace is measured; the longest pause between two of them is left out, as it may be a
validation.
"""
_HELD = 12
"""Measurements of the fastest share between two trials of another one."""
_BETTER = 1.03
"""How much faster another share must be, twice, to be chosen."""
_CHANGED = 1.25
"""If the pace changes this much, twice, other processes use cores or the bus, and the fastest share
is searched again.
"""
_FAR = 1.5
"""A single path that was this much slower than the best share is not tried again until the pace has changed."""
_NEWEST = 0.25
"""The weight of the last measurement in the pace of the current share."""


class Divided(NamedTuple):
    """The number of chunks for each path."""

    pinned: int
    gathered: int


class Division(Protocol):
    """Divides a batch's chunks between the two paths. Threads may call it at once."""

    def divide(self, chunks: int) -> Divided:
        """The division for a batch whose rows are read now."""


class FixedDivision:
    """The `Division` under which the device reads the same share of every batch."""

    def __init__(self, pinned_share: float) -> None:
        self._share = pinned_share

    def divide(self, chunks: int) -> Divided:
        return divided_by(self._share, chunks)


class FastestDivision:
    """The `Division` by the share under which batches follow each other fastest, found by trials that never end.

    The time of a path for its chunks of one batch does not show how a batch should be divided: one batch is gathered
    while another's rows are copied, and each batch has a cost that does not shrink with its chunks. The rate at which
    batches are requested does, since only so many are in progress at once. Neighbouring shares are tried as long as
    they are faster, and each path alone; then the fastest is kept, with a short trial of a neighbouring share, or of
    one path alone, from time to time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._trials = _trials()
        self._pace = _PaceMeter(_LEAD)
        self.share = next(self._trials)
        """The share of chunks that the device reads now."""

    def divide(self, chunks: int) -> Divided:
        with self._lock:
            pace = self._pace.count_batch(self._clock(), chunks)
            if pace is not None:
                share = self._trials.send(pace)
                self._pace = _PaceMeter(_LEAD if share != self.share else 0)
                self.share = share
            return divided_by(self.share, chunks)


def divided_by(share: float, chunks: int) -> Divided:
    """The division with this share of the chunks for the device."""
    pinned = round(share * chunks)
    return Divided(pinned, chunks - pinned)


class _PaceMeter:
    """Measures seconds per chunk from the times at which batches are divided."""

    def __init__(self, lead: int) -> None:
        self._lead, self._last = lead, 0.0
        self._gaps: list[tuple[float, int]] = []
        self._chunks = 0

    def count_batch(self, now: float, chunks: int) -> float | None:
        """Count a batch; returns the pace once there are enough."""
        if self._lead:
            self._lead -= 1
        elif self._chunks:
            # The time up to now is that of the batch before.
            self._gaps.append((now - self._last, self._chunks))
        if not self._lead:
            self._last, self._chunks = now, chunks
        if len(self._gaps) < _TIMED:
            return None
        longest = max(self._gaps)
        seconds = sum(gap for gap, _ in self._gaps) - longest[0]
        return seconds / (sum(count for _, count in self._gaps) - longest[1])


def _trials() -> Generator[float, float, None]:
    """Yields the shares to use, one after the other; each is answered with the measured seconds per chunk."""
    best = _FIRST
    while True:
        paces = yield from _climbed(best)
        best = yield from _held(paces)


def _climbed(start: float) -> Generator[float, float, dict[float, float]]:
    """Search from `start` in both directions, as long as each share is faster than the one before, and each path alone,
    which saves the other's fixed cost per batch.
    """
    paces = {start: (yield start)}
    for step in (-1, 1):
        last, other = start, _beside(start, step)
        while other is not None and other not in paces:
            paces[other] = yield other
            if paces[other] > paces[last]:
                break
            last, other = other, _beside(other, step)
        if last != start:
            # The pace has one minimum, and it was on this side.
            break
    for alone in (SHARES[0], SHARES[-1]):
        if alone not in paces:
            paces[alone] = yield alone
    return paces


def _held(paces: dict[float, float]) -> Generator[float, float, float]:
    """Keep the best share and try others in between; returns it when its pace has changed."""
    best = min(paces, key=lambda share: paces[share])
    number = 0
    while True:
        changed, pace = 0, paces[best]
        for _ in range(_HELD):
            last = yield best
            if pace / _CHANGED < last < pace * _CHANGED:
                changed, pace = 0, pace + _NEWEST * (last - pace)
                continue
            changed += 1
            if changed == 2:
                return best
        paces[best] = pace
        other, number = _other(paces, best, number), number + 1
        while other is not None:
            paces[other] = yield other
            if paces[other] * _BETTER < paces[best]:
                # Measure again: a single measurement may be chance.
                paces[other] = yield other
            if paces[other] * _BETTER >= paces[best]:
                break
            # Continue in the same direction, as long as that is faster.
            best, other = other, _beside(other, 1 if other > best else -1)


def _other(paces: dict[float, float], best: float, number: int) -> float | None:
    """The share that is tried next beside the best: each path alone, and its neighbours in turn."""
    turn = number % 6
    if turn in (0, 3):
        # Early: a path alone may have looked slower by chance during the search.
        alone = SHARES[-1] if turn == 0 else SHARES[0]
        # One that was far slower is too costly to try; its neighbours show when it becomes worthwhile.
        if alone != best and paces[alone] < _FAR * paces[best]:
            return alone
    step = 1 if turn % 2 else -1
    beside = _beside(best, step)
    return _beside(best, -step) if beside is None else beside


def _beside(share: float, step: int) -> float | None:
    """The next share in a direction, if there is one."""
    place = SHARES.index(share) + step
    return SHARES[place] if 0 <= place < len(SHARES) else None


PATHS = ("pinned", "gathered")
"""Names of the paths of uncached rows, by number."""
CACHE = "cache"
"""The path of rows in the device's cache."""
AGGREGATED = "aggregated"
"""The path of rows that the host sums first: their sums, and the destinations' own rows."""


class Span(NamedTuple):
    """Work on a stream between two events, and the rows that it moved."""

    path: str
    rows: int
    size: int
    before: Moment
    after: Moment


class HostPaths:
    """What tables in host memory share on one device: streams, threads of the host, the division of rows.

    Rows that the device reads by itself and copies of gathered ones use streams of their own, beside those that draw
    and compute.
    """

    def __init__(self, device: torch.device, threads: int, division: Division, make_stream: Callable[[], Any]) -> None:
        self.device, self.division = device, division
        self.threads = HostThreads(threads)
        self.reading, self.copying = make_stream(), make_stream()
        self.copy_lock = threading.Lock()
        """Held from a copy to the staging memory until its reader is launched."""
        self._staging = torch.empty(0, dtype=torch.uint8, device=device)
        self._use: dict[str, PathUse] = {}
        self._arriving: list[tuple[Span, float]] = []
        self._lock = threading.Lock()

    def staging(self, size: int) -> Tensor:
        """Device memory to which gathered rows are copied; used on the stream `copying` only."""
        if self._staging.nbytes < size:
            self._staging = torch.empty(size, dtype=torch.uint8, device=self.device)
        return self._staging[:size]

    def release(self) -> None:
        """Free the staging memory; it is allocated again when needed."""
        with self.copy_lock:
            self._staging = self._staging[:0].clone()

    def launched(self, span: Span, gathered: float = 0.0) -> None:
        """Register rows in flight: they are counted when they have arrived, with the seconds of gathering them."""
        with self._lock:
            self._arriving.append((span, gathered))

    def count_arrived(self) -> None:
        """Count what has arrived, without waiting."""
        with self._lock:
            arrived = [each for each in self._arriving if each[0].after.has_passed()]
            self._arriving = [each for each in self._arriving if each not in arrived]
            for span, gathered in arrived:
                seconds = gathered + span.before.seconds_to(span.after)
                self._use[span.path] = self._use.get(span.path, PathUse()).plus(span.rows, span.size, seconds)

    def use(self) -> dict[str, PathUse]:
        """The use of each path so far, without rows in flight."""
        self.count_arrived()
        with self._lock:
            return {name: self._use[name] for name in (CACHE, *PATHS, AGGREGATED) if name in self._use}
