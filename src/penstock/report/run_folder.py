"""Reads a run folder and its logs, whether the run is finished, failed, or still being written; values of an unexpected
type count as absent.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.documents import parse_yaml
from penstock.graph.files import open_regular, read_document
from penstock.graph.schema import is_about
from penstock.pipeline.options import STAGES
from penstock.train.dataset.prepared_graph import IN_MEMORY
from penstock.train.run_files.run_folder import FORMAT, VERSION

# Readers of untrusted values: what is not of the expected type counts as absent.

_LARGEST = 1e100


def number(value: Any) -> float | None:
    """The value as a float, or None where it is no finite number or too large to be a measurement."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    if not math.isfinite(found) or abs(found) > _LARGEST:
        return None
    return found if abs(found) > 1 / _LARGEST else 0.0


def amount(value: Any) -> float:
    """The value as a float; 0 where it is no finite number."""
    return number(value) or 0.0


def whole(value: Any) -> int | None:
    """The value as an int, or None where it is no whole number."""
    found = number(value)
    return None if found is None else int(found)


def listed(value: Any) -> list[Any]:
    """The value as a list; empty where it is no list."""
    return value if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """The value as a mapping with text for keys; empty where it is no mapping."""
    return {str(key): each for key, each in value.items()} if isinstance(value, dict) else {}


def numbers(value: Any) -> dict[str, float]:
    """The finite numbers of a mapping."""
    found = {key: number(each) for key, each in mapping(value).items()}
    return {key: each for key, each in found.items() if each is not None}


# Reading `metrics.jsonl`: epochs, losses between them, and notes.

# Losses within epochs are a faint background: beyond this many, every second one is dropped.
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
    reader = _MetricsReader(log)
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


class _MetricsReader:
    """Adds records in the order of the file; epochs that a resumed run repeats replace the earlier ones."""

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
        """Seconds since the start, made continuous where a resumed run counts from zero again."""
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
    """The epoch's number counted from 1, as people and `best_epoch` count; records count from 0."""
    epoch = whole(record.get("epoch"))
    return None if epoch is None else epoch + 1


# Reading as much of `events.jsonl` as a page needs.
#
# A long run leaves hundreds of megabytes. A small file is read whole; of a large one the head, a stretch in the middle
# and the end (threads' names, and bars for a timeline: a run may record every batch, or all only at its beginning, and
# other workers' are added at the end) and a few dozen short samples between (memory over time): a few megabytes,
# whatever the length.

SMALL_FILE = 4 << 20
_HEAD = 1 << 20
_MIDDLE = 1 << 20
_TAIL = 1 << 20
_SAMPLE = 48 << 10
_SAMPLES = 48
_ALL, _OTHERS, _NONE = "all", "others", "none"
"""Which workers' bars are read from a stretch: all, all but the first worker's, or none."""


@dataclass(frozen=True)
class Bar:
    """The work of one stage on one batch, in one thread; times in microseconds."""

    stage: str
    thread: str
    start: float
    duration: float
    epoch: int | None
    batch: int | None
    worker: str = ""
    """The process that did the work, where the trace is of several."""

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
    reader = _EventsReader(trace)
    with open_regular(path) as file:
        for block, wanted in _blocks(file, path.stat().st_size):
            for event in _events(block):
                reader.take(event, wanted)
    trace.memory = _continuous(reader.counters)
    # Names of processes are written after the first process's events.
    trace.bars = [replace(bar, worker=reader.workers.get(int(bar.worker), "")) for bar in trace.bars]
    return trace


def _blocks(file: BinaryIO, size: int) -> Iterator[tuple[bytes, str]]:
    """Stretches of the file in order, and which workers' bars to read from each."""
    if size <= SMALL_FILE:
        yield file.read(SMALL_FILE), _ALL
        return
    yield file.read(_HEAD), _ALL
    middle, tail = (size - _MIDDLE) // 2, size - _TAIL
    starts = [_HEAD + each * (size - _HEAD - _SAMPLE) // (_SAMPLES - 1) for each in range(_SAMPLES)]
    between = [start for start in starts if not middle - _SAMPLE < start < middle + _MIDDLE and start < tail - _SAMPLE]
    stretches = [(start, _SAMPLE, _NONE) for start in between]
    # The events of a cluster's other workers are at the end of the file.
    for start, length, wanted in sorted([*stretches, (middle, _MIDDLE, _ALL), (tail, _TAIL, _OTHERS)]):
        file.seek(start)
        yield file.read(length), wanted


def _events(block: bytes) -> Iterator[dict[str, Any]]:
    """The complete events of a stretch; lines cut at its ends are left out."""
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


class _EventsReader:
    """Adds events in the order of the file: a resumed run may give a thread's number to another thread."""

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
    """Counters in seconds since the first, continued where a resumed run's clock starts again."""
    found: list[tuple[float, float]] = []
    offset = -counters[0][0] if counters else 0.0
    for start, rss in counters:
        seconds = (start + offset) / 1e6
        if found and seconds < found[-1][0]:
            # Threads write slightly out of order; only a larger step back is a resumed run.
            if seconds < found[-1][0] - 1.0:
                offset += (found[-1][0] - seconds) * 1e6
            seconds = found[-1][0]
        found.append((seconds, rss))
    return found


_LIBRARIES = {
    "pyg": "a PyG graph",
    "dgl": "a DGL graph",
    "networkx": "a NetworkX graph",
    "scipy": "a SciPy matrix",
}
"""Names of graphs that have none of their own, by the name that conversion gave them."""


@dataclass(frozen=True)
class StageRecord:
    """One stage over the whole run: seconds summed over its threads.

    `share` is the part of the training time, 0 to 1, in which the stage was at work, on average over its threads: the
    time is the same for all stages, so that shares compare.
    """

    name: str
    busy_s: float
    wait_s: float
    threads: int | None = None
    depth: int | None = None
    share: float = 0.0

    @property
    def each_s(self) -> float:
        """Seconds that each of its threads was at work, on average."""
        return self.busy_s / (self.threads or 1)


@dataclass
class RunRecord:
    """The contents of a run folder. Mappings are empty and values None where nothing was recorded."""

    name: str
    folder: Path
    state: str
    message: str
    started: str
    task: str
    model: str
    metric: str
    higher_is_better: bool
    parameters: int | None
    graph: dict[str, Any]
    machine: dict[str, Any]
    result: dict[str, Any]
    job: dict[str, Any]
    log: MetricsLog
    trace: EventTrace
    cluster: dict[str, Any] = field(default_factory=dict)
    """The cluster file of a run on several machines."""
    decided: dict[str, Any] = field(default_factory=dict)
    """Values of settings that the job left open, as the run decided them."""
    silent_s: float | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        """Seconds that the run took, or has taken so far."""
        return number(self.result.get("seconds")) or self.log.seconds or None

    @property
    def seeds_per_second(self) -> float | None:
        """Seeds a second over the whole run, or the mean over the epochs so far."""
        rates = [each.seeds_per_second for each in self.log.epochs if each.seeds_per_second is not None]
        return number(self.result.get("seeds_per_second")) or (sum(rates) / len(rates) if rates else None)

    @property
    def peak_rss_mb(self) -> float | None:
        """The largest memory that was recorded, in MiB."""
        seen = [rss for _, rss in self.trace.memory] + [each.rss_mb for each in self.log.epochs if each.rss_mb]
        return number(self.result.get("peak_rss_mb")) or max(seen, default=None)

    @property
    def best(self) -> Epoch | None:
        """The epoch whose validation was best: the one the run names, or the first best so far."""
        named = whole(self.result.get("best_epoch"))
        judged = [each for each in self.log.epochs if self.metric in each.val]
        for each in self.log.epochs:
            if each.epoch == named:
                return each
        sign = 1 if self.higher_is_better else -1
        return max(judged, key=lambda each: sign * each.val[self.metric], default=None)

    @property
    def stages(self) -> list[StageRecord]:
        """The stages in order, unknown ones last; summed over the epochs so far while there is no result."""
        given = mapping(self.result.get("stages"))
        found = [_stage(name, given[name]) for name in given] if given else _summed(self.log.epochs)
        order = {name: place for place, name in enumerate(STAGES)}
        found.sort(key=lambda each: order.get(each.name, len(order)))
        total = _training_seconds(found)
        return [replace(each, share=min(each.each_s / total, 1.0) if total else 0.0) for each in found]

    @property
    def training_s(self) -> float:
        """Seconds of training that the stages' shares are of: without validations, which stages wait for."""
        return _training_seconds(self.stages)

    @property
    def limiting(self) -> StageRecord | None:
        """The stage whose threads were at work longest, as `pipeline.clock.limiting` finds it."""
        return max(self.stages, key=lambda each: each.each_s, default=None)


def of_triples(run: RunRecord) -> bool:
    """Whether the run trained on a knowledge graph, whose vertices are entities and whose edges are triples."""
    return is_about(run.task, "triples")


def graph_name(run: RunRecord) -> str:
    """The graph's name; the path in its place where the name only says which library the graph came from."""
    name = str(run.graph.get("name") or "")
    if name not in _LIBRARIES:
        return name
    where = str(run.job.get("graph") or f"{name}{IN_MEMORY}")
    return _LIBRARIES[name] if where.endswith(IN_MEMORY) else Path(where).name


def read_run(folder: Path) -> RunRecord:
    """The run in `folder`, which must hold a readable `run.json`; everything else may be missing."""
    folder = Path(folder)
    document = _document(folder)
    problems: list[str] = []
    job = _beside(folder / "job.yaml", parse_yaml, "the settings", problems)
    log = read_metrics(folder / "metrics.jsonl")
    if log.unreadable:
        problems.append(f"{counted(log.unreadable, 'lines')} of metrics.jsonl could not be read.")
    state, metric = str(document.get("state") or "unknown"), mapping(document.get("metric"))
    name = metric.get("name") or next((key for each in log.epochs for key in each.val), "")
    return RunRecord(
        name=folder.resolve().name,
        folder=folder,
        state=state,
        message=str(document.get("message") or ""),
        started=str(document.get("started") or ""),
        task=str(document.get("task") or ""),
        model=str(document.get("model") or job.get("model") or ""),
        metric=str(name),
        higher_is_better=metric.get("better") != "lower",
        parameters=whole(document.get("parameters")),
        graph=mapping(document.get("graph")),
        machine=mapping(document.get("machine")),
        # A resumed run's folder still has the result of its interruption.
        result={} if state in ("running", "failed") else mapping(document.get("result")),
        job=job,
        log=log,
        trace=read_trace(folder / "events.jsonl"),
        cluster=_beside(folder / "cluster.json", json.loads, "the cluster's settings", problems),
        decided=mapping(document.get("decided")),
        silent_s=_silence(folder / "metrics.jsonl"),
        problems=problems,
    )


def _document(folder: Path) -> dict[str, Any]:
    path = folder / "run.json"
    try:
        document = json.loads(read_document(path))
    except (FileNotFoundError, NotADirectoryError):
        raise PenstockError(
            f"{folder} is not a run folder: it has no run.json. Name a folder that `penstock train` wrote.",
            code="wrong-file",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise PenstockError(
            f"{path} cannot be read ({error}): copy the run folder again.", code="damaged-file"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PenstockError(
            f"{path} is not a {FORMAT} document: name a folder that `penstock train` wrote.", code="wrong-file"
        )
    if document.get("version") != VERSION:
        raise PenstockError(
            f"{path} has format version {document.get('version')!r}; this release reads version {VERSION}:"
            " use the release that wrote it.",
            code="unsupported-version",
        )
    return document


def _beside(path: Path, parse: Callable[[str], Any], lost: str, problems: list[str]) -> dict[str, Any]:
    """A document beside `run.json`; empty where it is missing, or cannot be read, which is a problem."""
    if not path.is_file():
        return {}
    try:
        return mapping(parse(read_document(path)))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        problems.append(f"{path.name} could not be read, so {lost} are not shown.")
        return {}


def _silence(path: Path) -> float | None:
    """Seconds since the run last wrote to its folder; None where that is not known."""
    return max(time.time() - path.stat().st_mtime, 0.0) if path.is_file() else None


def _stage(name: str, given: Any) -> StageRecord:
    said = numbers(given)
    threads, depth = whole(said.get("threads")), whole(said.get("depth"))
    return StageRecord(name, max(said.get("busy_s", 0.0), 0.0), max(said.get("wait_s", 0.0), 0.0), threads, depth)


def _training_seconds(stages: list[StageRecord]) -> float:
    """Seconds that the last stage worked and waited, which is the training loop's time."""
    times = {each.name: (each.busy_s + each.wait_s) / (each.threads or 1) for each in stages}
    return times.get("compute") or max(times.values(), default=0.0)


def _summed(epochs: list[Epoch]) -> list[StageRecord]:
    sums: dict[str, list[float]] = {}
    for epoch in epochs:
        for name, said in epoch.stages.items():
            total = sums.setdefault(name, [0.0, 0.0])
            total[0] += max(said.get("busy_s", 0.0), 0.0)
            total[1] += max(said.get("wait_s", 0.0), 0.0)
    threads = {name: whole(said.get("threads")) for epoch in epochs for name, said in epoch.stages.items()}
    return [StageRecord(name, busy, wait, threads[name]) for name, (busy, wait) in sums.items()]
