"""How long each stage worked and waited."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from penstock.quantities import percent

PASSES = ("forward", "exchange", "backward", "update")
"""The stages of a step on the whole graph: they come one after the other, so that none of them holds the others up."""

Recorder = Callable[[str, int, float, float, object], None]
"""Told (stage, thread in the stage, start, end, item) of every piece of work; seconds of `time.perf_counter`."""


@dataclass(frozen=True)
class StageTime:
    """Seconds all threads of a stage were busy and waited."""

    busy: float
    wait: float
    threads: int
    depth: int

    def plus(self, other: "StageTime") -> "StageTime":
        """Both together, of one stage."""
        return StageTime(self.busy + other.busy, self.wait + other.wait, self.threads, self.depth)

    def since(self, earlier: "StageTime") -> "StageTime":
        """What was added after an earlier reading."""
        return StageTime(self.busy - earlier.busy, self.wait - earlier.wait, self.threads, self.depth)


class StageClock:
    """Adds up one stage's busy and waiting seconds over its threads."""

    def __init__(self, name: str, threads: int, depth: int, recorder: Recorder | None) -> None:
        self.name, self._threads, self._depth, self._recorder = name, threads, depth, recorder
        self._busy = self._wait = self._rested = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A time in which the stage could not work."""
        start = time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            with self._lock:
                self._wait += taken

    def worked(self, thread: int, start: float, item: object) -> None:
        """A piece of work that began at `start` is done."""
        end = time.perf_counter() - self._rested
        with self._lock:
            self._busy += end - start
            self._rested = 0.0
        if self._recorder is not None:
            self._recorder(self.name, thread, start, end, item)

    def rest(self, seconds: float) -> None:
        """Of the work under way, so many seconds were spent on something else."""
        self._rested += seconds

    def reading(self) -> StageTime:
        """The busy and waiting seconds so far."""
        with self._lock:
            return StageTime(self._busy, self._wait, self._threads, self._depth)


def times_in_turn(clocks: Mapping[str, StageClock]) -> dict[str, StageTime]:
    """Readings of stages that one thread does one after the other: while one works, the others wait."""
    found = {name: clock.reading() for name, clock in clocks.items()}
    total = sum(each.busy for each in found.values())
    return {name: replace(each, wait=total - each.busy) for name, each in found.items()}


def limit_words(times: Mapping[str, StageTime]) -> str:
    """What a status line says of the stages: `compute limits`, or of passes in turn `backward 86 % of a step`."""
    longest = limiting(times)
    if longest not in PASSES:
        return f"{longest or 'nothing'} limits"
    total = sum(each.busy for each in times.values())
    return f"{longest} {percent(times[longest].busy / total if total else 0.0)} of a step"


def limiting(times: Mapping[str, StageTime]) -> str:
    """The stage whose threads were busy longest; in shares of time, validation would count as the others' waiting."""
    return max(times, key=lambda name: times[name].busy / times[name].threads, default="")
