"""Refuses jobs that contradict their data or sampler before anything is trained."""

from penstock.errors import PenstockError
from penstock.train.job import Job
from penstock.train.job_options import SHUFFLINGS
from penstock.train.losses import NUMBER_LOSSES
from penstock.train.tasks import Task

_ONE_LABEL = ("accuracy",)
"""Metrics that need exactly one label per vertex."""


def check_job(job: Job, task: Task, has_validation: bool) -> None:
    """Refuse fields of a job about to train that would be ignored, or would fail only after an epoch."""
    _check_metric(task)
    _check_validation(job, has_validation)
    _check_reuse(job)
    _check_class_weights(job, task)
    _check_number_loss(job, task)


def _check_metric(task: Task) -> None:
    if getattr(task, "multi_label", False) and task.metric.name in _ONE_LABEL:
        raise PenstockError(
            f"Metric {task.metric.name!r} is for one label per vertex, and these vertices have several: use micro-f1,"
            " macro-f1, roc-auc or average-precision.",
            code="unsupported-combination",
        )


def _check_validation(job: Job, has_validation: bool) -> None:
    """Refuse fields that depend on validations in a job without any."""
    if job.patience:
        waits, mend = f"patience {job.patience}", "set `patience` to 0"
    elif SHUFFLINGS[job.shuffle].waits_for_elbow:
        waits, mend = f"shuffle {job.shuffle}", "set `shuffle` to always"
    elif job.schedule == "ReduceLROnPlateau":
        waits, mend = f"Schedule {job.schedule}", "choose another schedule"
    else:
        return
    if job.evaluate_every < 1:
        raise PenstockError(
            f"{waits} needs validations, and evaluate_every {job.evaluate_every} turns them off: set it, or {mend}.",
            code="conflicting-options",
        )
    if not has_validation:
        raise PenstockError(
            f"{waits} needs validations, and the data has no validation split: give it one, or {mend}.",
            code="split-missing",
        )


def _check_class_weights(job: Job, task: Task) -> None:
    """Refuse class weights for tasks without classes, or beside a loss of the user's own."""
    if job.class_weights is None:
        return
    if task.facts.learns != "classes":
        raise PenstockError(
            f"class_weights are for classes, and the task is {task.name}: leave them out.",
            code="unsupported-combination",
        )
    if task.has_own_loss:
        raise PenstockError(
            "class_weights weigh the task's own loss, and `loss` replaces it: weigh classes there, or leave out one.",
            code="conflicting-options",
        )


def _check_number_loss(job: Job, task: Task) -> None:
    """Refuse a loss of regression (mse, mae, huber) in a task that learns no numbers."""
    if job.loss in NUMBER_LOSSES and task.facts.learns != "numbers":
        raise PenstockError(
            f"Loss {job.loss!r} is for regression, and the task is {task.name}: leave out `loss`, or set `task`.",
            code="unsupported-combination",
        )


def _check_reuse(job: Job) -> None:
    """Refuse `reuse_batches` where epochs do not have the same batches of seeds."""
    if job.reuse_batches and SHUFFLINGS[job.shuffle].first is not None:
        raise PenstockError(
            f"reuse_batches needs epochs with the same batches of seeds, and shuffle is {job.shuffle}: set `shuffle` to"
            " never or adaptive, or leave out `reuse_batches`.",
            code="conflicting-options",
        )
