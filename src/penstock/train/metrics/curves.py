"""Metrics of ranking: how well scores separate positives from negatives, at every threshold."""

from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.train.metrics.metric import checked, refuse_unlike


def roc_auc(outputs: Any, labels: Any) -> float:
    """Chance that a true row scores above a false one, ties counting half.

    Several classes: each against the rest, by its share of the softmax, then the mean; several columns: the mean.
    Classes and columns that are all true or all false are left out.
    """
    return _macro(_area, *checked(outputs, labels, "roc-auc"), "roc-auc")


def average_precision(outputs: Any, labels: Any) -> float:
    """Precision at every true row, averaged; rows of one score come together. Several classes or columns as in
    `roc_auc`."""
    return _macro(_precision, *checked(outputs, labels, "average-precision"), "average-precision")


def _macro(one: Callable[[Array, Array], float], outputs: Array, labels: Array, name: str) -> float:
    scores, true = _columns(outputs, labels, name)
    usable = [c for c in range(true.shape[1]) if 0 < true[:, c].sum() < len(true)]
    if not usable:
        raise PenstockError(
            f"{name} needs both positive and negative rows, but has only one kind: use a larger split.",
            code="missing-data",
        )
    return float(np.mean([one(scores[:, c], true[:, c]) for c in usable]))


def _columns(outputs: Array, labels: Array, name: str) -> tuple[Array, Array]:
    """Scores and truths [n, columns], whatever the kind of labels."""
    if labels.ndim == 2:
        refuse_unlike(outputs, labels, name)
        return outputs, labels > 0
    if outputs.ndim == 1:
        return outputs[:, None], labels[:, None] > 0
    if outputs.shape[1] == 2:
        return (outputs[:, 1] - outputs[:, 0])[:, None], labels[:, None] > 0
    shifted = outputs.astype(np.float64) - outputs.max(1, keepdims=True)
    shares = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return shares, labels[:, None] == np.arange(outputs.shape[1])


def _area(scores: Array, true: Array) -> float:
    """From the mean ranks of the true rows."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    positives = int(true.sum())
    above = mean_rank[place[true]].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(true) - positives)))


def _precision(scores: Array, true: Array) -> float:
    """Σ (rise in recall) x precision, from the highest score down."""
    _, place = np.unique(scores, return_inverse=True)
    hits = np.bincount(place, true)[::-1]
    seen = np.bincount(place)[::-1]
    return float(np.sum(hits / true.sum() * np.cumsum(hits) / np.cumsum(seen)))
