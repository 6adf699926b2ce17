"""Metrics of decisions: the largest logit's class, or every column above zero."""

from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.train.metrics.metric import checked, refuse_unlike


def accuracy(outputs: Any, labels: Any) -> float:
    """Share of rows whose class is right."""
    outputs, labels = checked(outputs, labels, "accuracy")
    if labels.ndim != 1:
        raise PenstockError(
            "accuracy is for one label per row, and these rows have several: use micro-f1 or roc-auc.",
            code="unsupported-combination",
        )
    return float(np.mean(_classes(outputs) == labels))


def micro_f1(outputs: Any, labels: Any) -> float:
    """F1 of all decisions together; with one label a row that is accuracy."""
    hits, chosen, true = _counts(*checked(outputs, labels, "micro-f1"))
    return _f1(hits.sum(), chosen.sum(), true.sum())


def macro_f1(outputs: Any, labels: Any) -> float:
    """Mean F1 of the classes (or columns) that are true or chosen somewhere; 0 if there are none."""
    hits, chosen, true = _counts(*checked(outputs, labels, "macro-f1"))
    seen = np.flatnonzero(chosen + true)
    return float(np.mean([_f1(hits[c], chosen[c], true[c]) for c in seen])) if len(seen) else 0.0


def _classes(outputs: Array) -> Array:
    if outputs.ndim == 2:
        return np.asarray(outputs.argmax(1))
    return outputs if outputs.dtype.kind in "iub" else outputs > 0


def _counts(outputs: Array, labels: Array) -> tuple[Array, Array, Array]:
    """For every class: how often it was correctly chosen, chosen, and true."""
    if labels.ndim == 2:
        refuse_unlike(outputs, labels, "F1")
        chosen, true = outputs > 0, labels > 0
        return (chosen & true).sum(0), chosen.sum(0), true.sum(0)
    classes, labels = _classes(outputs).astype(np.int64), labels.astype(np.int64)
    lowest = int(min(classes.min(), labels.min()))
    if lowest < 0:
        raise PenstockError(
            f"F1 was given the class {lowest}: leave out rows without a label.", code="value-out-of-range"
        )
    size = int(max(classes.max(), labels.max())) + 1
    right = classes[classes == labels]
    return tuple(np.bincount(some, minlength=size) for some in (right, classes, labels))  # type: ignore[return-value]


def _f1(hits: Any, chosen: Any, true: Any) -> float:
    return float(2 * hits / (chosen + true)) if chosen + true else 0.0
