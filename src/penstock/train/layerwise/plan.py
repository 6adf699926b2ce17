"""Chunks of vertices that fit the working memory, the layers' outputs, and the protocol of what is computed where."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock.graph.arrays import Array, passing_rows
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.kernels import njit
from penstock.pipeline.batch_rows import BufferPool
from penstock.store.source import ArraySource
from penstock.train.dataset.inputs import roomy_rows

# Vertices cut into chunks whose inputs fit the working memory.

_PIECES = 8
"""A chunk grows by pieces that fill at most one in this many parts of the room."""


class Chunk(NamedTuple):
    """Vertices of a type, from `start` in the list they were cut from; `times`: until when each sees the graph."""

    node_type: str
    rows: Array
    start: int
    times: Array | None = None

    def part(self, first: int, count: int) -> "Chunk":
        """The chunk of `count` of its vertices from `first` on."""
        some = slice(first, first + count)
        times = None if self.times is None else self.times[some]
        return Chunk(self.node_type, self.rows[some], self.start + first, times)


class Sampled(NamedTuple):
    """A chunk with its vertices' whole lists: blocks, outermost first, and the vertices they read, by type."""

    chunk: Chunk
    blocks: list[Any]
    inputs: dict[str, Array]

    @property
    def num_inputs(self) -> int:
        """The number of vertices whose rows are read."""
        return sum(map(len, self.inputs.values()))


class GrowingChunks:
    """Cuts chunks whose size is known only after sampling: as many vertices as fit the room, at least one.

    Chunks begin with `size` vertices, double while they take half the room or less, and are halved when they take more.
    """

    def __init__(self, size: int, room: int, load: Callable[[Sampled], int]) -> None:
        self._size, self._room, self._load = size, room, load

    def over(self, whole: Chunk, sample: Callable[[Chunk], Sampled]) -> Iterator[Sampled]:
        """Cover all vertices of a chunk by smaller ones that fit."""
        start = 0
        while start < len(whole.rows):
            sampled = sample(whole.part(start, self._size))
            count, load = len(sampled.chunk.rows), self._load(sampled)
            if load > self._room and count > 1:
                self._size = count // 2
                continue
            yield sampled
            start += count
            if 2 * load <= self._room:
                self._size *= 2


def cut_into_chunks(graph: Graph, rows: dict[str, Array], room: int, most_edges: int) -> Iterator[Chunk]:
    """Chunks of `rows` (ascending numbers by type) that read at most `room` different vertices and `most_edges` edges.

    Neighbours that several rows of a chunk share are counted once. A vertex with more neighbours is a chunk by itself.
    """
    seen = {name: np.full(nodes.count, -1, np.int32) for name, nodes in graph.nodes.items()}
    number = 0
    for name, numbers in rows.items():
        into = [(kind[0], edges) for kind, edges in graph.edges.items() if kind[2] == name]
        start, stop, read, edges = 0, 0, 0, 0
        for end, load in _pieces(numbers, into, max(1, room // _PIECES)):
            more = _stamp(numbers[stop:end], name, into, seen, number)
            if stop > start and (read + more > room or edges + load > most_edges):
                yield Chunk(name, numbers[start:stop], start)
                start, read, edges, number = stop, 0, 0, number + 1
                more = _stamp(numbers[stop:end], name, into, seen, number)
            stop, read, edges = end, read + more, edges + load
        if stop > start:
            yield Chunk(name, numbers[start:stop], start)
            number += 1


def _pieces(numbers: Array, into: list[tuple[str, EdgeSet]], room: int) -> Iterator[tuple[int, int]]:
    """Pieces that read at most `room` vertices, or are one row, as (end, rows and edges)."""
    load = np.ones(len(numbers), np.int64)
    for _, edges in into:
        load += edges.indptr[numbers + 1] - edges.indptr[numbers]
    ends = np.cumsum(load)
    start, done = 0, 0
    while start < len(numbers):
        start = max(start + 1, int(np.searchsorted(ends, done + room, "right")))
        yield start, int(ends[start - 1]) - done
        done = int(ends[start - 1])


def _stamp(rows: Array, name: str, into: list[tuple[str, EdgeSet]], seen: dict[str, Array], number: int) -> int:
    """Mark the vertices that the rows read; returns how many are new to the chunk."""
    new = _stamp_rows(rows, seen[name], number)
    for source, edges in into:
        new += _stamp_sources(edges.indptr, edges.indices, rows, seen[source], number)
    return int(new)


@njit(nogil=True, cache=True)
def _stamp_rows(rows: Array, seen: Array, number: int) -> int:
    new = 0
    for row in rows:
        new += seen[row] != number
        seen[row] = number
    return new


@njit(nogil=True, cache=True)
def _stamp_sources(indptr: Array, indices: Array, rows: Array, seen: Array, number: int) -> int:
    new = 0
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            new += seen[indices[k]] != number
            seen[indices[k]] = number
    return new


# The outputs of one layer, which the next one reads: in memory or in a file.


class Level(Protocol):
    """The outputs of one layer, which the next layer reads."""

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        """Store the outputs of a chunk."""

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        """The outputs of some vertices, all of which have been computed, on the device that computes."""


class HostLevel:
    """The outputs of some rows of every type in the host's memory, or in a file in `folder` when they are large."""

    def __init__(
        self,
        rows: dict[str, Array],
        in_memory: int,
        folder: Path,
        device: torch.device,
        most: int,
        pool: BufferPool,
    ) -> None:
        """`most`: rows that the next layer reads for a chunk, at most, into buffers of `pool`."""
        self.rows, self.values, self._in_memory, self._folder = rows, dict[str, Array](), in_memory, folder
        self._device, self._most, self._pool = device, most, pool

    def write(self, chunk: Chunk, out: torch.Tensor) -> None:
        if chunk.node_type not in self.values:
            self.values[chunk.node_type] = self._room((len(self.rows[chunk.node_type]), out.shape[1]))
        self.values[chunk.node_type][chunk.start : chunk.start + len(out)] = out.detach().float().cpu().numpy()

    def fetch(self, node_type: str, ids: Array) -> torch.Tensor:
        rows = self.rows[node_type]
        places = ids if len(rows) and rows[-1] == len(rows) - 1 else np.searchsorted(rows, ids)
        values = self.values[node_type]
        return roomy_rows(ArraySource(values), places, min(self._most, len(values)), self._pool).to(self._device)

    def _room(self, shape: tuple[int, int]) -> Array:
        if shape[0] * shape[1] * 4 <= self._in_memory:
            return np.empty(shape, np.float32)
        return passing_rows(shape, 0, self._folder, what="Exact inference", mend=", or lower hidden")


# What differs between computing alone, on a device and among workers: which chunks, and where rows are kept.


class LayerPlan(Protocol):
    """Which chunks this process computes, where the rows between two layers are kept, and where processes wait for each
    other.
    """

    @property
    def by_layers(self) -> bool:
        """Whether a vertex has one value for all its readers; not so where values depend on a seed's time."""

    def running(self) -> AbstractContextManager[None]:
        """A context around everything that is computed for one request of outputs."""

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Called before the first of `computed` layers, of a model with `layers`; returns how many vertices are
        computed here.
        """

    def first(self, node_type: str, ids: Array) -> Any:
        """The rows that the first layer reads of some vertices."""

    def chunks(self, number: int) -> Iterator[Sampled]:
        """This process's chunks of a layer, each with its vertices' whole lists."""

    def level(self, number: int) -> Level:
        """Storage for a layer's rows."""

    def finish_layer(self, number: int) -> None:
        """Called when all chunks of this process are written; returns when those of every process are."""

    def finish(self) -> None:
        """Release the layers' rows once no process reads them."""

    def ids(self, node_type: str, rows: Array) -> Array:
        """The numbers under which levels and inputs store some vertices."""

    def neighbourhoods(self, node_type: str, rows: Array, times: Array | None = None) -> Iterator[Sampled]:
        """Vertices in chunks with their whole neighbourhoods, until their own or the given `times`."""

    def pull(self, node_type: str, ids: Array) -> Any:
        """The features that such a chunk reads."""

    def joined(self, count: int, compute: Callable[[slice], list[torch.Tensor]]) -> torch.Tensor:
        """`compute` over `count` vertices, in pieces: every process computes some, and all get the whole."""

    def in_parts(self, count: int, compute: Callable[[slice], Array]) -> Array:
        """`compute` over `count` items, one row each: every process computes some, and all get the whole."""
