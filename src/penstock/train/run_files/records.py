"""What a training loop records: what every stage did and when, as a trace for Perfetto; metrics and checkpoints."""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TextIO

from penstock.graph.files import open_bytes, open_lines, open_text, writing
from penstock.pipeline.options import STAGES
from penstock.train.job import Job
from penstock.train.run_files.checkpoints import Checkpoints
from penstock.train.run_files.run_folder import EVENTS, RunFolder

MOST_THREADS = 1000
_LAST = (STAGES.index("compute"), STAGES.index("update"))
"""The stages that can be the last one of a step."""
_KEPT_BATCHES = 100
MOST_SPANS = 4_000
"""Upper bound on the spans that another worker keeps, so that one message holds them."""
_MOST_TRACED = 64
"""Upper bound on the workers that keep spans, so that the trace of a thousand can still be opened."""


def is_traced(rank: int, world: int) -> bool:
    """Whether a worker keeps spans: all do, or of very many every second, third and so on."""
    return rank % -(-world // _MOST_TRACED) == 0


class Events:
    """Records what stages do; of this class itself: nothing."""

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Record a stage's work on one batch: start and end in seconds."""

    def memory(self, resident_mb: float) -> None:
        """Record the resident memory at this moment."""

    def close(self) -> None:
        """Write what is buffered and end recording."""


class EventLog(Events):
    """events.jsonl: a Chrome trace that Perfetto opens, written while the run goes on.

    The first line is `[`; each further line is one event and a comma. The format allows the closing bracket to be
    missing, so the file is valid at any moment.
    """

    def __init__(self, path: Path, recorded: int, batches: int, began: float) -> None:
        """Record the first `recorded` batches of epochs of `batches`, then every hundredth; `began` is time zero."""
        self._path = path
        with writing(path):
            _drop_unfinished_line(path)
            self._file = open_text(path, "a", 1 << 16)
        self._recorded, self._batches, self._began = recorded, batches, began
        self._lock = threading.Lock()
        self._named: set[int] = set()
        if self._file.tell() == 0:
            self._file.write("[\n")

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Record a stage's work on one batch, if the batch is among those recorded."""
        epoch, batch = item.position
        if not self._is_recorded(epoch, batch):
            return
        fields = {
            "ts": self._micros(start),
            "dur": round((end - start) * 1e6),
            "args": {"epoch": epoch, "batch": batch},
        }
        with self._lock:
            lane = self._lane(stage, thread)
            self._write({"name": stage, "ph": "X", "pid": 1, "tid": lane, **fields})

    def memory(self, resident_mb: float) -> None:
        with self._lock:
            args = {"rss_mb": round(resident_mb, 1)}
            self._write({"name": "memory", "ph": "C", "pid": 1, "ts": self._micros(time.perf_counter()), "args": args})
            with writing(self._path):
                self._file.flush()

    def close(self) -> None:
        with self._lock, writing(self._path):
            self._file.close()

    def _is_recorded(self, epoch: int, batch: int) -> bool:
        number = epoch * self._batches + batch
        return number < self._recorded or (self._recorded > 0 and number % 100 == 0)

    def _micros(self, moment: float) -> int:
        return round((moment - self._began) * 1e6)

    def _lane(self, stage: str, thread: int) -> int:
        """The trace's thread number of a stage's thread: the same in a resumed run, which appends to the same trace."""
        lane = STAGES.index(stage) * MOST_THREADS + thread + 1
        if lane not in self._named:
            self._named.add(lane)
            name = {"name": f"{stage} {thread}"}
            self._write({"name": "thread_name", "ph": "M", "pid": 1, "tid": lane, "args": name})
        return lane

    def _write(self, event: dict[str, Any]) -> None:
        if not self._file.closed:
            with writing(self._path):
                self._file.write(json.dumps(event) + ",\n")


class KeptEvents(Events):
    """Keeps the first batches' spans on a worker without a run folder, until the first worker asks for them."""

    def __init__(self, recorded: int, began: float) -> None:
        """Keep at most `recorded` batches; `began` is time zero."""
        self._recorded, self._began = min(recorded, _KEPT_BATCHES), began
        self._seen: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self.spans: list[list[int]] = []
        """For each span: stage number, thread, start and length in microseconds, epoch and batch."""

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Keep a stage's work on one batch, while there is room."""
        epoch, batch = item.position
        with self._lock:
            if len(self._seen | {(epoch, batch)}) > self._recorded or len(self.spans) >= MOST_SPANS:
                return
            self._seen.add((epoch, batch))
            times = round((start - self._began) * 1e6), round((end - start) * 1e6)
            self.spans.append([STAGES.index(stage), thread, *times, epoch, batch])


def add_workers(path: Path, spans: Mapping[int, Sequence[Sequence[int]]]) -> None:
    """Add the spans of other workers, by rank, to the first worker's events.jsonl, each as a process of the trace.

    Clocks of machines differ. Workers end a step together, when they have summed their gradients, so another worker's
    times are shifted by the median difference of the ends of common steps; a worker without common steps is left out.
    """
    if not path.exists() or not any(spans.values()):
        return
    ends = _step_ends(path, {(span[4], span[5]) for some in spans.values() for span in some})
    with writing(path), open_text(path, "a", 1 << 16) as file:
        for pid, worker in ((1, 0), *((rank + 1, rank) for rank in spans)):
            named = {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": f"worker-{worker}"}}
            _append(file, named)
        for rank, some in spans.items():
            own = {(epoch, batch): start + dur for stage, _, start, dur, epoch, batch in some if stage in _LAST}
            apart = [ends[place] - own[place] for place in own.keys() & ends.keys()]
            if not apart:
                continue
            for stage, thread in sorted({(span[0], span[1]) for span in some}):
                name = {"name": f"{STAGES[stage]} {thread}"}
                _append(file, {"name": "thread_name", "ph": "M", **_lane_of(rank, stage, thread), "args": name})
            for stage, thread, start, dur, epoch, batch in some:
                when = {"ts": round(start + median(apart)), "dur": dur, "args": {"epoch": epoch, "batch": batch}}
                _append(file, {"name": STAGES[stage], "ph": "X", **_lane_of(rank, stage, thread), **when})


def _lane_of(rank: int, stage: int, thread: int) -> dict[str, int]:
    return {"pid": rank + 1, "tid": stage * MOST_THREADS + thread + 1}


def _append(file: TextIO, event: dict[str, Any]) -> None:
    file.write(json.dumps(event) + ",\n")


def _step_ends(path: Path, wanted: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The end of the first worker's last stage for each batch, in microseconds."""
    last = {STAGES[stage] for stage in _LAST}
    found: dict[tuple[int, int], int] = {}
    with open_lines(path) as lines:
        for line in lines:
            text = line.strip().rstrip(",")
            if not text.startswith("{") or '"X"' not in text:
                continue
            event = json.loads(text)
            place = event["args"]["epoch"], event["args"]["batch"]
            if event["pid"] == 1 and event["name"] in last and place in wanted:
                found[place] = event["ts"] + event["dur"]
                if len(found) == len(wanted):
                    break
    return found


def _drop_unfinished_line(path: Path) -> None:
    """Drop a last line that a killed process left incomplete: it would make the next event unreadable too."""
    if path.exists():
        with open_bytes(path, "r+b") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


# Metrics, events and checkpoints together. Among several workers, only one writes them.


class Records:
    """Where a loop's metrics, events and checkpoints go; of this class: nowhere, as another worker writes them."""

    kept = False
    """Whether anything is written at all."""

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append one record to the metrics."""

    def events(self, batches: int, began: float) -> Events:
        """A log for the work of stages, in epochs of `batches`; `began` is time zero."""
        return Events()

    def due(self, step: int) -> bool:
        """Whether a checkpoint should be written after so many steps."""
        return False

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint that names the best model's epoch."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Write the model of an epoch as the best so far."""


class FolderRecords(Records):
    """The records of a run folder."""

    kept = True

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self._folder, self._traced = folder, job.trace_batches
        self._checkpoints = Checkpoints(
            folder.checkpoints, job.checkpoint_steps, job.checkpoint_minutes, job.keep_checkpoints
        )

    def append_metrics(self, record: dict[str, Any]) -> None:
        self._folder.append_metrics(record)

    def events(self, batches: int, began: float) -> Events:
        return EventLog(self._folder.path / EVENTS, self._traced, batches, began)

    def due(self, step: int) -> bool:
        return self._checkpoints.due(step)

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        self._checkpoints.save(step, best_epoch, state)
        self._folder.send_checkpoint()

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        self._checkpoints.save_best(epoch, weights)
