"""What one connection receives: bytes read where they belong, and joined to messages."""

import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import Limits, Malformed
from penstock.wire.transport.layout import LENGTH, MessageHead, longest_head, read_head
from penstock.wire.transport.tls import RECORD_BYTES

_STAGE = 1 << 16
"""Bytes that are read at once where it is not known yet what comes."""
_BUDGET = 4 << 20
"""Bytes that are read before other connections have their turn."""
_WORTH_WAKING = 1 << 16
"""Bytes of a frame that must have come before the thread is woken, unless fewer are left of it."""

Frames = list[bytes | Array]


@dataclass(eq=False)
class _Arriving:
    """A message of which the head is there."""

    head: MessageHead
    frames: Frames
    left: deque[int] = field(default_factory=deque)
    """Numbers of the large frames that have not come whole."""


class Inbox:
    """Belongs to the thread that owns the socket."""

    def __init__(self, limits: Limits, encrypted: bool) -> None:
        self.bytes = 0
        """All that was read."""
        self._limits, self._longest = limits, longest_head(limits)
        # TLS holds back up to a record of which the rest has not come: the socket has so much less than is missing.
        self._held_back = RECORD_BYTES if encrypted else 0
        self._stage, self._start, self._end = memoryview(bytearray(_STAGE)), 0, 0
        self._length = -1
        """Bytes of the head that comes next; negative: not known yet."""
        self._target: memoryview | None = None
        """Where the bytes of a head or frame too long for the stage go,"""
        self._filled = 0
        self._is_head = False
        """and whether it is a head."""
        self._messages: deque[_Arriving] = deque()

    def read(self, own: socket.socket) -> int:
        """Read what is there; how many bytes it was, negative when the peer has ended the connection.

        With TLS there may be more that the socket does not tell of: `pending` of an SSLSocket does. Raises Malformed if
        it cannot have been sent by a peer.
        """
        count, more = 0, 1
        while count < _BUDGET and more > 0:
            room = self._room()
            some, more = _read_records(own, room) if isinstance(own, ssl.SSLSocket) else _read_plain(own, room)
            count += some
            if self._target is None:
                self._end += some
            else:
                self._filled += some
            self._parse()
        self.bytes += count
        return count if more >= 0 else -1

    @property
    def wanted(self) -> int:
        """Bytes that should have come before it is worth reading again: a slow link brings a few at a time."""
        if self._target is None:
            return 1
        return max(1, min(len(self._target) - self._filled - self._held_back, _WORTH_WAKING))

    def take(self) -> Frames | None:
        """The frames of the next message, if it is whole; a sign of life has none."""
        return self._messages.popleft().frames if self._messages and not self._messages[0].left else None

    def _room(self) -> memoryview:
        """Where the next bytes go."""
        if self._target is not None:
            return self._target[self._filled :]
        held = self._end - self._start
        if self._start:
            self._stage[:held] = bytes(self._stage[self._start : self._end])
            self._start, self._end = 0, held
        return self._stage[self._end :]

    def _parse(self) -> None:
        while self._target is None or self._fill():
            if self._target is None and not self._begin_head():
                return

    def _begin_head(self) -> bool:
        """Read a head from the stage, or see where it is to be read to; whether anything came of it."""
        held = self._end - self._start
        if self._length < 0:
            if held < LENGTH.size:
                return False
            (self._length,) = LENGTH.unpack_from(self._stage, self._start)
            if self._length > self._longest:
                raise Malformed(f"its head of {self._length:,} bytes is over {self._longest:,}.")
            self._start, held = self._start + LENGTH.size, held - LENGTH.size
        if held >= self._length:
            head = bytes(self._stage[self._start : self._start + self._length])
            self._start += self._length
            self._read_head(head)
            return True
        if self._length <= _STAGE // 2:
            return False
        self._is_head, self._target, self._filled = True, memoryview(bytearray(self._length)), 0
        return True

    def _fill(self) -> bool:
        """Move what the stage holds of what is under way to its place; whether it is there whole."""
        target = self._target
        assert target is not None
        some = min(self._end - self._start, len(target) - self._filled)
        if some:
            target[self._filled : self._filled + some] = self._stage[self._start : self._start + some]
            self._start, self._filled = self._start + some, self._filled + some
        if self._filled < len(target):
            return False
        self._target = None
        if self._is_head:
            self._is_head = False
            self._read_head(bytes(target))
        else:
            arriving = self._messages[-1]
            arriving.left.popleft()
            self._next_frame(arriving)
        return True

    def _read_head(self, data: bytes) -> None:
        self._length = -1
        head = read_head(data, self._limits)
        frames: Frames = [head.small.get(number, b"") for number in range(len(head.sizes))]
        arriving = _Arriving(head, frames, deque(head.large))
        self._messages.append(arriving)
        self._next_frame(arriving)

    def _next_frame(self, arriving: _Arriving) -> None:
        """See where the next bytes of a message go; nowhere when it is whole."""
        if arriving.left:
            frame = np.empty(arriving.head.sizes[arriving.left[0]], np.uint8)
            arriving.frames[arriving.left[0]] = frame
            self._target, self._filled = frame.data, 0


def _read_plain(own: socket.socket, room: memoryview) -> tuple[int, int]:
    """Read into `room`: bytes, and whether there may be more (1), not yet (0), or never again (-1)."""
    try:
        some = own.recv_into(room)
    except BlockingIOError:
        return 0, 0
    # What was not filled has emptied the socket: another call would only report that.
    return some, -1 if not some else int(some == len(room))


def _read_records(own: ssl.SSLSocket, room: memoryview) -> tuple[int, int]:
    """As `_read_plain`, with TLS, of which every call gives one record.

    A short loop around what SSLSocket itself calls: at 16 KiB a call, `recv_into` and a look at each record took a
    fifth more of a core.
    """
    read: Callable[[int, memoryview], int] = cast(Any, getattr(own, "_sslobj", own)).read
    size, filled = len(room), 0
    try:
        while filled < size:
            some = read(size - filled, room[filled:])
            if not some:
                return filled, -1
            filled += some
            if some < RECORD_BYTES:
                break
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return filled, 0
    return filled, 1
