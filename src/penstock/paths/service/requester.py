"""The requesting side: chooses a path for every request, measures its time, and tracks requests in progress."""

import itertools
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Generic, Self, TypeVar

import numpy as np

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError, nearest
from penstock.graph.hashing import key_of
from penstock.paths.decisions import complete_chunk, decide_chunk, nothing_in_progress
from penstock.paths.route_table import COMMON, DEPENDENCIES, NETWORK, RouteTable
from penstock.paths.rules import new_state
from penstock.paths.selector_table import selector_named
from penstock.paths.selectors import SelectorInput
from penstock.paths.service.responder import ASK, READ, WRITE, Functions, Request, pack_request, unpack_answer

# Requests that depend on each other are carried out one after the other, in the order in which they were sent. A path
# carries several messages at once, and so may a node: without this a read could overtake the write before it.

Item = TypeVar("Item")


@dataclass
class _Group(Generic[Item]):
    """Requests of one group: how many are in progress, whether one of them writes, and those that wait, in order."""

    carried: int = 0
    writing: bool = False
    waiting: deque[tuple[Item, bool]] = field(default_factory=deque)

    def admits(self, writes: bool) -> bool:
        """Whether a request may run beside those in progress: reads beside reads, a write alone."""
        return self.carried == 0 or not (writes or self.writing)

    def add(self, writes: bool) -> None:
        self.carried, self.writing = self.carried + 1, writes


class AddressOrder(Generic[Item]):
    """Passes requests to `carry` as soon as those that they depend on are answered. The caller holds a lock."""

    def __init__(self, carry: Callable[[Item], None]) -> None:
        self._carry = carry
        self._groups: dict[int, _Group[Item]] = {}

    def send(self, item: Item, group: int, writes: bool) -> None:
        """Add a request that depends on all earlier ones of its group, if it or one of them writes."""
        found = self._groups.setdefault(group, _Group())
        if found.waiting or not found.admits(writes):
            found.waiting.append((item, writes))
            return
        found.add(writes)
        self._carry(item)

    def answered(self, group: int) -> None:
        """Record that a request of the group is answered."""
        found = self._groups[group]
        found.carried -= 1
        while found.waiting and found.admits(found.waiting[0][1]):
            item, writes = found.waiting.popleft()
            found.add(writes)
            self._carry(item)
        if not found.carried:
            del self._groups[group]


_GROUPS = 1 << 16
"""Addresses are hashed to this many groups; two that collide are ordered without need."""
_ERRORS = (PenstockError, OSError, ValueError)


@dataclass
class Answer:
    """The outcome of a request. Times are in microseconds."""

    number: int
    request: str
    path: str
    payload: bytes = b""
    error: Exception | None = None
    end_to_end_us: float = 0.0
    """t6 - t1."""
    at_hosts_us: float = 0.0
    """(t2 - t1) + (t4 - t3) + (t6 - t5)."""


@dataclass
class _Open:
    """A request in progress, with its times and its answer."""

    answer: Answer
    kind: int
    group: int
    path: int
    slot: int
    message: bytes
    t1: int
    t2: int = 0
    t5: int = 0
    remote_us: float = 0.0


def init(
    table: RouteTable, selector: str = "leo-smooth", seed: int = 0, most_in_progress: int = 1024, threads: int = 16
) -> "Requester":
    """A requester for an application's paths; register a communication function for each path, then `start` it.

    `threads` is how many messages each path carries at once; others wait, which t2 - t1 includes.
    """
    return Requester(table, selector, seed, most_in_progress, threads)


class Requester(Functions, ClosedOnExit):
    """Any thread may send and receive. Close it, or use it as a context manager."""

    def __init__(self, table: RouteTable, selector: str, seed: int, most_in_progress: int, threads: int) -> None:
        super().__init__()
        entry, argument = selector_named(selector)
        prepared = entry.prepare(SelectorInput(table, None, argument))
        self._table, self._rule, self._threads = table, entry.rule, threads
        state = new_state(table.routes, most_in_progress, key_of(seed, "paths choices"))
        self._state = state._replace(weights=prepared.weights)
        self._in_progress = nothing_in_progress(_GROUPS)
        self._free = list(range(most_in_progress))
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._answers: SimpleQueue[_Open] = SimpleQueue()
        self._queues: dict[str, SimpleQueue[_Open | None]] = {}
        self._order = AddressOrder[_Open](lambda opened: self._queues[opened.answer.path].put(opened))
        self._depends = table.routes.depends == DEPENDENCIES.index("address")
        self._workers: list[threading.Thread] = []
        self._network_differs = [_network_differs(table, kind) for kind in range(len(table.types))]
        self._closed = False
        self.decision_seconds, self.decisions = 0.0, 0
        """Seconds spent on choosing paths and observing completions, and the number of choices."""

    def start(self) -> Self:
        """Check that every path has a communication function, and start the threads that carry messages."""
        for path in dict.fromkeys(self._table.paths):
            self.get("communication", path, "requester")
        for path in dict.fromkeys(self._table.paths):
            queue = self._queues[path] = SimpleQueue()
            for number in range(self._threads):
                thread = threading.Thread(
                    target=self._carry, args=(path, queue), name=f"path-{path}-{number}", daemon=True
                )
                thread.start()
                self._workers.append(thread)
        return self

    def send(self, request: str, payload: bytes, address: bytes | int = 0) -> int:
        """Send a request of a type over the path that the selector chooses; returns its number, which its answer has.

        Waits while the allowed number of requests is in progress. Requests at one address of which one writes take one
        path where they can, and are carried out one after the other in the order in which they were sent.
        """
        return self._begin(request, pack_request(Request(ASK, request, payload)), address)

    def recv(self, timeout: float | None = None) -> Answer:
        """The next answer, of whichever request came back first; a request that failed has its error in it."""
        try:
            done = self._answers.get(timeout=timeout)
        except Empty:
            raise PenstockError(f"No answer came within {timeout:g} s.", code="peer-lost") from None
        self._complete(done)
        return done.answer

    def write(self, region: str, offset: int, data: bytes, path: str | None = None) -> None:
        """Write into a region of memory, without application functions: directly if the region is mapped here."""
        if self.has("memory", "write", region):
            self.get("memory", "write", region)(offset, data)
        else:
            self._one_sided(Request(WRITE, region, data, offset), path)

    def read(self, region: str, offset: int, size: int, path: str | None = None) -> bytes:
        """Read from a region of memory, without application functions: directly if the region is mapped here."""
        if self.has("memory", "read", region):
            return bytes(self.get("memory", "read", region)(offset, size))
        return self._one_sided(Request(READ, region, b"", offset, size), path)

    def close(self) -> None:
        """Let messages in progress end, and stop all threads."""
        self._closed = True
        for queue in self._queues.values():
            for _ in range(self._threads):
                queue.put(None)
        for thread in self._workers:
            thread.join()
        self._workers.clear()

    def __enter__(self) -> Self:
        return self.start()

    def _begin(self, request: str, message: bytes, address: bytes | int) -> int:
        if request not in self._table.types:
            raise PenstockError(
                f"There is no request {request!r}{nearest(request, self._table.types)}", code="unknown-name"
            )
        if self._closed or not self._queues:
            raise PenstockError("The requester is not started, or closed: start it first.", code="closed")
        kind, group = self._table.types.index(request), _group_of(address)
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            number, slot, t1 = next(self._numbers), self._free.pop(), self.now()
            path = self._decide(kind, group, number, slot, t1)
            name = self._table.paths[path]
            opened = _Open(Answer(number, request, name), kind, group, path, slot, message, t1)
            if self._depends[kind]:
                self._order.send(opened, group, bool(self._table.routes.writes[kind]))
            else:
                self._queues[name].put(opened)
        return number

    def _decide(self, kind: int, group: int, number: int, slot: int, now: int) -> int:
        start, out = time.perf_counter(), np.empty(1, np.int32)
        decide_chunk(
            self._rule, self._table.routes, self._state, self._in_progress, np.array([kind], np.int32),
            np.array([group]), number, np.array([slot]), now / 1e3, out,
        )  # fmt: skip
        self.decision_seconds += time.perf_counter() - start
        self.decisions += 1
        return int(out[0])

    def _carry(self, path: str, queue: "SimpleQueue[_Open | None]") -> None:
        """A thread of a path: sends one message after the other, waiting for each answer."""
        carry = self.get("communication", path, "requester")
        while (opened := queue.get()) is not None:
            opened.t2 = self.now()
            try:
                opened.remote_us, opened.answer.payload = unpack_answer(carry(opened.message))
            except _ERRORS as error:
                opened.answer.error = error
            opened.t5 = self.now()
            if self._depends[opened.kind]:
                with self._changed:
                    self._order.answered(opened.group)
            self._answers.put(opened)

    def _complete(self, done: _Open) -> None:
        t6, answer = self.now(), done.answer
        answer.end_to_end_us = (t6 - done.t1) / 1e3
        answer.at_hosts_us = (done.t2 - done.t1) / 1e3 + done.remote_us + (t6 - done.t5) / 1e3
        apart = answer.end_to_end_us if self._network_differs[done.kind] else answer.at_hosts_us
        took = np.array([[answer.end_to_end_us, answer.at_hosts_us, apart]])
        with self._changed:
            start = time.perf_counter()
            complete_chunk(
                self._rule, self._table.routes, self._state, self._in_progress, np.array([done.kind], np.int32),
                np.array([done.group]), np.array([done.path], np.int32), np.array([done.slot]), took, t6 / 1e3,
            )  # fmt: skip
            self.decision_seconds += time.perf_counter() - start
            self._free.append(done.slot)
            self._changed.notify()

    def _one_sided(self, request: Request, path: str | None) -> bytes:
        """Send a one-sided request over the named path, or the first one."""
        name = path or self._table.paths[0]
        return unpack_answer(self.get("communication", name, "requester")(pack_request(request)))[1]


def _group_of(address: bytes | int) -> int:
    return zlib.crc32(address if isinstance(address, bytes) else str(address).encode()) % _GROUPS


def _network_differs(table: RouteTable, kind: int) -> bool:
    """Whether the paths of a type go over different links between hosts: then the network counts."""
    return any(
        table.routes.flags[visit] & NETWORK and not table.routes.flags[visit] & COMMON
        for path in table.paths_of(kind)
        for visit in table.visits_of(path)
    )
