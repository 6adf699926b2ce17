"""The progress of a run: everything in a checkpoint except the weights."""

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError
from penstock.graph.documents import first_problem
from penstock.train.state_file import DamagedState


@dataclass
class TrainState:
    """The next batch to be computed, sums over the epoch under way, and what the best model was."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0
    examples: int = 0
    epoch_elapsed: float = 0.0
    """Seconds of the epoch under way, validation and checkpoints left out."""
    train_loss: float = math.nan
    best_value: float | None = None
    best_epoch: int = -1
    without_gain: int = 0
    elapsed: float = 0.0
    epoch_seconds: list[float] = field(default_factory=list)
    all_examples: int = 0
    ending: bool = False
    """Whether an epoch's last step is done and its end is not: validation, the schedule, the record."""
    val_curve: list[float] = field(default_factory=list)
    """Values of the validations so far, where their elbow is waited for (`shuffle: adaptive`)."""
    shuffled_from: int | None = None
    """The first epoch, from 0, that is shuffled because the elbow was found before it."""
    done: bool = False
    """Whether the last epoch has ended, by number or by patience."""

    @property
    def rate(self) -> float:
        """Examples a second of training so far."""
        spent = sum(self.epoch_seconds) + self.epoch_elapsed
        return self.all_examples / spent if spent else 0.0


def checked_train_state(raw: Any, file: Path) -> TrainState:
    """The train state from a checkpoint, with every number checked."""
    if not isinstance(raw, dict) or set(raw) != {each.name for each in fields(TrainState)}:
        raise PenstockError(
            f"{file} is not a checkpoint of this release: start the run again.", code="unsupported-version"
        )
    try:
        train_state = TypeAdapter(TrainState).validate_python(raw)
    except ValidationError as error:
        raise DamagedState(f"{file} does not hold the run's progress ({first_problem(error)})") from None
    counts = train_state.epoch, train_state.batch, train_state.step, train_state.examples, train_state.all_examples
    if min(counts) < 0 or train_state.step < train_state.epoch or train_state.best_epoch > train_state.epoch:
        raise DamagedState(f"{file} holds a progress that no run can have")
    return train_state
