"""Labels of vertices and which of them are for training: found, drawn where the graph has none, checked."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.hashing import document_key, unit_draws
from penstock.graph.splits import splits_by_ratio
from penstock.quantities import counted
from penstock.train.data_options import DataOptions, Task
from penstock.train.learned_labels import LearnedLabels, check_classes, check_learned, recoded


@dataclass(eq=False)
class Labelled:
    """The vertices of one type with what is known of them. `classes` is 0 for numbers, the width for multi-label.

    `words` are the classes' names, where they have any; `problem` says why outputs cannot be compared with the labels.
    """

    node_type: str
    labels: Array
    splits: dict[str, Array]
    task: Task
    classes: int
    multi_label: bool = False
    field: str = "y"
    words: list[str] | None = None
    problem: str | None = None

    def learned(self) -> LearnedLabels:
        """What a run remembers of them."""
        return LearnedLabels(self.task, self.node_type, self.field, self.classes, self.multi_label, self.words)

    def check_known(self, split: str) -> None:
        """Refuse a split of which not all labels are known."""
        rows = self.splits[split]
        unknown = rows[~_known(self)[rows]]
        if len(unknown):
            raise PenstockError(
                f"Split {split!r} has {counted(len(unknown), 'vertices')} without a known label {self.field!r}, first"
                f" vertex {unknown[0]}: remove such vertices from the split, or label them.",
                code="missing-data",
            )
        if self.multi_label and not np.isin(self.labels[rows], (0, 1)).all():
            raise PenstockError(
                f"Labels {self.field!r} of split {split!r} are not all 0 or 1: with several labels for each vertex,"
                " each must be 0 or 1.",
                code="value-out-of-range",
            )


def labelled_vertices(graph: Graph, options: DataOptions, task: Task) -> Labelled:
    """Labels and splits of a node task, checked against each other."""
    node_type = _type_with_labels(graph, options)
    nodes = graph.nodes[node_type]
    labels = _column(nodes.fields[options.label])
    multi = labels.ndim == 2
    if multi and task == "node-regression":
        raise PenstockError(
            f"Labels {options.label!r} are {labels.shape[1]} numbers for each vertex: regression supports one.",
            code="unsupported-combination",
        )
    found = Labelled(node_type, labels, {}, task, 0, multi, options.label)
    if task == "node-classification":
        found.classes = labels.shape[1] if multi else _count_classes(labels, options.label)
        check_classes(found.classes, labels, options, f"vertices {node_type!r}")
        found.words = None if multi else nodes.categories.get(options.label)
    found.splits = _splits(nodes, found, options)
    if len(found.splits["train"]) == 0:
        raise PenstockError(
            f"The training split of {node_type!r} is empty: give the graph one, or set `split`.", code="split-missing"
        )
    for split in found.splits:
        found.check_known(split)
    return found


def vertices_to_judge(graph: Graph, options: DataOptions, learned: LearnedLabels) -> Labelled:
    """The vertices that a trained model is used on, with what labels and splits they have."""
    if learned.type not in graph.nodes:
        raise PenstockError(
            f"The run was trained on vertices of type {learned.type!r}, which the graph does not have: use the run's"
            " graph.",
            code="mismatched-inputs",
        )
    check_learned(learned, options)
    nodes, field = graph.nodes[learned.type], learned.field or options.label
    known = (learned.task, learned.classes, learned.multi_label, field, learned.words)
    if field in nodes.fields:
        words = nodes.categories.get(field)
        labels, problem = recoded(_column(nodes.fields[field]), words, learned)
        found = Labelled(learned.type, labels, {}, *known, problem)
    else:
        missing = f"The vertices have no labels {field!r} to compare with."
        found = Labelled(learned.type, np.full(nodes.count, -1), {}, *known, missing)
    # Splits that the graph does not have are drawn among the labelled vertices, as for training.
    if found.problem is None and ("train" in nodes.splits or options.split != "graph"):
        found.splits = _splits(nodes, found, options)
    else:
        found.splits = _given_splits(nodes)
    return found


def _column(labels: Array) -> Array:
    """Labels, with a matrix of one column as a vector."""
    labels = np.asarray(labels)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _type_with_labels(graph: Graph, options: DataOptions) -> str:
    having = [name for name, nodes in graph.nodes.items() if options.label in nodes.fields]
    if options.node_type is not None:
        if options.node_type not in graph.nodes:
            hint = nearest(options.node_type, graph.nodes)
            raise PenstockError(f"node_type {options.node_type!r} is not in the graph{hint}", code="unknown-name")
        if options.node_type not in having:
            raise PenstockError(
                f"Vertices of type {options.node_type!r} have no label field {options.label!r}.", code="field-missing"
            )
        return options.node_type
    if not having:
        fields = sorted({field for nodes in graph.nodes.values() for field in nodes.fields})
        raise PenstockError(
            f"No vertices have labels {options.label!r} (set `label` or `task`){nearest(options.label, fields)}",
            code="field-missing",
        )
    if len(having) > 1:
        raise PenstockError(
            f"Several types have labels {options.label!r}: name one with node_type ({', '.join(having)}).",
            code="option-missing",
        )
    return having[0]


def _count_classes(labels: Array, name: str) -> int:
    if labels.dtype.kind not in "iubf":
        raise PenstockError(
            f"Labels {name!r} are {labels.dtype}, which cannot be classes: number them from 0.", code="wrong-type"
        )
    if labels.dtype.kind == "f":
        if not np.all(np.isfinite(labels)) or np.any(labels != np.round(labels)):
            raise PenstockError(
                f"Labels {name!r} are {labels.dtype}, and not all are whole numbers: number classes from 0, with -1 for"
                " no label, or use task node-regression.",
                code="wrong-type",
            )
        labels = labels.astype(np.int64)
    if len(labels) and int(labels.min()) < -1:
        raise PenstockError(
            f"Labels {name!r} go down to {int(labels.min())}: number classes from 0; -1 means no label.",
            code="value-out-of-range",
        )
    classes = int(labels.max()) + 1 if len(labels) else 0
    if classes < 2:
        raise PenstockError(f"Labels {name!r} have only {classes} class: give at least two.", code="missing-data")
    return classes


def _splits(nodes: NodeSet, found: Labelled, options: DataOptions) -> dict[str, Array]:
    given = _given_splits(nodes)
    if options.split == "graph" and "train" not in given:
        raise PenstockError(
            "The graph has no split of its own: set `split` to ratio or per-class.", code="split-missing"
        )
    if options.split in ("auto", "graph") and "train" in given:
        return {name: given.get(name, np.empty(0, np.int64)) for name in SPLITS}
    eligible = np.flatnonzero(_known(found)).astype(np.int64)
    seed = options.split_number
    if options.split == "per-class":
        if found.classes == 0 or found.multi_label:
            raise PenstockError(
                "split: per-class needs one class per vertex: use ratio.", code="unsupported-combination"
            )
        return _per_class(found.labels, eligible, tuple(options.per_class), seed)
    first, second, third = options.split_ratio
    return splits_by_ratio(eligible, (first, second, third), seed)


def _per_class(labels: Array, eligible: Array, sizes: tuple[int, ...], seed: int) -> dict[str, Array]:
    """So many of each class for training and validation, in an order drawn per vertex; the rest is for testing."""
    draws = np.empty(len(labels))
    unit_draws(document_key(seed, "per-class"), 0, draws)
    order = eligible[np.argsort(draws[eligible], kind="stable")]
    rank = np.empty(len(labels), np.int64)
    for kind in np.unique(labels[eligible]):
        mine = order[labels[order] == kind]
        rank[mine] = np.arange(len(mine))
    train, val = sizes
    cuts = rank[eligible]
    chosen = cuts < train, (cuts >= train) & (cuts < train + val), cuts >= train + val
    return {name: eligible[mask] for name, mask in zip(SPLITS, chosen, strict=True)}


def _given_splits(nodes: NodeSet) -> dict[str, Array]:
    """The graph's own splits, ascending: converters give whatever order their files have."""
    found = {}
    for name in SPLITS:
        if name not in nodes.splits:
            continue
        rows = np.sort(np.asarray(nodes.splits[name]))
        if rows.ndim != 1 or (len(rows) and rows.dtype.kind not in "iu"):
            raise PenstockError(
                f"Split {name!r} is {rows.dtype} {rows.shape}: give the numbers of its vertices.", code="wrong-type"
            )
        if len(rows) and (int(rows[0]) < 0 or int(rows[-1]) >= nodes.count):
            raise PenstockError(
                f"Split {name!r} names vertices outside 0..{nodes.count - 1}: make the graph again.",
                code="id-out-of-range",
            )
        if len(repeated := rows[1:][rows[1:] == rows[:-1]]):
            raise PenstockError(
                f"Split {name!r} names vertex {repeated[0]} more than once: name each once.", code="duplicate"
            )
        found[name] = rows.astype(np.int64)
    return found


def _known(found: Labelled) -> Array:
    if found.labels.dtype.kind == "f":
        # Losses are computed in float32: what is infinite there is not known.
        with np.errstate(over="ignore"):
            finite = np.isfinite(found.labels.astype(np.float32, copy=False))
        return np.asarray(finite if finite.ndim == 1 else finite.all(1))
    if found.multi_label:
        return np.ones(len(found.labels), bool)
    known: Array = found.labels != -1 if found.task == "node-regression" else found.labels >= 0
    return known
