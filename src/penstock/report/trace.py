"""Reading as much of `events.jsonl` as a page needs.

A long run leaves hundreds of megabytes. A small file is read whole; of a large one the head and a stretch in the middle
(threads' names, and bars for a timeline: a run may record every batch, or all only at its beginning) and a few dozen
short samples between (memory over time): a few megabytes, whatever the length.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from penstock.graph.input_files import open_regular
from penstock.report.values import mapping, number, whole

SMALL_FILE = 4 << 20
_HEAD = 1 << 20
_MIDDLE = 1 << 20
_SAMPLE = 48 << 10
_SAMPLES = 48


@dataclass(frozen=True)
class Bar:
    """One stage at work on one batch, in one thread; times in microseconds."""

    stage: str
    thread: str
    start: float
    duration: float
    epoch: int | None
    batch: int | None

    @property
    def end(self) -> float:
        """The time at which the work ended."""
        return self.start + self.duration


@dataclass
class EventTrace:
    """What was read: bars of some stretches of the run, and memory as (seconds, MiB)."""

    bars: list[Bar] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)


def read_trace(path: Path) -> EventTrace:
    """The trace at `path`; empty when there is none."""
    trace = EventTrace()
    if not path.is_file():
        return trace
    reader = _Reader(trace)
    with open_regular(path) as file:
        for block, wants_bars in _blocks(file, path.stat().st_size):
            for event in _events(block):
                reader.take(event, wants_bars)
    trace.memory = _continuous(reader.counters)
    return trace


def _blocks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, bool]]:
    """Stretches of the file in order, and whether their bars are wanted."""
    if size <= SMALL_FILE:
        yield file.read(SMALL_FILE), True
        return
    yield file.read(_HEAD), True
    middle = (size - _MIDDLE) // 2
    starts = [_HEAD + each * (size - _HEAD - _SAMPLE) // (_SAMPLES - 1) for each in range(_SAMPLES)]
    stretches = [(start, _SAMPLE, False) for start in starts if not middle - _SAMPLE < start < middle + _MIDDLE]
    for start, length, wants_bars in sorted([*stretches, (middle, _MIDDLE, True)]):
        file.seek(start)
        yield file.read(length), wants_bars


def _events(block: bytes) -> Iterator[dict[str, Any]]:
    """The whole events of a stretch; lines cut at its ends are left out."""
    for line in block.splitlines():
        text = line.strip().rstrip(b",")
        if not text.startswith(b"{"):
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


class _Reader:
    """Takes events in the order of the file: a resumed run may give a number to another thread."""

    def __init__(self, trace: EventTrace) -> None:
        self.trace = trace
        self.names: dict[int, str] = {}
        self.counters: list[tuple[float, float]] = []

    def take(self, event: dict[str, Any], wants_bars: bool) -> None:
        kind, arguments = event.get("ph"), mapping(event.get("args"))
        start, thread = number(event.get("ts")), whole(event.get("tid"))
        if kind == "X" and wants_bars and start is not None and thread is not None:
            self._bar(event, arguments, start, self.names.get(thread) or f"thread {thread}")
        elif kind == "M" and event.get("name") == "thread_name" and thread is not None:
            self.names[thread] = str(arguments.get("name", ""))
        elif kind == "C" and event.get("name") == "memory" and start is not None:
            rss = number(arguments.get("rss_mb"))
            if rss is not None:
                self.counters.append((start, rss))

    def _bar(self, event: dict[str, Any], arguments: dict[str, Any], start: float, thread: str) -> None:
        duration = number(event.get("dur"))
        if duration is not None:
            epoch, batch = whole(arguments.get("epoch")), whole(arguments.get("batch"))
            self.trace.bars.append(Bar(str(event.get("name", "")), thread, start, max(duration, 0.0), epoch, batch))


def _continuous(counters: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Counters in seconds since the first, going on where a resumed run's clock began anew."""
    found: list[tuple[float, float]] = []
    offset = -counters[0][0] if counters else 0.0
    for start, rss in counters:
        seconds = (start + offset) / 1e6
        if found and seconds < found[-1][0]:
            # A little disorder between threads is no new beginning.
            if seconds < found[-1][0] - 1.0:
                offset += (found[-1][0] - seconds) * 1e6
            seconds = found[-1][0]
        found.append((seconds, rss))
    return found
