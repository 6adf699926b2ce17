"""Second copies of parts' feature rows: the store that serves them, and the reader that chooses among them.

A replica holds all rows of a field of a part, or some of them by their numbers in the part. It encodes rows with the
function that their owner uses, so that they have the same bits. Learnable rows change and are never replicated.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.paths.chunk_selector import Chosen, ChunkSelector, PathUse
from penstock.store.parts.requests import (
    FarRows,
    FieldRequest,
    PartRows,
    Pull,
    RowEncoding,
    RowRequest,
    SendBuffers,
    Traffic,
    checked,
    copy_rows,
    encoding_for,
    pack_rows,
    receive_rows,
    row_numbers,
)
from penstock.store.rows import check_rows
from penstock.wire.channel import Channel, RemoteError
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message

# Which path each chunk of a pull's rows takes: from the owner of their part, or from a replica. Chunks are requests of
# `penstock.paths`: every store's link is a resource, and the rule `leo-smooth` sends each chunk where it is expected to
# arrive first, given what is in flight and what earlier chunks took. Paths deliver the same bits, so the choice changes
# when rows arrive and nothing else.

CHUNK_BYTES = 1 << 16
"""Bytes of the rows that one decision is made for."""
_GUESS_US = 500.0
"""The assumed time of a chunk on an unused link: about a Gbit/s."""
_FORGET_US = 2e6
"""The half-life of measurements on a path that is no longer used."""
_MEASURING = 2
"""Requests with fewer chunks do not measure a link's speed: they are mostly latency."""


class Along(NamedTuple):
    """Rows that are requested from one store, and the decisions that chose it."""

    wanted: FarRows
    store: str
    is_replica: bool
    chosen: Chosen


class RowPaths:
    """One worker's choice among the stores that hold a part's rows. Threads may pull at once."""

    def __init__(
        self,
        owners: Sequence[str],
        replicas: Mapping[int, Sequence[str]],
        with_owner: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`owners` are the parts' stores, `replicas` stores with further copies; `clock` counts seconds.

        Without `with_owner`, rows that a replica holds are never requested from their owner.
        """
        self._owners = owners
        self._stores = list(dict.fromkeys([*owners, *(store for each in replicas.values() for store in each)]))
        self._kinds: dict[tuple[int, int], int] = {}
        self._sources: list[int] = []
        type_first = [0]
        for part, owner in enumerate(owners):
            copies = replicas.get(part, ())
            for held in range(1 << len(copies)):
                self._kinds[part, held] = len(type_first) - 1
                here = [store for place, store in enumerate(copies) if held >> place & 1]
                stores = [owner, *here] if with_owner or not here else here
                self._sources += [self._stores.index(store) for store in stores]
                type_first.append(len(self._sources))
        self.selector = ChunkSelector(type_first, self._sources, _GUESS_US, _FORGET_US, clock)
        self._fastest = np.full(len(self._stores), np.inf)
        self._lock = threading.Lock()

    def divide(self, wanted: Sequence[FarRows], held: Sequence[Array], row_bytes: int) -> list[Along]:
        """Divide rows of parts among their stores; bit k of `held` says whether the part's k-th replica has a row."""
        step = max(1, CHUNK_BYTES // max(1, row_bytes))
        chunks: list[tuple[int, int, Array]] = []
        for number, (each, mask) in enumerate(zip(wanted, held, strict=True)):
            for value in np.unique(mask).tolist():
                places = np.flatnonzero(mask == value)
                kind = self._kinds[each.part, value]
                chunks += [(kind, number, places[start : start + step]) for start in range(0, len(places), step)]
        # Rows with one path are assigned first, so that the others take their load into account.
        chunks.sort(key=lambda chunk: self.selector.choices(chunk[0]))
        chosen = self.selector.choose(np.array([kind for kind, _, _ in chunks], np.int32))
        return self._grouped(wanted, chunks, chosen)

    def completed(self, along: Along, size: int, at: float) -> float:
        """Record that a request's rows, `size` bytes, arrived at a time of the clock; returns the seconds they took."""
        took = max(0.0, at - along.chosen.began)
        self._learn_speed(along, size, took * 1e6)
        self.selector.completed(along.chosen, took * 1e6, at)
        return took

    def forget(self, along: Along) -> None:
        """Drop a failed request without learning from it."""
        self.selector.forget(along.chosen)

    def owner(self, part: int) -> str:
        """The store of a part."""
        return self._owners[part]

    def _grouped(self, wanted: Sequence[FarRows], chunks: list[tuple[int, int, Array]], chosen: Chosen) -> list[Along]:
        """One request for each part and store."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (_, number, _) in enumerate(chunks):
            groups.setdefault((number, self._sources[chosen.paths[place]]), []).append(place)
        found = []
        for (number, source), members in groups.items():
            part, rows, places = wanted[number]
            taken = np.concatenate([chunks[member][2] for member in members])
            store = self._stores[source]
            some = FarRows(part, rows[taken], places[taken])
            found.append(Along(some, store, store != self._owners[part], chosen.some(members)))
        return found

    def _learn_speed(self, along: Along, size: int, took_us: float) -> None:
        """Learn what a chunk takes on an idle link, as the least that was seen."""
        chunks = size / CHUNK_BYTES
        if chunks < _MEASURING:
            return
        source = self._stores.index(along.store)
        with self._lock:
            self._fastest[source] = min(self._fastest[source], took_us / chunks)
            self.selector.set_chunk_time(source, self._fastest[source])


OWNER, REPLICA, HERE = "owner", "replica", "here"
"""Paths of rows: from the owner, from a replica, and from a replica on the reader's own machine that it maps."""


class HeldRows(NamedTuple):
    """Rows of one field of a part. `numbers` (ascending) are theirs in the part; None: all are held, in order."""

    table: Array
    numbers: Array | None
    compact: bool = False
    """Whether the table has only the held rows; otherwise it is the part's own, mapped."""

    def slots(self, rows: Array) -> Array:
        """The positions of rows of the part in the table; an error where one is not held."""
        if self.numbers is None:
            check_rows(self.table, rows)
            return rows
        places = np.minimum(np.searchsorted(self.numbers, rows), len(self.numbers) - 1)
        if not np.array_equal(self.numbers[places], rows):
            raise PenstockError("A replica does not hold all rows that it is asked for.", code="id-out-of-range")
        return places if self.compact else rows


class ReplicaService:
    """Serves `replica-rows` (which rows are held) and `replica-pull`. Until it is ready, readers use the owners."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._held: dict[tuple[int, str], HeldRows] = {}
        self._ready, self._buffers, self._name = False, SendBuffers(), endpoint.name
        endpoint.serve("replica-rows", self._rows)
        endpoint.serve("replica-pull", self._pull)

    def hold(self, held: Mapping[tuple[int, str], HeldRows]) -> None:
        """Serve these rows, by part and field, from now on."""
        self._held = dict(held)
        self._ready = True

    def _rows(self, request: Message, sender: str) -> Message:
        asked = checked(request, FieldRequest)
        if not self._ready:
            return Message("replica-rows", {"ready": False, "all": False})
        held = self._find(asked)
        numbers = np.empty(0, np.int64) if held.numbers is None else held.numbers
        return Message("replica-rows", {"ready": True, "all": held.numbers is None}, (numbers,))

    def _pull(self, request: Message, sender: str) -> Iterator[Message]:
        asked = checked(request, Pull)
        held, rows = self._find(asked), row_numbers(request)
        span = None if asked.columns is None else (asked.columns[0], asked.columns[1])
        if span is not None and not (held.table.ndim == 2 and span[0] <= span[1] <= held.table.shape[1]):
            raise PenstockError(f"Field {asked.field!r} has no columns {asked.columns}.", code="shape-mismatch")
        way = encoding_for(asked.wire_type, held.table.dtype, held.table.shape[1:], span, asked.rounding)
        return pack_rows(way, held.table, held.slots(rows), PartRows(asked.part, rows), self._buffers)

    def _find(self, asked: FieldRequest) -> HeldRows:
        held = self._held.get((asked.part, asked.field))
        if held is None:
            raise PenstockError(
                f"{self._name} has no replica of {asked.field!r} of part {asked.part} yet: ask its owner.",
                code="not-available",
            )
        return held


class ReplicaCopy(NamedTuple):
    """A replica as a reader sees it."""

    store: str
    numbers: Array | None
    """Rows of the part that it holds, ascending; None: all."""
    table: Array | None = None
    """The part's own rows, if the replica is on the reader's machine and the reader maps them."""

    def holds(self, rows: Array) -> Array:
        """For each row of the part, whether it is held."""
        if self.numbers is None:
            return np.ones(len(rows), np.bool_)
        if not len(self.numbers):
            return np.zeros(len(rows), np.bool_)
        found: Array = self.numbers[np.minimum(np.searchsorted(self.numbers, rows), len(self.numbers) - 1)] == rows
        return found


class ReplicaReader:
    """Pulls rows along the paths that replicas add; `copies` are given by field and part."""

    def __init__(
        self,
        copies: Mapping[str, Mapping[int, Sequence[ReplicaCopy]]],
        paths: RowPaths,
        channel: Callable[[str], Channel],
    ) -> None:
        """`channel` leads to a store by its name. A part's copies are in the order of `paths`."""
        self.fields = frozenset(copies)
        self._copies, self._paths, self._channel = copies, paths, channel
        self._buffers, self._lock = SendBuffers(), threading.Lock()
        self._use: dict[str, PathUse] = {}

    def pull(
        self, field: str, wanted: Sequence[FarRows], body: Mapping[str, object], way: RowEncoding, stored_bytes: int
    ) -> "DividedPull":
        """Request rows of a field along their paths; `stored_bytes` is the size of a stored row."""
        copies = self._copies.get(field, {})
        near: list[tuple[Array, FarRows]] = []
        far, held = [], []
        for each in wanted:
            for copy in copies.get(each.part, ()):
                if copy.table is not None:
                    mine = copy.holds(each.rows)
                    near.append((copy.table, FarRows(each.part, each.rows[mine], each.places[mine])))
                    each = FarRows(each.part, each.rows[~mine], each.places[~mine])
            far.append(each)
            held.append(_held_by(copies.get(each.part, ()), each.rows))
        along = self._paths.divide(far, held, way.row_bytes)
        asked = [self._ask(each, body, each.is_replica) for each in along]
        return DividedPull(near, list(zip(along, asked, strict=True)), body, way, stored_bytes)

    def receive(self, pull: "DividedPull", out: Array) -> Traffic:
        """Copy all rows of a pull to their positions; returns what was sent over the wire."""
        came, left = Traffic(), list(pull.asked)
        for table, near in pull.near:
            began = time.perf_counter()
            copy_rows(pull.way, table, near, out, self._buffers)
            self._count(HERE, PathUse(len(near.rows), 0, time.perf_counter() - began))
        try:
            while left:
                along, request = left[0]
                path, size, last = self._receive(along, request, pull, out)
                left.pop(0)
                seconds = self._paths.completed(along, size, last)
                self._count(path, PathUse(len(request.places), size, seconds))
                came = came.plus(len(request.places), size, len(request.places) * pull.stored_bytes)
        finally:
            for along, _ in left:
                self._paths.forget(along)
        return came

    def use(self) -> dict[str, PathUse]:
        """The use of each path so far."""
        with self._lock:
            return dict(self._use)

    def _ask(self, along: Along, body: Mapping[str, object], replica: bool) -> RowRequest:
        part, rows, places = along.wanted
        kind = "replica-pull" if replica else "pull"
        store = along.store if replica else self._paths.owner(part)
        answer = self._channel(store).start(Message(kind, {**body, "part": part}, (rows,)))
        return RowRequest(part, places, answer)

    def _receive(self, along: Along, request: RowRequest, pull: "DividedPull", out: Array) -> tuple[str, int, float]:
        """(path, bytes, arrival of the last).

        If a replica was restarted and is not ready, the owner is asked.
        """
        try:
            size = receive_rows(request, pull.way, out)
            return REPLICA if along.is_replica else OWNER, size, request.answer.last_sign
        except RemoteError as error:
            if not along.is_replica or error.code != "not-available":
                raise
        again = self._ask(along, pull.body, False)
        return OWNER, receive_rows(again, pull.way, out), again.answer.last_sign

    def _count(self, path: str, more: PathUse) -> None:
        with self._lock:
            self._use[path] = self._use.get(path, PathUse()).plus(*more)


class DividedPull(NamedTuple):
    """A pull in progress: local rows, and requests with the decisions that made them."""

    near: list[tuple[Array, FarRows]]
    asked: list[tuple[Along, RowRequest]]
    body: Mapping[str, object]
    way: RowEncoding
    stored_bytes: int


def _held_by(copies: Sequence[ReplicaCopy], rows: Array) -> Array:
    """Bit k: whether the k-th replica holds the row."""
    held = np.zeros(len(rows), np.int64)
    for place, copy in enumerate(copies):
        held |= copy.holds(rows).astype(np.int64) << place
    return held
