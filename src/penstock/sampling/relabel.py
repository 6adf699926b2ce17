"""Maps vertices to rows of a batch: new vertices are numbered in the order in which they appear.

There are two ways, chosen by `rows_for`, with equal results. *Direct* addressing keeps a row number for every vertex of
the graph: one load per edge, four bytes per vertex and thread. *Hashing* keeps an open-addressing table of the batch's
own vertices: slower by a hash and a comparison per edge, and its memory grows with the batch, not with the graph.
"""

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.hashing import mix
from penstock.kernels import njit

DIRECT_LIMIT = 1 << 28
"""The number of vertices up to which "auto" addresses directly: a gigabyte per thread."""
WAYS = ("auto", "direct", "hash")
Room = TypeVar("Room")
_SMALLEST_TABLE = 1 << 12


class Rows(Protocol):
    """The rows of one batch, which start with the seeds. A thread reuses it from batch to batch."""

    vertices: Array
    """The first `known` are the batch's; the rest is spare room."""
    known: int

    def start(self, seeds: Array) -> None:
        """Give the seeds the first rows."""

    def number(self, sources: Array, indptr: Array) -> Array:
        """Rows (int32) of sources, new ones after those known; `sources` may be overwritten.

        Row i of the batch reads the sources from `indptr[i]` on.
        """

    def forget(self) -> None:
        """Clear it for another batch."""


def rows_for(count: int, way: str = "auto") -> Rows:
    """An empty numbering of `count` vertices."""
    check_way(way)
    direct = count <= DIRECT_LIMIT if way == "auto" else way == "direct"
    return DirectRows(count) if direct else HashedRows(index_dtype(count))


def check_way(way: str) -> None:
    """Refuse a way of relabelling that is not known."""
    if way not in WAYS:
        raise PenstockError(f"relabel={way!r} is not known: use one of {', '.join(WAYS)}.", code="unknown-name")


class DirectRows:
    """A row number for every vertex of the graph."""

    def __init__(self, count: int) -> None:
        self.known = 0
        self.vertices = np.empty(0, index_dtype(count))
        self._place = np.full(count, -1, np.int32)

    def start(self, seeds: Array) -> None:
        """The seeds must be different."""
        self.vertices = with_room(self.vertices, 0, len(seeds))
        known = number_seeds(seeds, self._place, self.vertices)
        if known < 0:
            raise repeated(seeds[-known - 1])
        self.known = known

    def number(self, sources: Array, indptr: Array) -> Array:
        # One more than there can be: the kernel always writes after the last.
        most = min(self.known + len(sources), len(self._place)) + 1
        self.vertices = with_room(self.vertices, self.known, most)
        rows = sources if sources.dtype == np.int32 else np.empty(len(sources), np.int32)
        self.known = _number_direct(sources, self._place, self.vertices, self.known, rows)
        return rows

    def forget(self) -> None:
        """Clears only the rows of the finished batch."""
        forget(self._place, self.vertices, self.known)
        self.known = 0


class HashedRows:
    """A table of the batch's own vertices, or of any non-negative integers."""

    def __init__(self, dtype: np.dtype[np.signedinteger]) -> None:
        self.known = 0
        self.vertices = np.empty(0, dtype)
        self._slots = np.full(_SMALLEST_TABLE, -1, np.int32)

    def start(self, seeds: Array) -> None:
        """The seeds must be different."""
        rows = self.number_these(seeds)
        if self.known < len(seeds):
            self.forget()
            raise repeated(seeds[np.flatnonzero(rows != np.arange(len(seeds)))[0]])

    def number(self, sources: Array, indptr: Array) -> Array:
        return self.number_these(sources)

    def number_these(self, numbers: Array) -> Array:
        """Rows of some numbers, new ones after those known."""
        self.vertices = with_room(self.vertices, self.known, self.known + len(numbers))
        rows = np.empty(len(numbers), np.int32)
        done = 0
        while True:
            done, self.known = _number_hashed(numbers, done, self._slots, self.vertices, self.known, rows)
            if done == len(numbers):
                return rows
            self._slots = np.full(4 * len(self._slots), -1, np.int32)
            _insert_known(self._slots, self.vertices, self.known)

    def forget(self) -> None:
        """The emptied table keeps its size."""
        self._slots.fill(-1)
        self.known = 0


class PerThread(Generic[Room]):
    """An object that each thread makes once and reuses."""

    def __init__(self, make: Callable[[], Room]) -> None:
        self._make, self._threads = make, threading.local()

    def get(self) -> Room:
        """The calling thread's own object."""
        if not hasattr(self._threads, "room"):
            self._threads.room = self._make()
        room: Room = self._threads.room
        return room


def repeated(vertex: int) -> PenstockError:
    """The error for a seed that is given twice."""
    return PenstockError(f"Vertex {vertex} occurs twice in the seeds: give each once.", code="duplicate")


def with_room(vertices: Array, known: int, most: int) -> Array:
    """The same vertices, in an array that holds `most`; pages that stay unused cost nothing."""
    if most <= len(vertices):
        return vertices
    larger = np.empty(most + most // 2, vertices.dtype)
    larger[:known] = vertices[:known]
    return larger


@njit(nogil=True, cache=True)
def _number_direct(numbers: Array, place: Array, vertices: Array, known: int, rows: Array) -> int:
    """Write the rows of vertices, maybe in place; returns how many are known afterwards. `place[v]` is the row of v or
    -1.
    """
    # Without a branch: whether a vertex is new is unpredictable, and a mispredicted branch costs more than writing
    # twice.
    found = known
    for k in range(len(numbers)):
        vertex = numbers[k]
        row = place[vertex]
        is_new = row < 0
        row = found if is_new else row
        place[vertex] = row
        vertices[found] = vertex
        found += is_new
        rows[k] = row
    return found


@njit(nogil=True, cache=True)
def forget(place: Array, vertices: Array, known: int) -> None:
    """Clear the rows of a finished batch, and only those."""
    for row in range(known):
        place[vertices[row]] = -1


@njit(nogil=True, cache=True, writes=("place", "vertices"))
def number_seeds(seeds: Array, place: Array, vertices: Array) -> int:
    """Give the seeds the first rows; returns how many, or minus one minus the position of one that repeats."""
    count = len(seeds)
    for row in range(count):
        if place[seeds[row]] >= 0:
            forget(place, vertices, row)
            return -row - 1
        place[seeds[row]] = row
        vertices[row] = seeds[row]
    return count


@njit(nogil=True, cache=True)
def _number_hashed(
    numbers: Array, first: int, slots: Array, vertices: Array, known: int, rows: Array
) -> tuple[int, int]:
    """Number from `first` on until all are done or the table is half full; returns how many are done and known.

    `slots` holds rows or -1, at the slot that a number hashes to or the next free one.
    """
    mask = len(slots) - 1
    for k in range(first, len(numbers)):
        number = numbers[k]
        slot = np.int64(mix(np.uint64(number)) & np.uint64(mask))
        row = slots[slot]
        while row >= 0 and vertices[row] != number:
            slot = (slot + 1) & mask
            row = slots[slot]
        if row < 0:
            if 2 * known >= len(slots):
                return k, known
            row = known
            slots[slot] = row
            vertices[row] = number
            known += 1
        rows[k] = row
    return len(numbers), known


@njit(nogil=True, cache=True)
def _insert_known(slots: Array, vertices: Array, known: int) -> None:
    mask = len(slots) - 1
    for row in range(known):
        slot = np.int64(mix(np.uint64(vertices[row])) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = row
