"""What the controller offers workers for training together: rounds, barriers, and a key-value store."""

import threading
from dataclasses import asdict

import numpy as np

from penstock.cluster.rounds import Barriers, Rounds
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
