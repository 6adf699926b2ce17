"""Labels of edges and which of them are for training."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.links import find_reverse, split_positions
from penstock.sampling.links.reverse import Reverse
from penstock.train.data_options import DataOptions
from penstock.train.edge_times import EdgeTimes
from penstock.train.learned_labels import LearnedLabels, check_classes, check_learned, recoded


@dataclass(eq=False)
class LabelledEdges:
    """The edges of one type: a class for each (-1: none), positions of the splits, and the relation's reverse.

    `problem` says why outputs cannot be compared with the labels.
    """

    edge_type: EdgeType
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
        return LearnedLabels("edge-classification", kind, self.field, self.classes, words=self.words)


def labelled_edges(
    graph: Graph,
    kind: EdgeType,
    options: DataOptions,
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
        labels = np.asarray(edges.fields[field])
        classes = _count_classes(labels, field, kind)
        check_classes(classes, labels, options, f"edges {edge_key(kind)}")
        found = LabelledEdges(kind, labels, {}, classes, reverse, field, edges.categories.get(field))
    else:
        check_learned(learned, options)
        known = (learned.classes, reverse, learned.field or field, learned.words)
        if field in edges.fields:
            labels, problem = recoded(np.asarray(edges.fields[field]), edges.categories.get(field), learned)
        else:
            labels, problem = np.full(edges.count, -1), f"The edges have no labels {field!r} to compare with."
        found = LabelledEdges(kind, labels, {}, *known, problem)
    found.splits = {name: np.empty(0, np.int64) for name in SPLITS}
    if found.problem is None:
        first, second, third = options.split_ratio
        eligible = np.flatnonzero(found.labels >= 0)
        if times is not None and options.split != "ratio":
            found.splits = times.splits((first, second, third), eligible)
            return found
        # An edge and its reverse are one fact where the relation is symmetric.
        worker_group: Reverse = "same" if reverse == "same" else "none"
        found.splits = split_positions(edges, (first, second, third), options.split_number, worker_group, eligible)
    return found


def _count_classes(labels: Array, field: str, kind: EdgeType) -> int:
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} is {labels.dtype} {labels.shape}, which cannot be classes: give"
            " one integer for each edge.",
            code="wrong-type",
        )
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2:
        raise PenstockError(
            f"Edge field {field!r} of {edge_key(kind)} has only {classes} class: give at least two.",
            code="missing-data",
        )
    return classes
