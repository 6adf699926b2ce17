"""A bounded cache of remote rows of one field.

Rows are kept as they arrived, rounded where the wire rounds them, so that a row has the same bits from here and from
its owner. Which rows are kept is decided before: those that will be read most have reserved places, and the remaining
room is taken by the first rows that arrive. Nothing is ever replaced.
"""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.store.parts.requests import FarRows
from penstock.store.parts.row_encoding import RowEncoding
from penstock.store.rows import Span, place_rows

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OVERHEAD = 8 + 1 + 4 * 4
"""Bytes of a cached row beside itself: its number, whether it is present, and its share of the index at most."""


@dataclass(frozen=True)
class CacheUse:
    """What a cache has saved: remote rows that were found in it and that were not, and the bytes that were not sent."""

    hits: int = 0
    misses: int = 0
    bytes_saved: int = 0

    def plus(self, other: "CacheUse") -> "CacheUse":
        """What this cache and another one have saved together."""
        return CacheUse(self.hits + other.hits, self.misses + other.misses, self.bytes_saved + other.bytes_saved)


class CachePlan(NamedTuple):
    """How many rows of a field are kept, and which have reserved places."""

    rows: int
    reserved: Array


class ReadCounts(NamedTuple):
    """Remote rows of a field, all different, and how often each is read; `row_bytes` is a row's size in memory."""

    ids: Array
    counts: Array
    row_bytes: int
    remote: int
    """The number of all remote rows of the field."""


def plan_caches(reads: Mapping[str, ReadCounts], room: int) -> dict[str, CachePlan]:
    """Divide `room` bytes among fields: first the rows that are read most, of any field, then the first to arrive.

    A byte of a row that is read often saves as much whatever the row's width, so only counts decide.
    """
    sizes = {field: each.row_bytes + _OVERHEAD for field, each in reads.items()}
    counts = np.concatenate([each.counts for each in reads.values()] or [np.empty(0, np.int64)])
    owner = np.repeat(np.arange(len(reads)), [len(each.ids) for each in reads.values()])
    taken = np.zeros(len(counts), np.bool_)
    order = np.argsort(-counts, kind="stable")
    widths = np.array(list(sizes.values()), np.int64)[owner[order]]
    taken[order[np.cumsum(widths) <= room]] = True
    left = room - int(widths[np.cumsum(widths) <= room].sum())
    plans = {}
    for number, (field, each) in enumerate(reads.items()):
        reserved = each.ids[taken[owner == number]]
        more = min(left // sizes[field], each.remote - len(reserved)) if len(reserved) == len(each.ids) else 0
        left -= more * sizes[field]
        plans[field] = CachePlan(len(reserved) + more, reserved)
    return plans


class RemoteRowCache:
    """Rows of one field by number in the partitioned graph. Several threads may read and add rows at once."""

    def __init__(self, plan: CachePlan, dtype: np.dtype[Any], row_shape: tuple[int, ...]) -> None:
        self.rows = plan.rows
        self._table = np.empty((plan.rows, *row_shape), dtype)
        self._numbers, self._present = np.empty(plan.rows, np.int64), np.zeros(plan.rows, np.bool_)
        self._index = np.zeros(1 << (2 * plan.rows).bit_length(), np.int32)
        self._used = _reserve(np.ascontiguousarray(plan.reserved, np.int64), self._index, self._numbers, 0)[0]
        self._use, self._lock = CacheUse(), threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that the cache takes when it is full."""
        return self._table.nbytes + self._numbers.nbytes + self._present.nbytes + self._index.nbytes

    @property
    def use(self) -> CacheUse:
        """What was counted so far."""
        with self._lock:
            return self._use

    def find(self, ids: Array, row_bytes: int) -> Array:
        """The slot of each row in the cache, or -1 (int32). Rows of `row_bytes` would otherwise be sent."""
        with self._lock:
            slots: Array = _find(ids, self._index, self._numbers, self._present)
            hits = int(np.count_nonzero(slots >= 0))
            self._use = self._use.plus(CacheUse(hits, len(ids) - hits, hits * row_bytes))
        return slots

    def place(self, slots: Array, places: Array, out: Array, span: Span | None = None) -> None:
        """Copy found rows to their positions. A row that is present never changes, so no lock is needed."""
        place_rows(self._table, slots, places, out, span)

    def keep(self, ids: Array, places: Array, out: Array) -> None:
        """Keep rows that have arrived at these positions, if they have a reserved place or there is room."""
        with self._lock:
            self._used, slots = _reserve(ids, self._index, self._numbers, self._used)
            new = np.flatnonzero(slots >= 0)
            new = new[~self._present[slots[new]]]
            place_rows(out, places[new], slots[new], self._table)
            self._present[slots[new]] = True


class CachedPull:
    """One pull of rows of a field, with or without a cache."""

    def __init__(self, cache: RemoteRowCache | None, bounds: Array, way: RowEncoding, span: Span | None) -> None:
        """`bounds` are the first row numbers of parts; rows are sent in the encoding `way`."""
        self._cache = cache if way.columns_alike else None
        self._bounds, self._way, self._span = bounds, way, span
        self._found: list[tuple[Array, Array]] = []

    def missing(self, wanted: FarRows) -> FarRows:
        """Of some rows of a part, those that are not in the cache."""
        if self._cache is None:
            return wanted
        slots = self._cache.find(self._numbers(wanted), self._way.row_bytes)
        found, missing = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
        self._found.append((slots[found], wanted.places[found]))
        return FarRows(wanted.part, wanted.rows[missing], wanted.places[missing])

    def place(self, out: Array) -> None:
        """Copy the rows that were found to their positions."""
        for slots, places in self._found:
            assert self._cache is not None
            self._cache.place(slots, places, out, self._span)

    def keep(self, arrived: Iterable[FarRows], out: Array) -> None:
        """Keep rows that have arrived at their positions, unless only some of their columns have."""
        for each in arrived:
            if self._cache is not None and self._span is None:
                self._cache.keep(self._numbers(each), each.places, out)

    def _numbers(self, wanted: FarRows) -> Array:
        numbers: Array = wanted.rows.astype(np.int64) + self._bounds[wanted.part]
        return numbers


@njit(nogil=True, cache=True)
def _entry(row: int, index: Array, numbers: Array) -> np.uint64:
    """The index entry that holds a row's slot plus one, or the empty one (0) where it would be."""
    mask = np.uint64(len(index) - 1)
    place = (np.uint64(row) * _GOLDEN >> np.uint64(20)) & mask
    while index[place] != 0 and numbers[index[place] - 1] != row:
        place = (place + np.uint64(1)) & mask
    return place


@njit(nogil=True, cache=True)
def _find(ids: Array, index: Array, numbers: Array, present: Array) -> Array:
    """The slot of each row that is present, else -1."""
    found = np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        slot = index[_entry(ids[i], index, numbers)] - 1
        found[i] = slot if slot >= 0 and present[slot] else -1
    return found


@njit(nogil=True, cache=True)
def _reserve(ids: Array, index: Array, numbers: Array, used: int) -> tuple[int, Array]:
    """(slots in use afterwards, the slot of each row or -1): rows without a slot take a free one if there is one."""
    slots = np.empty(len(ids), np.int32)
    for i in range(len(ids)):
        place = _entry(ids[i], index, numbers)
        if index[place] == 0 and used < len(numbers):
            numbers[used] = ids[i]
            used += 1
            index[place] = used
        slots[i] = index[place] - 1
    return used, slots
