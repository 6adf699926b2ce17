"""Regression losses by name, and weights of classes in a loss."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch.nn import functional

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.nn.device.products import class_losses
from penstock.traced import is_gpu
from penstock.train.dataset.labels import LabelColumn
from penstock.train.job import Job
from penstock.train.job_options import ClassWeights

# Regression losses by name.

RowLoss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Called with outputs and labels [rows]; returns a loss for each row, or, if it is a user's, perhaps their mean."""

NUMBER_LOSSES: dict[str, RowLoss] = {
    "mse": partial(functional.mse_loss, reduction="none"),
    "mae": partial(functional.l1_loss, reduction="none"),
    # Half the squared difference up to 1, linear beyond it.
    "huber": partial(functional.huber_loss, reduction="none"),
}
"""By value of the job field `loss`, for regression."""


class LabelLoss:
    """The loss of each row of a task whose labels are classes, several of them, or numbers."""

    def __init__(self, data: LabelColumn, job: Job, own: RowLoss | None) -> None:
        """`own` is a user's loss, which replaces the task's. Classes weigh by the labels of the training split."""
        self._numbers, self._several, self._own = not data.classes, data.multi_label, own
        # The job may name no loss, or a function of the user's.
        self._number_loss, self._weights = NUMBER_LOSSES.get(job.loss or "mse", NUMBER_LOSSES["mse"]), NO_WEIGHTS
        training = data.splits.get("train", ())
        if len(training) and data.classes and data.problem is None:
            self._weights = loss_weights(job.class_weights, data.labels[training], data.classes, data.words)

    def __call__(self, out: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each row of outputs; a user's may be one number."""
        if self._numbers:
            out = out[:, 0]
        if self._own is not None:
            return self._own(out, labels)
        if self._numbers:
            return self._number_loss(out, labels)
        weights = self._weights.on(out.device)
        if self._several:
            return functional.binary_cross_entropy_with_logits(out, labels, pos_weight=weights, reduction="none")
        if is_gpu(out.device):
            return class_losses(out, labels, weights)
        return functional.cross_entropy(out, labels, weights, reduction="none")


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
