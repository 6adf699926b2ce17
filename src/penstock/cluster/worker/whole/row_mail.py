"""Rows from worker to worker over the run's own authenticated and encrypted connections."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from penstock.cluster.member import Member
from penstock.coflow_context import ROWS, within_kind
from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Position
from penstock.train.execution.worker_group import RegroupError
from penstock.train.whole.shared.interfaces import Tag
from penstock.wire import Message, PendingCall

_LOOK = 0.5
"""Seconds between two checks whether the round is still valid."""
_PIECE = 16 << 20
"""Bytes of rows that are sent at a time: large arrays are sent in pieces, small ones together."""
_TOGETHER = 32
"""Pieces in a message, at most."""


class _Key(NamedTuple):
    position: tuple[int, int]
    rank: int
    tag: Tag


class _Arriving:
    """The pieces of one group that are here, by array and first row. A piece that comes twice is kept once."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.found = pieces, dict[tuple[int, int], Array]()

    def arrays(self) -> list[Array] | None:
        """All arrays, if every piece is here."""
        if len(self.found) < self.pieces:
            return None
        numbers = sorted({number for number, _ in self.found})
        parts = [[self.found[key] for key in sorted(self.found) if key[0] == number] for number in numbers]
        return [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]


class RowInbox:
    """The rows that other workers have sent in the newest round, from its current step on."""

    def __init__(self, member: Member) -> None:
        self._world, self.changed = member.setup.layout.world, threading.Condition()
        self._generation, self._position, self._arrived = 0, (0, 0), 0
        self._groups: dict[_Key, _Arriving] = {}
        self.received = 0
        """Bytes of rows received,"""
        self.minimum = 0
        """and of those that had not been received before."""
        self.waited_s = 0.0
        """Seconds that this worker has had nothing to do but wait for rows."""
        member.endpoint.serve("rows", self._receive, at_once=True)

    def begin_round(self, generation: int) -> None:
        """Drop what came in earlier rounds; some of this one may be here already."""
        with self.changed:
            self._turn_to(generation)

    def begin_step(self, position: Position) -> None:
        """Drop what belongs to earlier steps."""
        with self.changed:
            self._position = (position.epoch, position.batch)
            self._groups = {key: each for key, each in self._groups.items() if key.position >= self._position}

    def take(self, position: Position, rank: int, tag: Tag) -> list[Array] | None:
        """A group that has arrived whole."""
        key = _Key((position.epoch, position.batch), rank, tag)
        with self.changed:
            found = self._groups.get(key)
            arrays = None if found is None else found.arrays()
            if arrays is not None:
                del self._groups[key]
            return arrays

    def count(self) -> int:
        """How many messages have come so far."""
        with self.changed:
            return self._arrived

    def wait(self, seen: int, seconds: float) -> bool:
        """Until more than `seen` messages have come; whether they have."""
        with self.changed:
            return self.changed.wait_for(lambda: self._arrived > seen, seconds)

    def _receive(self, message: Message, sender: str) -> Message:
        kind, _, rank = sender.partition("-")
        body, places = message.body, message.body["places"]
        if kind != "worker" or not rank.isdecimal() or int(rank) >= self._world:
            raise PenstockError(f"{sender} may not send rows: only workers may.", code="not-permitted")
        if not message.arrays or len(places) != len(message.arrays) or not all(map(_are_rows, message.arrays)):
            shapes = ", ".join(f"{rows.dtype} {rows.shape}" for rows in message.arrays) or "nothing"
            raise PenstockError(
                f"{sender} sent {shapes} for {len(places)} places: send an array of rows of numbers for each.",
                code="malformed-message",
            )
        generation, position = int(body["generation"]), (int(body["epoch"]), int(body["batch"]))
        key = _Key(position, int(rank), Tag(bool(body["backward"]), int(body["level"]), int(body["group"])))
        with self.changed:
            self._turn_to(generation)
            if generation == self._generation and position >= self._position:
                arriving = self._groups.setdefault(key, _Arriving(int(body["pieces"])))
                for (number, first), rows in zip(places, message.arrays, strict=True):
                    self.received += rows.nbytes
                    if (number, first) not in arriving.found:
                        self.minimum += rows.nbytes
                    # What came over the wire is a view of the message.
                    arriving.found[int(number), int(first)] = np.array(rows)
                self._arrived += 1
                self.changed.notify_all()
        return Message("heard")

    def _turn_to(self, generation: int) -> None:
        if generation > self._generation:
            self._generation, self._position, self._groups = generation, (0, 0), {}


class WireRowMail:
    """See `train.whole.shared.interfaces.RowMail`."""

    def __init__(
        self, member: Member, inbox: RowInbox, generation: Callable[[], int], check: Callable[[], None]
    ) -> None:
        """`check` raises RegroupError where the round is over."""
        self._member, self._inbox, self._generation, self._check = member, inbox, generation, check
        self._patience, self._position = member.setup.cluster.failure.patience, Position(0, 0)
        self._sent: list[PendingCall] = []
        self._seen = -1

    def begin(self, position: Position) -> None:
        """Begin a step."""
        self._position, self._sent, self._seen = position, [], -1
        self._inbox.begin_step(position)

    def post(self, rank: int, tag: Tag, rows: Sequence[Array]) -> None:
        """Send rows in as few messages as they fit; the wire's own thread encrypts and sends them."""
        messages = _messages([piece for number, array in enumerate(rows) for piece in _pieces(number, array)])
        body = {"generation": self._generation(), "epoch": self._position.epoch, "batch": self._position.batch}
        body |= {**tag._asdict(), "pieces": sum(map(len, messages))}
        channel = self._member.endpoint.channel(f"worker-{rank}", "rows", 0)
        with within_kind(ROWS):
            for pieces in messages:
                places = [[number, first] for number, first, _ in pieces]
                sent = Message("rows", {**body, "places": places}, tuple(piece for *_, piece in pieces))
                self._sent.append(channel.start(sent, self._patience))

    def take(self, rank: int, tag: Tag) -> list[Array] | None:
        """The rows that a worker has sent."""
        return self._inbox.take(self._position, rank, tag)

    def wait(self) -> None:
        """Until a message comes; what came between `take` and this call was seen by nobody, so look once more."""
        began = time.monotonic()
        while not self._inbox.wait(self._seen, _LOOK):
            self._check()
            if time.monotonic() > began + self._patience:
                raise RegroupError("a worker's rows did not arrive")
        self._seen = self._inbox.count()
        self._inbox.waited_s += time.monotonic() - began

    def end(self) -> None:
        """Wait until all that was sent is received."""
        sent, self._sent = self._sent, []
        for call in sent:
            call.result()


def _are_rows(array: Array) -> bool:
    return array.ndim == 2 and array.dtype in (np.float32, np.float64)


_Piece = tuple[int, int, Array]
"""(number of its array, first row, rows)."""


def _messages(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Pieces that are sent together, in order."""
    found: list[list[_Piece]] = []
    room = 0
    for piece in pieces:
        size = piece[2].nbytes
        if not found or size > room or len(found[-1]) == _TOGETHER:
            found.append([])
            room = _PIECE
        found[-1].append(piece)
        room -= size
    return found


def _pieces(number: int, array: Array) -> list[_Piece]:
    step = max(1, _PIECE // max(1, array[:1].nbytes))
    return [(number, first, array[first : first + step]) for first in range(0, max(1, len(array)), step)]
