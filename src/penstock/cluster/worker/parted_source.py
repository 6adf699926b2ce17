"""A cut graph as the source of samplers (see `sampling.registry.GraphSource`): lists are asked of the parts' owners.

Samplers that read whole lists (`whole_lists`) keep, in every process that draws, the offsets of all lists (8 bytes for
each vertex), and what they compute beforehand:

- fastgcn, saint-vertex, saint-edge, saint-walk of one step: chances of all vertices (16 to 32 bytes each), for which
  all lists pass through once, 16 MiB at a time. They are summed in the order in which one machine sums, because sums at
  the owners would round differently; a draw is a search in them.
- saint-walk of more steps: all lists and a count of walks for each edge, 8 bytes each. Counting walk by walk over the
  wire would move more than the lists.
- cluster: the vertices cluster by cluster (5 bytes each); the first worker computes the clusters.
"""

import copy
from collections.abc import Mapping
from typing import Self

from penstock.cluster.worker.clusters import clusters_for
from penstock.cluster.worker.cut_graph import Parts, open_cut_graph
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.sampling.explained.explained_lists import ExplainedLists, ReachedParts
from penstock.sampling.explanation import Explanation
from penstock.sampling.key import BatchKey
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import ListSource
from penstock.sampling.options import SamplerOptions
from penstock.sampling.parts import PartedGraph, parted_graph, parted_lists
from penstock.sampling.registry import ReadableLists
from penstock.train.data import choose_task
from penstock.train.job import Job
from penstock.train.labels import labelled_vertices


class PartedSource:
    """The parts of a run's graph. `train` are the training vertices in the cut graph's numbers.

    A sampler task, which does not know them, leaves them out: they are then read from the graph when needed.
    """

    def __init__(self, parts: Parts, job: Job, train: Array | None = None) -> None:
        self._parts, self._job, self._train = parts, job, train
        self._absent: Mapping[EdgeType, HeldOutRule] = {}
        self._graph: PartedGraph | None = None

    @property
    def typed(self) -> bool:
        """Whether the graph has several node or edge types."""
        return len(self._parts.partition.book.node_types) > 1 or len(self._parts.edge_types) > 1

    def lists(self, options: SamplerOptions, *, shared: bool = False) -> ReadableLists:
        """Lists at their owners, who draw from them; those of local parts are read through their mappings."""
        parts = self._parts
        return parted_lists(
            parts.partition,
            options.replace,
            options.list_weight,
            options.time,
            shared,
            local=parts.owned,
            channels=parts.lists,
            absent=self._absent,
            vertex_times=parts.vertex_times(options.time),
            edge_times=parts.edge_times(options.time),
            uniform=options.weight is None,
        )

    def whole_lists(self, sampler: str) -> PartedGraph:
        """The graph for samplers that read whole lists, batch by batch."""
        if self._graph is None:
            parts = self._parts
            self._graph = parted_graph(parts.partition, sampler, parts.owned, parts.lists)
        return self._graph

    def training_vertices(self) -> Array:
        """In the cut graph's numbers."""
        if self._train is None:
            graph = open_cut_graph(self._parts, self._job.label)
            data = labelled_vertices(graph, self._job, choose_task(graph, self._job))
            self._train = self._parts.partition.new_ids(data.splits["train"], data.node_type)
        return self._train

    def clusters(self, options: SamplerOptions) -> Array:
        """The clusters that the first worker computed, in the cut graph's numbering."""
        clusters: Array = clusters_for(self._parts, self._job)[self.whole_lists(options.sampler).names]
        return clusters

    def locality(self, options: SamplerOptions) -> "PartedLocality":
        """What is in this machine's parts is local."""
        return PartedLocality(self._parts, self._job, self.lists(options))

    def without(self, absent: Mapping[EdgeType, HeldOutRule]) -> Self:
        """The owners leave out the edges that are held out."""
        other = copy.copy(self)
        other._absent = absent
        return other


class PartedLocality:
    """A worker's machine among the parts (see `sampling.registry.Locality`)."""

    def __init__(self, parts: Parts, job: Job, plain: ReadableLists) -> None:
        self._parts, self._job, self._plain = parts, job, plain

    def explanation(self, key: BatchKey) -> Explanation | None:
        """What is in force for a batch."""
        return self._parts.explanation_at(key)

    def lists(self, explanation: Explanation) -> dict[EdgeType, ListSource]:
        """Lists by relation that are drawn from as an explanation says."""
        parts, bias = self._parts, self._job.remote_bias
        reached = ReachedParts(parts.partition.book, parts.owned, parts.lists, self._count)
        plain = self._plain.readable.relations
        return {kind: ExplainedLists(kind, reached, plain[kind], explanation, bias) for kind in plain}

    def _count(self, sent: int) -> None:
        self._parts.score_bytes += sent
