"""What an epoch of a loader goes through: the items of a split, or vertices that the user names."""

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.train.batch_source import make_batch_source
from penstock.train.data import choose_task
from penstock.train.job import Job
from penstock.train.tasks import make_task

Seeds = str | Array | Mapping[str, Array] | None
"""The name of a split, numbers or a mask of vertices, the same by node type, or None for all vertices."""


class SeedSource(Protocol):
    """Turns some of an epoch's items into a batch; the tasks of training do."""

    @property
    def name(self) -> str:
        """The kind of task; `vertices` where there is none."""

    @property
    def items(self) -> Array:
        """What an epoch goes through: vertices, edges, subgraphs."""

    @property
    def batch_size(self) -> int:
        """The number of items in a batch."""

    def sample(self, planned: Planned) -> Batch:
        """The batch of some items, without features."""

    def label(self, batch: Batch) -> None:
        """Add what the outputs are compared with, where that is known."""


def seed_source(graph: Graph, job: Job, seeds: Seeds) -> tuple[SeedSource, Graph]:
    """What an epoch goes through, and the graph whose edges carry messages: without those that a task holds out."""
    if isinstance(seeds, str):
        return make_task(choose_task(graph, job), graph, job, split=seeds)
    return GivenVertices(graph, job, seeds), graph


class GivenVertices:
    """Vertices named by their numbers. They need no labels; those that have some bring them."""

    name = "vertices"

    def __init__(self, graph: Graph, job: Job, seeds: Array | Mapping[str, Array] | None) -> None:
        self.node_type = _type_of(graph, job, seeds)
        nodes = graph.nodes[self.node_type]
        chosen = seeds[self.node_type] if isinstance(seeds, Mapping) else seeds
        rows = np.arange(nodes.count) if chosen is None else _numbers(chosen, nodes.count)
        self._labels = nodes.fields.get(job.label)
        batches = make_batch_source(job, graph, rows)
        self._sample, self.items, self.batch_size = batches.sample, batches.items, batches.batch_size

    def sample(self, planned: Planned) -> Batch:
        """See `SeedSource.sample`."""
        return self._sample({self.node_type: planned.seeds}, planned)

    def label(self, batch: Batch) -> None:
        """Integers as int64, other numbers as float32."""
        if self._labels is not None:
            found = np.asarray(self._labels[batch.seeds[self.node_type]])
            batch.labels = found.astype(np.float32 if found.dtype.kind == "f" else np.int64)


def _type_of(graph: Graph, job: Job, seeds: Array | Mapping[str, Array] | None) -> str:
    given = list(seeds) if isinstance(seeds, Mapping) else [job.node_type or ""]
    if len(given) != 1:
        raise PenstockError(
            f"ps.loader was given vertices of {len(given)} types: make a loader for each type.",
            code="unsupported-combination",
        )
    name = given[0] or (graph.node_types[0] if len(graph.nodes) == 1 else "")
    if not name:
        raise PenstockError(
            f"The graph has several node types: name one with node_type ({', '.join(graph.nodes)}).",
            code="option-missing",
        )
    if name not in graph.nodes:
        raise PenstockError(f"There is no node type {name!r}{nearest(name, graph.nodes)}", code="unknown-name")
    return name


def _numbers(chosen: Any, count: int) -> Array:
    """Vertex numbers of numbers or of a mask."""
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
