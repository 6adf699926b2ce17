"""Sums and gathers among workers over the run's own authenticated and encrypted connections.

With parameter servers and `reduction: wire` nothing of a run leaves the wire. What is short every worker sends to
all others, and adds up what came in the order of ranks. Of what is long every worker sums a share (a reduce-scatter),
again in the order of ranks, and sends the sums to all others (an all-gather): each worker sends and receives twice the
numbers, however many workers there are. Either way all have the same bits, and in every run.
"""

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.cluster.member import Member
from penstock.cluster.worker.collective_group import StagedSums
from penstock.coflow_context import GRADIENTS, NORMS, current_coflow, within_kind
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.train.execution.worker_group import RegroupError
from penstock.wire import Message

_LOOK = 0.5
"""Seconds between two checks whether the round is still valid."""
_SHARED = 1 << 14
"""From this many numbers on, each worker sums a share of them; fewer are sent to all workers in one exchange."""
_AHEAD = 256
"""Exchanges by which another worker may be ahead: sums that were begun, one for each layer of a model, and one more."""
_KINDS = {np.dtype(kind) for kind in (np.float32, np.float64, np.int64)}


class WireCollective:
    """The arrays that other workers sent in the newest round. An array that arrives twice is kept once."""

    def __init__(self, member: Member) -> None:
        self._world, self._changed = member.setup.layout.world, threading.Condition()
        self._generation, self._taken = 0, -1
        self._taken_early: set[int] = set()
        """Exchanges behind one that was begun before them and is not taken yet."""
        self._arrays: dict[int, dict[int, Array]] = {}
        member.endpoint.serve("numbers", self._receive)

    def begin(self, generation: int) -> None:
        """Begin a round: arrays of earlier rounds are dropped, and some of this one may have arrived already."""
        with self._changed:
            self._turn_to(generation)

    def take(self, generation: int, number: int, seconds: float) -> dict[int, Array] | None:
        """All other workers' arrays of exchange `number`, by rank; None where some are missing after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_full(generation, number), seconds)
            if not self._is_full(generation, number):
                return None
            self._taken_early.add(number)
            while self._taken + 1 in self._taken_early:
                self._taken += 1
                self._taken_early.discard(self._taken)
            return self._arrays.pop(number)

    def _receive(self, message: Message, sender: str) -> Message:
        kind, _, rank = sender.partition("-")
        generation, number = int(message.body["generation"]), int(message.body["number"])
        if kind != "worker" or not rank.isdecimal() or int(rank) >= self._world or len(message.arrays) != 1:
            raise PenstockError(
                f"{sender} sent nothing that can be summed: only workers send numbers, one array at a time.",
                code="malformed-message",
            )
        if message.arrays[0].ndim != 1 or message.arrays[0].dtype not in _KINDS:
            raise PenstockError(
                f"{sender} sent {message.arrays[0].dtype} {message.arrays[0].shape}: send a flat array.",
                code="malformed-message",
            )
        with self._changed:
            self._turn_to(generation)
            is_new = self._taken < number <= self._taken + _AHEAD and number not in self._taken_early
            if generation == self._generation and is_new:
                # What came over the wire is a view of the message.
                self._arrays.setdefault(number, {})[int(rank)] = np.array(message.arrays[0])
                self._changed.notify_all()
        return Message("heard")

    def _turn_to(self, generation: int) -> None:
        if generation > self._generation:
            self._generation, self._taken, self._taken_early, self._arrays = generation, -1, set(), {}

    def _is_full(self, generation: int, number: int) -> bool:
        return generation == self._generation and len(self._arrays.get(number, ())) == self._world - 1


class WireGroup(StagedSums):
    """A collective group (see `collective_group`) for arrays in host memory, over the run's own connections."""

    def __init__(self, member: Member, generation: int, collective: WireCollective) -> None:
        self._member, self._generation, self._collective = member, generation, collective
        self._rank, self._world, self.device = member.setup.task.rank, member.setup.layout.world, torch.device("cpu")
        self._patience, self._number = member.setup.cluster.failure.patience, 0
        collective.begin(generation)

    def start_sum(self, numbers: Tensor) -> Callable[[], None]:
        """Sum the workers' arrays in the order of ranks, so that sums round the same in every run."""
        own = numbers.reshape(-1).numpy()
        in_shares = len(own) >= _SHARED
        bounds = [len(own) * rank // self._world for rank in range(self._world + 1)]
        whole = [own.copy()] * self._world
        sent = [own[first:last].copy() for first, last in itertools.pairwise(bounds)] if in_shares else whole
        finish = self._start(sent)

        def summed() -> None:
            total = _added(finish(), sent[self._rank])
            if in_shares:
                total = np.concatenate(self._start([total] * self._world)())
            numbers.copy_(torch.from_numpy(total).view_as(numbers))

        return summed

    def gather(self, numbers: Tensor) -> list[Tensor]:
        """The arrays of all workers, by rank."""
        # Sent as it is now, whatever becomes of the numbers.
        own = numbers.numpy().copy()
        return [torch.from_numpy(part) for part in self._start([own] * self._world)()]

    def _start(self, arrays: Sequence[Array]) -> Callable[[], list[Array]]:
        """Send each worker its array, by rank; returns what waits for those that all workers sent to this one."""
        number, self._number = self._number, self._number + 1
        body = {"generation": self._generation, "number": number}
        # Sums are those of norms unless the caller says that they are gradients.
        with within_kind(GRADIENTS if current_coflow().kind == GRADIENTS else NORMS):
            sent = [
                self._member.endpoint.channel(f"worker-{rank}", "sums", 0).start(
                    Message("numbers", body, (array,)), self._patience
                )
                for rank, array in enumerate(arrays)
                if rank != self._rank
            ]

        def finish() -> list[Array]:
            found = self._await_arrays(number)
            for call in sent:
                call.result()
            found[self._rank] = arrays[self._rank]
            return [found[rank] for rank in range(self._world)]

        return finish

    def close(self) -> None:
        """Do nothing: workers that wait for this one learn from the controller that the round is over."""

    def _await_arrays(self, number: int) -> dict[int, Array]:
        end = time.monotonic() + self._patience
        while True:
            found = self._collective.take(self._generation, number, _LOOK)
            if found is not None:
                return found
            member = self._member
            over = member.round >= self._generation or member.stopped.is_set() or time.monotonic() > end
            if over or not member.ask("holds", generation=self._generation).body["holds"]:
                raise RegroupError("a worker's array did not arrive")


def _added(parts: Sequence[Array], own: Array) -> Array:
    """The sum of all workers' numbers, which must be like this worker's own."""
    if any(part.shape != own.shape or part.dtype != own.dtype for part in parts):
        raise PenstockError(
            "Workers sent arrays of different sizes to be summed: run the same release on all machines.",
            code="malformed-message",
        )
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total
