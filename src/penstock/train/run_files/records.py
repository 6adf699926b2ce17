"""What a training loop records: metrics, events, checkpoints. Among several workers, only one writes them."""

from typing import Any, Protocol

from penstock.train.job import Job
from penstock.train.run_files.checkpoints import Checkpoints
from penstock.train.run_files.events import EventLog, NoEvents
from penstock.train.run_files.run_folder import EVENTS, RunFolder


class Events(Protocol):
    """Records what stages do; `EventLog` implements it."""

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Record a stage's work on one batch: start and end in seconds."""

    def memory(self, resident_mb: float) -> None:
        """Record the resident memory at this moment."""

    def close(self) -> None:
        """Write what is buffered and end recording."""


class Records(Protocol):
    """Where a loop's metrics, events and checkpoints go."""

    kept: bool
    """Whether anything is written at all."""

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Append one record to the metrics."""

    def events(self, batches: int, began: float) -> Events:
        """A log for the work of stages, in epochs of `batches`; `began` is time zero."""

    def due(self, step: int) -> bool:
        """Whether a checkpoint should be written after so many steps."""

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Write the model of an epoch as the best so far."""


class FolderRecords:
    """The `Records` of a run folder."""

    kept = True

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self._folder, self._traced = folder, job.trace_batches
        self._checkpoints = Checkpoints(
            folder.checkpoints, job.checkpoint_steps, job.checkpoint_minutes, job.keep_checkpoints
        )
        self.append_metrics = folder.append_metrics
        self.due, self.save, self.save_best = self._checkpoints.due, self._checkpoints.save, self._checkpoints.save_best

    def events(self, batches: int, began: float) -> Events:
        """The run's events.jsonl."""
        return EventLog(self._folder.path / EVENTS, self._traced, batches, began)


class NoRecords:
    """The `Records` of a worker that writes nothing, because another one writes the run folder."""

    kept = False

    def append_metrics(self, record: dict[str, Any]) -> None:
        """This worker writes no metrics."""

    def events(self, batches: int, began: float) -> Events:
        return NoEvents()

    def due(self, step: int) -> bool:
        """False: this worker writes no checkpoints."""
        return False

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """This worker writes no checkpoints."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """This worker writes no models."""
