"""A metric by name, and the checks that all of them share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.errors import NotFinite, PenstockError
from penstock.graph.arrays import Array


@dataclass(frozen=True)
class Metric:
    """`compute(outputs, labels)` is one number.

    Metrics that take ranks ignore the labels. Those that take classes depend on the predicted class of each row alone,
    and accept class numbers instead of outputs.
    """

    name: str
    better: Literal["higher", "lower"]
    tasks: tuple[str, ...]
    compute: Callable[[Any, Any], float]
    takes: Literal["outputs", "classes", "ranks"] = "outputs"

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value improves on another; NaN never does."""
        return value > than if self.better == "higher" else value < than

    @property
    def worst(self) -> float:
        """What every value improves on."""
        return float("-inf") if self.better == "higher" else float("inf")


def metric_values(metrics: Iterable[Metric], outputs: Array, labels: Array) -> dict[str, float]:
    """Several metrics of the same outputs, by name; the predicted classes are computed once for all of them."""
    found, classes = dict[str, float](), None
    for metric in metrics:
        decides = metric.takes == "classes" and outputs.ndim == 2 and outputs.shape[1] > 1 and labels.ndim == 1
        if decides and classes is None:
            classes = checked(outputs, labels, metric.name)[0].argmax(1)
        found[metric.name] = metric.compute(classes if decides else outputs, labels)
    return found


def checked(outputs: Any, labels: Any, name: str) -> tuple[Array, Array]:
    """Arrays of as many rows, not empty, without NaN; a single column is dropped."""
    outputs, labels = _flat(np.asarray(outputs)), _flat(np.asarray(labels))
    if len(outputs) != len(labels):
        raise PenstockError(
            f"{name} compares {len(outputs):,} outputs with {len(labels):,} labels: give one for each.",
            code="shape-mismatch",
        )
    refuse_empty_or_nan(outputs, name)
    return outputs, labels


def refuse_empty_or_nan(values: Array, name: str) -> None:
    """A metric of nothing, or of NaN, would be a number that says nothing."""
    if len(values) == 0:
        raise PenstockError(f"{name} has no rows to measure: the split is empty.", code="missing-data")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise NotFinite(f"{name} cannot be computed, an output is not a number (NaN): the model has diverged.")


def refuse_unlike(outputs: Array, labels: Array, name: str) -> None:
    """Arrays compared cell by cell have one shape."""
    if outputs.shape != labels.shape:
        raise PenstockError(
            f"{name} compares outputs {outputs.shape} with labels {labels.shape}: their shapes must be equal.",
            code="shape-mismatch",
        )


def _flat(values: Array) -> Array:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
