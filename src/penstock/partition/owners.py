"""Which part owns a vertex or an edge: the partition book, and rows grouped by their owner for requests.

The book answers by a search in a tiny array and a subtraction. Grouping takes two passes: one finds owners and repeated
vertices, the other orders the rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.kernels import njit

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Split:
    """Rows to be requested from each part, in the order of the vertices that were split."""

    starts: Array
    """Where each part begins in `rows` and `places`; one more than there are parts."""
    rows: Array
    """Row numbers inside their parts."""
    places: Array
    """The position among the vertices of each row."""
    again: Array
    """Positions of repeated vertices..."""
    first: Array
    """... and the positions of their first occurrence."""

    def of(self, part: int) -> tuple[Array, Array]:
        """(rows, places) of one part."""
        span = slice(self.starts[part], self.starts[part + 1])
        return self.rows[span], self.places[span]


def split_by_owner(ids: Array, bounds: Array, once: Array | None = None) -> Split:
    """Group vertices by part; `bounds` are the book's. From parts that `once` marks (bool) a vertex
    is requested once.
    """
    once = np.zeros(len(bounds) - 1, np.bool_) if once is None else once
    most = int(np.diff(bounds).max())
    rows = np.empty(len(ids), np.int32 if most <= np.iinfo(np.int32).max else np.int64)
    places, owners = np.empty(len(ids), np.int32), np.empty(len(ids), np.int32)
    starts = np.zeros(len(bounds), np.int64)
    slots = np.zeros(1 << (2 * len(ids)).bit_length() if once.any() else 1, np.int32)
    repeats = _find_owners(ids, bounds, once, slots, owners, starts)
    if repeats < 0:
        raise PenstockError(f"A row number is outside 0..{int(bounds[-1]) - 1}.", code="id-out-of-range")
    again, first = np.empty(repeats, np.int32), np.empty(repeats, np.int32)
    _order(ids, bounds, owners, starts, rows, places, again, first)
    kept = len(ids) - repeats
    return Split(starts, rows[:kept], places[:kept], again, first)


@njit(nogil=True, cache=True)
def _find_owners(ids: Array, bounds: Array, once: Array, slots: Array, owners: Array, starts: Array) -> int:
    """Find owners, or for a repeated vertex -1 minus its first position; counts by part go after `starts[0]`.

    Returns the number of repeats, or -1 if a number is not a vertex's.
    """
    mask = np.uint64(len(slots) - 1)
    repeats = 0
    for i in range(len(ids)):
        vertex = ids[i]
        if vertex < 0 or vertex >= bounds[-1]:
            return -1
        # Binary search without branches: which half a vertex is in is unpredictable.
        low, width = 0, len(bounds) - 1
        while width > 1:
            half = width // 2
            low += half * (bounds[low + half] <= vertex)
            width -= half
        owners[i] = low
        if once[low]:
            slot = (np.uint64(vertex) * _GOLDEN >> np.uint64(20)) & mask
            while slots[slot] != 0 and ids[slots[slot] - 1] != vertex:
                slot = (slot + np.uint64(1)) & mask
            if slots[slot] != 0:
                owners[i] = -slots[slot]
                repeats += 1
                continue
            slots[slot] = i + 1
        starts[low + 1] += 1
    return repeats


@njit(nogil=True, cache=True)
def _order(
    ids: Array, bounds: Array, owners: Array, starts: Array, rows: Array, places: Array, again: Array, first: Array
) -> None:
    """Turn counts into starts, and put every vertex in its part's range."""
    for part in range(1, len(starts)):
        starts[part] += starts[part - 1]
    cursor, repeats = starts.copy(), 0
    for i in range(len(ids)):
        owner = owners[i]
        if owner < 0:
            again[repeats], first[repeats] = i, -owner - 1
            repeats += 1
        else:
            at = cursor[owner]
            rows[at], places[at] = ids[i] - bounds[owner], i
            cursor[owner] = at + 1


# New IDs of vertices that are given by original ID. The writer of parts leaves the vertices of a sub-part in their
# original order, so that one array, `original.npy`, is read in both directions and nobody keeps its inverse.


def new_ids_by_search(original: Array, bounds: Array, ids: Array) -> Array | None:
    """New ID (int64) of each of some original IDs, which ascend; `bounds` are those of the sub-parts.

    None where one was not found: some sub-part is in another order. What was found is right in any order.
    """
    found = np.empty(len(ids), np.int64)
    return found if _search_sub_parts(original, bounds, ids, found) == len(ids) else None


@njit(nogil=True, cache=True, writes=("found",))
def _search_sub_parts(original: Array, bounds: Array, ids: Array, found: Array) -> int:
    """Look for ascending IDs in every sub-part, from one ID to the next in steps that double; returns how many are
    there.
    """
    count = 0
    for group in range(len(bounds) - 1):
        low, last = bounds[group], bounds[group + 1]
        for i in range(len(ids)):
            high, step = low, 1
            while high < last and original[high] < ids[i]:
                low = high + 1
                high += step
                step *= 2
            high = min(high, last)
            while low < high:
                middle = (low + high) // 2
                if original[middle] < ids[i]:
                    low = middle + 1
                else:
                    high = middle
            if low == last:
                break
            if original[low] == ids[i]:
                found[i] = low
                count += 1
    return count


_WINDOW = 1 << 20
"""Original IDs that are looked for at a time."""


def is_plain_permutation(original: Array, bounds: Array) -> bool:
    """Whether the original IDs of all vertices are seen to be 0, 1, 2, ..., each once, as sub-parts have them that the
    writer wrote. False where they are not, or where those of a sub-part are in another order.

    A window of IDs after the other is looked for at the places that each sub-part has come to, so that no array of all
    vertices is needed.
    """
    places, count = [int(first) for first in bounds[:-1]], len(original)
    for low in range(0, count, _WINDOW):
        seen = np.zeros(min(_WINDOW, count - low), np.bool_)
        for group, first in enumerate(places):
            next_ones = original[first : min(first + len(seen), int(bounds[group + 1]))]
            inside = next_ones[: np.searchsorted(next_ones, low + len(seen))] - low
            if len(inside) and (inside.min() < 0 or inside.max() >= len(seen)):
                return False
            seen[inside] = True
            places[group] += len(inside)
        if not seen.all():
            return False
    return places == [int(last) for last in bounds[1:]]


class Book:
    """`bounds[type]` are the parts * trainers + 1 ascending first new IDs of the sub-parts.

    `edge_bounds[relation]`, where known, are the parts + 1 first numbers of the parts' edges: edges of a partitioned
    graph are numbered part after part, and inside a part in the order of its lists.
    """

    def __init__(
        self, parts: int, trainers: int, bounds: dict[str, Array], edge_bounds: Mapping[str, Array] | None = None
    ) -> None:
        self.parts, self.trainers, self._edges = parts, trainers, edge_bounds
        self._fine = bounds
        self._coarse = {name: np.ascontiguousarray(fine[::trainers], np.int64) for name, fine in bounds.items()}

    def owner(self, ids: Array, node_type: str | None = None) -> Array:
        """The part of every new ID."""
        return self._search(self._coarse[self.type_named(node_type)], ids)

    def trainer(self, ids: Array, node_type: str | None = None) -> Array:
        """The trainer inside its part of every new ID."""
        return self._search(self._fine[self.type_named(node_type)], ids) % self.trainers

    def local(self, ids: Array, node_type: str | None = None, owner: Array | None = None) -> Array:
        """The row of every new ID inside its part."""
        if owner is None:
            owner = self.owner(ids, node_type)
        rows: Array = ids - self._coarse[self.type_named(node_type)][owner]
        return rows

    def range(self, part: int, node_type: str | None = None, trainer: int | None = None) -> tuple[int, int]:
        """[first, last) new IDs of a part, or of one trainer's share of it."""
        if trainer is None:
            bounds, place = self._coarse[self.type_named(node_type)], part
        else:
            bounds, place = self._fine[self.type_named(node_type)], part * self.trainers + trainer
        return int(bounds[place]), int(bounds[place + 1])

    def bounds(self, node_type: str | None = None) -> Array:
        """The first new ID of every part, followed by the total (int64)."""
        return self._coarse[self.type_named(node_type)]

    def sub_bounds(self, node_type: str | None = None) -> Array:
        """The first new ID of every sub-part, followed by the total (int64)."""
        return self._fine[self.type_named(node_type)]

    def count(self, node_type: str | None = None) -> int:
        """Vertices of a type in all parts."""
        return int(self._coarse[self.type_named(node_type)][-1])

    def edge_bounds(self, relation: str) -> Array:
        """The number of every part's first edge of a relation, followed by the total (int64)."""
        if relation not in self.relations:
            raise PenstockError(
                f"There is no relation {relation!r}{nearest(relation, self.relations)}", code="unknown-name"
            )
        return self.relations[relation]

    @property
    def numbers_edges(self) -> bool:
        """Whether edges have numbers. Folders of older releases do not record how many edges each part has."""
        return self._edges is not None

    @property
    def relations(self) -> Mapping[str, Array]:
        """`edge_bounds` by the relations' keys."""
        if self._edges is None:
            raise PenstockError(
                "The edges of this partition have no numbers, as an older release cut it and not all its parts are here"
                " to count them: cut the graph again.",
                code="missing-data",
            )
        return self._edges

    @property
    def node_types(self) -> list[str]:
        """Names of the node types."""
        return list(self._fine)

    def type_named(self, node_type: str | None) -> str:
        """The type itself, or the only one when none is named."""
        if node_type is not None:
            return node_type
        if len(self._fine) != 1:
            raise PenstockError(
                f"Name the node type: this partition has {', '.join(self._fine)}.", code="option-missing"
            )
        return next(iter(self._fine))

    @staticmethod
    def _search(bounds: Array, ids: Array) -> Array:
        ids = np.asarray(ids)
        if len(ids) and (ids.min() < 0 or ids.max() >= bounds[-1]):
            raise PenstockError(f"A vertex ID is outside 0..{int(bounds[-1]) - 1}.", code="id-out-of-range")
        return np.searchsorted(bounds, ids, "right") - 1
