"""A worker's explanations: halo rows in, scores and columns out, in a thread that feeds the explainer process."""

import math
import queue
import threading
from typing import Any

import numpy as np
import torch

from penstock.cluster.worker.cut_graph import Parts
from penstock.cluster.worker.explained.explainer_client import ExplainerClient
from penstock.cluster.worker.explained.halo import chosen_rows, halo_of, mean_row
from penstock.cluster.worker.explained.schedule import ExplanationSchedule, Weights
from penstock.coflow_context import EXPLANATIONS, Coflow, batch_order, within_coflow
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import seed_for
from penstock.nn import ModelOptions
from penstock.pipeline.row_reader import Reading, RowReader
from penstock.pipeline.schedule import Schedule
from penstock.sampling.block import MiniBatch
from penstock.sampling.explained.budget import steps_between
from penstock.sampling.explanation import Explanation, largest_columns, scores_of
from penstock.sampling.key import BatchKey
from penstock.store.parts import ColumnSelection, PartedRowSource
from penstock.store.source import RowSource
from penstock.train.batch_source import layers_of
from penstock.train.session import Session

_BINS = 10
_OUTPUTS = {"node-regression": "numbers"}


class ExplainedRows:
    """Batches read remote rows with the columns that their explanation has chosen."""

    def __init__(self, reader: RowReader, parts: Parts) -> None:
        self._reader, self._lock = reader, threading.Lock()
        book = parts.partition.book
        self._home = {name: [book.range(part, name) for part in parts.graphs] for name in book.node_types}
        self.vertices = self.remote = 0
        """Vertices of batches that were drawn by explanations, and those of them that are remote."""

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        explanation = batch.explanation
        if explanation is not None:
            ids = batch.vertices[node_type]
            local = sum(int(np.count_nonzero((ids >= first) & (ids < last))) for first, last in self._home[node_type])
            with self._lock:
                self.vertices, self.remote = self.vertices + len(ids), self.remote + len(ids) - local
        if explanation is not None and isinstance(source, PartedRowSource):
            columns = explanation.columns[node_type]
            # Whole rows travel as in every other run, from replicas and the cache too.
            if len(columns) < source.shape[1]:
                source = source.selecting(ColumnSelection(explanation.version, columns))
        return self._reader.reading(batch, node_type, source)


class Explanations:
    """See `train.execution.explained.Explanations`. Also says which explanation a batch is drawn by (`at`)."""

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

    def at(self, key: BatchKey) -> Explanation | None:
        """What is in force for a batch; before training has started, nothing is."""
        if self._thread is None:
            return None
        return self._schedule.at(key.epoch * self._batches + key.batch)

    def start(self, step: int) -> None:
        """Training goes on from a step."""
        self._queue = queue.SimpleQueue()
        self._client.open()
        self._thread = threading.Thread(target=self._work, args=(self._queue,), name="explanations", daemon=True)
        self._thread.start()
        self._schedule.start(step)

    def step_done(self, step: int) -> None:
        """So many steps are done."""
        self._schedule.step_done(step, self._session.model.state_dict)

    def stop(self) -> None:
        """Let go of batches that wait, and end thread and process."""
        self._schedule.stop()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._client.close()
            self._queue.put(None)
            thread.join()

    def state(self) -> Any:
        """What a checkpoint keeps."""
        return self._schedule.state()

    def restore(self, state: Any) -> None:
        """Take what a checkpoint has kept."""
        self._schedule.restore(state)

    @property
    def pulled(self) -> int:
        """Bytes of remote rows that explanations have read, which no batch has."""
        return sum(each.bytes for each in self._store.traffic().values())

    def facts(self) -> dict[str, Any]:
        """Of this worker's explanations: what they took, how late they were, and the newest one."""
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
        """The turn of the first batch that an explanation is in force for: nothing that it reads is needed before."""
        delay = self._session.job.explain_delay
        return batch_order(*divmod(version * self._every + delay, self._batches))

    def _explained(self, version: int, weights: Weights) -> Explanation:
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
        return Explanation(
            version,
            {name: scores_of(vertices, answer.arrays[f"rows {name}"]) for name, vertices in rows.items()},
            {name: largest_columns(answer.arrays[f"columns {name}"], share) for name in rows},
        )

    def _scaled(self, name: str, vertices: Array) -> tuple[Array, Array]:
        """The mean of the local rows and some remote rows, as the model reads rows."""
        field = f"{name}/{self._session.inputs.fields[name]}"
        if name not in self._means:
            self._means[name] = mean_row(self._parts, field)
        remote = self._remote(name, field, vertices)
        both = torch.from_numpy(np.concatenate([self._means[name][None], remote.astype(np.float32)]))
        scale = self._session.inputs.scale
        scaled = (both if scale is None else scale(both)).numpy()
        return scaled[0], scaled[1:]

    def _remote(self, name: str, field: str, vertices: Array) -> Array:
        """Rows of other machines; where every explanation reads the whole halo, they travel once."""
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
    """What the explainer builds its copy of the model from, in plain values."""
    job, task = session.job, session.task
    model = {name: job.model_dump(mode="json")[name] for name in ModelOptions.model_fields}
    output = "labels" if getattr(task, "multi_label", False) else _OUTPUTS.get(task.name, "classes")
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
