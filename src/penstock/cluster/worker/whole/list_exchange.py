"""An all-to-all of lists that every worker keeps for those that are started again."""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.wire import Message

_AGAIN = 0.01
"""Seconds before a worker that has not come so far is asked again."""


class ListExchange:
    """See `train.whole.shared.interfaces.Lists`. What a worker offers under a name is the same whenever it is asked."""

    def __init__(self, member: Member, check: Callable[[], None]) -> None:
        """`check` raises RegroupError where the round is over."""
        self._member, self._check = member, check
        self.rank, self.world = member.setup.task.rank, member.setup.layout.world
        self._offered: dict[str, Sequence[Sequence[Array]]] = {}
        self._lock = threading.Lock()
        member.endpoint.serve("whole-lists", self._give)

    def exchange(self, name: str, lists: Sequence[Sequence[Array]]) -> list[list[Array]]:
        """Offer each worker its lists; returns what every worker offers to this one."""
        with self._lock:
            self._offered[name] = [[np.ascontiguousarray(each, np.int64) for each in given] for given in lists]
        others = [rank for rank in range(self.world) if rank != self.rank]
        found = {self.rank: [np.asarray(each, np.int64) for each in lists[self.rank]]}
        while len(found) < self.world:
            asked = {rank: self._ask(rank, name) for rank in others if rank not in found}
            found |= {rank: lists for rank, lists in asked.items() if lists is not None}
            if len(found) < self.world:
                self._check()
                time.sleep(_AGAIN)
        return [found[rank] for rank in range(self.world)]

    def _ask(self, rank: int, name: str) -> list[Array] | None:
        channel = self._member.endpoint.channel(f"worker-{rank}", "state")
        pending = channel.start(Message("whole-lists", {"name": name}), self._member.setup.cluster.failure.patience)
        answer = pending.result()
        if answer.kind == "later":
            return None
        return [np.array(each, np.int64) for each in answer.arrays]

    def _give(self, message: Message, sender: str) -> Message:
        kind, _, rank = sender.partition("-")
        if kind != "worker" or not rank.isdecimal() or int(rank) >= self.world:
            raise PenstockError(f"{sender} may not ask for lists: only workers may.", code="not-permitted")
        with self._lock:
            offered = self._offered.get(str(message.body.get("name")))
        if offered is None:
            return Message("later")
        return Message("whole-lists", {}, tuple(offered[int(rank)]))
