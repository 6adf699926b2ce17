"""Regression losses by name, and weights of classes in a loss."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn import functional

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.train.job_options import ClassWeights

# Regression losses by name.

NumberLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Called with outputs [rows] and labels [rows]; returns a loss for each row."""


def _squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(outputs, labels, reduction="none")


def _absolute(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.l1_loss(outputs, labels, reduction="none")


def _huber(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Half the squared difference up to 1, linear beyond it."""
    return functional.huber_loss(outputs, labels, reduction="none")


NUMBER_LOSSES: dict[str, NumberLoss] = {"mse": _squared, "mae": _absolute, "huber": _huber}
"""By value of the job field `loss`."""


def number_loss(name: str | None) -> NumberLoss:
    """The loss of that name; squared error where the job names none, or a function of the user's."""
    return NUMBER_LOSSES.get(name or "mse", _squared)


# Weights of classes in a loss.


class LossWeights:
    """A weight for each class, on any device. Without weights `on` returns None, as torch's losses expect."""

    def __init__(self, weights: Array | None) -> None:
        self._weights = None if weights is None else torch.from_numpy(weights.astype(np.float32))
        self._placed: dict[torch.device, torch.Tensor] = {}

    def on(self, device: torch.device) -> torch.Tensor | None:
        """The weights on a device. A GPU's copy is kept, since a captured step may not copy from the host."""
        if self._weights is None or device.type != "cuda":
            return None if self._weights is None else self._weights.to(device)
        if device not in self._placed:
            self._placed[device] = self._weights.to(device)
        return self._placed[device]


NO_WEIGHTS = LossWeights(None)


def loss_weights(
    asked: ClassWeights | None, labels: Array, classes: int, words: Sequence[str] | None = None
) -> LossWeights:
    """The weights that a job asks for; `labels` are those of the training rows, one class or several of 0 and 1.

    `balanced` weighs a class by rows / (classes * rows of the class), so that the mean weight of a training row is 1.
    With several labels per row, the ones of a column are weighed by zeros / ones. A class without rows has weight 1.
    """
    if asked is None:
        return NO_WEIGHTS
    if asked == "balanced":
        return LossWeights(_balanced(labels, classes))
    if isinstance(asked, dict):
        found = np.ones(classes)
        for key, weight in asked.items():
            found[_class_number(key, classes, words)] = weight
    else:
        found = np.asarray(asked, np.float64)
        if len(found) != classes:
            raise PenstockError(
                f"class_weights has {len(found)} numbers, and there are {classes} classes: give one for each.",
                code="shape-mismatch",
            )
    if not np.isfinite(found).all() or found.min() < 0 or not found.any():
        raise PenstockError(
            "class_weights must be finite, not negative, and not all 0: correct them.", code="value-out-of-range"
        )
    return LossWeights(found)


def _balanced(labels: Array, classes: int) -> Array:
    if labels.ndim == 2:
        ones = (labels > 0).sum(0)
        return np.where((ones > 0) & (ones < len(labels)), (len(labels) - ones) / np.maximum(ones, 1), 1.0)
    counts = np.bincount(labels.astype(np.int64), minlength=classes)[:classes]
    return np.where(counts > 0, len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)


def _class_number(key: str | int, classes: int, words: Sequence[str] | None) -> int:
    if words is not None and key in words:
        return list(words).index(str(key))
    if str(key).isdecimal() and int(key) < classes:
        return int(key)
    known = [str(number) for number in range(classes)] if words is None else words
    raise PenstockError(f"class_weights names the class {key!r}{nearest(str(key), known)}", code="unknown-name")
