"""The layout of a message's frames on a connection.

A message is a head and its large frames behind it. The head has its length before it, and says how many frames there
are and their sizes; the bytes of all small ones are in it. Of large frames the bytes follow, one after the other. Both
sides know all sizes from the head. A head without frames is a sign of life.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import Limits, Malformed

INLINE_BYTES = 1 << 14
"""The longest frame that travels in the head."""
LENGTH = struct.Struct("<I")
_COUNT, _SIZE = struct.Struct("<H"), struct.Struct("<Q")


class MessageHead(NamedTuple):
    """The content of a message's head."""

    sizes: list[int]
    """Of all frames, in bytes."""
    small: dict[int, bytes]
    """The frames that are in it, by their number."""

    @property
    def large(self) -> list[int]:
        """The numbers of the frames that follow."""
        return [number for number in range(len(self.sizes)) if number not in self.small]


def longest_head(limits: Limits) -> int:
    """Bytes of a head that the limits allow."""
    return _COUNT.size + (limits.arrays + 1) * (_SIZE.size + INLINE_BYTES)


def pack_head(frames: Sequence[bytes | Array]) -> tuple[bytes, list[memoryview]]:
    """The head of a message, and the frames that follow it. Frames are bytes, or flat arrays of them."""
    views = [frame.data if isinstance(frame, np.ndarray) else memoryview(frame) for frame in frames]
    parts: list[bytes | memoryview] = [_COUNT.pack(len(views)), *(_SIZE.pack(len(view)) for view in views)]
    parts += [view for view in views if len(view) <= INLINE_BYTES]
    return b"".join(parts), [view for view in views if len(view) > INLINE_BYTES]


def read_head(data: bytes, limits: Limits) -> MessageHead:
    """What a head says, or Malformed if it cannot be one or its message is over the limits."""
    if len(data) < _COUNT.size:
        raise Malformed("it is too short.")
    (count,) = _COUNT.unpack_from(data)
    at = _COUNT.size + count * _SIZE.size
    if count > limits.arrays + 1 or at > len(data):
        raise Malformed(f"its {count} frames are over {limits.arrays + 1}, or their sizes are missing.")
    sizes = [_SIZE.unpack_from(data, _COUNT.size + place * _SIZE.size)[0] for place in range(count)]
    if sizes and (sizes[0] > limits.header_bytes or max(sizes) > max(limits.array_bytes, limits.header_bytes)):
        raise Malformed(f"a frame of {max(sizes):,} bytes is over the limits.")
    small: dict[int, bytes] = {}
    for number, size in enumerate(sizes):
        if size <= INLINE_BYTES:
            small[number], at = data[at : at + size], at + size
    if at != len(data):
        raise Malformed("its length differs from that of its frames.")
    return MessageHead(sizes, small)
