"""Refuses jobs that contradict their data or sampler before anything is trained."""

from collections.abc import Iterator

import numpy as np

from penstock.errors import Code, PenstockError
from penstock.graph.graph import Graph
from penstock.graph.inspect import shared_vertices, unlearned_classes
from penstock.graph.tasks import TASK_FACTS, TaskName
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.triples.triple_set import relations_of
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.job import Job
from penstock.train.job_options import LINK_LOSSES, SHUFFLINGS
from penstock.train.losses import NUMBER_LOSSES
from penstock.train.tasks import Task

_ONE_LABEL = ("accuracy",)
"""Metrics that need exactly one label per vertex."""


def check_job(job: Job, task: Task, has_validation: bool) -> None:
    """Refuse fields of a job about to train that would be ignored, or would fail only after an epoch."""
    for code, sentence in _mistakes(job, task, has_validation):
        raise PenstockError(sentence, code=code)


def _mistakes(job: Job, task: Task, has_validation: bool) -> Iterator[tuple[Code, str]]:
    """What is wrong with a job, the first thing first: the code and the sentence of each error."""
    if getattr(task, "multi_label", False) and task.metric.name in _ONE_LABEL:
        yield (
            "unsupported-combination",
            f"Metric {task.metric.name!r} is for one label per vertex, and these vertices have several: use micro-f1,"
            " macro-f1, roc-auc or average-precision.",
        )
    if (needs := _needs_validation(job)) is not None:
        what, mend = needs
        if job.evaluate_every < 1:
            yield (
                "conflicting-options",
                f"{what} needs validations, and evaluate_every {job.evaluate_every} turns them off: set it, or {mend}.",
            )
        if not has_validation:
            yield (
                "split-missing",
                f"{what} needs validations, and the data has no validation split: give it one, or {mend}.",
            )
    if job.reuse_batches and SHUFFLINGS[job.shuffle].first is not None:
        # Epochs do not have the same batches of seeds then.
        yield (
            "conflicting-options",
            f"reuse_batches needs epochs with the same batches of seeds, and shuffle is {job.shuffle}: set `shuffle` to"
            " never or adaptive, or leave out `reuse_batches`.",
        )
    if job.class_weights is not None and task.facts.learns != "classes":
        yield (
            "unsupported-combination",
            f"class_weights are for classes, and the task is {task.name}: leave them out.",
        )
    if job.class_weights is not None and task.has_own_loss:
        yield (
            "conflicting-options",
            "class_weights weigh the task's own loss, and `loss` replaces it: weigh classes there, or leave out one.",
        )
    if job.loss in NUMBER_LOSSES and task.facts.learns != "numbers":
        yield (
            "unsupported-combination",
            f"Loss {job.loss!r} is for regression, and the task is {task.name}: leave out `loss`, or set `task`.",
        )
    if job.loss in LINK_LOSSES and task.facts.learns != "links":
        yield (
            "unsupported-combination",
            f"Loss {job.loss!r} is for links, and the task is {task.name}: leave out `loss`, or set `task`.",
        )


def _needs_validation(job: Job) -> tuple[str, str] | None:
    """The field of a job that depends on validations, and how to do without it; None where none does."""
    if job.patience:
        return f"patience {job.patience}", "set `patience` to 0"
    if SHUFFLINGS[job.shuffle].waits_for_elbow:
        return f"shuffle {job.shuffle}", "set `shuffle` to always"
    return ("Schedule ReduceLROnPlateau", "choose another schedule") if job.schedule == "ReduceLROnPlateau" else None


# Notes for the user before a job trains: what was chosen for them, and what in the data may mislead.


def data_notes(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    """Sentences about the task and the splits that were chosen, and the serious warnings of `penstock data inspect`."""
    facts = TASK_FACTS[task]
    if job.task == "auto" and facts.learns == "links":
        learned = "links" if facts.about == "edges" else "triples of all relations"
        yield (
            f"The graph has no labels {job.label!r}, so {learned} are learned (task: {task}): set `label` or `task` to"
            " learn something else."
        )
    if facts.about == "triples" and len(relations := relations_of(graph.edges)) == 1:
        yield (
            f"The graph has one relation, {relations[0][1]!r}, so all triples are of it: task link-prediction learns"
            " from neighbours and is usually meant."
        )
    if facts.about == "vertices":
        yield from _about_vertices(graph, job, task)
    if not SAMPLERS[job.sampler].makes_batches:
        yield from _about_whole(job)


def _about_vertices(graph: Graph, job: Job, task: TaskName) -> Iterator[str]:
    found = labelled_vertices(graph, job, task)
    nodes = graph.nodes[found.node_type]
    if job.split == "auto" and "train" not in nodes.splits:
        shares = " / ".join(f"{share:.0%}" for share in job.split_ratio)
        yield (
            f"The graph has no splits: {shares} of the labelled vertices were drawn at random for training, validation"
            f" and testing (split_number {job.split_number}); set `split`, `split_ratio` or `split_number` for others."
        )
    yield from shared_vertices(found.node_type, found.splits)
    if TASK_FACTS[task].learns == "classes":
        yield from unlearned_classes(found.node_type, np.asarray(found.labels), found.splits)


def _about_whole(job: Job) -> Iterator[str]:
    """Notes on fields that the user set and that only mini-batch training uses."""
    defaults = type(job).model_fields
    ignored = [name for name in ("fanouts", "batch_size") if getattr(job, name) != defaults[name].default]
    if ignored == ["fanouts"] and not job.layers:
        number = f"{len(job.fanouts)} layers"
        yield f"sampler {job.sampler} reads all neighbours: of fanouts only their number counts ({number})."
    elif ignored:
        used = "is" if len(ignored) == 1 else "are"
        yield f"sampler {job.sampler} trains on all vertices at once: {' and '.join(ignored)} {used} not used."
