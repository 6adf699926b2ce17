"""What one connection sends: the heads and large frames of messages, written as the socket takes them."""

import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penstock.graph.arrays import Array
from penstock.wire.transport.layout import INLINE_BYTES, LENGTH, pack_head

_PIECE = 1 << 20
"""Bytes of a large frame that are handed to TLS at a time: they leave as one, however long that takes."""
_AT_ONCE = 16
"""Pieces that are written by one call where nothing is encrypted,"""
_BUDGET = 4 << 20
"""and bytes before other connections have their turn."""


@dataclass(eq=False)
class _Piece:
    """Bytes that leave in one go."""

    data: memoryview
    last: bool = False
    """Whether it is the last one of its message."""


class Outbox:
    """Belongs to the thread that owns the socket."""

    def __init__(self, encrypted: bool) -> None:
        self.bytes = 0
        """All that was written."""
        self._encrypted = encrypted
        self._queue: deque[Sequence[bytes | Array]] = deque()
        self._lefts: deque[Callable[[], None]] = deque()
        """Of all messages that have not left."""
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
        """Have a message sent; `left` is called when its memory is no longer read."""
        self._queue.append(frames)
        self._lefts.append(left)

    def write(self, own: socket.socket) -> bool:
        """Write what the socket takes; whether there is more for it when it takes more."""
        written = 0
        while written < _BUDGET:
            self._prepare()
            if not self._pieces:
                return False
            try:
                if self._encrypted:
                    # What TLS did not take it must be given again, and nothing else.
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
        """Nothing more will be written: what to call to free the memory."""
        lefts = list(self._lefts)
        for each in (self._queue, self._pieces, self._lefts):
            each.clear()
        self._current = iter(())
        return lefts

    def _prepare(self) -> None:
        """Have as many pieces ready as one call writes."""
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
