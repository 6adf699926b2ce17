"""What an epoch of a loader iterates over: the items of a split, or vertices or edges that the user chose."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.folder import Graph
from penstock.graph.schema import TASK_FACTS, EdgeType, TaskFacts, is_about, task_for
from penstock.pipeline.schedule import Planned
from penstock.pipeline.stages import Batch
from penstock.sampling.links import PairBatcher, find_reverse, known_edges
from penstock.train.batch_source import make_batch_source
from penstock.train.dataset.prepared_graph import choose_edge_type, choose_task
from penstock.train.loading.given_graph import EdgeExamples, GivenGraph
from penstock.train.loading.options import LoaderJob
from penstock.train.tasks import ALL, make_task
from penstock.train.tasks.ends import sample_ends
from penstock.train.tasks.links import make_negatives
from penstock.train.tasks.task import SeedSource

Seeds = str | Array | Mapping[str, Array] | tuple[str, Any] | EdgeExamples | None
"""A split's name or `auto`, numbers or a mask of vertices, the same with their node type, or None for all vertices."""
AUTO = "auto"
"""The graph's training split; everything, if it has none."""


def seed_source(
    given: GivenGraph, graph: Graph, job: LoaderJob, seeds: Seeds, negatives: bool
) -> tuple[SeedSource, Graph]:
    """An epoch's items, and the graph without held-out edges; `negatives`: drawn beside labels too."""
    if isinstance(seeds, EdgeExamples):
        return GivenEdges(graph, job, seeds, negatives), graph
    if isinstance(seeds, tuple):
        seeds = dict([seeds])
    if not isinstance(seeds, str):
        return GivenVertices(graph, job, seeds), graph
    if seeds in graph.nodes and seeds not in (AUTO, *SPLITS):
        return GivenVertices(graph, job, {seeds: None}), graph
    task = choose_task(graph, job)
    if not is_about(task, "vertices"):
        if given.examples and is_about(task, "edges"):
            examples = _found_examples(given, graph, job)
            if examples is not None and seeds not in graph.edges[examples.edge_type].held_out:
                return GivenEdges(graph, job, examples, negatives), graph
        _check_held_out(graph, job, task, seeds)
        return make_task(task, graph, job, split=ALL if seeds == AUTO else seeds)
    if seeds == AUTO and not _has_training_split(graph, job):
        return GivenVertices(graph, job, {_type_with_labels(graph, job): None}), graph
    return make_task(task, graph, job, split="train" if seeds == AUTO else seeds)


def is_shuffled(seeds: Seeds, source: SeedSource) -> bool:
    """Whether an epoch is shuffled where the user does not say: not if they passed items in an order of their own."""
    return isinstance(seeds, str) and seeds in (AUTO, "train") and not isinstance(source, GivenEdges)


class GivenVertices:
    """The `SeedSource` of vertices given by number. They need no labels."""

    name = "vertices"
    facts = TaskFacts("vertices", "classes", drawn_by_devices=True)

    def __init__(self, graph: Graph, job: LoaderJob, seeds: Array | Mapping[str, Any] | None) -> None:
        self.node_type = _type_of(graph, job, seeds)
        nodes = graph.nodes[self.node_type]
        chosen = seeds[self.node_type] if isinstance(seeds, Mapping) else seeds
        rows = np.arange(nodes.count) if chosen is None else _numbers(chosen, nodes.count)
        is_list = chosen is not None and np.asarray(chosen).dtype.kind != "b"
        self._sorted = np.argsort(rows, kind="stable") if is_list else None
        self._rows = rows
        batches = make_batch_source(job, graph, rows)
        self._sample, self.items, self.batch_size = batches.sample, batches.items, batches.batch_size
        self.sampler = batches.sampler

    def sample(self, planned: Planned) -> Batch:
        return self._sample({self.node_type: planned.seeds}, planned)

    def label(self, batch: Batch) -> None:
        """Do nothing: labels are a field of the vertices like any other."""

    def input_id(self, seeds: Array) -> Array:
        """The positions of seeds in the list that the user passed; for a mask or all vertices, their numbers."""
        if self._sorted is None:
            return seeds
        found: Array = self._sorted[np.searchsorted(self._rows, seeds, sorter=self._sorted)]
        return found


class GivenEdges:
    """The `SeedSource` of pairs of one relation that the user gives, with or without labels; no edges are held out.

    Where pairs have labels, negatives are drawn only if the user asked for them. They have the label 0, and classes
    that begin with 0 move up by one, as in PyG.
    """

    name, facts = "link-prediction", TASK_FACTS["link-prediction"]

    def __init__(self, graph: Graph, job: LoaderJob, examples: EdgeExamples, negatives: bool) -> None:
        kind, pairs, labels = examples
        if not len(pairs):
            raise PenstockError(
                "ps.loader was given no edges (edge_label_index): give at least one.", code="missing-data"
            )
        if job.time is not None:
            raise PenstockError(
                "Pairs of edge_label_index have no times, and the loader samples by `time`: leave out `time`, or give"
                " the pairs as edges of the graph, with a field of times.",
                code="unsupported-combination",
            )
        drawn = labels is None or negatives
        self.edge_type, self._labels = kind, labels
        if labels is not None and drawn and labels.min() == 0:
            self._labels = labels + 1
        reverse = find_reverse(graph, kind)
        true = pairs if labels is None or labels.ndim > 1 else pairs[labels != 0]
        held_out = [*graph.edges[kind].held_out.values(), true]
        known = known_edges(graph, kind, held_out, reverse)
        policy = make_negatives(job) if drawn else None
        self._batcher = PairBatcher(graph, pairs, kind, policy, known, reverse, job.disjoint)
        self._batches = make_batch_source(job, graph, np.arange(len(pairs)), excluding=True)
        self.items, self.batch_size = self._batches.items, self._batches.batch_size

    def sample(self, planned: Planned) -> Batch:
        batch = sample_ends(self._batcher, self._batches, planned)
        batch.links.labels = None if self._labels is None else self._labels[planned.seeds]
        return batch

    def label(self, batch: Batch) -> None:
        """Add the pairs as rows of the batch, and their labels: the user's or 1, and 0 for negatives."""
        rows, columns, true = batch.links.pairs()
        own = batch.links.labels
        if own is not None:
            drawn = np.zeros((len(rows) - len(own), *own.shape[1:]), own.dtype)
            true = np.concatenate([own, drawn])
        batch.labels = {"rows": rows.astype(np.int64), "columns": columns.astype(np.int64), "true": true}


def _found_examples(given: GivenGraph, graph: Graph, job: LoaderJob) -> EdgeExamples | None:
    """The edges to score that the graph itself holds, for the relation that is learned."""
    kind: EdgeType | None = None
    if job.edge_type is not None:
        kind = choose_edge_type(graph, job, None)
    elif len(given.examples) == 1:
        (kind,) = given.examples
    if kind is None:
        names = ", ".join("__".join(each) for each in given.examples)
        raise PenstockError(
            f"{len(given.examples)} edge types have an edge_label_index: name one with target ({names}).",
            code="option-missing",
        )
    return given.examples.get(kind)


def _check_held_out(graph: Graph, job: LoaderJob, task: str, seeds: str) -> None:
    """Refuse a split of edges where none are held out."""
    if task != task_for("edges", "links") or seeds in (AUTO, "train") or job.time is not None or any(job.held_out):
        return
    kind = choose_edge_type(graph, job, None)
    if seeds in SPLITS and seeds not in graph.edges[kind].held_out:
        raise PenstockError(
            f"No edges are held out for split {seeds!r}: a loader holds out none unless it is asked to, with"
            " held_out=[0.05, 0.1] for example, or give them as edge_label_index.",
            code="split-missing",
        )


def _has_training_split(graph: Graph, job: LoaderJob) -> bool:
    """Whether the graph has a training split, or the user asked for one to be drawn."""
    asked = job.split in ("ratio", "per-class", "graph") or {"split_ratio", "per_class"} & job.model_fields_set
    return bool(asked) or len(graph.nodes[_type_with_labels(graph, job)].splits.get("train", ())) > 0


def _type_with_labels(graph: Graph, job: LoaderJob) -> str:
    labelled = [name for name, nodes in graph.nodes.items() if job.label in nodes.fields]
    return _type_of(graph, job.model_copy(update={"target": labelled[0]}) if len(labelled) == 1 else job, None)


def _type_of(graph: Graph, job: LoaderJob, seeds: Array | Mapping[str, Any] | None) -> str:
    given = list(seeds) if isinstance(seeds, Mapping) else [job.node_type or ""]
    if len(given) != 1:
        raise PenstockError(
            f"ps.loader was given vertices of {len(given)} types: make a loader for each type.",
            code="unsupported-combination",
        )
    name = given[0] or (graph.node_types[0] if len(graph.nodes) == 1 else "")
    if not name:
        raise PenstockError(
            f"The graph has several node types: name one with target ({', '.join(graph.nodes)}), or give vertices as"
            f" ({graph.node_types[0]!r}, mask).",
            code="option-missing",
        )
    if name not in graph.nodes:
        raise PenstockError(f"There is no node type {name!r}{nearest(name, graph.nodes)}", code="unknown-name")
    return name


def _numbers(chosen: Any, count: int) -> Array:
    """Vertex numbers, given as numbers or as a mask."""
    rows = np.asarray(chosen)
    if rows.dtype.kind == "b" and rows.shape == (count,):
        rows = np.flatnonzero(rows)
    if rows.shape == (0,):
        raise PenstockError("ps.loader was given no vertices: give at least one.", code="missing-data")
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise PenstockError(
            f"The vertices given to ps.loader are {rows.dtype} {rows.shape}: give their numbers, or a mask of"
            f" {count:,}.",
            code="wrong-type",
        )
    outside = rows[(rows < 0) | (rows >= count)]
    if len(outside):
        raise PenstockError(
            f"Vertex {outside[0]} was given to ps.loader, but only 0 to {count - 1} exist: give rows of the graph.",
            code="id-out-of-range",
        )
    sorted_rows = np.sort(rows)
    if (repeated := sorted_rows[1:][sorted_rows[1:] == sorted_rows[:-1]]).size:
        raise PenstockError(
            f"Vertex {repeated[0]} was given to ps.loader twice: give each vertex once.", code="duplicate"
        )
    return rows.astype(np.int64)
