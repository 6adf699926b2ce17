"""The input rows of a model where features and embeddings are at their owners."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from penstock.cluster.worker.cut_graph import CutGraph, Parts
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.prepare import divide_by_sum
from penstock.graph.schema import edge_key
from penstock.pipeline.batch_rows import PLAIN_ROWS
from penstock.pipeline.stages import Batch
from penstock.store.embedding import row_optimiser
from penstock.store.parts import RemoteEmbedding
from penstock.train.dataset.inputs import CPU, Inputs, edge_rows, types_with, why_no_table
from penstock.train.job import Job
from penstock.wire.coflows import EMBEDDINGS, within_kind
from penstock.wire.message import Message


class AgreedTable:
    """Learnable rows at their owners, as they are before the next step of the run."""

    def __init__(self, remote: RemoteEmbedding, count: int, inputs: "PartedInputs") -> None:
        self.remote, self._count, self._inputs = remote, count, inputs

    @property
    def size(self) -> int:
        """The number of learnable values."""
        return self._count * self.remote.width

    def pull(self, ids: Array, out: Array | None = None) -> Array:
        """Some rows, by new number."""
        return self.remote.pull(ids, self._inputs.step, out)

    def state(self) -> dict[str, Array | int]:
        """Everything a checkpoint must hold."""
        state = self.remote.state(self._inputs.step)
        if not np.isfinite(state["rows"]).all():
            raise PenstockError(
                f"Embeddings of {self.remote.name!r} became NaN or infinite at step {self._inputs.step}: lower"
                " embedding_lr, and resume from the last checkpoint.",
                code="diverged",
            )
        return state

    def restore(self, state: dict[str, Array | int]) -> None:
        """Have the owners load a stored state."""
        self.remote.restore(state, self._inputs.step)


class PartedInputs(Inputs):
    """Features by new number, fetched from their holders; gradients of embeddings are sent to their owners."""

    def __init__(self, graph: CutGraph, parts: Parts, job: Job, device: torch.device = CPU) -> None:
        if job.schedule_of == "all":
            raise PenstockError(
                "Owners of embeddings keep one rate: leave out schedule_of on a cluster.",
                code="unsupported-combination",
            )
        if job.reads_disk:
            raise PenstockError(
                "placement `features: disk` is for a run of one process: on a cluster leave out `features`.",
                code="unsupported-combination",
            )
        setup = parts.member.setup
        self.step, self.disk_note = 0, None
        """The number of steps of the run that are done."""
        self.shared_bytes = 0
        """Bytes of this worker's shares of features that lie in the memories of several GPUs."""
        self._waiting: dict[str, Any] = {}
        self._first_rows: Mapping[str, Array] = {}
        self._clipped = job.clip > 0
        self._rank, self._world = setup.task.rank, setup.layout.world
        self.device, self._field, self._repeats = device, job.features, False
        having = types_with(job.features, graph.field_names)
        self.fields = {name: job.features for name in graph.nodes if name in having}
        self.no_table = why_no_table(graph, self.fields)
        self.sources = {name: parts.store.source(f"{name}/{field}") for name, field in self.fields.items()}
        self.scale = divide_by_sum if job.scale_features == "rows" else None
        self.tables = {name: self._table(name, parts, job) for name in graph.nodes if name not in self.fields}
        self.widths = {name: self._parted_width(name, job) for name in graph.nodes}
        self.read_by(PLAIN_ROWS)
        self._parts, self._graph = parts, graph

    def carry_edges(self, job: Job, graph: Graph, messages: Graph | None, own_module: bool) -> None:
        """Set the edge fields that are read, as the job names them: rows at the parts' owners, by edge numbers in the
        partitioned graph.
        """
        relations = {kind: edges.fields for kind, edges in self._graph.edges.items()}
        names = {*job.edge_features, job.edge_weight} - {None}
        self._parts.narrowed.update(f"{edge_key(kind)}/{name}" for kind in relations for name in names)
        self.edges = self.exact_edges = edge_rows(job, relations, self._parts.store.source, own_module)

    def non_finite(self) -> str | None:
        """A phrase on non-finite features from the owners of the parts; owners that do not answer are ignored."""
        for part in range(self._parts.partition.parts):
            for name, field in self.fields.items():
                with suppress(PenstockError):
                    body = {"part": part, "field": f"{name}/{field}"}
                    said = self._parts.channels("features", 2)(part).call(Message("non-finite", body)).body
                    if said["found"]:
                        return str(said["found"])
        return None

    def is_finite(self) -> bool:
        """True: checked when a state is taken, as the rows are elsewhere."""
        return True

    def learn(self, batch: Batch, x: dict[str, torch.Tensor]) -> None:
        """Send the gradients of the learnable rows: every worker to every owner, in every step."""
        with within_kind(EMBEDDINGS):
            for name, table in self.tables.items():
                gradients = x[name].grad if name in x else None
                ids: Any = batch.vertices.get(name, np.empty(0, np.int64))
                pushed = None if gradients is None else gradients.float().cpu().numpy()
                table.remote.push(ids, pushed, self.step, self._rank, self._world, self._clipped)

    def squares(self) -> float:
        """The sum of the squares of the learnable rows' gradients in this step, once all workers have pushed."""
        return float(sum(table.remote.squares(self.step) for table in self.tables.values()))

    def shrink(self, factor: float) -> None:
        """Have the owners multiply this step's gradients by a factor."""
        for table in self.tables.values():
            table.remote.shrink(self.step, factor)

    def restore(self, state: dict[str, Any]) -> None:
        """Keep a checkpoint's tables until `settle`; another worker's state has none, as owners keep theirs."""
        self._waiting = state

    def begin_with(self, tables: Mapping[str, Array]) -> None:
        """Keep the rows of an earlier run until `settle`: owners may be past the first step."""
        self._first_rows = tables

    def settle(self) -> None:
        """Have the owners load what was restored last, or rows of an earlier run."""
        state, self._waiting = self._waiting, {}
        rows, self._first_rows = self._first_rows, {}
        if rows:
            state = self._begun_with(rows)
        if state:
            super().restore(state)

    def stay(self) -> None:
        """Drop what was restored last: the owners are further ahead."""
        self._waiting, self._first_rows = {}, {}

    def begin_round(self, number: int) -> None:
        """Tell the owners the run's step after the workers have met for the round of this number."""
        for table in self.tables.values():
            table.remote.begin_round(self.step, number)

    def traffic(self) -> tuple[int, int]:
        """Bytes of embeddings received, and the least possible."""
        found = [table.remote.traffic() for table in self.tables.values()]
        return sum(each.bytes for each in found), sum(each.minimum for each in found)

    def _table(self, name: str, parts: Parts, job: Job) -> AgreedTable:
        book, names = parts.partition.book, parts.partition.original(name)
        channels = parts.channels("embeddings", 0)
        optimiser = row_optimiser(job.embedding_optimiser, job.has_layers, book.count(name), job.batch_size)
        remote = RemoteEmbedding(name, book, job.embedding_width, optimiser, channels, names)
        return AgreedTable(remote, book.count(name), self)

    def _parted_width(self, name: str, job: Job) -> int:
        if name in self.tables:
            return job.embedding_width
        source = self.sources[name]
        if len(source.row_shape()) != 1 or source.dtype.kind not in "biuf":
            raise PenstockError(
                f"Features {job.features!r} of {name!r} are not rows of numbers: give one row for each vertex.",
                code="wrong-type",
            )
        return int(source.shape[1])
