"""Labels of edges, classes or numbers, and which of them are for training."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.links import find_reverse, split_positions
from penstock.sampling.links.reverse import Reverse
from penstock.train.data_options import DataOptions, Task
from penstock.train.edge_times import EdgeTimes
from penstock.train.learned_labels import LearnedLabels, check_classes, check_learned, recoded


@dataclass(eq=False)
class LabelledEdges:
    """The edges of one type: a label for each (-1 or NaN: none), positions of the splits, and the relation's reverse.

    `classes` is 0 where labels are numbers. `problem` says why outputs cannot be compared with the labels.
    """

    edge_type: EdgeType
    task: Task
    labels: Array
    splits: dict[str, Array]
    classes: int
    reverse: Reverse
    field: str
    words: list[str] | None = None
    problem: str | None = None

    def learned(self) -> LearnedLabels:
        """What a run remembers of them."""
        kind = edge_key(self.edge_type)
        return LearnedLabels(self.task, kind, self.field, self.classes, words=self.words)


def labelled_edges(
    graph: Graph,
    kind: EdgeType,
    options: DataOptions,
    task: Task,
    learned: LearnedLabels | None,
    reverse: Reverse | None = None,
    times: EdgeTimes | None = None,
) -> LabelledEdges:
    """Labels and splits of an edge task; in the codes of a run that has `learned` them, where given.

    `reverse` is of the relation, looked for if not known. With `times` the earliest edges are for training, unless
    the job asks for a split by ratio.
    """
    edges, field = graph.edges[kind], options.label
    reverse = find_reverse(graph, kind) if reverse is None else reverse
    if learned is None:
        if field not in edges.fields:
            raise PenstockError(f"The edges have no field {field!r} to learn: set `label`.", code="field-missing")
        labels = _column(edges.fields[field])
        found = LabelledEdges(kind, task, labels, {}, 0, reverse, field)
        if task == "edge-regression":
            _check_type(labels, "iubf", field, kind, "regression needs one number for each edge")
        else:
            found.classes = _count_classes(labels, field, kind)
            found.words = edges.categories.get(field)
            check_classes(found.classes, labels, options, f"edges {edge_key(kind)}")
    else:
        check_learned(learned, options)
        known = (learned.classes, reverse, learned.field or field, learned.words)
        if field in edges.fields:
            labels, problem = recoded(_column(edges.fields[field]), edges.categories.get(field), learned)
        else:
            labels, problem = np.full(edges.count, -1), f"The edges have no labels {field!r} to compare with."
        found = LabelledEdges(kind, learned.task, labels, {}, *known, problem)
    found.splits = {name: np.empty(0, np.int64) for name in SPLITS}
    if found.problem is None:
        first, second, third = options.split_ratio
        eligible = np.flatnonzero(_known(found))
        if times is not None and options.split != "ratio":
            found.splits = times.splits((first, second, third), eligible)
            return found
        # An edge and its reverse are one fact where the relation is symmetric.
        worker_group: Reverse = "same" if reverse == "same" else "none"
        found.splits = split_positions(edges, (first, second, third), options.split_number, worker_group, eligible)
    return found


def _column(labels: Array) -> Array:
    """Labels, with a matrix of one column as a vector."""
    labels = np.asarray(labels)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _known(found: LabelledEdges) -> Array:
    """Whether each edge has a label; losses are computed in float32, and what is infinite there is not known."""
    if found.labels.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return np.asarray(np.isfinite(found.labels.astype(np.float32, copy=False)))
    return np.asarray(found.labels != -1 if found.classes == 0 else found.labels >= 0)


def _check_type(labels: Array, types: str, field: str, kind: EdgeType, needed: str) -> None:
    """Refuse labels that are not one for each edge, of some of NumPy's kinds of types."""
    if labels.ndim != 1 or labels.dtype.kind not in types:
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} is {labels.dtype} {labels.shape}: {needed}.", code="wrong-type"
        )


def _count_classes(labels: Array, field: str, kind: EdgeType) -> int:
    needed = "classes need one integer for each edge; use task edge-regression for numbers"
    _check_type(labels, "iub", field, kind, needed)
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2:
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} has only {classes} class: give at least two.",
            code="missing-data",
        )
    return classes
