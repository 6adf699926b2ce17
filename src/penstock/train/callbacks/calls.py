"""What callbacks are called with, and when."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.nn.user_module import code_at_fault
from penstock.train.job import Job


@dataclass(frozen=True)
class EpochResult:
    """The result of an epoch."""

    run: Path
    """The run folder, in which callbacks may write files of their own."""
    epoch: int
    """The number of the epoch, counted from 1."""
    epochs: int
    """The largest number of epochs that the run can have."""
    step: int
    loss: float
    """The mean training loss of the epoch."""
    val: dict[str, float]
    """Validation metrics by name; empty where the epoch was not validated."""
    val_loss: float | None
    """None where the epoch was not validated, or the task is judged by ranks."""
    metric: str
    """The metric that chooses the best model."""
    best_epoch: int
    """The epoch of the best model so far; -1 where none was validated."""
    best_value: float | None
    lr: float
    seconds: float
    """Seconds that the epoch's training took."""

    @property
    def value(self) -> float | None:
        """The validation metric that chooses the best model; None where the epoch was not validated."""
        return self.val.get(self.metric)

    @property
    def numbers(self) -> dict[str, float]:
        """Every number of the epoch that makes a curve, by name: loss, val_loss, val_accuracy, lr and so on."""
        found = {"loss": self.loss, "lr": self.lr, "seconds": self.seconds}
        if self.val_loss is not None:
            found["val_loss"] = self.val_loss
        return {**found, **{f"val_{name}": value for name, value in self.val.items()}}


class Callbacks:
    """The callbacks of a run, each with its name.

    A callback is called with the `EpochResult` of every epoch, and returns True to end the run. It may have methods
    `on_start(run, job)`, with the run's folder and its job, and `on_end(result)`, with what `Run.result` will be, or
    with None where the run has failed.
    """

    def __init__(self, named: Sequence[tuple[str, Any]] = ()) -> None:
        """A class among them is instantiated without arguments when the run starts."""
        self._named, self._made = list(named), list[tuple[str, Any]]()

    def __len__(self) -> int:
        return len(self._named)

    def start(self, run: Path, job: Job) -> None:
        """Call `on_start`, once in a process, when a run starts or is resumed."""
        if self._made:
            return
        for name, given in self._named:
            with code_at_fault(f"Callback {name}"):
                made = given() if isinstance(given, type) else given
                self._made.append((name, made))
                if hasattr(made, "on_start"):
                    made.on_start(run, job)

    def epoch(self, result: EpochResult) -> bool:
        """Call all callbacks with an epoch's result; returns whether one of them asks for the run to end."""
        answers = []
        for name, made in self._made:
            with code_at_fault(f"Callback {name}"):
                answer = made(result)
                answers.append(isinstance(answer, bool | np.bool_) and bool(answer))
        return any(answers)

    def end(self, result: dict[str, Any]) -> None:
        """Call `on_end` when the run has ended or was interrupted; all its results are written already."""
        for name, made in self._made:
            with code_at_fault(f"Callback {name}"):
                if hasattr(made, "on_end"):
                    made.on_end(result)

    def fail(self) -> None:
        """Call `on_end(None)` when the run has failed; errors of callbacks are suppressed, so that the run's own error
        is seen.
        """
        for _, made in self._made:
            if hasattr(made, "on_end"):
                with suppress(Exception):
                    made.on_end(None)
