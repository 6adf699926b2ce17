"""A worker's explanations: halo rows in, scores and columns out, in a thread that feeds the explainer process."""

import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.explained.explainer_client import ExplainerClient
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, seed_for, unit_draws
from penstock.nn import ModelOptions
from penstock.pipeline.batch_rows import RowReader, RowReading
from penstock.pipeline.schedule import Schedule
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.explanation import SamplingExplanation, largest_columns, scores_of, steps_between
from penstock.store.parts import ColumnSelection, PartedRowSource
from penstock.store.source import RowSource
from penstock.train.batch_source import layers_of
from penstock.train.session import Session
from penstock.wire.coflows import EXPLANATIONS, Coflow, batch_order, within_coflow

# The remote vertices that a worker's own vertices read, and the mean rows of its own.

_BLOCK = 1 << 16
"""Rows whose sum is made at a time."""


def halo_of(parts: Parts) -> dict[str, Array]:
    """By node type, the vertices of other machines' parts that occur in lists of this machine's parts; ascending."""
    found: dict[str, list[Array]] = {name: [] for name in parts.partition.book.node_types}
    for graph in parts.graphs.values():
        for (source, _, _), edges in graph.edges.items():
            found[source].append(np.unique(edges.indices))
    halo = {}
    for name, pieces in found.items():
        vertices = np.unique(np.concatenate([*pieces, np.empty(0, np.int32)]))
        for part in parts.graphs:
            first, last = parts.partition.book.range(part, name)
            vertices = vertices[(vertices < first) | (vertices >= last)]
        halo[name] = vertices
    return halo


def chosen_rows(halo: dict[str, Array], most: int, seed: int, version: int) -> dict[str, Array]:
    """At most `most` vertices of a halo, chosen by a hash of seed and version."""
    total = sum(map(len, halo.values()))
    if total <= most:
        return halo
    lots = unit_draws(key_of(seed, "explained rows {}", version), total)
    taken = np.zeros(total, np.bool_)
    taken[np.argsort(lots, kind="stable")[:most]] = True
    ends = np.cumsum([len(each) for each in halo.values()])[:-1]
    return {name: each[kept] for (name, each), kept in zip(halo.items(), np.split(taken, ends), strict=True)}


def mean_row(parts: Parts, field: str) -> Array:
    """The mean of a field's rows in this machine's parts, as float32; zeros where there are none."""
    total, count = np.float64(0), 0
    for graph in parts.graphs.values():
        node_type, _, name = field.partition("/")
        rows = graph.nodes[node_type].fields[name]
        for first in range(0, len(rows), _BLOCK):
            total = total + np.asarray(rows[first : first + _BLOCK], np.float64).sum(0)
        count += len(rows)
    width = next(iter(parts.graphs.values())).nodes[field.partition("/")[0]].fields[field.partition("/")[2]].shape[1]
    return (np.zeros(width) + total / max(1, count)).astype(np.float32)


# Which explanation applies to which batch, and the weights that explanations are made from. Version j is made from the
# weights after step j * `every` and applies from the batch of step j * `every` + `delay` on, on every worker alike. It
# is a function of those weights, so a checkpoint keeps weights: those of every version that a later batch may need. A
# worker that resumes from a checkpoint, or from another worker's state, explains them again and gets the same masks.

Weights = dict[str, torch.Tensor]


class ExplanationSchedule:
    """Batches request their explanation and wait for it; the training thread supplies weights."""

    def __init__(self, every: int, delay: int, explain: Callable[[int, Weights], None]) -> None:
        """`explain(version, weights)` is called when an explanation is wanted; its result is passed to `give` or
        `fail`.
        """
        self._every, self._delay, self._explain = every, delay, explain
        self._change = threading.Condition()
        self._weights: dict[int, Weights] = {}
        self._found: dict[int, SamplingExplanation] = {}
        self._newest: SamplingExplanation | None = None
        self._failure: PenstockError | None = None
        self._open = False
        self.waited_s = 0.0
        """Seconds that batches have waited for an explanation that was late."""

    def version_at(self, step: int) -> int:
        """The version that applies to the batch of a step, counted from 0; 0: none yet."""
        return max(0, (step - self._delay) // self._every)

    def start(self, step: int) -> None:
        """Start training with the batch of a step: explain what it needs and what is not explained yet."""
        with self._change:
            self._open, self._failure = True, None
            self._forget_before(self.version_at(step))
            wanted = {version: each for version, each in self._weights.items() if version not in self._found}
        for version, weights in sorted(wanted.items()):
            self._explain(version, weights)

    def stop(self) -> None:
        """Pause or end training: batches that wait for an explanation get an error."""
        with self._change:
            self._open = False
            self._change.notify_all()

    def step_done(self, step: int, weights: Callable[[], Weights]) -> None:
        """Record that so many steps are done; if a version is due it is made from `weights()`, which are copied."""
        if step % self._every:
            return
        version, taken = step // self._every, {name: each.detach().clone().cpu() for name, each in weights().items()}
        with self._change:
            self._weights[version] = taken
            self._forget_before(self.version_at(step))
        self._explain(version, taken)

    def give(self, explanation: SamplingExplanation) -> None:
        """Store an explanation and wake the batches that wait for it."""
        with self._change:
            self._found[explanation.version] = self._newest = explanation
            self._change.notify_all()

    def fail(self, error: PenstockError) -> None:
        """Report that no explanation will come: waiting batches get this error."""
        with self._change:
            self._failure = error
            self._change.notify_all()

    def at(self, step: int) -> SamplingExplanation | None:
        """The explanation that applies to the batch of a step; None: none yet. Waits while training is in progress."""
        version = self.version_at(step)
        if not version:
            return None
        began = time.perf_counter()
        with self._change:
            late = version not in self._found
            while version not in self._found:
                if self._failure is not None:
                    raise self._failure
                if not self._open:
                    raise PenstockError("Training has stopped while a batch waited for its explanation.", code="closed")
                self._change.wait()
            if late:
                self.waited_s += time.perf_counter() - began
            return self._found[version]

    def newest(self) -> SamplingExplanation | None:
        """The newest explanation that was made."""
        with self._change:
            return self._newest

    def state(self) -> dict[str, Weights]:
        """The weights of all versions that may still be needed."""
        with self._change:
            return {str(version): dict(weights) for version, weights in self._weights.items()}

    def restore(self, state: Any) -> None:
        """Load weights from a checkpoint or another worker; explanations of other weights are dropped."""
        if not isinstance(state, Mapping) or not all(
            str(version).isdecimal()
            and isinstance(weights, Mapping)
            and all(isinstance(each, torch.Tensor) for each in weights.values())
            for version, weights in state.items()
        ):
            raise PenstockError("The checkpoint does not hold the weights of its explanations.", code="damaged-file")
        restored = {int(version): dict(weights) for version, weights in state.items()}
        with self._change:
            same = {each for each in restored if each in self._weights and _equal(restored[each], self._weights[each])}
            self._found = {version: each for version, each in self._found.items() if version in same}
            self._weights = restored

    def _forget_before(self, version: int) -> None:
        self._weights = {each: kept for each, kept in self._weights.items() if each >= version}
        self._found = {each: kept for each, kept in self._found.items() if each >= version}


def _equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


_BINS = 10


class ExplainedRows:
    """A `RowReader` whose batches read only those columns of remote rows that their explanation has chosen."""

    def __init__(self, reader: RowReader, parts: Parts) -> None:
        self._reader, self._lock = reader, threading.Lock()
        book = parts.partition.book
        self._home = {name: [book.range(part, name) for part in parts.graphs] for name in book.node_types}
        self.vertices = self.remote = 0
        """Vertices of batches that were drawn by explanations, and those of them that are remote."""

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        explanation = batch.explanation
        if explanation is not None:
            ids = batch.vertices[node_type]
            local = sum(int(np.count_nonzero((ids >= first) & (ids < last))) for first, last in self._home[node_type])
            with self._lock:
                self.vertices, self.remote = self.vertices + len(ids), self.remote + len(ids) - local
        if explanation is not None and isinstance(source, PartedRowSource):
            columns = explanation.columns[node_type]
            # Whole rows are read as in every other run, also from replicas and the cache.
            if len(columns) < source.shape[1]:
                source = source.selecting(ColumnSelection(explanation.version, columns))
        return self._reader.reading(batch, node_type, source)


class WorkerExplanations:
    """Implements `train.execution.loaded.Explanations`, and says which explanation a batch is drawn by (`at`)."""

    def __init__(self, parts: Parts, session: Session) -> None:
        job, failure = session.job, parts.member.setup.cluster.failure
        self._parts, self._session, self._seed = parts, session, job.draw_seed
        self._batches = Schedule(session.task.items, session.task.batch_size, job.draw_seed).batches
        self._every = job.explain_every or _steps_between(parts, session)
        self._schedule = ExplanationSchedule(self._every, job.explain_delay, self._enqueue)
        self._store = parts.new_store()
        self._client = ExplainerClient(described_model(session), failure.patience, failure.start_patience)
        self._queue: queue.SimpleQueue[tuple[int, Weights] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._halo: dict[str, Array] | None = None
        self._means: dict[str, Array] = {}
        self._kept: dict[str, Array] = {}
        self._spent = {"made": 0, "seconds": 0.0, "processor_seconds": 0.0}
        self._reader = ExplainedRows(session.inputs.reader, parts)
        session.inputs.read_by(self._reader)
        parts.explanation_at = self.at

    def at(self, key: BatchKey) -> SamplingExplanation | None:
        """The explanation that applies to a batch; before training has started, None."""
        if self._thread is None:
            return None
        return self._schedule.at(key.epoch * self._batches + key.batch)

    def start(self, step: int) -> None:
        self._queue = queue.SimpleQueue()
        self._client.open()
        self._thread = threading.Thread(target=self._work, args=(self._queue,), name="explanations", daemon=True)
        self._thread.start()
        self._schedule.start(step)

    def step_done(self, step: int) -> None:
        """Record that so many steps are done."""
        self._schedule.step_done(step, self._session.model.state_dict)

    def stop(self) -> None:
        """Release waiting batches with an error, and end thread and process."""
        self._schedule.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._client.close()
            self._queue.put(None)
            thread.join()

    def state(self) -> Any:
        """The weights that a checkpoint keeps."""
        return self._schedule.state()

    def restore(self, state: Any) -> None:
        self._schedule.restore(state)

    @property
    def pulled(self) -> int:
        """Bytes of remote rows that explanations have read, beyond those of batches."""
        return sum(each.bytes for each in self._store.traffic().values())

    def facts(self) -> dict[str, Any]:
        """This worker's explanations as reported in the result: their cost, how late they were, and the newest one."""
        sent = self._parts.store.selected_traffic
        newest, seconds = self._schedule.newest(), self._spent["seconds"]
        scores = [] if newest is None else [each.values() for each in newest.scores.values()]
        counts, _ = np.histogram(np.concatenate([*scores, np.empty(0)]), _BINS, (0.0, 1.0))
        columns = {} if newest is None else {name: len(each) for name, each in newest.columns.items()}
        return {
            "every": self._every,
            "made": self._spent["made"],
            "seconds": round(seconds, 3),
            "processor_seconds": round(self._spent["processor_seconds"], 3),
            "cores": round(self._spent["processor_seconds"] / seconds, 3) if seconds else 0.0,
            "waited_s": round(self._schedule.waited_s, 3),
            "bytes_pulled": self.pulled,
            "score_bytes_sent": self._parts.score_bytes,
            "explainers_lost": self._client.lost,
            "halo_rows": sum(map(len, (self._halo or {}).values())),
            "explained_rows": sum(map(len, scores)),
            "scores_histogram": counts.tolist(),
            "vertices": {"all": self._reader.vertices, "remote": self._reader.remote},
            "rows": {"pulled": sent.rows, "bytes": sent.bytes, "bytes_as_stored": sent.minimum},
            "columns_sent": columns,
            "columns_in_all": {name: self._session.inputs.widths[name] for name in columns},
        }

    def _enqueue(self, version: int, weights: Weights) -> None:
        self._queue.put((version, weights))

    def _work(self, wanted: "queue.SimpleQueue[tuple[int, Weights] | None]") -> None:
        self._client.prepare()
        while (asked := wanted.get()) is not None:
            try:
                with within_coflow(Coflow(EXPLANATIONS, "", self._needed_at(asked[0]))):
                    self._schedule.give(self._explained(*asked))
            except PenstockError as error:
                self._schedule.fail(error)

    def _needed_at(self, version: int) -> int:
        """The turn of the first batch that an explanation applies to: nothing that it reads is needed before."""
        delay = self._session.job.explain_delay
        return batch_order(*divmod(version * self._every + delay, self._batches))

    def _explained(self, version: int, weights: Weights) -> SamplingExplanation:
        if self._halo is None:
            self._halo = halo_of(self._parts)
        rows = chosen_rows(self._halo, self._session.job.explain_rows, self._seed, version)
        arrays = {f"w {name}": each.numpy() for name, each in weights.items()}
        for name, vertices in rows.items():
            arrays[f"mean {name}"], arrays[f"remote {name}"] = self._scaled(name, vertices)
        answer = self._client.ask({"seed": seed_for(self._seed, "explanation {}", version)}, arrays)
        self._spent["made"] += 1
        for what in ("seconds", "processor_seconds"):
            self._spent[what] += float(answer.document[what])
        share = self._session.job.feature_share
        return SamplingExplanation(
            version,
            {name: scores_of(vertices, answer.arrays[f"rows {name}"]) for name, vertices in rows.items()},
            {name: largest_columns(answer.arrays[f"columns {name}"], share) for name in rows},
        )

    def _scaled(self, name: str, vertices: Array) -> tuple[Array, Array]:
        """The mean of the local rows and some remote rows, scaled as the model reads rows."""
        field = f"{name}/{self._session.inputs.fields[name]}"
        if name not in self._means:
            self._means[name] = mean_row(self._parts, field)
        remote = self._remote(name, field, vertices)
        both = torch.from_numpy(np.concatenate([self._means[name][None], remote.astype(np.float32)]))
        scale = self._session.inputs.scale
        scaled = (both if scale is None else scale(both)).numpy()
        return scaled[0], scaled[1:]

    def _remote(self, name: str, field: str, vertices: Array) -> Array:
        """Rows of other machines; if every explanation reads the whole halo, they are fetched once."""
        assert self._halo is not None
        if len(vertices) < len(self._halo[name]):
            found: Array = self._store.source(field).read(vertices)
            return found
        if name not in self._kept:
            self._kept[name] = self._store.source(field).read(vertices)
        return self._kept[name]


def _steps_between(parts: Parts, session: Session) -> int:
    """Steps between two explanations where the job leaves them open; the same on all workers."""
    job, partition = session.job, parts.partition
    vertices = sum(partition.book.count(name) for name in partition.book.node_types)
    ranges = partition.document.edge_ranges
    edges = math.inf if ranges is None else sum(each[-1] for each in ranges.values())
    seeds = session.task.batch_size / len(parts.member.setup.layout.shares)
    graph = job.fanouts, len(session.graph.edges), edges / max(1, vertices), vertices
    return steps_between(seeds, *graph, job.explain_rows, job.explain_steps)


def described_model(session: Session) -> dict[str, Any]:
    """The description, in plain values, from which the explainer builds its copy of the model."""
    job, task = session.job, session.task
    model = {name: job.model_dump(mode="json")[name] for name in ModelOptions.model_fields}
    output = "labels" if getattr(task, "multi_label", False) else task.facts.learns
    return {
        "model": {**model, "layers": layers_of(job)},
        "widths": {name: int(width) for name, width in session.inputs.widths.items()},
        "outputs": int(task.out),
        "edge_types": [list(kind) for kind in session.graph.edges],
        "target": getattr(task, "node_type", next(iter(session.graph.nodes))),
        "layers": layers_of(job),
        "output": output,
        "steps": job.explain_steps,
        "loss": job.explain_loss,
    }
