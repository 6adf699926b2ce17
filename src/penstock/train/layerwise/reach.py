"""What exact inference reads: the relations that training follows, whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.blocks import run_blocks
from penstock.graph.data import EdgeSet
from penstock.graph.graph import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling import ALL, BatchKey, NeighbourSampler, TypedNeighbourSampler
from penstock.sampling.typed import Relation, edge_type_named
from penstock.train.batch_source import SeedTimes
from penstock.train.layerwise.chunks import Chunk, Sampled

_ROWS = 1 << 16
"""Vertices whose lists a thread reads at a time."""
_ANY = BatchKey(0, 0, 0)
"""Whole neighbourhoods are not drawn: any key names them."""


@dataclass(frozen=True, eq=False)
class Reach:
    """`hops[h]` are the relations followed at hop h, counted from the seeds; `clock` gives vertices' times as seeds."""

    graph: Graph
    hops: list[list[EdgeType]]
    weight: str | None = None
    clock: SeedTimes | None = None
    edges: bool = False
    """Whether blocks name their edges."""
    ages: bool = False
    """Whether blocks say how old their edges are."""

    def __post_init__(self) -> None:
        check_graph(self.graph)

    def of_layer(self, number: int, layers: int) -> list[EdgeType]:
        """The relations that a layer reads: the last one computes the seeds, from the first hop."""
        # Models that read no neighbours may have more layers than there are hops.
        return self.hops[min(layers - 1 - number, len(self.hops) - 1)]

    def sampler(self, hops: Sequence[list[EdgeType]]) -> Callable[[Chunk], Sampled]:
        """Samples all neighbours of a chunk, over some hops."""
        sample = self.batches(hops)

        def sampled(chunk: Chunk) -> Sampled:
            times = None if chunk.times is None else {chunk.node_type: chunk.times}
            batch = sample({chunk.node_type: chunk.rows}, times)
            return Sampled(chunk, batch.blocks, batch.vertices)

        return sampled

    def batches(self, hops: Sequence[list[EdgeType]]) -> Callable[..., Any]:
        """Samples all neighbours of some vertices by type, over some hops; at their own times where none are given."""
        if not self.graph.is_homogeneous:
            fanouts: list[Mapping[Relation, int]] = [dict.fromkeys(kinds, ALL) for kinds in hops]
            time = None if self.clock is None else self.clock.time
            typed = TypedNeighbourSampler(
                self.graph, fanouts, weight=self.weight, totals=True, edges=self.edges, time=time
            )
            return lambda seeds, times=None: typed.sample(seeds, _ANY, times=times or self._times(seeds))
        whole = [ALL] * len(hops)
        if self.clock is None:
            plain = NeighbourSampler(self.graph, whole, weight=self.weight, totals=True, edges=self.edges)
            return lambda seeds, times=None: plain.sample(_only(seeds), _ANY)
        timed = NeighbourSampler(
            self.graph,
            whole,
            weight=self.weight,
            totals=True,
            edges=self.edges,
            time=self.clock.time,
            ages=self.ages,
        )
        return lambda seeds, times=None: timed.sample(_only(seeds), _ANY, times=_only(times or self._times(seeds)))

    def _times(self, seeds: dict[str, Array]) -> dict[str, Array] | None:
        """The times of some vertices as seeds, by type."""
        if self.clock is None:
            return None
        return {name: self.clock.of(name)[rows] for name, rows in seeds.items()}


def _only(seeds: dict[str, Array] | None) -> Array:
    """The vertices, or their times, of the only node type."""
    (rows,) = (seeds or {}).values()
    return rows


def followed_relations(graph: Graph, fanouts: Sequence[int | Mapping[str, int]], hops: int) -> list[list[EdgeType]]:
    """The relations of every hop that the fan-outs follow; the only one where there is one."""
    if graph.is_homogeneous:
        return [list(graph.edges)] * hops
    return [
        list(graph.edges)
        if not isinstance(fanout, Mapping)
        else [edge_type_named(graph, relation) for relation, number in fanout.items() if number]
        for fanout in fanouts
    ]


def frontiers(graph: Graph, wanted: dict[str, Array], hops: Sequence[list[EdgeType]]) -> list[dict[str, Array]]:
    """For each level, inputs first, the vertices whose values are needed: ascending numbers by type.

    `hops` are the relations followed, counted from the vertices that are wanted.
    """
    needed = [{name: np.asarray(wanted.get(name, ()), np.int64) for name in graph.nodes}]
    for kinds in hops:
        marks = {name: np.zeros(nodes.count, np.bool_) for name, nodes in graph.nodes.items()}
        for name, rows in needed[0].items():
            marks[name][rows] = True
        for kind in kinds:
            _mark_in_parallel(graph.edges[kind], needed[0][kind[2]], marks[kind[0]])
        needed.insert(0, {name: np.flatnonzero(mark) for name, mark in marks.items()})
    return needed


def _mark_in_parallel(edges: EdgeSet, rows: Array, mark: Array) -> None:
    """Mark what some vertices read. Threads write the same value, so that the order of writes does not matter."""

    def work(first: int, last: int) -> None:
        _mark_sources(edges.indptr, edges.indices, rows[first:last], mark)

    run_blocks(work, len(rows), _ROWS)


@njit(nogil=True, cache=True)
def _mark_sources(indptr: Array, indices: Array, rows: Array, mark: Array) -> None:
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            # A line of memory that is written goes from core to core; one that is read need not.
            if not mark[indices[k]]:
                mark[indices[k]] = True
