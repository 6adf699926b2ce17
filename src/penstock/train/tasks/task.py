"""The interface of tasks: items, loss and metrics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskFacts, TaskName
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.progress import SILENT, Progress
from penstock.sampling.links import Reverse, supervise
from penstock.sampling.sampler_table import DEFAULT_SAMPLER, SAMPLERS
from penstock.train.batch_source import BatchSource, layers_of, make_batch_source
from penstock.train.dataset.labels import LearnedLabels
from penstock.train.job import Job
from penstock.train.layerwise.inference import Inference
from penstock.train.metrics import Metric, metric_named
from penstock.train.user_functions import UserFunctions, own_metric

Scores = dict[str, dict[str, float]]
"""Metrics by split, then by name."""
Owners = Callable[[str, Array], Array]
"""(node type, vertices) -> the ranks of the workers that compute these vertices' rows."""


class SeedSource(Protocol):
    """Makes batches of an epoch's items."""

    @property
    def name(self) -> str:
        """The kind of task; `vertices` where there is none."""

    @property
    def facts(self) -> TaskFacts:
        """The properties of the kind of task that other packages use."""

    @property
    def items(self) -> Array:
        """The items of an epoch: vertices, edges or clusters."""

    @property
    def batch_size(self) -> int:
        """The number of items in a batch."""

    def sample(self, planned: Planned) -> Batch:
        """The batch of some items, without features."""

    def label(self, batch: Batch) -> None:
        """Add the labels to a batch, where they are known."""


class Task(SeedSource, Protocol):
    """A kind of learning problem on one graph."""

    @property
    def name(self) -> TaskName: ...

    @property
    def out(self) -> int:
        """The width of the model's output for each vertex."""

    @property
    def head(self) -> torch.nn.Module | None:
        """A module that is learned with the model and turns its outputs into scores; None where
        outputs are the answer.
        """

    @property
    def learned(self) -> LearnedLabels:
        """The labels and classes, for later uses of the model."""

    @property
    def metric(self) -> Metric:
        """The metric that chooses the best model."""

    @property
    def messages(self) -> Graph | None:
        """The graph whose edges carry messages in training; None where this process does not have it."""

    @property
    def redraws(self) -> bool:
        """Whether the examples of a batch differ from epoch to epoch."""

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss is a function of the user's."""

    @property
    def losses(self) -> dict[str, float]:
        """The mean loss of each split at its last evaluation; empty for tasks that are evaluated by ranks."""

    def items_of(self, split: str) -> Array:
        """The vertices, held-out pairs [m, 2] or edge positions of a split; an error where the split does not exist."""

    def examples(self, planned: Planned) -> Batch:
        """The batch of some items without neighbourhoods: seeds and labels."""

    def divided(self, planned: Planned, owners: Owners, world: int) -> list[Batch]:
        """By rank, each worker's examples of a batch, without labels: those whose vertex or destination it computes."""

    def readable(self, items: Array) -> dict[str, Array]:
        """The vertices whose outputs the loss of some items may read in any epoch, ascending by node type."""

    def loss_bytes(self, items: int) -> int:
        """Approximate bytes that the loss of so many items and its gradients take, beyond the model's outputs."""

    def evaluation_bytes(self, splits: Sequence[str]) -> int:
        """Approximate bytes of host memory that an evaluation of some splits takes, beyond the model's outputs."""

    def loss(self, out: Any, batch: Batch) -> torch.Tensor:
        """The mean loss of the batch; `out` are the model's outputs for the batch's seeds."""

    def evaluate(self, inference: Inference, splits: list[str], progress: Progress = SILENT) -> Scores:
        """Metrics of some splits by exact inference; splits without items are left out."""


Make = Callable[[str, Graph, Job, LearnedLabels | None, str, UserFunctions], tuple[Task, Graph]]
"""(name, graph, job, labels that were learned, split, functions of the user's) -> the task and its graph; see
`tasks.make_task`."""


@dataclass(frozen=True)
class TaskEntry:
    """One kind of task: the function that makes it, and the properties that other packages use."""

    make: Make
    facts: TaskFacts


# What makers of several tasks have in common.

ALL = "all"
"""The name of a split that stands for the items of all splits."""
_TRIED = 4
"""The number of items for trying a trained model."""


def items_in(splits: Mapping[str, Array], split: str) -> Array:
    """The items of a split; an error where the split does not exist or is empty."""
    if split == ALL:
        return np.sort(np.concatenate(list(splits.values())))
    if len(known_split(splits, split)) == 0:
        raise PenstockError(f"Split {split!r} is empty: choose another.", code="missing-data")
    return splits[split]


def known_split(splits: Mapping[str, Array], split: str, what: str = "") -> Array:
    """The items of a split, which may be empty; an error where the split does not exist. `what` follows its name."""
    if split not in splits:
        raise PenstockError(f"There is no split {split!r}{what}{nearest(split, splits)}", code="split-missing")
    return splits[split]


def edge_batches(
    job: Job, graph: Graph, kind: EdgeType, training: Array, reverse: Reverse, learned: LearnedLabels | None
) -> BatchSource:
    """Batches of edges that are left out of the neighbourhoods of their own batch."""
    if learned is None and SAMPLERS[job.sampler].supervision_apart:
        training, graph = supervise(graph, kind, training, job.supervision, job.draw_seed, reverse)
    return make_batch_source(job, graph, training, excluding=True)


def of_learned(job: Job, learned: LearnedLabels | None) -> Job:
    """The job, with the edge type that the run was trained on."""
    return job if learned is None else job.model_copy(update={"target": learned.type})


def few_batches(job: Job, graph: Graph, count: int) -> BatchSource:
    """Batches for trying a model, drawn by a sampler that does not prepare for whole epochs."""
    if SAMPLERS[job.sampler].prepares:
        job = job.model_copy(update={"sampler": DEFAULT_SAMPLER, "fanouts": [1] * layers_of(job)})
    return make_batch_source(job, graph, np.arange(min(count, _TRIED)))


# Metrics of tasks.


def reported_metrics(chosen: Metric, usual: Iterable[str], functions: UserFunctions) -> list[Metric]:
    """The metrics of a split: the one that chooses the best model, the task's usual ones, and the user's."""
    every = [chosen, *(metric_named(name) for name in usual), *functions.metrics]
    found: dict[str, Metric] = {}
    for metric in every:
        found.setdefault(metric.name, metric)
    return list(found.values())


def chosen_metric(asked: str, default: Metric, task: TaskName, functions: UserFunctions) -> Metric:
    """The metric `asked`, which may be one of the user's; an error where it does not fit the task."""
    if asked == "auto":
        return default
    own = own_metric(asked, functions)
    if own is not None:
        return own
    metric = metric_named(asked)
    if not metric.fits(TASK_FACTS[task]):
        raise PenstockError(
            f"Metric {asked!r} is not for {task}: it is for {', '.join(metric.tasks())}.",
            code="unsupported-combination",
        )
    return metric
