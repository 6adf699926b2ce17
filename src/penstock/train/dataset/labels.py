"""Labels of vertices: found or drawn, changed as published figures have them, and kept by the run that learns."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from penstock.errors import PenstockError, nearest
from penstock.formatting import counted
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS, EdgeSet, NodeSet, splits_by_ratio
from penstock.graph.folder import Graph
from penstock.graph.hashing import document_key, unit_draws
from penstock.graph.prepare import component_mask, joined_splits, within
from penstock.graph.schema import TASK_FACTS, TaskName
from penstock.train.job import Job

# The labels that a run learned, kept in its folder with their words, since codes alone have no meaning in another
# graph.


@dataclass(frozen=True)
class LearnedLabels:
    """The labels of one node type, or of an edge type given by its key. `classes` is 0 for numbers, the width for
    several labels.
    """

    task: TaskName
    type: str
    field: str | None = None
    classes: int = 0
    multi_label: bool = False
    words: list[str] | None = None

    def facts(self) -> dict[str, Any]:
        """The labels as run.json keeps them."""
        return asdict(self)


def learned_labels(facts: Any, where: str) -> LearnedLabels | None:
    """The labels in run.json; None where it has none, as in runs of earlier releases."""
    if facts is None:
        return None
    try:
        return TypeAdapter(LearnedLabels).validate_python(facts)
    except ValidationError:
        raise PenstockError(
            f"{where} does not say which labels the run learned: copy the run again.", code="damaged-file"
        ) from None


_GAPS = 10
"""Classes for each label that occurs, beyond which labels of many classes are taken for a mistake."""


def check_classes(classes: int, labels: Array, options: Job, owner: str) -> None:
    """Refuse many classes of which most never occur: a model has a row of weights for each, whether it does or not."""
    if classes <= options.max_classes or labels.ndim == 2:
        return
    different = len(np.unique(labels[labels >= 0]))
    if classes > _GAPS * different:
        raise PenstockError(
            f"Label {options.label!r} of {owner} is {int(labels.max())} in row {int(labels.argmax())}, which asks for"
            f" {classes:,} classes where {different:,} different labels occur: number the labels from 0 without gaps.",
            code="too-large",
        )


def check_learned(learned: LearnedLabels, options: Job) -> None:
    """Refuse more classes than a run that was checked so can have learned, where run.json says that it did."""
    if not 0 <= learned.classes <= options.max_classes:
        raise PenstockError(
            f"The run says that it learned {learned.classes:,} classes, and at most {options.max_classes:,} were"
            " decided for it: copy the run again.",
            code="damaged-file",
        )


def recoded(labels: Array, words: list[str] | None, learned: LearnedLabels) -> tuple[Array, str | None]:
    """A graph's labels in the run's codes, -1 where the run does not know the word; and why they cannot be used, or
    None.
    """
    field = f"Labels {learned.field!r}"
    if learned.classes == 0:
        return labels, None if labels.ndim == 1 else f"{field} are {labels.shape[1]} numbers, and the run learned one."
    if learned.multi_label or labels.ndim > 1:
        width, taught = labels.shape[1:] or (1,), (learned.classes,) if learned.multi_label else (1,)
        same = width == taught
        return labels, None if same else f"{field} have {width[0]} columns, and the run learned {taught[0]}."
    if (words is None) != (learned.words is None):
        here, there = ("numbers", "words") if words is None else ("words", "numbers")
        return labels, f"{field} are {here}, and the run learned {there}, so they cannot be matched."
    if words is None or learned.words is None:
        top = int(labels.max()) if len(labels) else -1
        known = top < learned.classes
        return labels, None if known else f"{field} go up to {top}, and the run learned {learned.classes} classes."
    places = {word: code for code, word in enumerate(learned.words) if code < learned.classes}
    # One more entry at the end, which -1 selects.
    table = np.array([*(places.get(word, -1) for word in words), -1], np.int64)
    return table[np.where((labels >= 0) & (labels < len(words)), labels, -1).astype(np.int64)], None


# Labels of vertices and which of them are for training: found, drawn where the graph has none, checked.


class SplitValues:
    """A field, labels or times, of the vertices of a graph's own splits, as a worker of a cut graph has it: nobody asks
    for others.

    It stands for an array with a value for each of `count` vertices.
    """

    def __init__(self, count: int, rows: Array, values: Array, different: Array) -> None:
        """`values` are those of `rows`, which ascend. `different` are labels of all vertices, each once, as far as they
        decide what is learned (see `different_labels`).
        """
        self._count, self._rows, self._values, self.different = count, rows, values, different
        self.dtype, self.ndim, self.shape = values.dtype, values.ndim, (count, *values.shape[1:])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, vertices: Any) -> Array:
        """The values of some vertices of the splits, by an array of their numbers."""
        places = np.searchsorted(self._rows, vertices)
        if len(vertices) and (not len(self._rows) or (self._rows.take(places, mode="clip") != vertices).any()):
            raise PenstockError(
                "A worker of a cut graph has values of its splits' vertices alone, and others were asked for.",
                code="not-available",
            )
        found: Array = self._values[places]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise PenstockError(
            "A worker of a cut graph has values of its splits' vertices alone: index them by these.",
            code="not-available",
        )

    @property
    def nbytes(self) -> int:
        """Bytes of what is here."""
        return self._rows.nbytes + self._values.nbytes + self.different.nbytes


_MOST_DIFFERENT = 1 << 16
"""The most different labels that are collected: more are numbers, or a mistake that a sentence is due for."""
SAMPLED = 100_000
"""Rows by which labels are judged to be quantities or classes."""


def of_splits_suffice(options: Job, splits: Mapping[str, Array], count: int) -> bool:
    """Whether a job reads the labels and times of the given splits alone, and these are few among all vertices."""
    given = options.split in ("auto", "graph") and "train" in splits
    return given and 2 * sum(map(len, splits.values())) <= count


def different_labels(first: Array, blocks: Iterable[Array | None], options: Job) -> Array | None:
    """The different labels among `blocks`, of which a `SplitValues` can be made; None where all labels are needed, to
    learn them or to say what is wrong with them. `first` are those of the first rows, by which floats are judged.

    A block that is None stands for more different labels than are collected.
    """
    if first.ndim == 2:
        # The width says what is learned.
        return first[:0]
    if first.dtype.kind not in "biuf":
        return None
    first = first[:SAMPLED]
    if first.dtype.kind == "f" and are_quantities(first):
        return np.unique(first)
    found = different_values(first[:0], blocks)
    if found is None:
        return None
    finite = found[np.isfinite(found)]
    if not len(finite) or (first.dtype.kind == "f" and are_quantities(finite)) or finite.max() >= options.max_classes:
        return None
    return found


def different_values(known: Array, blocks: Iterable[Array | None]) -> Array | None:
    """The different labels among those known and `blocks`, ascending; None where there are too many to collect."""
    for block in blocks:
        if block is None:
            return None
        known = np.unique(np.concatenate([known, _different(column(block))]))
        if len(known) > _MOST_DIFFERENT:
            return None
    return known


def _different(labels: Array) -> Array:
    """The different labels of a block; integers that are close together are counted instead of sorted."""
    if labels.dtype.kind == "i" and len(labels):
        low, high = int(labels.min()), int(labels.max())
        if high - low < _MOST_DIFFERENT:
            return (np.flatnonzero(np.bincount(labels.astype(np.int64) - low)) + low).astype(labels.dtype)
    return np.unique(labels)


def are_quantities(labels: Array) -> bool:
    """Whether some labels, which are floats, are quantities rather than classes."""
    some = np.asarray(labels).ravel()
    some = some[np.isfinite(some)]
    return bool(np.any(some != np.round(some)))


@dataclass(eq=False)
class LabelColumn:
    """A label for each vertex or edge of one type (-1 or NaN: none), and the rows of each split.

    `classes` is 0 for numbers, the width for multi-label. `words` are the classes' names, where they have any;
    `problem` says why outputs cannot be compared with the labels.
    """

    labels: Array | SplitValues
    splits: dict[str, Array]
    task: TaskName
    classes: int
    multi_label: bool = False
    field: str = "y"
    words: list[str] | None = None
    problem: str | None = None

    def kept(self, of: str) -> LearnedLabels:
        """The labels as a run keeps them, of a node type or of an edge type given by its key."""
        return LearnedLabels(self.task, of, self.field, self.classes, self.multi_label, self.words)

    @property
    def known(self) -> Array:
        """Whether each row has a label."""
        return self.are_known(np.asarray(self.labels))

    def are_known(self, labels: Array) -> Array:
        """Whether each of some labels is one. In float32, in which losses are computed, infinite ones are unknown."""
        if labels.dtype.kind == "f":
            with np.errstate(over="ignore"):
                finite = np.isfinite(labels.astype(np.float32, copy=False))
            return np.asarray(finite if finite.ndim == 1 else finite.all(1))
        if self.multi_label:
            return np.ones(len(labels), bool)
        return np.asarray(labels != -1 if TASK_FACTS[self.task].learns == "numbers" else labels >= 0)


@dataclass(eq=False, kw_only=True)
class Labelled(LabelColumn):
    """The vertices of one type with their labels and splits."""

    node_type: str

    def learned(self) -> LearnedLabels:
        """The labels as a run keeps them."""
        return self.kept(self.node_type)

    def check_known(self, split: str) -> None:
        """Refuse a split with unknown labels."""
        rows = self.splits[split]
        labels = self.labels[rows]
        unknown = rows[~self.are_known(labels)]
        if len(unknown):
            raise PenstockError(
                f"Split {split!r} has {counted(len(unknown), 'vertices')} without a known label {self.field!r}, first"
                f" vertex {unknown[0]}: remove such vertices from the split, or label them.",
                code="missing-data",
            )
        if self.multi_label and not np.isin(labels, (0, 1)).all():
            raise PenstockError(
                f"Labels {self.field!r} of split {split!r} are not all 0 or 1: with several labels for each vertex,"
                " each must be 0 or 1.",
                code="value-out-of-range",
            )


def labelled_vertices(graph: Graph, options: Job, task: TaskName) -> Labelled:
    """Labels and splits of a node task, checked against each other."""
    node_type = _type_with_labels(graph, options)
    nodes = graph.nodes[node_type]
    field: Array | SplitValues = nodes.fields[options.label]
    labels, every = (field, field.different) if isinstance(field, SplitValues) else (column(field), column(field))
    multi = labels.ndim == 2
    learns = TASK_FACTS[task].learns
    if multi and learns == "numbers":
        raise PenstockError(
            f"Labels {options.label!r} are {labels.shape[1]} numbers for each vertex: regression supports one.",
            code="unsupported-combination",
        )
    found = Labelled(labels, {}, task, 0, multi, options.label, node_type=node_type)
    if learns == "classes":
        found.classes = labels.shape[1] if multi else _count_classes(every, options.label)
        check_classes(found.classes, every, options, f"vertices {node_type!r}")
        found.words = None if multi else nodes.categories.get(options.label)
    found.splits = _splits(nodes, found, options)
    if len(found.splits["train"]) == 0:
        raise PenstockError(
            f"The training split of {node_type!r} is empty: give the graph one, or set `split`.", code="split-missing"
        )
    for split in found.splits:
        found.check_known(split)
    return found


def vertices_to_judge(graph: Graph, options: Job, learned: LearnedLabels) -> Labelled:
    """The vertices that a trained model is used on, with the labels and splits that they have."""
    if learned.type not in graph.nodes:
        raise PenstockError(
            f"The run was trained on vertices of type {learned.type!r}, which the graph does not have: use the run's"
            " graph.",
            code="mismatched-inputs",
        )
    nodes = graph.nodes[learned.type]
    found = Labelled(*in_learned_codes(learned, nodes, options, "vertices"), node_type=learned.type)
    # Splits that the graph does not have are drawn among the labelled vertices, as for training.
    if found.problem is None and ("train" in nodes.splits or options.split != "graph"):
        found.splits = _splits(nodes, found, options)
    else:
        found.splits = _given_splits(nodes)
    return found


def in_learned_codes(learned: LearnedLabels, rows: NodeSet | EdgeSet, options: Job, what: str) -> tuple[Any, ...]:
    """The values of a `LabelColumn` of a graph's vertices or edges, in the codes of a run, without splits."""
    check_learned(learned, options)
    field = learned.field or options.label
    labels: Array = np.full(rows.count, -1)
    problem: str | None = f"The {what} have no labels {field!r} to compare with."
    if field in rows.fields:
        labels, problem = recoded(column(rows.fields[field]), rows.categories.get(field), learned)
    return labels, {}, learned.task, learned.classes, learned.multi_label, field, learned.words, problem


def column(labels: Array) -> Array:
    """Labels, with a matrix of one column turned into a vector."""
    labels = np.asarray(labels)
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _type_with_labels(graph: Graph, options: Job) -> str:
    having = [name for name, nodes in graph.nodes.items() if options.label in nodes.fields]
    if options.node_type is not None:
        if options.node_type not in graph.nodes:
            hint = nearest(options.node_type, graph.nodes)
            raise PenstockError(f"target {options.node_type!r} is not in the graph{hint}", code="unknown-name")
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
            f"Several types have labels {options.label!r}: name one with target ({', '.join(having)}).",
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


def _splits(nodes: NodeSet, found: Labelled, options: Job) -> dict[str, Array]:
    given = _given_splits(nodes)
    if options.split == "graph" and "train" not in given:
        raise PenstockError(
            "The graph has no split of its own: set `split` to ratio or per-class.", code="split-missing"
        )
    if options.split in ("auto", "graph") and "train" in given:
        return {name: given.get(name, np.empty(0, np.int64)) for name in SPLITS}
    eligible = np.flatnonzero(found.known).astype(np.int64)
    seed = options.split_number
    if options.split == "per-class":
        if found.classes == 0 or found.multi_label:
            raise PenstockError(
                "split: per-class needs one class per vertex: use ratio.", code="unsupported-combination"
            )
        return _per_class(np.asarray(found.labels), eligible, tuple(options.per_class), seed)
    first, second, third = options.split_ratio
    return splits_by_ratio(eligible, (first, second, third), seed)


def in_any(splits: Sequence[Array]) -> Array:
    """The vertices of some splits, ascending, each once. The splits are mostly ascending, so that a stable sort merges
    them, several times as fast as `np.unique`.
    """
    vertices = np.sort(np.concatenate(splits), kind="stable")
    first: Array = vertices[np.flatnonzero(np.diff(vertices, prepend=-1))]
    return first


def _per_class(labels: Array, eligible: Array, sizes: tuple[int, ...], seed: int) -> dict[str, Array]:
    """The given numbers of vertices per class for training and validation, in a random order by vertex; the rest is for
    testing.
    """
    draws = unit_draws(document_key(seed, "per-class"), len(labels))
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
    """The graph's own splits, ascending; files may have them in any order."""
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


# Labels and splits as some published results have them: only the largest component, or validation vertices in training.

_CHANGES = ("largest_component", "train_on_validation")


def changed_labels(graph: Graph, options: Job) -> Graph:
    """The graph with its labels and splits changed as the job asks."""
    nodes = dict(graph.nodes)
    if options.largest_component:
        nodes = {name: within(each, component_mask(graph), options.label) for name, each in nodes.items()}
    if options.train_on_validation:
        nodes = joined_splits(nodes)
    if nodes == graph.nodes:
        return graph
    return Graph(nodes, graph.edges, graph.name, graph.path, graph.origin)


def check_uncut(options: Job, path: str) -> None:
    """Refuse such changes for a graph that was partitioned before: its parts have their labels and splits already."""
    for field in _CHANGES:
        if getattr(options, field):
            raise PenstockError(
                f"{field} changes a graph before it is cut, and {path} is cut already: leave `partition` out of the"
                " cluster file.",
                code="unsupported-combination",
            )
