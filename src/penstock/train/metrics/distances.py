"""Metrics of numbers: how far predictions are off, in the labels' own unit."""

from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.train.metrics.metric import checked, refuse_unlike


def mae(outputs: Any, labels: Any) -> float:
    """Mean absolute error."""
    return float(np.mean(np.abs(_differences(outputs, labels, "mae"))))


def rmse(outputs: Any, labels: Any) -> float:
    """Root of the mean squared distance."""
    return float(np.sqrt(np.mean(_differences(outputs, labels, "rmse") ** 2)))


def _differences(outputs: Any, labels: Any, name: str) -> Array:
    outputs, labels = checked(outputs, labels, name)
    refuse_unlike(outputs, labels, name)
    return np.asarray(np.subtract(outputs, labels, dtype=np.float64))
