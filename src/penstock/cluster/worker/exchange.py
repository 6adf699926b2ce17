"""Arrays that every worker computes a part of and all of them need: each keeps its part until the others have it."""

import numpy as np

from penstock.cluster.tasks.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.wire import Message


class Exchange:
    """A worker's parts, by name, given to whoever asks."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kept: dict[str, Array] = {}
        member.post.serve("part-of", self._give)

    def keep(self, name: str, part: Array) -> None:
        """From now on others may ask for it."""
        self._kept[name] = np.ascontiguousarray(part)

    def joined(self, name: str) -> Array:
        """All workers' parts, in the order of their ranks; every worker must have kept its own."""
        setup = self._member.setup
        patience, found = setup.cluster.failure.patience, dict[int, Array]()
        asked = {
            rank: self._member.post.channel(f"worker-{rank}", "state").start(
                Message("part-of", {"name": name}), patience
            )
            for rank in range(setup.layout.world)
            if rank != setup.task.rank
        }
        for rank, call in asked.items():
            (part,) = call.result().arrays
            found[rank] = np.array(part)
        found[setup.task.rank] = self._kept[name]
        return np.concatenate([found[rank] for rank in sorted(found)])

    def forget(self, name: str) -> None:
        """Everybody has it."""
        self._kept.pop(name, None)

    def _give(self, message: Message, sender: str) -> Message:
        name = str(message.body.get("name"))
        if name not in self._kept:
            raise PenstockError(f"{self._member.setup.task.id} has no part of {name!r}: was it started again?")
        return Message("part-of", {}, (self._kept[name],))
