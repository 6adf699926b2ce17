"""What a training loop records: metrics, events, checkpoints. Of several workers, one writes them."""

from typing import Any, Protocol

from penstock.train.checkpoints import Checkpoints
from penstock.train.events import EventLog
from penstock.train.job import Job
from penstock.train.run_folder import EVENTS, RunFolder


class Events(Protocol):
    """The interface of `EventLog`."""

    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """A stage's work on one batch."""

    def memory(self, resident_mb: float) -> None:
        """A point of the memory curve."""

    def close(self) -> None:
        """Finish recording."""


class Records(Protocol):
    """Where a loop's records go."""

    kept: bool
    """Whether anything is written at all."""

    def append_metrics(self, record: dict[str, Any]) -> None:
        """One more line of metrics."""

    def events(self, batches: int, began: float) -> Events:
        """A log of what the stages do."""

    def due(self, step: int) -> bool:
        """Whether a checkpoint should be written after so many steps."""

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Write a checkpoint."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Keep the model of an epoch."""


class FolderRecords:
    """Everything, in the run folder."""

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
    """Records nothing: another worker writes the run folder."""

    kept = False

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Do nothing."""

    def events(self, batches: int, began: float) -> Events:
        """Events that are not recorded."""
        return _NoEvents()

    def due(self, step: int) -> bool:
        """False: this worker writes no checkpoints."""
        return False

    def save(self, step: int, best_epoch: int, state: dict[str, Any]) -> None:
        """Do nothing."""

    def save_best(self, epoch: int, weights: dict[str, Any]) -> None:
        """Do nothing."""


class _NoEvents:
    def record(self, stage: str, thread: int, start: float, end: float, item: Any) -> None:
        """Do nothing."""

    def memory(self, resident_mb: float) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
