"""Metrics over NumPy arrays of a whole split.

`outputs` are what models give: logits [n, classes] for one class a row, [n, columns] for labels [n, columns] of 0 and
1, [n] for yes or no; or the predicted class numbers themselves, as integers [n]. Metrics of links take ranks [n].
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock.errors import NotFinite, PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import TASK_FACTS, TaskFacts
from penstock.registry import Registry

# A metric by name, and the checks that all of them share.


@dataclass(frozen=True)
class Metric:
    """`compute(outputs, labels)` is one number.

    Metrics that take ranks ignore the labels. Those that take classes depend on the predicted class of each row alone,
    and accept class numbers instead of outputs.
    """

    name: str
    better: Literal["higher", "lower"]
    fits: Callable[[TaskFacts], bool]
    """Whether it is for a kind of task."""
    compute: Callable[[Any, Any], float]
    takes: Literal["outputs", "classes", "ranks"] = "outputs"

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value improves on another; NaN never does."""
        return value > than if self.better == "higher" else value < than

    def tasks(self) -> list[str]:
        """The tasks that it is for."""
        return [name for name in TASK_FACTS.names() if self.fits(TASK_FACTS[name])]

    @property
    def worst(self) -> float:
        """The value that every other improves on."""
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
    """Outputs and labels as non-empty arrays of equal length, without NaN; a single column is squeezed."""
    outputs, labels = _flat(np.asarray(outputs)), _flat(np.asarray(labels))
    if len(outputs) != len(labels):
        raise PenstockError(
            f"{name} compares {len(outputs):,} outputs with {len(labels):,} labels: give one for each.",
            code="shape-mismatch",
        )
    refuse_empty_or_nan(outputs, name)
    return outputs, labels


def refuse_empty_or_nan(values: Array, name: str) -> None:
    """Refuse to compute a metric of no rows or of NaN."""
    if len(values) == 0:
        raise PenstockError(f"{name} has no rows to measure: the split is empty.", code="missing-data")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise NotFinite(f"{name} cannot be computed, an output is not a number (NaN): the model has diverged.")


def refuse_unlike(outputs: Array, labels: Array, name: str) -> None:
    """Refuse arrays of different shapes where cells are compared."""
    if outputs.shape != labels.shape:
        raise PenstockError(
            f"{name} compares outputs {outputs.shape} with labels {labels.shape}: their shapes must be equal.",
            code="shape-mismatch",
        )


def _flat(values: Array) -> Array:
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


# Metrics of ranking: how well scores separate positives from negatives, at every threshold.


def roc_auc(outputs: Any, labels: Any) -> float:
    """The probability that a positive row scores above a negative one, ties counting half.

    Several classes: one against the rest by softmax probability, averaged; several columns: averaged. Classes and
    columns that are all positive or all negative are left out.
    """
    return _macro(_area, *checked(outputs, labels, "roc-auc"), "roc-auc")


def average_precision(outputs: Any, labels: Any) -> float:
    """The mean precision at every positive row; rows with equal scores count together. Several classes or columns as in
    `roc_auc`.
    """
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
    """The area by the mean ranks of the positive rows."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2
    positives = int(true.sum())
    above = mean_rank[place[true]].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(true) - positives)))


def _precision(scores: Array, true: Array) -> float:
    """Σ (increase of recall) x precision, from the highest score down."""
    _, place = np.unique(scores, return_inverse=True)
    hits = np.bincount(place, true)[::-1]
    seen = np.bincount(place)[::-1]
    return float(np.sum(hits / true.sum() * np.cumsum(hits) / np.cumsum(seen)))


# Metrics of decisions: the class with the largest logit, or every column above zero.


def accuracy(outputs: Any, labels: Any) -> float:
    """The share of rows whose predicted class is right."""
    outputs, labels = checked(outputs, labels, "accuracy")
    if labels.ndim != 1:
        raise PenstockError(
            "accuracy is for one label per row, and these rows have several: use micro-f1 or roc-auc.",
            code="unsupported-combination",
        )
    return float(np.mean(_classes(outputs) == labels))


def micro_f1(outputs: Any, labels: Any) -> float:
    """F1 of all decisions together; with one label per row it equals accuracy."""
    hits, chosen, true = _counts(*checked(outputs, labels, "micro-f1"))
    return _f1(hits.sum(), chosen.sum(), true.sum())


def macro_f1(outputs: Any, labels: Any) -> float:
    """The mean F1 of the classes (or columns) that occur in labels or predictions; 0 if there are none."""
    hits, chosen, true = _counts(*checked(outputs, labels, "macro-f1"))
    seen = np.flatnonzero(chosen + true)
    return float(np.mean([_f1(hits[c], chosen[c], true[c]) for c in seen])) if len(seen) else 0.0


def _classes(outputs: Array) -> Array:
    if outputs.ndim == 2:
        return np.asarray(outputs.argmax(1))
    return outputs if outputs.dtype.kind in "iub" else outputs > 0


def _counts(outputs: Array, labels: Array) -> tuple[Array, Array, Array]:
    """For every class, the numbers of true positives, predictions, and labels."""
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


# Metrics of numbers: how far predictions are off, in the labels' own unit.


def mae(outputs: Any, labels: Any) -> float:
    """The mean absolute error of predictions, in the labels' unit."""
    return float(np.mean(np.abs(_differences(outputs, labels, "mae"))))


def rmse(outputs: Any, labels: Any) -> float:
    """The root mean squared error of predictions, in the labels' unit."""
    return float(np.sqrt(np.mean(_differences(outputs, labels, "rmse") ** 2)))


def _differences(outputs: Any, labels: Any, name: str) -> Array:
    outputs, labels = checked(outputs, labels, name)
    refuse_unlike(outputs, labels, name)
    return np.asarray(np.subtract(outputs, labels, dtype=np.float64))


# Metrics of ranks: the position of true links among candidates, from 1; ties have mean ranks.


def mrr(ranks: Any) -> float:
    """Mean of 1 / rank."""
    return float(np.mean(1 / _checked(ranks, "mrr")))


def hits_at(ranks: Any, k: int) -> float:
    """The share of ranks up to k."""
    return float(np.mean(_checked(ranks, f"hits@{k}") <= k))


def _checked(ranks: Any, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    ranks = np.asarray(ranks, np.float64)
    refuse_empty_or_nan(ranks, name)
    if ranks.min() < 1:
        raise PenstockError(
            f"{name} was given the rank {ranks.min():g}: ranks count from 1.", code="value-out-of-range"
        )
    return np.asarray(ranks)


def _learning(what: str) -> Callable[[TaskFacts], bool]:
    """Whether a task learns classes, numbers or links."""
    return lambda task: task.learns == what


def _for_scored(task: TaskFacts) -> bool:
    """Whether a task learns classes, or scores that separate links from other pairs."""
    return task.learns == "classes" or (task.learns, task.about) == ("links", "edges")


def _hits(k: int) -> Metric:
    return Metric(f"hits@{k}", "higher", _learning("links"), lambda ranks, _: hits_at(ranks, k), "ranks")


METRICS: Registry[Metric] = Registry(
    "metric",
    "penstock.metrics",
    {
        metric.name: metric
        for metric in (
            Metric("accuracy", "higher", _learning("classes"), accuracy, "classes"),
            Metric("macro-f1", "higher", _learning("classes"), macro_f1, "classes"),
            Metric("micro-f1", "higher", _learning("classes"), micro_f1, "classes"),
            Metric("roc-auc", "higher", _for_scored, roc_auc),
            Metric("average-precision", "higher", _for_scored, average_precision),
            Metric("mrr", "higher", _learning("links"), lambda ranks, _: mrr(ranks), "ranks"),
            *(_hits(k) for k in (1, 3, 10, 50)),
            Metric("mae", "lower", _learning("numbers"), mae),
            Metric("rmse", "lower", _learning("numbers"), rmse),
        )
    },
    Metric,
)
"""`metric_named` also accepts hits@k for any other k."""


def metric_named(name: str) -> Metric:
    """The metric of that name; an unknown one gets the nearest suggested."""
    if name in METRICS:
        return METRICS[name]
    start, _, k = name.partition("@")
    if start == "hits" and k.isdecimal() and int(k) > 0:
        return _hits(int(k))
    raise METRICS.unknown(name)


def metrics_for(task: str) -> list[str]:
    """Names of the metrics that fit a task."""
    return [name for name in METRICS.names() if METRICS[name].fits(TASK_FACTS[task])]


def default_metric(task: str, multi_label: bool = False) -> Metric:
    """The metric of a task where the job names none."""
    learns = TASK_FACTS[task].learns
    if learns == "classes":
        return METRICS["micro-f1" if multi_label else "accuracy"]
    return METRICS["mrr" if learns == "links" else "mae"]
