"""Rounds: the workers regroup, agree on the current step, and train together until one of them is lost."""

import threading
from dataclasses import dataclass


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
