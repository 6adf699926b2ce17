"""Cluster-GCN (Chiang et al., KDD 2019): a batch is the subgraph of some clusters of a partition.

Edges between clusters of the same batch are kept, edges to others dropped. The method is biased, and no weights can
correct it: an edge between two clusters counts only when both are drawn together. With several small clusters per
batch, drawn anew every epoch, the bias shrinks. `totals` are the degrees in the whole graph; edges have no weights, so
that a row's mean is that of the neighbours inside.
"""

from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.folder import Graph
from penstock.partition import Cut, Partition, assign
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.entry import CLUSTERS_PER_BATCH, GraphSource, SamplerEntry, SamplerSettings, rule
from penstock.sampling.homogeneous import Homogeneous, homogeneous, whole_graph
from penstock.sampling.induced import Inducer, blocks_on

if TYPE_CHECKING:
    from penstock.sampling.device.hops import Tables
    from penstock.sampling.device.program import DeviceProgram


class ClusterSampler:
    """Batches of whole clusters: `clusters[v]` is the cluster of v, `items` are the clusters that occur.

    Seeds are the clusters' training vertices; a batch may have none. `sample` may be called from several threads at
    once.
    """

    def __init__(self, graph: Graph | Homogeneous, clusters: Array, train: Array, layers: int = 2) -> None:
        self._graph = homogeneous(graph, "ClusterSampler")
        clusters, count = np.asarray(clusters), self._graph.count
        if len(clusters) != count or clusters.dtype.kind not in "iu":
            raise PenstockError(
                f"There are {len(clusters):,} cluster numbers ({clusters.dtype}) for {count:,} vertices: give one"
                " integer for each vertex.",
                code="shape-mismatch",
            )
        if layers < 1:
            raise PenstockError(f"The number of layers is {layers}: give 1 or more.", code="value-out-of-range")
        self.layers = layers
        self._is_train = self._graph.train_mask(train)
        self._inducer = Inducer(self._graph)
        self._members = self._by_cluster(clusters).astype(index_dtype(count))
        self.items, starts = np.unique(clusters[self._members], return_index=True)
        self._starts = np.append(starts, len(clusters))

    def sample(self, items: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different clusters. Nothing is drawn: the key only identifies the batch."""
        members = self._union(np.atleast_1d(np.asarray(items)))
        inside = self._is_train[members]
        vertices = np.concatenate([members[inside], members[~inside]])
        subgraph = self._inducer.induce(vertices, self._graph.reader())
        seeds = int(inside.sum())
        blocks = blocks_on(self._graph, subgraph, None, seeds, self.layers)
        name = self._graph.node_type
        return MiniBatch({name: vertices[:seeds]}, {name: vertices}, blocks, key=key)

    def on_device(self) -> "DeviceProgram":
        """How a device makes the same batches."""
        from penstock.sampling.device.subgraphs import InducedRule, Members, SubgraphProgram

        largest = tuple(sorted(np.diff(self._starts).tolist(), reverse=True))
        hop = InducedRule(-1, rule("keep_inside"), None, ("place",))
        given = (hop,), Members(largest), self.layers, self._places
        return SubgraphProgram(*given, totals=True, make_tables=self._tables)

    def _tables(self, topology: object) -> "Tables":
        import torch

        members = np.ascontiguousarray(self._members, np.int32), np.ascontiguousarray(self._starts, np.int64)
        tables = {"members": members[0], "member_starts": members[1], "is_train": self._is_train.astype(np.int8)}
        return {name: torch.from_numpy(table) for name, table in tables.items()}

    def _by_cluster(self, clusters: Array) -> Array:
        """Vertices ordered by cluster, and by name within it."""
        order = self._graph.natural_order()
        if not len(order):
            return np.argsort(clusters, kind="stable")
        members: Array = order[np.argsort(clusters[order], kind="stable")]
        return members

    def _places(self, items: Array) -> Array:
        """The places of some clusters among all."""
        places = np.minimum(np.searchsorted(self.items, items), len(self.items) - 1)
        unknown = np.flatnonzero(self.items[places] != items)
        if len(unknown):
            raise PenstockError(
                f"There is no cluster {items[unknown[0]]}: take numbers from `items`.", code="id-out-of-range"
            )
        return places

    def _union(self, items: Array) -> Array:
        places = self._places(items)
        if len(np.unique(items)) != len(items):
            raise PenstockError("A cluster occurs twice in a batch's items: give each once.", code="duplicate")
        return np.concatenate(
            [self._members[:0], *(self._members[self._starts[i] : self._starts[i + 1]] for i in places)]
        )


def clusters_from(partition: Partition, node_type: str | None = None) -> Array:
    """The cluster (int64) of every vertex of the whole graph: its part, or its trainer's share of the part if there are
    any.
    """
    original = partition.original(node_type)
    ids = np.arange(len(original))
    clusters = np.empty(len(original), np.int64)
    book = partition.book
    clusters[original] = book.owner(ids, node_type) * book.trainers + book.trainer(ids, node_type)
    return clusters


def clusters_of(graph: Graph, count: int, seed: int = 0) -> Array:
    """`count` clusters with few edges between them and about equally many vertices, by METIS."""
    whole_graph(graph, "clusters_of")
    if count < 2:
        raise PenstockError(f"The number of clusters is {count}: ask for 2 or more.", code="value-out-of-range")
    return assign(graph, Cut(count, balance=("vertices",), seed=seed)).assignment


def _build(source: GraphSource, settings: SamplerSettings) -> ClusterSampler:
    graph = source.whole_lists("cluster")
    return ClusterSampler(graph, source.clusters(settings.options), source.training_vertices(), settings.layers)


CLUSTER = SamplerEntry(
    "cluster",
    _build,
    facts=CLUSTERS_PER_BATCH,
    joint=True,
    items_per_batch=lambda options: options.batch_size,
    uses_clusters=True,
    device=lambda options, sampler: sampler.on_device(),
)
