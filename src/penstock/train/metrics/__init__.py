"""Metrics over NumPy arrays of a whole split.

`outputs` are what models give: logits [n, classes] for one class a row, [n, columns] for labels [n, columns] of 0 and
1, [n] for yes or no; or the predicted class numbers themselves, as integers [n]. Metrics of links take ranks [n].
"""

from penstock.errors import PenstockError, nearest
from penstock.train.metrics.curves import average_precision, roc_auc
from penstock.train.metrics.decisions import accuracy, macro_f1, micro_f1
from penstock.train.metrics.distances import mae, rmse
from penstock.train.metrics.metric import Metric, metric_values
from penstock.train.metrics.places import hits_at, mrr

__all__ = [
    "METRICS",
    "Metric",
    "accuracy",
    "average_precision",
    "default_metric",
    "hits_at",
    "macro_f1",
    "mae",
    "metric_named",
    "metric_values",
    "metrics_for",
    "micro_f1",
    "mrr",
    "rmse",
    "roc_auc",
]

_CLASSES = ("node-classification", "edge-classification")
_SCORED = (*_CLASSES, "link-prediction")
_LINKS = ("link-prediction", "knowledge-graph-completion")
_NUMBERS = ("node-regression", "edge-regression")


def _hits(k: int) -> Metric:
    return Metric(f"hits@{k}", "higher", _LINKS, lambda ranks, _: hits_at(ranks, k), "ranks")


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "higher", _CLASSES, accuracy, "classes"),
        Metric("macro-f1", "higher", _CLASSES, macro_f1, "classes"),
        Metric("micro-f1", "higher", _CLASSES, micro_f1, "classes"),
        Metric("roc-auc", "higher", _SCORED, roc_auc),
        Metric("average-precision", "higher", _SCORED, average_precision),
        Metric("mrr", "higher", _LINKS, lambda ranks, _: mrr(ranks), "ranks"),
        *(_hits(k) for k in (1, 3, 10, 50)),
        Metric("mae", "lower", _NUMBERS, mae),
        Metric("rmse", "lower", _NUMBERS, rmse),
    )
}
"""By name; `metric_named` knows hits@k for every other k too."""


def metric_named(name: str) -> Metric:
    """The metric of that name; an unknown one gets the nearest suggested."""
    if name in METRICS:
        return METRICS[name]
    start, _, k = name.partition("@")
    if start == "hits" and k.isdecimal() and int(k) > 0:
        return _hits(int(k))
    raise PenstockError(f"There is no metric {name!r}{nearest(name, METRICS)}", code="unknown-name")


def metrics_for(task: str) -> list[str]:
    """Names of the metrics that fit a task."""
    return [metric.name for metric in METRICS.values() if task in metric.tasks]


def default_metric(task: str, multi_label: bool = False) -> Metric:
    """What a task is judged by when nothing is asked for."""
    if task in _CLASSES:
        return METRICS["micro-f1" if multi_label else "accuracy"]
    if task in _LINKS:
        return METRICS["mrr"]
    if task in _NUMBERS:
        return METRICS["mae"]
    raise PenstockError(
        f"There is no task {task!r}{nearest(task, (*_SCORED, *_LINKS, *_NUMBERS))}", code="unknown-name"
    )
