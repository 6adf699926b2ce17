"""Edge classification: a class for each edge, from both its ends."""

from typing import Literal

import numpy as np
import torch
from torch.nn import functional

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.scorers import EdgeClassifier
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned
from penstock.progress import SILENT, Progress
from penstock.sampling.key import BatchKey
from penstock.sampling.links import EdgeBatcher
from penstock.train.inference import Inference
from penstock.train.job import Job
from penstock.train.metrics import METRICS, default_metric
from penstock.train.samplers import Drawing
from penstock.train.tasks.ends import Rows, all_rows, end_rows, sample_ends
from penstock.train.tasks.task import Scores, chosen_metric

_REPORTED = ("accuracy", "macro-f1", "micro-f1")


class EdgeTask:
    """Learns a field of one relation's edges. In training an edge is not in the neighbourhood it is classified from."""

    name: Literal["edge-classification"] = "edge-classification"

    def __init__(self, graph: Graph, kind: EdgeType, splits: dict[str, Array], drawing: Drawing, job: Job) -> None:
        self._graph, self._kind, self._drawing, self._splits = graph, kind, drawing, splits
        self.edge_type = kind
        field, width = job.label, job.hidden
        self._labels = np.asarray(graph.edges[kind].fields[field])
        classes = _count_classes(self._labels, field, kind)
        self.items, self.batch_size, self.out = drawing.items, drawing.batch_size, width
        self.head: torch.nn.Module = EdgeClassifier(width, classes)
        self.metric = chosen_metric(job.metric, default_metric(self.name), self.name)
        self._batcher = EdgeBatcher(graph, kind, labels=field)

    def sample(self, planned: Planned) -> Batch:
        """Edges, and the neighbourhoods of their ends."""
        return sample_ends(self._batcher, self._drawing, planned)

    def label(self, batch: Batch) -> None:
        """The edges' classes, and their ends as rows of the batch's seeds."""
        links = batch.links
        ends = {"rows": links.source_rows.astype(np.int64), "columns": links.destination_rows.astype(np.int64)}
        batch.labels = {**ends, "classes": np.asarray(links.labels).astype(np.int64)}

    def loss(self, out: Rows, batch: Batch) -> torch.Tensor:
        """Cross-entropy."""
        sources, destinations = end_rows(out, self._kind)
        logits = self.head(sources[batch.labels["rows"]], destinations[batch.labels["columns"]])
        return functional.cross_entropy(logits, batch.labels["classes"])

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the edges of each split."""
        positions = {name: self._splits[name] for name in splits if len(self._splits.get(name, ()))}
        if not positions:
            return {}
        logits = {name: self.classify(inference, some, progress) for name, some in positions.items()}
        names = dict.fromkeys((self.metric.name, *_REPORTED))
        return {
            split: {name: METRICS[name].compute(logits[split], self._labels[some]) for name in names}
            for split, some in positions.items()
        }

    def positions_of(self, split: str) -> Array:
        """The edges of a split, as positions in the lists."""
        if split not in self._splits:
            raise PenstockError(f"There is no split {split!r}{nearest(split, self._splits)}.".replace("?.", "?"))
        return self._splits[split]

    def ends_of(self, positions: Array) -> tuple[Array, Array]:
        """Sources and destinations of the edges at some positions."""
        links = self._batcher.batch(positions, BatchKey(0, 0, 0))
        return links.source, links.destination

    def classify(self, inference: Inference, positions: Array, progress: Progress = SILENT) -> Array:
        """Logits of the edges at some positions."""
        ends = self.ends_of(positions)
        sources, destinations = all_rows(self._graph, self._kind, inference, progress)
        with torch.no_grad():
            rows, columns = (torch.from_numpy(end) for end in ends)
            return np.asarray(self.head(sources[rows], destinations[columns]).float().cpu().numpy())


def _count_classes(labels: Array, field: str, kind: EdgeType) -> int:
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise PenstockError(f"Edge field {field!r} of {edge_key(kind)} is {labels.dtype} {labels.shape}: no classes.")
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2:
        raise PenstockError(f"Edge field {field!r} of {edge_key(kind)} names {classes} class: nothing to tell apart.")
    return classes
