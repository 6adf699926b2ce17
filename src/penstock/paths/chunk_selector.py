"""Chunks of a transfer divided among paths: the rule `leo-smooth` decides for all of them at once and is told when each
completes.

Every path goes over one resource: a link, or anything else that serves one chunk after the other. The caller measures
the time of a chunk there and sets it with `set_chunk_time`. Threads may choose at once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of
from penstock.paths.decisions import complete_chunk, decide_chunk, nothing_in_progress
from penstock.paths.route_table import NETWORK, RouteArrays
from penstock.paths.rules import BEHIND, HALF_LIFE, new_state
from penstock.paths.selector_table import selector_named

_SELECTOR = "leo-smooth"
_IN_PROGRESS = 1 << 16


class Chosen(NamedTuple):
    """Decisions for some chunks: the kind, the path and the slot in the table of requests in progress of each, and the
    time.
    """

    kinds: Array
    paths: Array
    slots: Array
    began: float

    def some(self, members: "Sequence[int] | Array") -> "Chosen":
        """The decisions of some of the chunks."""
        return Chosen(self.kinds[members], self.paths[members], self.slots[members], self.began)


class ChunkSelector:
    """Chooses among paths for chunks of several kinds; a kind decides which paths a chunk may take."""

    def __init__(
        self,
        type_first: Sequence[int],
        resources: Sequence[int],
        guess_us: float,
        forget_us: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Kind k has the paths [type_first[k], type_first[k + 1]), path p goes over `resources[p]`.

        `guess_us`: the assumed time of a chunk before any measurement; `forget_us`: the half-life of measurements on a
        path that is no longer used. `clock` counts seconds.
        """
        self._clock, self._lock = clock, threading.Lock()
        self._routes = _one_link_each(type_first, resources, guess_us)
        self._rule = selector_named(_SELECTOR)[0].rule
        self._state = new_state(self._routes, _IN_PROGRESS, key_of(0, "row paths"))
        self._state.settings[HALF_LIFE] = forget_us
        # A transfer ends with the last of its chunks: each goes where it ends soonest.
        self._state.settings[BEHIND] = 0.0
        self._table, self._requests = nothing_in_progress(1), 0
        self._free = list(range(_IN_PROGRESS))

    @property
    def in_progress(self) -> int:
        """Chunks that were decided for, and have neither completed nor been dropped."""
        return _IN_PROGRESS - len(self._free)

    def choices(self, kind: int) -> int:
        """The number of paths that chunks of a kind may take."""
        return int(self._routes.type_first[kind + 1] - self._routes.type_first[kind])

    def choose(self, kinds: Array) -> Chosen:
        """A path for each chunk, int32 kinds in order; each decision takes those before it into account."""
        with self._lock:
            now = self._clock()
            slots = np.array([self._free.pop() for _ in range(len(kinds))], np.int64)
            paths = np.empty(len(kinds), np.int32)
            decide_chunk(
                self._rule, self._routes, self._state, self._table, kinds, np.zeros(len(kinds), np.int64),
                self._requests, slots, now * 1e6, paths,
            )  # fmt: skip
            self._requests += len(kinds)
        return Chosen(kinds, paths, slots, now)

    def completed(self, chosen: Chosen, took_us: Array | float, at: float) -> None:
        """Record that chunks arrived at a time of the clock, each so many microseconds after its decision."""
        times = np.empty((len(chosen.kinds), 3))
        times[:] = np.reshape(took_us, (-1, 1))
        with self._lock:
            complete_chunk(
                self._rule, self._routes, self._state, self._table, chosen.kinds, np.zeros(len(times), np.int64),
                chosen.paths, chosen.slots, times, at * 1e6,
            )  # fmt: skip
            self._free += chosen.slots.tolist()

    def forget(self, chosen: Chosen) -> None:
        """Drop chunks that will not arrive, without learning from them."""
        with self._lock:
            self._free += chosen.slots.tolist()

    def set_chunk_time(self, resource: int, us: float) -> None:
        """Set the time of a chunk on a resource without a queue."""
        with self._lock:
            mine = np.flatnonzero(self._routes.resource == resource)
            for times in (self._routes.service, self._routes.end_to_end, self._routes.distinct):
                times[mine] = max(us, 1e-3)


def _one_link_each(type_first: Sequence[int], resources: Sequence[int], guess_us: float) -> RouteArrays:
    """Paths that each go over one resource; `type_first` are the numbers of each request type's paths."""
    paths = len(resources)
    times = [np.full(paths, guess_us) for _ in range(3)]
    return RouteArrays(
        type_first=np.array(type_first, np.int32),
        first=np.arange(paths + 1, dtype=np.int32),
        resource=np.array(resources, np.int32),
        service=times[0],
        delay=np.zeros(paths),
        jitter=np.zeros((paths, 2)),
        flags=np.full(paths, NETWORK, np.int32),
        capacity=np.ones(max(resources) + 1, np.int32),
        label=np.array(resources, np.int32),
        base=np.zeros(paths),
        end_to_end=times[1],
        distinct=times[2],
        toll=np.zeros(paths),
        toll_per_place=np.zeros(paths),
        depends=np.zeros(len(type_first) - 1, np.int32),
        writes=np.zeros(len(type_first) - 1, np.bool_),
    )


# The use of one path, as runs report it.


class PathUse(NamedTuple):
    """The use of one path: rows, their bytes, and seconds from requests to their last rows."""

    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, size: int, seconds: float) -> "PathUse":
        """The use with one more answer."""
        return PathUse(self.rows + rows, self.bytes + size, self.seconds + seconds)
