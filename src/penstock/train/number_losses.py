"""Losses of regression by name: what the difference between an output and its label costs."""

from collections.abc import Callable

import torch
from torch.nn import functional

NumberLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Called with outputs [rows] and labels [rows]; gives a loss for each row."""


def _squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, labels, reduction="none")


def _absolute(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(outputs, labels, reduction="none")


def _huber(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Squared up to a difference of 1, absolute beyond it."""
    return functional.huber_loss(outputs, labels, reduction="none")


NUMBER_LOSSES: dict[str, NumberLoss] = {"mse": _squared, "mae": _absolute, "huber": _huber}
"""By their names in the job field `loss`."""


def number_loss(name: str | None) -> NumberLoss:
    """The loss of that name; squared error where the job names none, or a function of the user's."""
    return NUMBER_LOSSES.get(name or "mse", _squared)
