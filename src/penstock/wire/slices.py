"""Large messages in slices, so that a later and more urgent one need not wait until the whole has left."""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import LIMITS, Limits, Malformed, Message, Received, decode, frame_bytes

SLICE_BYTES = 1 << 18
"""Of a slice: 20 ms at 100 Mbit/s."""
_KIND = "slice"


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


class Joining:
    """The slices of one call's answers, until a message is whole."""

    def __init__(self) -> None:
        self._found: dict[str, dict[int, Received]] = {}

    def take(self, received: Received) -> Received | None:
        """One more slice; the message, if it was the last one. Malformed if slices do not make the message they say."""
        body = received.message.body
        name, count, sizes = body.get("of"), body.get("slices"), body.get("sizes")
        if not isinstance(name, str) or type(count) is not int or not isinstance(sizes, list):
            raise Malformed("it is a slice of nothing.")
        found = self._found.setdefault(name, {})
        found[received.number] = received
        if len(found) < count:
            return None
        del self._found[name]
        whole = decode(_joined([found[number].message for number in sorted(found)], sizes))
        if whole.call != received.call or whole.sign not in ("answer", "part"):
            raise Malformed("its slices are not those of an answer.")
        return whole


def _joined(slices: list[Message], sizes: list[Any]) -> list[Any]:
    """The frames, each in memory of its own, where arrays are aligned."""
    pieces = [array for each in slices for array in each.arrays]
    if any(type(size) is not int or size < 0 for size in sizes) or any(piece.dtype != np.uint8 for piece in pieces):
        raise Malformed("its slices are no bytes.")
    if sum(sizes) != sum(piece.nbytes for piece in pieces):
        raise Malformed("its slices have not the sizes that they say.")
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
