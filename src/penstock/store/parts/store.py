"""One store over all parts of a partitioned graph: mapped rows are read, the rest is requested from its owners.

Fields may have a bounded cache of remote rows, which comes first here.
"""

import copy
import math
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.partition.owners import Book, split_by_owner
from penstock.store.parts.replicas import ReplicaReader
from penstock.store.parts.requests import (
    Channels,
    FarRows,
    RowEncoding,
    Traffic,
    WireType,
    ask_rows,
    encoding_for,
    far_rows,
    receive_rows,
)
from penstock.store.parts.selected_columns import ColumnSelection, ColumnsMissing, SelectedEncoding, SelectedMeans
from penstock.store.parts.service import PartFields, row_bounds, type_of
from penstock.store.parts.stochastic_rounding import StochasticRounding
from penstock.store.rows import Span, gather_rows, place_rows
from penstock.store.source import LocalStore, RowSource
from penstock.wire.channel import RemoteError
from penstock.wire.message import Message

# A bounded cache of remote rows of one field.
#
# Rows are kept as they arrived, rounded where the wire rounds them, so that a row has the same bits from here and from
# its owner. Which rows are kept is decided before: those that will be read most have reserved places, and the remaining
# room is taken by the first rows that arrive. Nothing is ever replaced.

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


# The store, which reads what is mapped and in the cache, and requests the rest.

_PUSH_BYTES = 4 << 20
"""Bytes of one message of a push."""


class Kind(NamedTuple):
    """The dtype and shape of a field's rows."""

    dtype: np.dtype[Any]
    row_shape: tuple[int, ...]


class AskedRows(NamedTuple):
    """Which columns of rows are read, and for which batch."""

    span: Span | None = None
    """Columns [first, last); None: all."""
    selection: ColumnSelection | None = None
    """Of remote rows only these columns are sent, with their owners' means in the others; None: all."""
    epoch: int | None = None
    """The epoch of the batch that the rows are for; None: for no batch."""


class PartedStore:
    """Rows of vertices and edges by number in the whole partitioned graph. Repeated rows are sent once per call.

    `local` has the parts that this process maps, by row number in the part; `channels` leads to the owners of fields
    that are not there. With a narrow `wire_type` rows of the float fields in `narrowed` (None: of all) are rounded when
    they are sent, and only then.
    """

    def __init__(
        self,
        book: Book,
        local: Mapping[int, LocalStore],
        channels: Channels,
        wire_type: WireType = "stored",
        narrowed: Container[str] | None = None,
        rounding: StochasticRounding | None = None,
    ) -> None:
        """`rounding`: how values are rounded; None: to the nearest."""
        self.book, self._local, self._channels = book, local, channels
        self._wire_type: WireType = wire_type
        self._narrowed, self._rounding = narrowed, rounding
        self._kinds: dict[str, Kind] = {}
        self._traffic: dict[str, Traffic] = {}
        self._caches: dict[str, RemoteRowCache] = {}
        self.replicas: ReplicaReader | None = None
        """Further copies of rows; None: rows come from their owners only."""
        self._selected = SelectedMeans()
        self.selected_traffic = Traffic()
        """What pulls with a selection of columns transferred, of all fields."""
        self._lock = threading.Lock()

    def source(self, field: str) -> "PartedRowSource":
        """The rows of a field."""
        return PartedRowSource(self, field, self._kind(field))

    def fill(self, field: str, kind: Kind, ids: Array, out: Array, places: Array | None, asked: AskedRows) -> None:
        """As `RowSource.fill`: local rows are read while the owners of the others answer."""
        try:
            self._fill(field, kind, ids, out, places, asked)
        except RemoteError as error:
            if error.type != ColumnsMissing.__name__:
                raise
            self._selected.forget()
            self._fill(field, kind, ids, out, places, asked)

    def _fill(self, field: str, kind: Kind, ids: Array, out: Array, places: Array | None, asked: AskedRows) -> None:
        span, selection, epoch = asked
        here = self._here(field)
        far = [part for part in range(self.book.parts) if part not in here]
        once = np.isin(np.arange(self.book.parts), far)
        split = split_by_owner(ids, row_bounds(field, self.book), once)
        wire_type = self._wire_type if self._narrowed is None or field in self._narrowed else "stored"
        key = None if self._rounding is None else self._rounding.key(field, epoch)
        body: dict[str, Any] = {"field": field, "columns": None if span is None else list(span)}
        body |= {"wire_type": wire_type, "rounding": key}
        if places is not None:
            split = replace(split, places=places[split.places], again=places[split.again], first=places[split.first])
        way: RowEncoding = encoding_for(wire_type, *kind, span, key)
        remote = far_rows(split, far)
        if selection is not None:
            body["selected"], way = selection.version, SelectedEncoding(wire_type, kind.dtype, selection.columns, key)
            for far_part in remote:
                self._selected.tell(field, far_part.part, selection, self._channels)
        cached = CachedPull(self._caches.get(field), row_bounds(field, self.book), way, span)
        wanted = [missing for each in remote if len((missing := cached.missing(each)).rows)]
        stored = encoding_for("stored", *kind, span).row_bytes
        receive = self._ask(field, wanted, body, way, stored)
        for part, store in here.items():
            place_rows(store.table(field), *split.of(part), out, span)
        cached.place(out)
        receive(out)
        if selection is None:
            cached.keep(wanted, out)
        else:
            # Also for cached rows: what a batch reads must not depend on what is cached.
            for far_part in remote:
                self._selected.fill(field, far_part.part, selection, far_part.places, out)
        place_rows(out, split.first, split.again, out)

    def _ask(
        self, field: str, wanted: list[FarRows], body: dict[str, Any], way: RowEncoding, stored: int
    ) -> Callable[[Array], None]:
        """Request rows from owners or replicas; returns a function that copies the answers to their positions."""
        # Only owners know selections of columns.
        replicas, selected = self.replicas, "selected" in body
        if replicas is not None and field in replicas.fields and not selected:
            pull = replicas.pull(field, wanted, body, way, stored)
            return lambda out: self._count(field, replicas.receive(pull, out))
        asked = ask_rows(self._channels, wanted, lambda part: Message("pull", {**body, "part": part}))

        def receive(out: Array) -> None:
            for each in asked:
                count = len(each.places)
                self._count(field, Traffic(count, receive_rows(each, way, out), count * stored), selected)

        return receive

    def cache_remote_rows(self, reads: Mapping[str, tuple[Array, Array]], room: int) -> None:
        """Cache remote rows of some fields in `room` bytes; `reads` are rows that will be read, and how often each."""
        known = {field: self._read_counts(field, *read) for field, read in reads.items()}
        for field, plan in plan_caches(known, room).items():
            self._caches[field] = RemoteRowCache(plan, *self._kind(field))

    def cache_use(self) -> CacheUse | None:
        """What the caches of all fields have saved; None without caches."""
        return reduce(CacheUse.plus, (each.use for each in self._caches.values())) if self._caches else None

    def push(self, field: str, ids: Array, values: Array) -> None:
        """Replace rows, all different, at their owners."""
        kind = self._kind(field)
        if values.shape != (len(ids), *kind.row_shape):
            raise PenstockError(
                f"Values of shape {values.shape} do not fit {len(ids)} rows of {field!r}.", code="shape-mismatch"
            )
        values = np.ascontiguousarray(values, kind.dtype)
        split = split_by_owner(ids, row_bounds(field, self.book))
        here, calls = self._here(field), []
        step = max(1, _PUSH_BYTES // max(1, math.prod(kind.row_shape) * kind.dtype.itemsize))
        for part in range(self.book.parts):
            rows, places = split.of(part)
            if part in here:
                here[part].push(field, rows, gather_rows(values, places))
                continue
            for start in range(0, len(rows), step):
                some = gather_rows(values, places[start : start + step])
                request = Message("push", {"field": field, "part": part}, (rows[start : start + step], some))
                calls.append(self._channels(part).start(request))
        for call in calls:
            call.result()

    def make(self, field: str, width: int) -> None:
        """Make a field of `width` float32 at the owners of its type's vertices, initially zero; may be repeated.

        A dropped field's name cannot be used again.
        """
        type_of(field, self.book.node_types)
        self._tell("make", field, {"width": width})

    def drop(self, field: str) -> None:
        """Forget a made field, everywhere."""
        self._tell("drop", field, {})
        self._kinds.pop(field, None)

    def traffic(self) -> dict[str, Traffic]:
        """What was transferred so far, by field."""
        with self._lock:
            return dict(self._traffic)

    def _here(self, field: str) -> dict[int, LocalStore]:
        return {part: store for part, store in self._local.items() if field in store.fields}

    def _read_counts(self, field: str, ids: Array, counts: Array) -> ReadCounts:
        """The read counts of a field's remote rows."""
        bounds, here, kind = row_bounds(field, self.book), self._here(field), self._kind(field)
        far = ~np.isin(np.searchsorted(bounds, ids, "right") - 1, list(here))
        remote = sum(int(bounds[part + 1] - bounds[part]) for part in range(self.book.parts) if part not in here)
        return ReadCounts(ids[far], counts[far], math.prod(kind.row_shape) * kind.dtype.itemsize, remote)

    def _kind(self, field: str) -> Kind:
        if field not in self._kinds:
            here = next(iter(self._here(field).values()), None)
            found = self._described(field) if here is None else _kind_of(here.table(field))
            self._kinds[field] = found
        return self._kinds[field]

    def _described(self, field: str) -> Kind:
        """An owner's description of a field that no local part has. Made fields are in every part,
        so any owner serves.
        """
        row_bounds(field, self.book)
        part = next((part for part in range(self.book.parts) if part not in self._local), 0)
        said = self._channels(part).call(Message("fields", {"part": part})).body.get("fields")
        if not isinstance(said, dict) or field not in said:
            raise PenstockError(f"There is no field {field!r}{nearest(field, said or ['none'])}", code="field-missing")
        return Kind(np.dtype(said[field]["dtype"]), tuple(said[field]["row_shape"]))

    def _tell(self, kind: str, field: str, body: dict[str, Any]) -> None:
        """Send a request about a field to every part."""
        calls = []
        for part in range(self.book.parts):
            store = self._local.get(part)
            if isinstance(store, PartFields):
                getattr(store, kind)(field, **body)
            else:
                calls.append(self._channels(part).start(Message(kind, {"field": field, "part": part, **body})))
        for call in calls:
            call.result()

    def _count(self, field: str, more: Traffic, selected: bool = False) -> None:
        with self._lock:
            so_far = self._traffic.get(field, Traffic())
            self._traffic[field] = so_far.plus(more.rows, more.bytes, more.minimum)
            if selected:
                self.selected_traffic = self.selected_traffic.plus(more.rows, more.bytes, more.minimum)


def _kind_of(table: Array) -> Kind:
    return Kind(table.dtype, table.shape[1:])


class PartedRowSource(RowSource):
    """One field of a partitioned graph's vertices, or of its edges, by number in the partitioned graph."""

    def __init__(self, store: PartedStore, field: str, kind: Kind) -> None:
        self._store, self._field, self._kind = store, field, kind
        self._asked = AskedRows()
        self.shape = (int(row_bounds(field, store.book)[-1]), *kind.row_shape)
        self.dtype = kind.dtype

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        selection = self._asked.selection if span is None else None
        asked = AskedRows(span, selection, self._asked.epoch)
        self._store.fill(self._field, self._kind, ids, out, places, asked)

    def selecting(self, selection: ColumnSelection) -> "PartedRowSource":
        """The same rows, with only some columns sent of remote ones; a selection of all columns changes nothing."""
        if len(selection.columns) == self.shape[1]:
            return self
        return self._asking(self._asked._replace(selection=selection))

    def in_epoch(self, epoch: int) -> "PartedRowSource":
        """The same rows for a batch of an epoch: stochastic rounding differs between epochs."""
        return self._asking(self._asked._replace(epoch=epoch))

    def _asking(self, asked: AskedRows) -> "PartedRowSource":
        other = copy.copy(self)
        other._asked = asked
        return other
