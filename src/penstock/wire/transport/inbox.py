"""What one connection receives: records read into memory, opened where their bytes belong, joined to messages."""

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.message import Limits, Malformed
from penstock.wire.transport.ciphers import TAG_BYTES, Cipher
from penstock.wire.transport.layout import LENGTH, RECORD_BYTES, MessageHead, longest_head, read_head
from penstock.wire.transport.workers import Workers

_STAGE = 1 << 16
"""Bytes that are read at once where it is not known yet what comes."""
_OPENING = 4
"""Records that wait to be opened before no more are read."""
_BUDGET = 4 << 20
"""Bytes that are read before other connections have their turn."""
_WORTH_WAKING = 1 << 16
"""Bytes of a record that must have come before the thread is woken, unless fewer are left of the record."""

Frames = list[bytes | Array]


@dataclass(eq=False)
class _Arriving:
    """A message of which the head is there."""

    head: MessageHead
    frames: Frames
    left: deque[int] = field(default_factory=deque)
    """Numbers of the large frames that have not come whole."""
    at: int = 0
    """Bytes of the first of those that are there or being read."""
    opening: int = 0
    """Records that are read and not opened."""

    @property
    def whole(self) -> bool:
        return not self.left and not self.opening


class Inbox:
    """Belongs to the thread that owns the socket."""

    def __init__(self, cipher: Cipher | None, workers: Workers, limits: Limits, wake: Callable[[], None]) -> None:
        """`wake` is called in another thread when a record has been opened."""
        self._cipher, self._workers, self._limits, self._wake = cipher, workers, limits, wake
        self._longest = longest_head(limits) + TAG_BYTES
        self._stage, self._start, self._end = np.empty(_STAGE, np.uint8), 0, 0
        self._length = -1
        """Bytes of the head that comes next; negative: not known yet."""
        self._target: Array | None = None
        """Where the bytes of a record too long for the stage go,"""
        self._filled = 0
        self._buffer: Array | None = None
        """and, if it is sealed, the memory it is a part of."""
        self._messages: deque[_Arriving] = deque()
        self._opened: deque[tuple[_Arriving, Exception | None]] = deque()
        self._opening = self._place = 0

    def read(self, own: socket.socket) -> int:
        """Read what is there; how many bytes it was, negative when the peer has ended the connection.

        Raises Malformed or ForgedError if it cannot have been sent by a peer.
        """
        count = 0
        while count < _BUDGET and not self.full:
            try:
                if self._target is not None:
                    room = self._target[self._filled :]
                    some = own.recv_into(room.data)
                    self._filled += some
                else:
                    self._make_room()
                    room = self._stage[self._end :]
                    some = own.recv_into(room.data)
                    self._end += some
            except BlockingIOError:
                return count
            if not some:
                return -1
            count += some
            self._parse()
            if some < len(room):
                # Nothing is left in the socket: another call would only report that.
                return count
        return count

    @property
    def wanted(self) -> int:
        """Bytes that should have come before it is worth reading again: a slow link brings a few at a time."""
        return 1 if self._target is None else min(len(self._target) - self._filled, _WORTH_WAKING)

    @property
    def full(self) -> bool:
        """Whether so many records wait to be opened that no more should be read."""
        return self._opening >= _OPENING

    def take(self) -> Frames | None:
        """The frames of the next message, if it is whole; a sign of life has none."""
        while self._opened:
            arriving, error = self._opened.popleft()
            arriving.opening -= 1
            self._opening -= 1
            if error is not None:
                raise error
        return self._messages.popleft().frames if self._messages and self._messages[0].whole else None

    def _make_room(self) -> None:
        held = self._end - self._start
        if self._start:
            self._stage[:held] = self._stage[self._start : self._end].copy()
            self._start, self._end = 0, held

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
            (self._length,) = LENGTH.unpack_from(self._stage.data, self._start)
            if self._length > self._longest:
                raise Malformed(f"its head of {self._length:,} bytes is over {self._longest:,}.")
            self._start, held = self._start + LENGTH.size, held - LENGTH.size
        if held >= self._length:
            head = self._stage[self._start : self._start + self._length]
            self._start += self._length
            self._read_head(head)
            return True
        if self._length <= _STAGE // 2:
            return False
        self._target, self._filled = np.empty(self._length, np.uint8), 0
        return True

    def _fill(self) -> bool:
        """Move what the stage holds of the record under way to its place; whether the record is there."""
        target = self._target
        assert target is not None
        some = min(self._end - self._start, len(target) - self._filled)
        if some:
            target[self._filled : self._filled + some] = self._stage[self._start : self._start + some]
            self._start, self._filled = self._start + some, self._filled + some
        if self._filled < len(target):
            return False
        self._target = None
        if self._length >= 0:
            self._read_head(target)
        else:
            self._record(target)
        return True

    def _read_head(self, data: Array) -> None:
        length, self._length = self._length, -1
        if self._cipher is None:
            plain = data.tobytes()
        else:
            if length < TAG_BYTES:
                raise Malformed("its head is too short.")
            out = np.empty(length - TAG_BYTES, np.uint8)
            self._cipher.open(self._next_place(), LENGTH.pack(length), data, out)
            plain = out.tobytes()
        head = read_head(plain, self._limits)
        frames: Frames = [head.small.get(number, b"") for number in range(len(head.sizes))]
        arriving = _Arriving(head, frames, deque(head.large))
        self._messages.append(arriving)
        self._next_record(arriving)

    def _next_record(self, arriving: _Arriving) -> None:
        """See where the next bytes of a message go; nowhere when it is whole."""
        if not arriving.left:
            return
        number = arriving.left[0]
        size = arriving.head.sizes[number]
        if not arriving.at:
            arriving.frames[number] = np.empty(size, np.uint8)
        self._filled = 0
        if self._cipher is None:
            target = arriving.frames[number]
            assert isinstance(target, np.ndarray)
            self._target = target
        else:
            self._buffer = self._workers.buffer()
            self._target = self._buffer[: min(size - arriving.at, RECORD_BYTES) + TAG_BYTES]

    def _record(self, data: Array) -> None:
        arriving = self._messages[-1]
        number = arriving.left[0]
        if self._cipher is None:
            arriving.left.popleft()
        else:
            frame = arriving.frames[number]
            assert isinstance(frame, np.ndarray)
            out = frame[arriving.at : arriving.at + len(data) - TAG_BYTES]
            self._open(self._cipher, arriving, data, out)
            arriving.at += len(out)
            if arriving.at == len(frame):
                arriving.left.popleft()
                arriving.at = 0
        self._next_record(arriving)

    def _open(self, cipher: Cipher, arriving: _Arriving, data: Array, out: Array) -> None:
        place, buffer = self._next_place(), self._buffer
        assert buffer is not None
        if self._workers.inline:
            cipher.open(place, b"", data, out)
            self._workers.give_back(buffer)
            return
        arriving.opening += 1
        self._opening += 1

        def opened() -> None:
            error: Exception | None = None
            try:
                cipher.open(place, b"", data, out)
                self._workers.give_back(buffer)
            except Exception as raised:  # the thread that owns the connection ends it
                error = raised
            self._opened.append((arriving, error))
            self._wake()

        self._workers.do(opened)

    def _next_place(self) -> int:
        self._place += 1
        return self._place
