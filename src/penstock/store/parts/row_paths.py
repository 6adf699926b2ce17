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
from penstock.paths.chunk_selector import Chosen, ChunkSelector
from penstock.store.parts.send_buffers import FarRows

CHUNK_BYTES = 1 << 16
"""Of the rows that one decision is made for."""
_GUESS_US = 500.0
"""What a chunk takes on a link that nothing has come over yet: about a Gbit/s."""
_FORGET_US = 2e6
"""Time in which half of what was measured on a path that is no longer used is forgotten."""
_MEASURING = 2
"""Chunks of a request from which a link's speed is taken: less is mostly latency."""


class Along(NamedTuple):
    """Rows that are requested from one store, and the decisions that brought them there."""

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

        Without `with_owner`, rows that a replica holds are never asked of their owner.
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
        # Rows that have one path come first: the others then know what is on it.
        chunks.sort(key=lambda chunk: self.selector.choices(chunk[0]))
        chosen = self.selector.choose(np.array([kind for kind, _, _ in chunks], np.int32))
        return self._grouped(wanted, chunks, chosen)

    def completed(self, along: Along, size: int, at: float) -> float:
        """A request's rows, `size` bytes, have arrived at a time of the clock; returns the seconds they took."""
        took = max(0.0, at - along.chosen.began)
        self._learn_speed(along, size, took * 1e6)
        self.selector.completed(along.chosen, took * 1e6, at)
        return took

    def forget(self, along: Along) -> None:
        """A request has failed: nothing is learned from it."""
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
        """What a chunk takes on a link without queues is the least that was seen: a profile that is made on the way."""
        chunks = size / CHUNK_BYTES
        if chunks < _MEASURING:
            return
        source = self._stores.index(along.store)
        with self._lock:
            self._fastest[source] = min(self._fastest[source], took_us / chunks)
            self.selector.set_chunk_time(source, self._fastest[source])
