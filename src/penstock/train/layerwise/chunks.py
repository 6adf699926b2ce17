"""Vertices cut into chunks whose inputs fit a room."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.graph import Graph
from penstock.kernels import njit

_PIECES = 8
"""Chunks grow by pieces that fill this part of the room if all their sources are different."""


class Chunk(NamedTuple):
    """Some vertices of a type: `rows` stand from `start` on in the list they were cut from.

    `times`, where outputs depend on them and are not the vertices' own: up to when each vertex sees the graph.
    """

    node_type: str
    rows: Array
    start: int
    times: Array | None = None

    def part(self, first: int, count: int) -> "Chunk":
        """Some of the vertices."""
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
    """Chunks of as many vertices as fit a room, or of one, where what they read is known once it is sampled.

    Chunks of `size` vertices at first double while they take half the room or less, and are halved when they take more.
    """

    def __init__(self, size: int, room: int, load: Callable[[Sampled], int]) -> None:
        self._size, self._room, self._load = size, room, load

    def over(self, whole: Chunk, sample: Callable[[Chunk], Sampled]) -> Iterator[Sampled]:
        """All vertices of a chunk, in smaller ones."""
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
    """Chunks of `rows` (ascending numbers by type) that read `room` different vertices and `most_edges` at most.

    Neighbours that many rows of a chunk share are counted once. A vertex with more neighbours is a chunk by itself.
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
    """(end, rows and edges) of pieces that read `room` vertices at most, or are one row."""
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
    """Vertices that the rows add to those a chunk reads."""
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
