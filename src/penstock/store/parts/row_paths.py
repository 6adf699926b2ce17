"""Which path each chunk of a pull's rows takes: from the owner of their part, or from a replica that holds them too.

Chunks are requests of `penstock.paths`: every store's link is a resource, and the rule `leo-smooth` sends each chunk
where it is expected to arrive first, given what is under way and what earlier chunks took. Paths deliver the same bits,
so the choice changes when rows arrive and nothing else.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of
from penstock.paths.decisions import complete_chunk, decide_chunk
from penstock.paths.dependencies import nothing_in_progress
from penstock.paths.route_table import NETWORK, Routes
from penstock.paths.rules.selector_state import HALF_LIFE, new_state
from penstock.paths.selectors import selector_named
from penstock.store.parts.send_buffers import FarRows

CHUNK_BYTES = 1 << 16
"""Of the rows that one decision is made for."""
_SELECTOR = "leo-smooth"
_GUESS_US = 500.0
"""What a chunk takes on a link that nothing has come over yet: about a Gbit/s."""
_FORGET_US = 2e6
"""Time in which half of what was measured on a path that is no longer used is forgotten."""
_IN_PROGRESS = 1 << 16
_MEASURING = 2
"""Chunks of a request from which a link's speed is taken: less is mostly latency."""


class PathUse(NamedTuple):
    """What came along one path: rows, their bytes, and seconds from requests to their last rows."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, size: int, seconds: float) -> "PathUse":
        """With one more answer."""
        return PathUse(self.rows + rows, self.bytes + size, self.seconds + seconds)


class Along(NamedTuple):
    """Rows that are requested from one store, and the decisions that brought them there."""

    wanted: FarRows
    store: str
    is_replica: bool
    kinds: Array
    paths: Array
    slots: Array
    began: float


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

        Without `with_owner`, rows that a replica holds are never asked of their owner.
        """
        self._owners, self._replicas, self._clock = owners, replicas, clock
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
        self._routes = _one_link_each(type_first, self._sources, len(self._stores))
        self._rule = selector_named(_SELECTOR)[0].rule
        self._state = new_state(self._routes, _IN_PROGRESS, key_of(0, "row paths"))
        self._state.settings[HALF_LIFE] = _FORGET_US
        self._table, self._requests = nothing_in_progress(1), 0
        self._free = list(range(_IN_PROGRESS))
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
        # Rows that have one path come first: the others then know what is on it.
        chunks.sort(key=lambda chunk: self._choices(chunk[0]))
        kinds = np.array([kind for kind, _, _ in chunks], np.int32)
        with self._lock:
            now = self._clock()
            slots = np.array([self._free.pop() for _ in chunks], np.int64)
            paths = np.empty(len(chunks), np.int32)
            decide_chunk(
                self._rule, self._routes, self._state, self._table, kinds, np.zeros(len(chunks), np.int64),
                self._requests, slots, now * 1e6, paths,
            )  # fmt: skip
            self._requests += len(chunks)
        return self._grouped(wanted, chunks, kinds, paths, slots, now)

    def completed(self, along: Along, size: int, at: float) -> float:
        """A request's rows, `size` bytes, have arrived at a time of the clock; returns the seconds they took."""
        took = max(0.0, at - along.began)
        with self._lock:
            self._learn_speed(along, size, took * 1e6)
            times = np.full((len(along.kinds), 3), took * 1e6)
            complete_chunk(
                self._rule, self._routes, self._state, self._table, along.kinds, np.zeros(len(along.kinds), np.int64),
                along.paths, along.slots, times, at * 1e6,
            )  # fmt: skip
            self._free += along.slots.tolist()
        return took

    def forget(self, along: Along) -> None:
        """A request has failed: nothing is learned from it."""
        with self._lock:
            self._free += along.slots.tolist()

    def owner(self, part: int) -> str:
        """The store of a part."""
        return self._owners[part]

    def _choices(self, kind: int) -> int:
        return int(self._routes.type_first[kind + 1] - self._routes.type_first[kind])

    def _grouped(
        self,
        wanted: Sequence[FarRows],
        chunks: list[tuple[int, int, Array]],
        kinds: Array,
        paths: Array,
        slots: Array,
        now: float,
    ) -> list[Along]:
        """One request for each part and store."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place, (_, number, _) in enumerate(chunks):
            groups.setdefault((number, self._sources[paths[place]]), []).append(place)
        found = []
        for (number, source), members in groups.items():
            part, rows, places = wanted[number]
            chosen = np.concatenate([chunks[member][2] for member in members])
            store = self._stores[source]
            some = FarRows(part, rows[chosen], places[chosen])
            replica = store != self._owners[part]
            found.append(Along(some, store, replica, kinds[members], paths[members], slots[members], now))
        return found

    def _learn_speed(self, along: Along, size: int, took_us: float) -> None:
        """What a chunk takes on a link without queues is the least that was seen: a profile that is made on the way."""
        chunks = size / CHUNK_BYTES
        if chunks < _MEASURING:
            return
        source = self._stores.index(along.store)
        self._fastest[source] = min(self._fastest[source], took_us / chunks)
        mine = np.flatnonzero(self._routes.resource == source)
        for times in (self._routes.service, self._routes.end_to_end, self._routes.distinct):
            times[mine] = max(self._fastest[source], 1e-3)


def _one_link_each(type_first: list[int], sources: list[int], stores: int) -> Routes:
    """Paths that each go over the link of one store; `type_first` are the numbers of each request type's paths."""
    paths = len(sources)
    times = [np.full(paths, _GUESS_US) for _ in range(3)]
    return Routes(
        type_first=np.array(type_first, np.int32),
        first=np.arange(paths + 1, dtype=np.int32),
        resource=np.array(sources, np.int32),
        service=times[0],
        delay=np.zeros(paths),
        jitter=np.zeros((paths, 2)),
        flags=np.full(paths, NETWORK, np.int32),
        capacity=np.ones(stores, np.int32),
        label=np.array(sources, np.int32),
        base=np.zeros(paths),
        end_to_end=times[1],
        distinct=times[2],
        toll=np.zeros(paths),
        depends=np.zeros(len(type_first) - 1, np.int32),
        writes=np.zeros(len(type_first) - 1, np.bool_),
    )
