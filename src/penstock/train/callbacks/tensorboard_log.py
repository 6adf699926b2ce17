"""Curves for TensorBoard."""

import os
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.train.callbacks.calls import EpochResult
from penstock.train.job import Job


class TensorBoard:
    """Writes every epoch's numbers for TensorBoard, into the run's folder `tensorboard` unless `folder` is given."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise PenstockError(
                "TensorBoard is not installed: `pip install penstock[tensorboard]`.", code="not-installed"
            ) from None
        self._writer_of: Any = SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def on_start(self, run: Path, job: Job) -> None:
        """Open the log, with the job as a text."""
        self._writer = self._writer_of(os.fspath(self._folder or run / "tensorboard"))
        fields = job.model_dump(mode="json")
        self._writer.add_text("job", "\n".join(f"    {name}: {value}" for name, value in fields.items()))

    def __call__(self, result: EpochResult) -> None:
        """A point of every curve."""
        for name, value in result.numbers.items():
            self._writer.add_scalar(name, value, result.epoch)
        self._writer.flush()

    def on_end(self, result: dict[str, Any] | None) -> None:
        """The best model's metrics; then the log is closed."""
        if result:
            for name, value in result.get("test", {}).items():
                self._writer.add_scalar(f"test_{name}", value, result["best_epoch"])
        self._writer.close()
