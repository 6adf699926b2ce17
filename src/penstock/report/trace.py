"""Reading as much of `events.jsonl` as a page needs.

A long run leaves hundreds of megabytes. A small file is read whole; of a large one the head, a stretch in the middle
and the end (threads' names, and bars for a timeline: a run may record every batch, or all only at its beginning, and
other workers' are added at the end) and a few dozen short samples between (memory over time): a few megabytes,
whatever the length.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from penstock.graph.input_files import open_regular
from penstock.report.values import mapping, number, whole

SMALL_FILE = 4 << 20
_HEAD = 1 << 20
_MIDDLE = 1 << 20
_TAIL = 1 << 20
_SAMPLE = 48 << 10
_SAMPLES = 48
_ALL, _OTHERS, _NONE = "all", "others", "none"
"""Whose bars are wanted of a stretch: all workers', those of all but the first, or nobody's."""


@dataclass(frozen=True)
class Bar:
    """One stage at work on one batch, in one thread; times in microseconds."""

    stage: str
    thread: str
    start: float
    duration: float
    epoch: int | None
    batch: int | None
    worker: str = ""
    """The process that did it, where the trace is of several."""

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
        for block, wanted in _blocks(file, path.stat().st_size):
            for event in _events(block):
                reader.take(event, wanted)
    trace.memory = _continuous(reader.counters)
    # Names of processes stand behind the first one's events.
    trace.bars = [replace(bar, worker=reader.workers.get(int(bar.worker), "")) for bar in trace.bars]
    return trace


def _blocks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, str]]:
    """Stretches of the file in order, and whose bars are wanted."""
    if size <= SMALL_FILE:
        yield file.read(SMALL_FILE), _ALL
        return
    yield file.read(_HEAD), _ALL
    middle, tail = (size - _MIDDLE) // 2, size - _TAIL
    starts = [_HEAD + each * (size - _HEAD - _SAMPLE) // (_SAMPLES - 1) for each in range(_SAMPLES)]
    between = [start for start in starts if not middle - _SAMPLE < start < middle + _MIDDLE and start < tail - _SAMPLE]
    stretches = [(start, _SAMPLE, _NONE) for start in between]
    # What other workers of a cluster did stands at the end.
    for start, length, wanted in sorted([*stretches, (middle, _MIDDLE, _ALL), (tail, _TAIL, _OTHERS)]):
        file.seek(start)
        yield file.read(length), wanted


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
        self.names: dict[tuple[int, int], str] = {}
        self.workers: dict[int, str] = {}
        self.counters: list[tuple[float, float]] = []

    def take(self, event: dict[str, Any], wanted: str) -> None:
        kind, arguments = event.get("ph"), mapping(event.get("args"))
        start, thread, process = (number(event.get("ts")), whole(event.get("tid")), whole(event.get("pid")) or 0)
        if kind == "X" and start is not None and thread is not None:
            if wanted == _ALL or (wanted == _OTHERS and process > 1):
                self._bar(event, arguments, start, (process, thread))
        elif kind == "M" and event.get("name") == "thread_name" and thread is not None:
            self.names[process, thread] = str(arguments.get("name", ""))
        elif kind == "M" and event.get("name") == "process_name":
            self.workers[process] = str(arguments.get("name", ""))
        elif kind == "C" and event.get("name") == "memory" and start is not None:
            rss = number(arguments.get("rss_mb"))
            if rss is not None:
                self.counters.append((start, rss))

    def _bar(self, event: dict[str, Any], arguments: dict[str, Any], start: float, lane: tuple[int, int]) -> None:
        duration = number(event.get("dur"))
        if duration is not None:
            epoch, batch = whole(arguments.get("epoch")), whole(arguments.get("batch"))
            stage, thread = str(event.get("name", "")), self.names.get(lane) or f"thread {lane[1]}"
            bar = Bar(stage, thread, start, max(duration, 0.0), epoch, batch, f"{lane[0]}")
            self.trace.bars.append(bar)


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
