"""A graph in this process as the source of samplers (see `entry.GraphSource`)."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.entry import DrawOptions, Locality, ReadableLists
from penstock.sampling.homogeneous import Homogeneous, whole_graph
from penstock.sampling.labor import SharedLists
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import Lists as RelationLists
from penstock.sampling.lists import ListSource, Readable
from penstock.sampling.temporal import clocks_of


class LocalSource:
    """A whole graph, in memory or mapped, with its training vertices."""

    def __init__(self, graph: Graph, train: Array, seed: int = 0, unchecked: bool = False) -> None:
        """`unchecked`: open a partition folder that the sampler names without validating its arrays."""
        graph.require_edges()
        if graph.is_part:
            raise PenstockError(
                f"Graph {graph.name!r} is a part of a cut graph: sample the whole graph.",
                code="whole-graph-needed",
            )
        check_graph(graph)
        self._graph, self._train, self._seed, self._unchecked = graph, train, seed, unchecked

    def lists(self, options: DrawOptions, *, shared: bool = False) -> ReadableLists:
        """The lists of the relations, each made when it is first used: a relation that no hop follows costs nothing."""
        found = graph_lists(self._graph, options.replace, options.list_weight, options.time, options.weight is None)
        if not shared:
            return found
        whole, counts = whole_graph(self._graph, options.sampler), found.readable.counts
        return ReadableLists(Readable(counts, dict.fromkeys(self._graph.edges, SharedLists(whole))), found.clocks)

    def whole_lists(self, sampler: str) -> Homogeneous:
        """The graph itself: nothing is copied."""
        return whole_graph(self._graph, sampler)

    def training_vertices(self) -> Array:
        """Training vertices of the graph."""
        return self._train

    def clusters(self, options: DrawOptions) -> Array:
        """The parts of a partition folder, where one is named; else METIS partitions the graph."""
        from penstock.partition import open_partition
        from penstock.sampling.cluster import clusters_from, clusters_of

        if isinstance(options.clusters, str):
            return clusters_from(open_partition(Path(options.clusters), self._unchecked))
        return clusters_of(self._graph, options.clusters, self._seed)

    def locality(self, options: DrawOptions) -> Locality:
        """Raises an error: on one machine nothing is remote."""
        raise PenstockError(
            f"Sampler {options.sampler} treats remote neighbours separately, and one machine has none: train on a"
            " cluster with `--cluster`, or use sampler neighbour.",
            code="unsupported-combination",
        )

    def without(self, absent: Mapping[EdgeType, HeldOutRule]) -> Self:
        """Raises an error unless `absent` is empty: edges must be removed from a local graph before it is sampled."""
        if absent:
            raise PenstockError(
                "Edges cannot be held out of a graph in this process: remove them from the graph first.",
                code="unsupported-combination",
            )
        return self


def graph_lists(
    graph: Graph, replace: bool = False, weight: str | None = None, time: str | None = None, uniform: bool = False
) -> ReadableLists:
    """The lists of a graph's relations, each made when it is first used; arguments are as for `NeighbourSampler`."""
    clocks = {} if time is None else clocks_of(graph, time)

    def lists_of(kind: EdgeType) -> ListSource:
        return RelationLists(graph.edges[kind], edge_key(kind), None, replace, weight, clocks.get(kind), uniform)

    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    return ReadableLists(Readable(counts, _Relations(list(graph.edges), lists_of)), clocks)


class _Relations(Mapping[EdgeType, ListSource]):
    """Lists by relation, made when they are first used."""

    def __init__(self, kinds: list[EdgeType], make: Callable[[EdgeType], ListSource]) -> None:
        self._kinds, self._make, self._made = kinds, make, dict[EdgeType, ListSource]()

    def __getitem__(self, kind: EdgeType) -> ListSource:
        if kind not in self._kinds:
            raise KeyError(kind)
        if kind not in self._made:
            self._made[kind] = self._make(kind)
        return self._made[kind]

    def __iter__(self) -> Iterator[EdgeType]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)
