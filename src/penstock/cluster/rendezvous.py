"""What the controller offers workers for training together: rounds, barriers, and a key-value store.

In a round the workers regroup, agree on the current step, and train together until one of them is lost.
"""

import threading
from dataclasses import asdict, dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.wire import Message
from penstock.wire.request_server import Handler


class Rendezvous:
    """Handlers for the wire. Who is not a worker is refused."""

    def __init__(self, world: int) -> None:
        self._world, self._rounds, self._barriers, self._values = (
            world,
            Rounds(world),
            Barriers(world),
            RendezvousValues(),
        )

    def handlers(self) -> dict[str, Handler]:
        """By the kind of request."""
        return {
            "join": self._join,
            "holds": self._holds,
            "barrier": self._barrier,
            "write": self._write,
            "read": self._read,
        }

    def lose(self, rank: int | None) -> int:
        """A worker, or something that all need, is gone; returns the number of the round that is over."""
        return self._rounds.lose(rank)

    def close(self, rest: set[int]) -> int:
        """Others stay away: have the rest leave a checkpoint; returns the number of the round that is over."""
        return self._rounds.close(rest)

    def _join(self, message: Message, sender: str) -> Message:
        body = message.body
        formed = self._rounds.join(_rank(sender), int(body["step"]), int(body["after"]), int(body["incarnation"]))
        if formed is None:
            return Message("wait")
        return Message("round", asdict(formed))

    def _holds(self, message: Message, sender: str) -> Message:
        _rank(sender)
        return Message("holds", {"holds": self._rounds.holds(int(message.body["generation"]))})

    def _barrier(self, message: Message, sender: str) -> Message:
        generation, name = int(message.body["generation"]), str(message.body["name"])
        if not self._rounds.holds(generation):
            return Message("over")
        return Message("go" if self._barriers.arrive(name, _rank(sender), generation) else "wait")

    def _write(self, message: Message, sender: str) -> Message:
        _rank(sender)
        self._values.write(int(message.body["generation"]), str(message.body["key"]), message.arrays[0])
        return Message("written")

    def _read(self, message: Message, sender: str) -> Message:
        _rank(sender)
        generation = int(message.body["generation"])
        if not self._rounds.holds(generation):
            return Message("over")
        found = self._values.read(generation, str(message.body["key"]))
        return Message("wait") if found is None else Message("found", arrays=(found,))


class RendezvousValues:
    """Short values by name, of the newest round alone: where a process group's members find each other."""

    def __init__(self) -> None:
        self._lock, self._generation = threading.Lock(), -1
        self._values: dict[str, Array] = {}

    def write(self, generation: int, key: str, value: Array) -> None:
        """Set a value; of an older round: nobody would read it."""
        with self._lock:
            if generation > self._generation:
                self._generation, self._values = generation, {}
            if generation == self._generation:
                # What came over the wire is a view of the message.
                self._values[key] = np.array(value, np.uint8)

    def read(self, generation: int, key: str) -> Array | None:
        """A value, if it was written in this round."""
        with self._lock:
            return self._values.get(key) if generation == self._generation else None


def _rank(sender: str) -> int:
    kind, _, rank = sender.partition("-")
    if kind != "worker" or not rank.isdigit():
        raise PenstockError(f"{sender} is not a worker: only workers may join the rendezvous.", code="not-permitted")
    return int(rank)


@dataclass(frozen=True)
class Round:
    """A meeting that all workers came to. Those behind `step` take the state of worker `source`."""

    generation: int
    source: int
    step: int
    last: bool = False
    """Whether only some came, to leave a checkpoint and end."""


class Rounds:
    """Keeps the meetings of `world` workers. A worker that asks again, or is lost, ends the round under way."""

    def __init__(self, world: int) -> None:
        self._world, self._lock = world, threading.Lock()
        self._generation = 0
        self._formed: Round | None = None
        self._waiting: dict[int, int] = {}
        self._lives = [0] * world
        self._rest: set[int] | None = None

    def join(self, rank: int, step: int, after: int, incarnation: int) -> Round | None:
        """The round after the one numbered `after`, once all are here; None: ask again soon.

        `step` is how many steps the worker has done, `incarnation` how often it was started before: what a lost one
        had asked may arrive after its loss is known.
        """
        with self._lock:
            if incarnation != self._lives[rank]:
                return None
            if self._formed is not None and self._formed.generation > after:
                return self._formed
            self._formed = None
            self._waiting[rank] = step
            if set(self._waiting) >= (set(range(self._world)) if self._rest is None else self._rest):
                source = max(self._waiting, key=lambda rank: (self._waiting[rank], -rank))
                self._generation += 1
                self._formed = Round(self._generation, source, self._waiting[source], self._rest is not None)
                self._waiting = {}
            return self._formed

    def close(self, rest: set[int]) -> int:
        """Have those who are left meet a last time; returns the number of the round that is over."""
        with self._lock:
            self._formed, self._rest = None, rest
            self._waiting = {rank: step for rank, step in self._waiting.items() if rank in rest}
            return self._generation

    def lose(self, rank: int | None) -> int:
        """A worker is gone, or (None) what they share: those of the round, whose number is returned, meet again."""
        with self._lock:
            self._formed = None
            if rank is not None:
                self._waiting.pop(rank, None)
                self._lives[rank] += 1
            return self._generation

    def holds(self, generation: int) -> bool:
        """Whether a round is still that of all workers."""
        with self._lock:
            return self._formed is not None and self._formed.generation == generation


class Barriers:
    """Workers of one round wait for each other at named places."""

    def __init__(self, world: int) -> None:
        self._world, self._lock = world, threading.Lock()
        self._here: dict[str, set[int]] = {}
        self._generation = -1

    def arrive(self, name: str, rank: int, generation: int) -> bool:
        """Whether all have come; else ask again."""
        with self._lock:
            if generation > self._generation:
                self._here, self._generation = {}, generation
            here = self._here.setdefault(name, set())
            here.add(rank)
            return len(here) == self._world
