"""The paths from host memory to a device: who moves rows along them, how they are divided, and what came along each."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.paths.chunk_selector import PathUse
from penstock.store.device.moments import Moment

# Threads of the host that work for a device together: on several tables' and batches' rows one after the other.


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


# How many chunks of a batch's rows the device reads by itself, and how many the host gathers and copies.
#
# Both paths deliver the same bits, so a division changes when rows arrive and nothing else.

PINNED, GATHERED = 0, 1
"""The two paths of rows that are in no cache."""
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Of a batch's chunks, those that the device reads: what may be tried, ascending."""
_FIRST = 0.5
_LEAD = 6
"""Batches after a change of the share that are not timed: those that were divided before it are still under way."""
_TIMED = 17
"""Batches whose pace is measured; the longest pause between two of them is left out, since it may be a validation's."""
_HELD = 12
"""Measurements of the fastest share between two trials of another one."""
_BETTER = 1.03
"""How much faster another share must be, twice, to be taken."""
_CHANGED = 1.25
"""A pace that changes so much, twice, means that others use cores or the bus: the fastest share is looked for again."""
_FAR = 1.5
"""A path alone that was so much slower than the best share is not tried again until the pace has changed."""
_NEWEST = 0.25
"""Weight of the last measurement in the pace of the share that is held."""


class Divided(NamedTuple):
    """Chunks of each path."""

    pinned: int
    gathered: int


class Division(Protocol):
    """Divides a batch's chunks between the two paths. Threads may ask at once."""

    def divide(self, chunks: int) -> Divided:
        """For a batch whose rows are wanted now."""


class FixedDivision:
    """The `Division` under which the device reads the same share of every batch."""

    def __init__(self, pinned_share: float) -> None:
        self._share = pinned_share

    def divide(self, chunks: int) -> Divided:
        return divided_by(self._share, chunks)


class FastestDivision:
    """The share under which batches follow each other fastest, found by trying, and tried again all the time.

    What a path takes for its chunks of one batch does not tell how a batch should be divided: gathering of one batch
    goes on while another's rows are copied, and has a cost for each batch that does not shrink with its chunks. How
    fast batches are asked for does tell, since only so many are under way at once. Shares beside the first one are
    tried as long as they are faster, and each path alone; then the fastest is held, with a short trial of a
    neighbouring share, or of one path alone, from time to time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._trials = _trials()
        self._pace = _PaceMeter(_LEAD)
        self.share = next(self._trials)
        """Of the chunks, those that the device reads now."""

    def divide(self, chunks: int) -> Divided:
        with self._lock:
            pace = self._pace.count_batch(self._clock(), chunks)
            if pace is not None:
                share = self._trials.send(pace)
                self._pace = _PaceMeter(_LEAD if share != self.share else 0)
                self.share = share
            return divided_by(self.share, chunks)


def divided_by(share: float, chunks: int) -> Divided:
    """So large a share of the chunks is read by the device."""
    pinned = round(share * chunks)
    return Divided(pinned, chunks - pinned)


class _PaceMeter:
    """Seconds of a chunk, by the moments at which batches are divided."""

    def __init__(self, lead: int) -> None:
        self._lead, self._last = lead, 0.0
        self._gaps: list[tuple[float, int]] = []
        self._chunks = 0

    def count_batch(self, now: float, chunks: int) -> float | None:
        """A batch is divided; returns the pace once enough were."""
        if self._lead:
            self._lead -= 1
        elif self._chunks:
            # The time up to now is what the batch before took.
            self._gaps.append((now - self._last, self._chunks))
        if not self._lead:
            self._last, self._chunks = now, chunks
        if len(self._gaps) < _TIMED:
            return None
        longest = max(self._gaps)
        seconds = sum(gap for gap, _ in self._gaps) - longest[0]
        return seconds / (sum(count for _, count in self._gaps) - longest[1])


def _trials() -> Generator[float, float, None]:
    """Shares to divide by, one after the other; each is answered with the seconds of a chunk under it."""
    best = _FIRST
    while True:
        paces = yield from _climbed(best)
        best = yield from _held(paces)


def _climbed(start: float) -> Generator[float, float, dict[float, float]]:
    """Shares from `start` on in both directions, as long as each is faster than the one before, and each path alone:
    what a path costs for every batch, however small its share, is saved there."""
    paces = {start: (yield start)}
    for step in (-1, 1):
        last, other = start, _beside(start, step)
        while other is not None and other not in paces:
            paces[other] = yield other
            if paces[other] > paces[last]:
                break
            last, other = other, _beside(other, step)
        if last != start:
            # The pace has one valley: it was on this side.
            break
    for alone in (SHARES[0], SHARES[-1]):
        if alone not in paces:
            paces[alone] = yield alone
    return paces


def _held(paces: dict[float, float]) -> Generator[float, float, float]:
    """Hold the best share, and try others between; ends with it when its pace has changed."""
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
                # Once more: a single measurement may be luck.
                paces[other] = yield other
            if paces[other] * _BETTER >= paces[best]:
                break
            # On in the same direction, as long as that is faster.
            best, other = other, _beside(other, 1 if other > best else -1)


def _other(paces: dict[float, float], best: float, number: int) -> float | None:
    """The share that is tried next beside the best: each path alone, and its neighbours in turn."""
    turn = number % 6
    if turn in (0, 3):
        # Soon: that a path alone looked slower while shares were looked for may have been bad luck.
        alone = SHARES[-1] if turn == 0 else SHARES[0]
        # One that was far slower costs too much to be tried for nothing; its neighbours tell when it is worth it.
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
