"""The frames of messages on a connection: their layout, receiving them and sending them."""

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import Limits, Malformed
from penstock.wire.transport.tls import RECORD_BYTES

# The layout of a message's frames on a connection. A message is a head followed by its large frames. The head is
# preceded by its length, has the number of frames and their sizes, and includes the bytes of all small ones. The bytes
# of large frames follow, one after the other. Both sides know all sizes from the head. A head without frames is a
# heartbeat.

INLINE_BYTES = 1 << 14
"""The longest frame that is part of the head."""
LENGTH = struct.Struct("<I")
_COUNT, _SIZE = struct.Struct("<H"), struct.Struct("<Q")


class MessageHead(NamedTuple):
    """The content of a message's head."""

    sizes: list[int]
    """The sizes of all frames, in bytes."""
    small: dict[int, bytes]
    """The frames in the head, by number."""

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
    """The content of a head, or Malformed if it is invalid or its message exceeds the limits."""
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


# What one connection receives: bytes read to where they belong, and joined to messages.

_STAGE = 1 << 16
"""Bytes that are read at once before the next sizes are known."""
_BUDGET = 4 << 20
"""Bytes that are read before other connections are served."""
_WORTH_WAKING = 1 << 16
"""Bytes of a frame that must have arrived before the thread is woken, unless fewer are missing."""

Frames = list[bytes | Array]


@dataclass(eq=False)
class _Arriving:
    """A message whose head has arrived."""

    head: MessageHead
    frames: Frames
    left: deque[int] = field(default_factory=deque)
    """Numbers of the large frames that are incomplete."""


class Inbox:
    """Used only by the thread that owns the socket."""

    def __init__(self, limits: Limits, encrypted: bool) -> None:
        self.bytes = 0
        """The number of bytes read."""
        self._limits, self._longest = limits, longest_head(limits)
        # TLS holds back up to one incomplete record: the socket has that much less than is missing.
        self._held_back = RECORD_BYTES if encrypted else 0
        self._stage, self._start, self._end = memoryview(bytearray(_STAGE)), 0, 0
        self._length = -1
        """Bytes of the next head; negative: not known yet."""
        self._target: memoryview | None = None
        """Where the bytes of a head or frame too long for the staging buffer go."""
        self._filled = 0
        self._is_head = False
        """Whether that is a head."""
        self._messages: deque[_Arriving] = deque()

    def read(self, own: socket.socket) -> int:
        """Read what is available; returns the bytes read, negative when the peer has ended the connection.

        With TLS there may be more that the socket does not report: `pending` of an SSLSocket does. Raises Malformed for
        what no peer can have sent.
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
        """Bytes that should have arrived before it is worth reading again: a slow link brings a few at a time."""
        if self._target is None:
            return 1
        return max(1, min(len(self._target) - self._filled - self._held_back, _WORTH_WAKING))

    def take(self) -> Frames | None:
        """The frames of the next complete message, if any; a heartbeat has none."""
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
        """Parse a head from the staging buffer, or set where it is read to; returns whether there was progress."""
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
        """Move staged bytes of the current head or frame to their place; returns whether it is complete."""
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
        """Set where the next bytes of a message go; nowhere when it is complete."""
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
    # A short read has emptied the socket: another call would only report that.
    return some, -1 if not some else int(some == len(room))


def _read_records(own: ssl.SSLSocket, room: memoryview) -> tuple[int, int]:
    """As `_read_plain`, with TLS, where every call returns one record.

    A short loop around what SSLSocket itself calls: at 16 KiB per call, `recv_into` and a check of each record took a
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


# What one connection sends: the heads and large frames of messages, written as the socket accepts them.

_PIECE = 1 << 20
"""Bytes of a large frame that are handed to TLS at a time: they cannot be interrupted."""
_AT_ONCE = 16
"""Pieces that are written by one call without encryption."""


@dataclass(eq=False)
class _Piece:
    """Bytes that are written together."""

    data: memoryview
    last: bool = False
    """Whether it is the last one of its message."""


class Outbox:
    """Used only by the thread that owns the socket."""

    def __init__(self, encrypted: bool) -> None:
        self.bytes = 0
        """The number of bytes written."""
        self._encrypted = encrypted
        self._queue: deque[Sequence[bytes | Array]] = deque()
        self._lefts: deque[Callable[[], None]] = deque()
        """The callbacks of all messages that have not left."""
        self._current: Iterator[_Piece] = iter(())
        self._pieces: deque[_Piece] = deque()

    @property
    def empty(self) -> bool:
        """Whether everything has been written."""
        return not self._lefts

    @property
    def long(self) -> bool:
        """Whether more is to be written than a few short messages."""
        return bool(self._pieces) or any(len(frame) > INLINE_BYTES for frames in self._queue for frame in frames)

    def put(self, frames: Sequence[bytes | Array], left: Callable[[], None]) -> None:
        """Queue a message; `left` is called when its memory is no longer read."""
        self._queue.append(frames)
        self._lefts.append(left)

    def write(self, own: socket.socket) -> bool:
        """Write what the socket accepts; returns whether there is more."""
        written = 0
        while written < _BUDGET:
            self._prepare()
            if not self._pieces:
                return False
            try:
                if self._encrypted:
                    # TLS must be given again exactly what it did not accept.
                    count = own.send(self._pieces[0].data)
                else:
                    count = own.sendmsg([piece.data for piece in self._pieces])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            written += count
            self.bytes += count
            self._written(count)
        return True

    def drop(self) -> list[Callable[[], None]]:
        """Drop everything; returns the callbacks that release its memory."""
        lefts = list(self._lefts)
        for each in (self._queue, self._pieces, self._lefts):
            each.clear()
        self._current = iter(())
        return lefts

    def _prepare(self) -> None:
        """Prepare as many pieces as one call writes."""
        while len(self._pieces) < (1 if self._encrypted else _AT_ONCE):
            piece = next(self._current, None)
            if piece is not None:
                self._pieces.append(piece)
            elif self._queue:
                self._current = self._cut(self._queue.popleft())
            else:
                return

    def _cut(self, frames: Sequence[bytes | Array]) -> Iterator[_Piece]:
        head, large = pack_head(frames)
        step = _PIECE if self._encrypted else max(map(len, large), default=1)
        parts = [frame[at : at + step] for frame in large for at in range(0, len(frame), step)]
        yield _Piece(memoryview(LENGTH.pack(len(head)) + head), last=not parts)
        for number, part in enumerate(parts, 1):
            yield _Piece(part, last=number == len(parts))

    def _written(self, count: int) -> None:
        while count:
            piece = self._pieces[0]
            if count < len(piece.data):
                piece.data = piece.data[count:]
                return
            count -= len(piece.data)
            self._pieces.popleft()
            if piece.last:
                self._lefts.popleft()()
