"""What a training loop records: metrics, events, checkpoints. Among several workers, only one writes them."""

from typing import Any

from penstock.train.job import Job
from penstock.train.run_files.checkpoints import Checkpoints
from penstock.train.run_files.events import EventLog, Events
from penstock.train.run_files.run_folder import EVENTS, RunFolder


class Records:
    """Where a loop's metrics, events and checkpoints go; of this class: nowhere, as another worker writes them."""

    kept = False
    """Whether anything is written at all."""

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append one record to the metrics."""

    def events(self, batches: int, began: float) -> Events:
        """A log for the work of stages, in epochs of `batches`; `began` is time zero."""
        return Events()

    def due(self, step: int) -> bool:
        """Whether a checkpoint should be written after so many steps."""
        return False

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint that names the best model's epoch."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Write the model of an epoch as the best so far."""


class FolderRecords(Records):
    """The records of a run folder."""

    kept = True

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self._folder, self._traced = folder, job.trace_batches
        self._checkpoints = Checkpoints(
            folder.checkpoints, job.checkpoint_steps, job.checkpoint_minutes, job.keep_checkpoints
        )

    def append_metrics(self, record: dict[str, Any]) -> None:
        self._folder.append_metrics(record)

    def events(self, batches: int, began: float) -> Events:
        return EventLog(self._folder.path / EVENTS, self._traced, batches, began)

    def due(self, step: int) -> bool:
        return self._checkpoints.due(step)

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        self._checkpoints.save(step, best_epoch, state)

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        self._checkpoints.save_best(epoch, weights)
