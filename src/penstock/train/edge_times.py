"""Tasks on edges that are sampled by time: when each edge was, and what its ends may see of the graph then.

An edge is predicted from what was before it. Its own time, and all that happened at the same moment, is left out: the
edge itself, its reverse, and everything later are then out of reach, and no edge has to be taken out of the graph.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.links import EdgeBatch, Exclude
from penstock.sampling.temporal import OF_NODES, checked_times, just_before
from penstock.train.job import Job


@dataclass(frozen=True, eq=False)
class EdgeTimes:
    """`values` has the time of every edge of the task's relation, by position."""

    values: Array
    in_whole_numbers: bool
    """Whether all times that are compared are integers."""
    bound: frozenset[EdgeType]
    """Relations whose own edges have times: what they hold of an edge to predict is out of reach by its time."""

    def limits(self, times: Mapping[str, Array]) -> dict[str, Array]:
        """By node type, up to when seeds may see the graph that are needed at some times."""
        return {name: just_before(some, self.in_whole_numbers) for name, some in times.items()}

    def exclude(self, links: EdgeBatch) -> Exclude | None:
        """What a batch must not draw: its edges, in relations that are not bound by the times of their own edges."""
        if not isinstance(links.exclude, dict):
            return None if links.edge_type in self.bound else links.exclude
        return {kind: pairs for kind, pairs in links.exclude.items() if kind not in self.bound} or None

    def splits(self, ratios: tuple[float, float, float], eligible: Array | None = None) -> dict[str, Array]:
        """Ascending positions of train, val and test: the earliest edges are for training, the latest for the test.

        `eligible` are the positions that may be chosen (default: all). Edges whose time is NaN are in no split.
        """
        chosen = np.arange(len(self.values)) if eligible is None else eligible
        times = np.asarray(self.values[chosen])
        if times.dtype.kind == "f":
            chosen, times = chosen[~np.isnan(times)], times[~np.isnan(times)]
        order = np.argsort(times, kind="stable")
        ends = np.round(np.cumsum(ratios) * len(chosen)).astype(np.int64)
        parts = np.split(order, ends)[: len(SPLITS)]
        return {name: np.sort(chosen[some]).astype(np.int64) for name, some in zip(SPLITS, parts, strict=True)}


def seed_field(job: Job) -> str:
    """The field with the times of what a job learns: of its vertices, or of its edges."""
    assert job.time is not None
    return job.seed_time or job.time.removeprefix(OF_NODES)


def edge_times(job: Job, graph: Graph, kind: EdgeType) -> EdgeTimes | None:
    """The times of the edges of a relation, where the job is sampled by time."""
    if job.time is None:
        return None
    name, field = job.time.removeprefix(OF_NODES), seed_field(job)
    of_nodes, edges = job.time.startswith(OF_NODES), graph.edges[kind]
    if field not in edges.fields:
        raise PenstockError(
            f"The edges {edge_key(kind)} have no field {field!r} that gives their times: set `seed_time` to one of"
            f" {', '.join(edges.fields) or 'their fields, of which they have none'}.",
            code="field-missing",
        )
    values = checked_times(edges.fields[field], f"Field {field!r} of {edge_key(kind)}")
    owners = graph.nodes.values() if of_nodes else graph.edges.values()
    compared = [values, *(owner.fields[name] for owner in owners if name in owner.fields)]
    bound = frozenset() if of_nodes else frozenset(kind for kind in graph.edges if name in graph.edges[kind].fields)
    return EdgeTimes(values, all(each.dtype.kind in "iu" for each in compared), bound)
