"""Edge classification and regression: a class or a number for each edge, from the rows of both ends."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskName, edge_key
from penstock.nn.scorers import EdgeClassifier
from penstock.pipeline.stages import Batch
from penstock.progress import SILENT, Progress
from penstock.sampling.block import BatchKey
from penstock.sampling.links import EdgeBatcher, find_reverse, split_positions
from penstock.sampling.links.known import Reverse
from penstock.traced import new_weights
from penstock.train.batch_source import BatchSource, EdgeTimes, edge_times
from penstock.train.dataset.labels import LabelColumn, LearnedLabels, check_classes, column, in_learned_codes
from penstock.train.dataset.prepared_graph import choose_edge_type
from penstock.train.job import Job
from penstock.train.layerwise.inference import Inference
from penstock.train.losses import LabelLoss
from penstock.train.metrics import default_metric, metric_values
from penstock.train.tasks.ends import (
    DrawnEdges,
    EndRows,
    Rows,
    Share,
    block_bytes,
    by_row,
    end_rows,
    end_rows_of,
    mean_of_batch,
    pair_blocks,
    pair_bytes,
)
from penstock.train.tasks.task import (
    Scores,
    Task,
    chosen_metric,
    edge_batches,
    few_batches,
    items_in,
    known_split,
    of_learned,
    reported_metrics,
)
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from penstock.sampling.device.links import EdgeSeeds

# Labels of edges, classes or numbers, and their splits.


@dataclass(eq=False, kw_only=True)
class LabelledEdges(LabelColumn):
    """The edges of one type with their labels and the positions of the splits, and the relation's reverse."""

    edge_type: EdgeType
    reverse: Reverse


def labelled_edges(
    graph: Graph,
    kind: EdgeType,
    options: Job,
    task: TaskName,
    learned: LearnedLabels | None,
    reverse: Reverse | None = None,
    times: EdgeTimes | None = None,
) -> LabelledEdges:
    """Labels and splits of an edge task; in the codes of a run that has `learned` them, where given.

    `reverse` is that of the relation, found if not given. With `times` the earliest edges are for training, unless the
    job asks for a split by ratio.
    """
    edges, field = graph.edges[kind], options.label
    reverse = find_reverse(graph, kind) if reverse is None else reverse
    if learned is None:
        if field not in edges.fields:
            raise PenstockError(f"The edges have no field {field!r} to learn: set `label`.", code="field-missing")
        labels = column(edges.fields[field])
        found = LabelledEdges(labels, {}, task, 0, field=field, edge_type=kind, reverse=reverse)
        if TASK_FACTS[task].learns == "numbers":
            _check_type(labels, "iubf", field, kind, "regression needs one number for each edge")
        else:
            found.classes = _count_classes(labels, field, kind)
            found.words = edges.categories.get(field)
            check_classes(found.classes, labels, options, f"edges {edge_key(kind)}")
    else:
        codes = in_learned_codes(learned, edges, options, "edges")
        found = LabelledEdges(*codes, edge_type=kind, reverse=reverse)
    found.splits = {name: np.empty(0, np.int64) for name in SPLITS}
    if found.problem is None:
        first, second, third = options.split_ratio
        eligible = np.flatnonzero(found.known)
        if times is not None and options.split != "ratio":
            found.splits = times.splits((first, second, third), eligible)
            return found
        # In a symmetric relation an edge and its reverse are one fact, and belong to the same split.
        worker_group: Reverse = "same" if reverse == "same" else "none"
        found.splits = split_positions(edges, (first, second, third), options.split_number, worker_group, eligible)
    return found


def _check_type(labels: Array, types: str, field: str, kind: EdgeType, needed: str) -> None:
    """Refuse labels that are not one per edge, of the given kinds of NumPy dtypes."""
    if labels.ndim != 1 or labels.dtype.kind not in types:
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} is {labels.dtype} {labels.shape}: {needed}.", code="wrong-type"
        )


def _count_classes(labels: Array, field: str, kind: EdgeType) -> int:
    needed = "classes need one integer for each edge; use task edge-regression for numbers"
    _check_type(labels, "iub", field, kind, needed)
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2:
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} has only {classes} class: give at least two.",
            code="missing-data",
        )
    return classes


_REPORTED = {"classes": ("accuracy", "macro-f1", "micro-f1"), "numbers": ("mae", "rmse")}


class EdgeTask(DrawnEdges):
    """Learns a field of one relation's edges. In training an edge is left out of the neighbourhood it is predicted
    from.
    """

    def __init__(
        self,
        graph: Graph,
        data: LabelledEdges,
        batches: BatchSource,
        job: Job,
        share: Share | None = None,
        functions: UserFunctions = NO_FUNCTIONS,
        times: EdgeTimes | None = None,
    ) -> None:
        """`share`, where several workers train: this one's edges of a batch; `times`, where edges
        are sampled by time.
        """
        self._graph, self._data, self._batches, self._share, self.times = graph, data, batches, share, times
        self.name, self.facts, self._kind = data.task, TASK_FACTS[data.task], data.edge_type
        self.edge_type = data.edge_type
        self.learned, self._width = data.kept(edge_key(data.edge_type)), job.hidden
        self.items, self.batch_size, self.out = batches.items, batches.batch_size, job.hidden
        self.messages, self.sampler, self.redraws = batches.messages, batches.sampler, False
        with new_weights():
            self.head: torch.nn.Module = EdgeClassifier(job.hidden, data.classes or 1)
        self.metric = chosen_metric(job.metric, default_metric(self.name), self.name, functions)
        self._metrics = reported_metrics(self.metric, _REPORTED[self.facts.learns], functions)
        self._loss, self.has_own_loss = LabelLoss(data, job, functions.loss), functions.loss is not None
        own_times = None if times is None else times.values
        self.batcher = EdgeBatcher(
            graph, self._kind, reverse=data.reverse, times=own_times, disjoint=job.has_disjoint_seeds
        )
        self.losses: dict[str, float] = {}

    def readable(self, items: Array) -> dict[str, Array]:
        """The ends of the edges."""
        nodes = self.batcher.batch(items, BatchKey(0, 0, 0)).nodes
        return {name: np.sort(vertices) for name, vertices in nodes.items()}

    def loss_bytes(self, items: int) -> int:
        """For the rows of both ends of every edge."""
        return pair_bytes(items, self.out)

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """For one block of pairs."""
        return block_bytes(max((len(self.items_of(split)) for split in splits), default=0), self.out)

    def label(self, batch: Batch) -> None:
        """Add the edges' labels, and their ends as rows of the batch's seeds."""
        links = batch.links
        ends = {"rows": links.source_rows.astype(np.int64), "columns": links.destination_rows.astype(np.int64)}
        batch.labels = {**ends, "values": self.labels_of(links.edges)}

    def fixed_labels(self, pairs: "EdgeSeeds", values: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """The labels of a batch at fixed addresses on a device, as `loss` reads them."""
        assert values is not None
        rows, columns, weights = (each[:, 0] for each in (pairs.rows, pairs.columns, pairs.weights))
        return {"rows": rows, "columns": columns, "values": values, "weights": weights}

    def loss(self, out: Rows, batch: Batch) -> torch.Tensor:
        """The mean cross-entropy, or regression loss, of a batch."""
        sources, destinations = end_rows(out, self._kind, self.out, batch.labels["rows"])
        logits = self.head(sources[batch.labels["rows"]], destinations[batch.labels["columns"]])
        losses = self._losses(logits, batch.labels["values"])
        whole = batch.links.whole
        return mean_of_batch(losses, None if whole is None else whole.positives, batch.labels.get("weights"))

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the edges of each split."""
        positions = {name: self._data.splits[name] for name in splits if len(self._data.splits.get(name, ()))}
        if self._data.problem is not None:
            raise PenstockError(self._data.problem, code="mismatched-inputs")
        if not positions:
            return {}
        rows = end_rows_of(self._graph, self._kind, self.times, inference, progress)
        found = {}
        for split, some in positions.items():

            def logits_of(part: slice, some: Array = some) -> Array:
                none = np.empty((0, self.learned.classes or 1), np.float32)
                return np.concatenate([none, *(each.numpy() for _, _, each in self._judged(rows, some[part]))])

            logits = inference.in_parts(len(some), logits_of)
            labels = torch.from_numpy(self.labels_of(some))
            self.losses[split] = float(self._losses(torch.from_numpy(logits), labels).mean())
            given = logits if self.learned.classes else logits[:, 0]
            found[split] = metric_values(self._metrics, given, self._data.labels[some])
        return found

    def items_of(self, split: str) -> Array:
        """The edges of a split, as positions in the lists."""
        return known_split(self._data.splits, split)

    def outputs(
        self, inference: Inference, positions: Array, progress: Progress = SILENT
    ) -> Iterator[tuple[Array, Array, torch.Tensor]]:
        """Sources, destinations and logits, or numbers [edges, 1], of the edges at some positions, block by block."""
        rows = end_rows_of(self._graph, self._kind, self.times, inference, progress)
        yield from self._judged(rows, positions)

    def _judged(self, rows: EndRows, positions: Array) -> Iterator[tuple[Array, Array, torch.Tensor]]:
        for some in pair_blocks(len(positions), self._width):
            links = self.batcher.batch(positions[some], BatchKey(0, 0, 0))
            with torch.no_grad():
                logits = self.head(*rows(links)).float().cpu()
            yield links.source, links.destination, logits

    def labels_of(self, positions: Array) -> Array:
        """Labels as losses take them: int64 classes, or float32."""
        return self._data.labels[positions].astype(np.int64 if self.learned.classes else np.float32)

    def _losses(self, out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return by_row(self._loss(out, labels), len(out))


def make_edge_task(
    name: TaskName, graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    """Labels of one relation's edges."""
    kind = choose_edge_type(graph, of_learned(job, learned), job.label)
    times = edge_times(job, graph, kind)
    data = labelled_edges(graph, kind, job, name, learned, times=times)
    if learned is not None:
        few = few_batches(job, graph, graph.edges[kind].count)
        return EdgeTask(graph, data, few, job, functions=functions, times=times), graph
    batches = edge_batches(job, graph, kind, items_in(data.splits, split), data.reverse, learned)
    return EdgeTask(graph, data, batches, job, functions=functions, times=times), graph
