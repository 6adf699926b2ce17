"""What the controller offers workers for training together: rounds, barriers, and a key-value store.

In a round the workers regroup, agree on the current step, and train together until one of them is lost.
"""

import threading
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from penstock.cluster.layout import worker_rank
from penstock.graph.arrays import Array
from penstock.wire.message import Message
from penstock.wire.request_server import Handler


class Rendezvous:
    """Handlers for the wire. Requests from other tasks than workers are refused."""

    def __init__(self, world: int) -> None:
        self.rounds, self._barriers, self._values = Rounds(world), Barriers(world), RendezvousValues()
        self._findings = Findings(world)
        self._rank = partial(worker_rank, world=world, what="join the rendezvous")

    def handlers(self) -> dict[str, Handler]:
        """The handlers by kind of request."""
        return {
            "join": self._join,
            "holds": self._holds,
            "barrier": self._barrier,
            "write": self._write,
            "read": self._read,
            "agree": self._agree,
        }

    def _join(self, message: Message, sender: str) -> Message:
        body = message.body
        formed = self.rounds.join(self._rank(sender), int(body["step"]), int(body["after"]), int(body["incarnation"]))
        if formed is None:
            return Message("wait")
        return Message("round", asdict(formed))

    def _holds(self, message: Message, sender: str) -> Message:
        self._rank(sender)
        return Message("holds", {"holds": self.rounds.holds(int(message.body["generation"]))})

    def _barrier(self, message: Message, sender: str) -> Message:
        generation, name = int(message.body["generation"]), str(message.body["name"])
        if not self.rounds.holds(generation):
            return Message("over")
        return Message("go" if self._barriers.arrive(name, self._rank(sender), generation) else "wait")

    def _write(self, message: Message, sender: str) -> Message:
        self._rank(sender)
        self._values.write(int(message.body["generation"]), str(message.body["key"]), message.arrays[0])
        return Message("written")

    def _read(self, message: Message, sender: str) -> Message:
        self._rank(sender)
        generation = int(message.body["generation"])
        if not self.rounds.holds(generation):
            return Message("over")
        found = self._values.read(generation, str(message.body["key"]))
        return Message("wait") if found is None else Message("found", arrays=(found,))

    def _agree(self, message: Message, sender: str) -> Message:
        finding = message.body.get("finding")
        rank, matter = self._rank(sender), str(message.body["matter"])
        found = self._findings.agree(matter, rank, None if finding is None else str(finding))
        return Message("wait") if found is None else Message("agreed", {"findings": found})


class Findings:
    """What every worker has found about a matter before the first round, on which they decide alike.

    The first finding of a worker counts: one that comes back follows what the others have decided with it.
    """

    def __init__(self, world: int) -> None:
        self._world, self._lock = world, threading.Lock()
        self._found: dict[str, dict[int, str]] = {}

    def agree(self, matter: str, rank: int, finding: str | None) -> list[str] | None:
        """All workers' findings, by rank, once all are known; `finding` is None for a worker that only asks."""
        with self._lock:
            found = self._found.setdefault(matter, {})
            if finding is not None:
                found.setdefault(rank, finding)
            return [found[each] for each in range(self._world)] if len(found) == self._world else None


class RendezvousValues:
    """Short values by name, of the newest round only, by which a process group's members find each other."""

    def __init__(self) -> None:
        self._lock, self._generation = threading.Lock(), -1
        self._values: dict[str, Array] = {}

    def write(self, generation: int, key: str, value: Array) -> None:
        """Set a value; a value of an older round is dropped."""
        with self._lock:
            if generation > self._generation:
                self._generation, self._values = generation, {}
            if generation == self._generation:
                # Copied: an array from the wire is a view of the message.
                self._values[key] = np.array(value, np.uint8)

    def read(self, generation: int, key: str) -> Array | None:
        """A value, if it was written in this round."""
        with self._lock:
            return self._values.get(key) if generation == self._generation else None


@dataclass(frozen=True)
class Round:
    """A round that all workers joined. Workers behind `step` load the state of worker `source`."""

    generation: int
    source: int
    step: int
    last: bool = False
    """Whether only some workers joined, to write a checkpoint and end."""


class Rounds:
    """Manages the rounds of `world` workers. A worker that joins again, or is lost, ends the current round."""

    def __init__(self, world: int) -> None:
        self._world, self._lock = world, threading.Lock()
        self._generation = 0
        self._formed: Round | None = None
        self._waiting: dict[int, int] = {}
        self._lives = [0] * world
        self._rest: set[int] | None = None

    def join(self, rank: int, step: int, after: int, incarnation: int) -> Round | None:
        """The round after the one numbered `after`, once all have joined; None: ask again soon.

        `step` is how many steps the worker has done, `incarnation` how often it was started before: a lost worker's
        request may arrive after its loss is known.
        """
        with self._lock:
            if incarnation != self._lives[rank]:
                return None
            if self._formed is not None and self._formed.generation > after:
                return self._formed
            self._formed = None
            self._waiting[rank] = step
            if len(self._waiting) == self._world or (self._rest is not None and self._waiting.keys() >= self._rest):
                source = max(self._waiting, key=lambda rank: (self._waiting[rank], -rank))
                self._generation += 1
                self._formed = Round(self._generation, source, self._waiting[source], self._rest is not None)
                self._waiting = {}
            return self._formed

    def close(self, rest: set[int]) -> int:
        """Have the remaining workers join a last round; returns the number of the round that is over."""
        with self._lock:
            self._formed, self._rest = None, rest
            self._waiting = {rank: step for rank, step in self._waiting.items() if rank in rest}
            return self._generation

    def lose(self, rank: int | None) -> int:
        """Record that a worker is lost, or (None) a resource that they share; the workers of the returned round join
        again.
        """
        with self._lock:
            self._formed = None
            if rank is not None:
                self._waiting.pop(rank, None)
                self._lives[rank] += 1
            return self._generation

    def holds(self, generation: int) -> bool:
        """Whether a round is still current."""
        with self._lock:
            return self._formed is not None and self._formed.generation == generation


class Barriers:
    """Named barriers for the workers of one round."""

    def __init__(self, world: int) -> None:
        self._world, self._lock = world, threading.Lock()
        self._here: dict[str, set[int]] = {}
        self._generation = -1

    def arrive(self, name: str, rank: int, generation: int) -> bool:
        """Whether all have arrived; else ask again."""
        with self._lock:
            if generation > self._generation:
                self._here, self._generation = {}, generation
            here = self._here.setdefault(name, set())
            here.add(rank)
            return len(here) == self._world
