"""Tasks on vertices: a class, several labels, or a number for each vertex."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, TaskName
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.progress import SILENT, Progress
from penstock.sampling.block import MiniBatch
from penstock.train.batch_source import BatchSource, make_batch_source
from penstock.train.dataset.labels import Labelled, LearnedLabels, in_any, labelled_vertices, vertices_to_judge
from penstock.train.job import Job
from penstock.train.layerwise.inference import Inference
from penstock.train.losses import LabelLoss
from penstock.train.metrics import Metric, default_metric, metric_values
from penstock.train.tasks.task import (
    Owners,
    Scores,
    Task,
    chosen_metric,
    few_batches,
    items_in,
    known_split,
    reported_metrics,
)
from penstock.train.user_functions import NO_FUNCTIONS, UserFunctions

_REPORTED = {
    "classes": ("accuracy", "macro-f1", "micro-f1"),
    "multi-label": ("micro-f1", "macro-f1"),
    "numbers": ("mae", "rmse"),
}


class NodeTask:
    """Node classification (one class or several labels per vertex) and node regression."""

    def __init__(self, data: Labelled, batches: BatchSource, job: Job, functions: UserFunctions = NO_FUNCTIONS) -> None:
        self.name, self.facts, self._data, self._batches = data.task, TASK_FACTS[data.task], data, batches
        self.node_type, self.multi_label = data.node_type, data.multi_label
        self.learned = data.learned()
        self.items, self.batch_size, self.head = batches.items, batches.batch_size, None
        self.messages, self.sampler, self.redraws = batches.messages, batches.sampler, False
        self.out = data.classes or 1
        default = default_metric(data.task, data.multi_label)
        self.metric: Metric = chosen_metric(job.metric, default, data.task, functions)
        kind = "multi-label" if data.multi_label else self.facts.learns
        self._metrics = reported_metrics(self.metric, _REPORTED[kind], functions)
        self._losses, self._own_loss = LabelLoss(data, job, functions.loss), functions.loss
        self.has_own_loss = functions.loss is not None
        self.losses: dict[str, float] = {}

    def sample(self, planned: Planned) -> Batch:
        """The neighbourhoods of the planned vertices, or what the sampler makes of its items."""
        return self._batches.sample({self._data.node_type: planned.seeds}, planned)

    def examples(self, planned: Planned) -> Batch:
        """The planned vertices and their labels."""
        rows = {self.node_type: planned.seeds}
        batch: MiniBatch = MiniBatch(rows, rows, [])
        self.label(batch)
        return batch

    def divided(self, planned: Planned, owners: Owners, world: int) -> list[Batch]:
        """Each worker's own vertices, ascending."""
        ranks, found = owners(self.node_type, planned.seeds), list[Batch]()
        for rank in range(world):
            rows = {self.node_type: np.sort(planned.seeds[ranks == rank])}
            found.append(MiniBatch(rows, rows, []))
        return found

    def readable(self, items: Array) -> dict[str, Array]:
        return {self.node_type: np.sort(items)}

    def loss_bytes(self, items: int) -> int:
        """For outputs, labels and gradients."""
        return 3 * 4 * items * self.out

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """Negligible: outputs are compared with labels directly."""
        return 0

    def label(self, batch: Batch) -> None:
        """Add the seeds' labels: int64 classes, or float32."""
        batch.labels = self.labels_of(batch.seeds[self._data.node_type])

    def labels_of(self, vertices: Array) -> Array:
        """Labels as losses take them: int64 classes, or float32."""
        return self._typed(self._data.labels[vertices])

    def known_label(self, vertex: int) -> Any:
        """A vertex's own label as the user knows it: a class, the numbers of its labels, or a
        number; None without one.
        """
        if self._data.problem is not None or vertex >= len(self._data.labels):
            return None
        value = np.asarray(self.labels_of(np.array([vertex])))[0]
        if self.multi_label:
            return np.flatnonzero(value > 0).tolist() if np.isfinite(value).all() and (value >= 0).all() else None
        if not np.isfinite(value) or (self._data.classes and value < 0):
            return None
        if not self._data.classes:
            return float(value)
        return self.learned.words[int(value)] if self.learned.words else int(value)

    def loss(self, out: torch.Tensor | dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """Cross-entropy, binary cross-entropy per label, a regression loss, or a user's loss."""
        if isinstance(out, dict):
            if not len(batch.labels):
                # A worker's share of a small batch may have no seeds; the model's output then has no rows.
                return torch.zeros((), device=batch.labels.device, requires_grad=True)
            out = out[self._data.node_type]
        out = self._checked(out)
        if len(out) == 0:
            # A subgraph may hold no training vertex: its loss is zero.
            return out.sum()
        losses = self._losses(out, batch.labels)
        if batch.seed_weights is None:
            return losses.mean()
        if self._own_loss is not None:
            losses = self._own_loss.by_row(losses)
        weights = torch.as_tensor(batch.seed_weights).to(losses.device, losses.dtype)
        return (losses.flatten(1).mean(1) if losses.dim() > 1 else losses).mul(weights).sum()

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of the labelled vertices of each split."""
        if self._data.problem is not None:
            raise PenstockError(self._data.problem, code="mismatched-inputs")
        rows = {name: self._data.splits[name] for name in splits if len(self._data.splits.get(name, ()))}
        if not rows:
            return {}
        for name in rows:
            self._data.check_known(name)
        wanted = in_any(list(rows.values()))
        out = inference.outputs({self._data.node_type: wanted}, progress)[self._data.node_type]
        values = self._checked(out).float()
        found = {}
        for name, r in rows.items():
            # The loss is computed on the outputs' device: on the host it would take as long as a layer on a GPU.
            outputs = values[torch.from_numpy(np.searchsorted(wanted, r)).to(values.device)]
            found[name] = self._scores(outputs.cpu().numpy(), self._data.labels[r])
            labels = torch.from_numpy(self.labels_of(r)).to(values.device)
            self.losses[name] = float(self._losses(outputs, labels).mean())
        return found

    def items_of(self, split: str) -> Array:
        return known_split(self._data.splits, split)

    def _scores(self, out: Array, labels: Array) -> dict[str, float]:
        if self.facts.learns == "numbers":
            out = out[:, 0]
        return metric_values(self._metrics, out, labels)

    def _typed(self, labels: Array) -> Array:
        whole = self.facts.learns == "classes" and not self._data.multi_label
        return labels.astype(np.int64 if whole else np.float32)

    def _checked(self, out: torch.Tensor) -> torch.Tensor:
        if out.dim() != 2 or out.shape[1] != self.out:
            what = f"{self._data.classes} classes" if self._data.classes else "one number a vertex"
            raise PenstockError(
                f"The model's outputs have shape {tuple(out.shape)} where the task needs {what}: make its last layer"
                f" {self.out} wide.",
                code="shape-mismatch",
            )
        return out


def make_node_task(
    name: TaskName, graph: Graph, job: Job, learned: LearnedLabels | None, split: str, functions: UserFunctions
) -> tuple[Task, Graph]:
    """Labels of one type's vertices."""
    if learned is not None:
        used = vertices_to_judge(graph, job, learned)
        return NodeTask(used, few_batches(job, graph, graph.nodes[used.node_type].count), job, functions), graph
    data = labelled_vertices(graph, job, name)
    return NodeTask(data, make_batch_source(job, graph, items_in(data.splits, split)), job, functions), graph
