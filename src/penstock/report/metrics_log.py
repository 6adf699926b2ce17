"""Reading `metrics.jsonl`: epochs, losses between them, and notes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.graph.input_files import open_regular
from penstock.report.values import mapping, number, numbers, whole

# Losses within epochs are a faint background: past this many, every second one is let go.
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Epoch:
    """One epoch, counted from 1; None where nothing was recorded, or no finite number. Times in seconds."""

    epoch: int
    step: int | None
    time: float | None
    loss: float | None
    seconds: float | None
    seeds_per_second: float | None
    rss_mb: float | None
    val: dict[str, float]
    test: dict[str, float]
    stages: dict[str, dict[str, float]]
    diverged: bool
    val_loss: float | None = None
    lr: float | None = None


@dataclass
class MetricsLog:
    """A run's metrics in order; `steps` are (step, loss) and `notes` (seconds since the start, text)."""

    epochs: list[Epoch] = field(default_factory=list)
    steps: list[tuple[int, float | None]] = field(default_factory=list)
    notes: list[tuple[float | None, str]] = field(default_factory=list)
    seconds: float = 0.0
    unreadable: int = 0


def read_metrics(path: Path) -> MetricsLog:
    """The log at `path`; empty when there is none. A half-written last line is left out, others are counted."""
    log = MetricsLog()
    if not path.is_file():
        return log
    reader = _Reader(log)
    for record in _records(path, log):
        reader.take(record)
    log.epochs = sorted(reader.epochs.values(), key=lambda each: each.epoch)
    return log


def _records(path: Path, log: MetricsLog) -> Iterator[dict[str, Any]]:
    with open_regular(path) as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                # Without a line end it is the line being written right now.
                log.unreadable += line.endswith(b"\n")
                continue
            if isinstance(record, dict):
                yield record
            else:
                log.unreadable += 1


class _Reader:
    """Takes records in the order they were written; what a resumed run does again replaces what it had done."""

    def __init__(self, log: MetricsLog) -> None:
        self.log = log
        self.epochs: dict[int, Epoch] = {}
        self.stride = 1
        self.seen = 0
        self.offset = 0.0

    def take(self, record: dict[str, Any]) -> None:
        kind = record.get("kind")
        time = self._time(record, kind == "resumed")
        if kind == "epoch":
            epoch = _epoch(record, time)
            if epoch is not None:
                self.epochs[epoch.epoch] = epoch
                if "shuffled_from" in record:
                    begun = f"seeds are shuffled from epoch {epoch.epoch + 1} on"
                    self.log.notes.append((time, f"The validation curve has passed its elbow: {begun}."))
        elif kind == "step":
            self._step(record)
        elif kind == "note":
            self.log.notes.append((time, str(record.get("text", ""))))
        elif kind == "resumed":
            self._resume(record, time)

    def _time(self, record: dict[str, Any], resumed: bool) -> float | None:
        """Seconds since the start, which go on even when a resumed run counts from zero again."""
        time = number(record.get("time"))
        if time is None:
            return None
        if resumed and time + self.offset < self.log.seconds:
            self.offset = self.log.seconds - time
        self.log.seconds = max(self.log.seconds, time + self.offset)
        return time + self.offset

    def _step(self, record: dict[str, Any]) -> None:
        step = whole(record.get("step"))
        self.seen += 1
        if step is None or self.seen % self.stride:
            return
        self.log.steps.append((step, number(record.get("loss"))))
        if len(self.log.steps) > MOST_STEPS:
            del self.log.steps[::2]
            self.stride *= 2

    def _resume(self, record: dict[str, Any], time: float | None) -> None:
        step, epoch = whole(record.get("step")), _epoch_number(record)
        if step is not None:
            self.log.steps[:] = [each for each in self.log.steps if each[0] <= step]
            self.epochs = {key: each for key, each in self.epochs.items() if each.step is None or each.step <= step}
        where = ", ".join(f"{name} {at:,}" for name, at in (("epoch", epoch), ("step", step)) if at is not None)
        self.log.notes.append((time, f"Resumed at {where}." if where else "Resumed."))


def _epoch(record: dict[str, Any], time: float | None) -> Epoch | None:
    epoch = _epoch_number(record)
    if epoch is None:
        return None
    loss = number(record.get("loss"))
    return Epoch(
        epoch=epoch,
        step=whole(record.get("step")),
        time=time,
        loss=loss,
        seconds=number(record.get("seconds")),
        seeds_per_second=number(record.get("seeds_per_second")),
        rss_mb=number(record.get("rss_mb")),
        val=numbers(record.get("val")),
        test=numbers(record.get("test")),
        stages={name: numbers(each) for name, each in mapping(record.get("stages")).items()},
        diverged="loss" in record and loss is None,
        val_loss=number(record.get("val_loss")),
        lr=number(record.get("lr")),
    )


def _epoch_number(record: dict[str, Any]) -> int | None:
    """Records count epochs from 0, people and `best_epoch` from 1."""
    epoch = whole(record.get("epoch"))
    return None if epoch is None else epoch + 1
