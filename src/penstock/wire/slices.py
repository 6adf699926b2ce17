"""Large messages in slices, so that a later and more urgent message can pass between them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import LIMITS, Limits, Malformed, Message, Received, decode, frame_bytes

SLICE_BYTES = 1 << 18
"""Of a slice: 20 ms at 100 Mbit/s."""
_KIND = "slice"
_KEPT = 4
"""Messages of one call that may be in pieces at once. What is left of older ones came over connections that were lost:
a peer sends one after the other."""


def cut(frames: Sequence[bytes | Array], size: int = SLICE_BYTES, limits: Limits = LIMITS) -> list[Message]:
    """A message's frames as messages of up to `size` bytes of them each, which are views of the frames' own memory."""
    runs: list[list[Array]] = [[]]
    room = size
    for frame in frames:
        rest = np.frombuffer(frame, np.uint8) if len(frame) else np.empty(0, np.uint8)
        while len(rest):
            if not room or len(runs[-1]) == limits.arrays:
                runs.append([])
                room = size
            runs[-1].append(rest[:room])
            taken = len(runs[-1][-1])
            rest, room = rest[taken:], room - taken
    # A call that is repeated may be answered twice, and slices of two answers must not be mixed.
    body = {"of": token_hex(8), "slices": len(runs), "sizes": [frame_bytes([frame]) for frame in frames]}
    return [Message(_KIND, body, tuple(run)) for run in runs]


@dataclass
class _Pieces:
    """What is there of one message."""

    count: int
    sizes: list[int]
    """Bytes of its frames."""
    found: dict[int, Message] = field(default_factory=dict)
    bytes: int = 0

    def add(self, number: int, piece: Message) -> None:
        """One more slice; again is no harm."""
        if number not in self.found:
            self.found[number] = piece
            self.bytes += frame_bytes(piece.arrays)


class Joining:
    """The slices of one call's answers, until a message is whole."""

    def __init__(self) -> None:
        self._found: dict[str, _Pieces] = {}

    def take(self, received: Received) -> Received | None:
        """One more slice; the message, if it was the last one. Malformed if slices do not make the message they say."""
        name, count, sizes = _said(received.message)
        pieces = self._found.setdefault(name, _Pieces(count, sizes))
        if len(self._found) > _KEPT:
            del self._found[next(iter(self._found))]
        try:
            return self._joined(name, pieces, received, count, sizes)
        except Malformed:
            self._found.pop(name, None)
            raise

    def clear(self) -> None:
        """Nothing more is to come."""
        self._found.clear()

    def _joined(self, name: str, pieces: _Pieces, received: Received, count: int, sizes: list[int]) -> Received | None:
        if (count, sizes) != (pieces.count, pieces.sizes) or received.number >= count:
            raise Malformed("its slices belong to different messages.")
        pieces.add(received.number, received.message)
        if pieces.bytes > sum(sizes):
            raise Malformed("its slices do not have the announced sizes.")
        if len(pieces.found) < count:
            return None
        del self._found[name]
        whole = decode(_frames([pieces.found[number] for number in range(count)], sizes))
        if whole.call != received.call or whole.sign not in ("answer", "part"):
            raise Malformed("its slices do not form an answer.")
        return whole


def _said(message: Message, limits: Limits = LIMITS) -> tuple[str, int, list[int]]:
    """What a slice says of the message it is of: its name, how many slices it has, and its frames' sizes in bytes."""
    name, count, sizes = (message.body.get(key) for key in ("of", "slices", "sizes"))
    if not isinstance(name, str) or type(count) is not int or not isinstance(sizes, list):
        raise Malformed("it is a slice of an empty message.")
    if len(name) > limits.name_chars or len(sizes) > limits.arrays + 1:
        raise Malformed("it is a slice of more than a message can hold.")
    if any(type(size) is not int or not 0 <= size <= limits.array_bytes for size in sizes):
        raise Malformed("it is a slice of frames that are not valid.")
    if any(array.dtype != np.uint8 for array in message.arrays):
        raise Malformed("its slices are not bytes.")
    return name, count, sizes


def _frames(slices: list[Message], sizes: list[int]) -> list[Any]:
    """The frames, each in memory of its own, where arrays are aligned."""
    pieces = [array for each in slices for array in each.arrays]
    if sum(sizes) != sum(piece.nbytes for piece in pieces):
        raise Malformed("its slices do not have the announced sizes.")
    frames = [np.empty(size, np.uint8) for size in sizes]
    at, place = 0, 0
    for piece in pieces:
        rest = piece.reshape(-1)
        while len(rest):
            while at == len(frames[place]):
                place, at = place + 1, 0
            some = rest[: len(frames[place]) - at]
            frames[place][at : at + len(some)] = some
            at, rest = at + len(some), rest[len(some) :]
    return frames
