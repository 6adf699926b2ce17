"""All-gather of large arrays: each worker computes a part and keeps it until the others have received it."""

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.wire import Message, PendingCall

_PIECE = 16 << 20
"""Bytes of a part that are sent at a time."""


class RowExchange:
    """Sends this worker's parts of named arrays to the other workers."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kept: dict[str, Array] = {}
        member.endpoint.serve("part-of", self._give)

    def keep(self, name: str, part: Array) -> None:
        """From now on others may ask for it."""
        self._kept[name] = np.ascontiguousarray(part)

    def joined(self, name: str, rows: Sequence[int]) -> Array:
        """All workers' parts, of so many rows each, by rank; every worker must have kept its own."""
        setup, own = self._member.setup, self._kept[name]
        asked = {
            rank: self._member.endpoint.channel(f"worker-{rank}", "state").start(
                Message("part-of", {"name": name}), setup.cluster.failure.patience
            )
            for rank in range(setup.layout.world)
            if rank != setup.task.rank
        }
        found = np.empty((sum(rows), *own.shape[1:]), own.dtype)
        bounds = np.cumsum([0, *rows])
        for rank, count in enumerate(rows):
            place = found[bounds[rank] : bounds[rank] + count]
            if rank == setup.task.rank:
                place[...] = own
            else:
                _receive(asked[rank], place, f"Worker-{rank}")
        return found

    def forget(self, name: str) -> None:
        """Drop an array that all workers have received."""
        self._kept.pop(name, None)

    def forget_all(self) -> None:
        """Nobody will ask for what was kept in a round that is over."""
        self._kept.clear()

    def _give(self, message: Message, sender: str) -> Iterator[Message]:
        name = str(message.body.get("name"))
        if name not in self._kept:
            raise PenstockError(
                f"{self._member.setup.task.id} holds no rows of {name!r}: it may have been started again.",
                code="not-available",
            )
        return _pieces(self._kept[name])


def _pieces(part: Array) -> Iterator[Message]:
    step = max(1, _PIECE // max(1, part[:1].nbytes))
    return (Message("part-of", {}, (part[start : start + step],)) for start in range(0, len(part), step))


def _receive(call: PendingCall, place: Array, who: str) -> None:
    """Put the rows where they belong as they arrive; what differs from one's own part is refused."""
    start = 0
    for message in call.parts():
        for piece in message.arrays:
            stop = start + len(piece) if piece.ndim else start
            if piece.shape[1:] != place.shape[1:] or piece.dtype != place.dtype or not start < stop <= len(place):
                raise PenstockError(
                    f"{who} sent rows of {piece.dtype} {piece.shape} where {len(place) - start} of {place.dtype}"
                    f" {place.shape[1:]} were expected: run the same release on all machines.",
                    code="malformed-message",
                )
            place[start:stop] = piece
            start = stop
    if start != len(place):
        raise PenstockError(f"{who} sent only {start:,} of {len(place):,} rows: ask again.", code="malformed-message")
