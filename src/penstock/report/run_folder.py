"""Reads a run folder, whether the run is finished, failed, or still being written."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.documents import parse_yaml
from penstock.graph.files import read_document
from penstock.graph.tasks import is_about
from penstock.pipeline.stages import STAGES
from penstock.report.run_logs import (
    Epoch,
    EventTrace,
    MetricsLog,
    mapping,
    number,
    numbers,
    read_metrics,
    read_trace,
    whole,
)
from penstock.train.dataset.prepared_graph import IN_MEMORY
from penstock.train.run_files.run_folder import FORMAT, VERSION

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
