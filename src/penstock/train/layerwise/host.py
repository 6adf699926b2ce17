"""Exact inference on one machine: the relations that it reads, whole, and chunks of them from the host's lists."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.pipeline.batch_rows import ReclaimedBuffers
from penstock.processes import run_blocks
from penstock.sampling import ALL, BatchKey
from penstock.sampling.block import MiniBatch, unwrapping
from penstock.sampling.local_source import graph_lists
from penstock.sampling.neighbours import edge_type_named
from penstock.sampling.typed import neighbour_sampler
from penstock.train.batch_source import SeedTimes
from penstock.train.dataset.inputs import Inputs
from penstock.train.layerwise.inference import Chunk, GrowingChunks, HostLevel, Level, Sampled, cut_into_chunks

# What exact inference reads: every neighbour along the relations that training follows.

_ROWS = 1 << 16
"""Vertices whose lists a thread reads at a time."""
_ANY = BatchKey(0, 0, 0)
"""Whole neighbourhoods involve no random draw, so any key serves."""


@dataclass(frozen=True, eq=False)
class Reach:
    """The relations that inference reads: `hops[h]` those of hop h from the seeds; `clock` gives vertices' times as
    seeds.
    """

    graph: Graph
    hops: list[list[EdgeType]]
    weight: str | None = None
    clock: SeedTimes | None = None
    edges: bool = False
    """Whether blocks hold the positions of their edges."""
    ages: bool = False
    """Whether blocks hold the ages of their edges."""

    def __post_init__(self) -> None:
        check_graph(self.graph)

    def of_layer(self, number: int, layers: int) -> list[EdgeType]:
        """The relations that a layer reads: the last layer computes the seeds, from hop 0."""
        # Models that read no neighbours may have more layers than there are hops.
        return self.hops[min(layers - 1 - number, len(self.hops) - 1)]

    def sampler(self, hops: Sequence[list[EdgeType]]) -> Callable[[Chunk], Sampled]:
        """A function that samples all neighbours of a chunk over some hops."""
        sample = self.batches(hops)

        def sampled(chunk: Chunk) -> Sampled:
            times = None if chunk.times is None else {chunk.node_type: chunk.times}
            batch = sample({chunk.node_type: chunk.rows}, times)
            return Sampled(chunk, batch.blocks, batch.vertices)

        return sampled

    def batches(self, hops: Sequence[list[EdgeType]]) -> Callable[..., Any]:
        """A function that samples all neighbours of some vertices by type; at their own times where none are given."""
        graph, clock, of_sampler = self.graph, self.clock, unwrapping(self.graph)
        lists = graph_lists(graph, weight=self.weight, time=None if clock is None else clock.time)
        whole: list[Any] = [ALL if len(kinds) == len(graph.edges) else dict.fromkeys(kinds, ALL) for kinds in hops]
        sampler: Any = neighbour_sampler(lists, whole, totals=True, edges=self.edges, ages=self.ages)

        def sample(seeds: dict[str, Array], times: dict[str, Array] | None = None) -> MiniBatch:
            seen = times or self._times(seeds)
            limits = None if seen is None else of_sampler(seen)
            batch: MiniBatch = sampler.sample(of_sampler(seeds), _ANY, times=limits)
            return batch

        return sample

    def _times(self, seeds: dict[str, Array]) -> dict[str, Array] | None:
        """The times of some vertices as seeds, by type."""
        if self.clock is None:
            return None
        return {name: self.clock.of(name)[rows] for name, rows in seeds.items()}


def followed_relations(graph: Graph, fanouts: Sequence[int | Mapping[str, int]], hops: int) -> list[list[EdgeType]]:
    """The relations that the fan-outs follow in each hop."""
    if graph.is_homogeneous:
        return [list(graph.edges)] * hops
    return [
        list(graph.edges)
        if not isinstance(fanout, Mapping)
        else [edge_type_named(graph, relation) for relation, number in fanout.items() if number]
        for fanout in fanouts
    ]


def frontiers(graph: Graph, wanted: dict[str, Array], hops: Sequence[list[EdgeType]]) -> list[dict[str, Array]]:
    """For each level, inputs first, the vertices needed by type, ascending; `hops` go from the wanted ones."""
    needed = [{name: np.asarray(wanted.get(name, ()), np.int64) for name in graph.nodes}]
    for kinds in hops:
        marks = {name: np.zeros(nodes.count, np.bool_) for name, nodes in graph.nodes.items()}
        for name, rows in needed[0].items():
            marks[name][rows] = True
        for kind in kinds:
            _mark_in_parallel(graph.edges[kind], needed[0][kind[2]], marks[kind[0]])
        needed.insert(0, {name: np.flatnonzero(mark) for name, mark in marks.items()})
    return needed


def reached(graph: Graph, first: dict[str, Array], layers: Sequence[Mapping[EdgeType, Array]]) -> dict[str, Array]:
    """The vertices whose outputs change with the rows of the vertices `first`, by type, ascending.

    For each layer, inputs first, `layers` has the relations that it reads, with the vertices whose lists have changed.
    """
    marks = {name: np.zeros(nodes.count, np.bool_) for name, nodes in graph.nodes.items()}
    for name, rows in first.items():
        marks[name][rows] = True
    for lists in layers:
        after = {name: mark.copy() for name, mark in marks.items()}
        for kind, changed in lists.items():
            edges, mark, out = graph.edges[kind], marks[kind[0]], after[kind[2]]
            out[changed] = True

            def work(start: int, stop: int, edges: EdgeSet = edges, mark: Array = mark, out: Array = out) -> None:
                _mark_readers(edges.indptr, edges.indices, mark, start, stop, out)

            if mark.any():
                run_blocks(work, len(out), _ROWS)
        marks = after
    return {name: np.flatnonzero(mark) for name, mark in marks.items()}


@njit(nogil=True, cache=True, writes=("out",))
def _mark_readers(indptr: Array, indices: Array, mark: Array, first: int, last: int, out: Array) -> None:
    """Mark the rows among [first, last) whose lists have a marked source."""
    for row in range(first, last):
        if not out[row]:
            for k in range(indptr[row], indptr[row + 1]):
                if mark[indices[k]]:
                    out[row] = True
                    break


def _mark_in_parallel(edges: EdgeSet, rows: Array, mark: Array) -> None:
    """Mark the vertices that some rows read. Threads may write the same mark twice, in any order."""

    def work(first: int, last: int) -> None:
        _mark_sources(edges.indptr, edges.indices, rows[first:last], mark)

    run_blocks(work, len(rows), _ROWS)


@njit(nogil=True, cache=True)
def _mark_sources(indptr: Array, indices: Array, rows: Array, mark: Array) -> None:
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            # Check before writing: written cache lines move between cores, read ones need not.
            if not mark[indices[k]]:
                mark[indices[k]] = True


# Exact inference on one machine: chunks from the host's lists, levels in memory or in files.

SHARE = 8
"""A chunk's inputs may take one in this many parts of the working memory: layers hold several arrays of that size."""
_EDGE = 16
"""Bytes of an edge in a block, with what is derived from it."""


class AlonePlan:
    """The parts of a `LayerPlan` that are trivial for a process that computes alone."""

    computes_every_vertex = False

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish_layer(self, number: int) -> None:
        """Do nothing: no other process computes rows of the layer."""

    def finish(self) -> None:
        """Nothing to release: levels are freed with their last reference."""

    def ids(self, node_type: str, rows: Array) -> Array:
        """The rows unchanged: one machine has one numbering."""
        return rows

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        return torch.cat(compute(slice(0, count)))

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        return compute(slice(0, count))


class HostPlan(AlonePlan):
    """The `LayerPlan` of one machine: only vertices that the next layer reads, in chunks that fit `budget_mb`."""

    def __init__(
        self, model: torch.nn.Module, inputs: Inputs, reach: Reach, budget_mb: int, folder: Path | None = None
    ) -> None:
        """`folder`: for outputs that do not fit memory; the system's temporary folder if None."""
        self._reach, self._graph, self._device, self._inputs = reach, reach.graph, inputs.device, inputs
        self.budget, self.folder = budget_mb << 20, folder or Path(tempfile.gettempdir())
        options: Any = getattr(model, "options", None)
        self._widest = max(inputs.widths.values())
        self._hidden: int = self._widest if options is None else options.hidden
        self._layers, self._needed = 0, list[dict[str, Array]]()
        self._pool = ReclaimedBuffers()

    @property
    def by_layers(self) -> bool:
        """False where the graph is read by time: a vertex then has another value for each seed."""
        return self._reach.clock is None

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Find the vertices that each layer must compute."""
        self._layers = layers
        self._growing = self._grower()
        hops = [self._reach.of_layer(number, layers) for number in range(computed)]
        self._needed = frontiers(self._graph, wanted, hops[::-1])
        return sum(len(rows) for need in self._needed[1:] for rows in need.values())

    def start_everywhere(self, layers: int) -> None:
        """Have each layer compute every vertex, without finding which ones the next layer reads."""
        every = {name: np.arange(nodes.count) for name, nodes in self._graph.nodes.items()}
        self._layers, self._needed = layers, [every] * (layers + 1)

    def pull(self, node_type: str, ids: Array) -> torch.Tensor:
        """The features of some vertices, in memory for as many as a chunk may read."""
        return self._inputs.pull(node_type, ids, min(self.room, self._graph.nodes[node_type].count), self._pool)

    first = pull

    def finish_layer(self, number: int) -> None:
        """Free the rows that the layer has read: those of features may be wider than all that follow."""
        self._pool.release()

    def level(self, number: int) -> Level:
        """Storage in memory, or in a file where it exceeds the budget."""
        room = self._room(number + 1)
        return HostLevel(self._needed[number + 1], self.budget, self.folder, self._device, room, self._pool)

    def rows_of(self, number: int) -> dict[str, int]:
        """The number of rows that a layer computes, by node type."""
        return {name: len(rows) for name, rows in self._needed[number + 1].items()}

    def chunks(self, number: int) -> Iterator[Sampled]:
        """Chunks whose vertices and edges fit the working memory."""
        return self._chunks(number, self._needed[number + 1])

    def some_chunks(self, number: int, count: int) -> list[list[Sampled]]:
        """For each node type, at most `count` of a layer's chunks."""
        return [
            list(islice(self._chunks(number, {name: rows}), count)) for name, rows in self._needed[number + 1].items()
        ]

    def _chunks(self, number: int, rows: dict[str, Array]) -> Iterator[Sampled]:
        kinds = self._reach.of_layer(number, self._layers)
        sample = self._reach.sampler([kinds])
        read = Graph(self._graph.nodes, {kind: self._graph.edges[kind] for kind in kinds})
        return map(sample, cut_into_chunks(read, rows, self._room(number), self.budget // SHARE // _EDGE))

    def _room(self, number: int) -> int:
        """The rows that a layer reads for a chunk, unless that is one vertex."""
        return max(1, self.budget // SHARE // (4 * self.width(number)))

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """Chunks of as many vertices as fit the working memory with their neighbourhoods."""
        return self._growing.over(Chunk(node_type, rows, 0, times), self._reach.sampler(self._reach.hops))

    def neighbourhood(self, node_type: str, rows: Array, times: Array | None = None) -> Sampled:
        """The whole neighbourhoods of some vertices as one chunk, whatever its size; `times` has one entry for each
        row.
        """
        chunk = Chunk(node_type, rows, 0, None if times is None else times[: len(rows)])
        return self._reach.sampler(self._reach.hops)(chunk)

    @property
    def room(self) -> int:
        """The number of rows and edges of whole neighbourhoods that the working memory holds."""
        return self._room(0)

    @staticmethod
    def load_of(sampled: Sampled) -> int:
        """The load of a chunk of whole neighbourhoods: its input rows, and a message for each edge of a layer."""
        edges: int = max(block.num_edges for block in sampled.blocks)
        return sampled.num_inputs + edges

    def width(self, number: int) -> int:
        """The width of the widest rows that a layer reads or writes, as far as it is known."""
        return int(max(self._hidden, self._widest) if number == 0 else self._hidden)

    def _grower(self) -> GrowingChunks:
        # Trees of seeds with their own times repeat vertices; without times the graph's size bounds them.
        at_once = self.by_layers and self._graph.num_nodes + self._graph.num_edges <= self.room

        return GrowingChunks(self._graph.num_nodes if at_once else 1, self.room, self.load_of)
