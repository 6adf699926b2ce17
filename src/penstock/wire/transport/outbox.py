"""What one connection sends: messages cut into records, sealed ahead of the socket, written as it takes them."""

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.wire.transport.ciphers import TAG_BYTES, Cipher
from penstock.wire.transport.layout import LENGTH, RECORD_BYTES, pack_head
from penstock.wire.transport.workers import Workers

_AHEAD = 4
"""Records that are sealed ahead where there are threads for it."""
_AT_ONCE = 16
"""Pieces that are written by one call,"""
_BUDGET = 4 << 20
"""and bytes before other connections have their turn."""


@dataclass(eq=False)
class _Piece:
    """Bytes that leave in one go."""

    data: Array
    ready: bool = True
    """Whether it has been sealed."""
    buffer: Array | None = None
    """Memory to give back when it has been written."""
    last: bool = False
    """Whether it is the last one of its message."""


class Outbox:
    """Belongs to the thread that owns the socket."""

    def __init__(self, cipher: Cipher | None, workers: Workers, wake: Callable[[], None]) -> None:
        """`wake` is called in another thread when a piece has been sealed."""
        self._cipher, self._workers, self._wake = cipher, workers, wake
        self._queue: deque[Sequence[bytes | Array]] = deque()
        self._lefts: deque[Callable[[], None]] = deque()
        """Of all messages that have not left."""
        self._current: Iterator[_Piece] = iter(())
        self._pieces: deque[_Piece] = deque()
        self._ahead = RECORD_BYTES * (1 if workers.inline else _AHEAD)
        self._bytes = self._place = 0

    @property
    def empty(self) -> bool:
        """Whether everything has been written."""
        return not self._lefts

    def put(self, frames: Sequence[bytes | Array], left: Callable[[], None]) -> None:
        """Have a message sent; `left` is called when its memory is no longer read."""
        self._queue.append(frames)
        self._lefts.append(left)

    def write(self, own: socket.socket) -> bool:
        """Write what the socket takes; whether there is more for it when it takes more."""
        written = 0
        while written < _BUDGET:
            self._prepare()
            views = list[memoryview]()
            for piece in self._pieces:
                if not piece.ready or len(views) == _AT_ONCE:
                    break
                views.append(piece.data.data)
            if not views:
                return False
            try:
                count = own.sendmsg(views)
            except BlockingIOError:
                return True
            written += count
            self._written(count)
        return True

    def drop(self) -> list[Callable[[], None]]:
        """Nothing more will be written: what to call, when no thread is sealing any more, to free the memory."""
        self._queue.clear()
        self._current = iter(())
        return list(self._lefts)

    @property
    def sealing(self) -> bool:
        """Whether a thread still reads from a message's memory."""
        return any(not piece.ready for piece in self._pieces)

    def _prepare(self) -> None:
        """Have enough ready, or being sealed, for the socket not to wait."""
        while self._bytes < self._ahead:
            piece = next(self._current, None)
            if piece is not None:
                self._pieces.append(piece)
                self._bytes += piece.data.nbytes
            elif self._queue:
                self._current = self._cut(self._queue.popleft())
            else:
                return

    def _cut(self, frames: Sequence[bytes | Array]) -> Iterator[_Piece]:
        head, large = pack_head(frames)
        step = RECORD_BYTES if self._cipher is not None else max(map(len, large), default=1)
        parts = [frame[at : at + step] for frame in large for at in range(0, len(frame), step)]
        yield self._head(head, last=not parts)
        for number, part in enumerate(parts, 1):
            yield self._body(part, last=number == len(parts))

    def _head(self, head: bytes, last: bool) -> _Piece:
        if self._cipher is None:
            return _Piece(np.frombuffer(LENGTH.pack(len(head)) + head, np.uint8), last=last)
        length = LENGTH.pack(len(head) + TAG_BYTES)
        out = np.empty(LENGTH.size + len(head) + TAG_BYTES, np.uint8)
        out[: LENGTH.size] = np.frombuffer(length, np.uint8)
        self._cipher.seal(self._next_place(), length, np.frombuffer(head, np.uint8), out[LENGTH.size :])
        return _Piece(out, last=last)

    def _body(self, part: Array, last: bool) -> _Piece:
        if self._cipher is None:
            return _Piece(part, last=last)
        cipher, place, buffer = self._cipher, self._next_place(), self._workers.buffer()
        piece = _Piece(buffer[: len(part) + TAG_BYTES], False, buffer, last)
        if self._workers.inline:
            cipher.seal(place, b"", part, piece.data)
            piece.ready = True
        else:

            def seal() -> None:
                try:
                    cipher.seal(place, b"", part, piece.data)
                finally:
                    # What was not sealed the peer will refuse, and the connection is made anew.
                    piece.ready = True
                    self._wake()

            self._workers.do(seal)
        return piece

    def _next_place(self) -> int:
        self._place += 1
        return self._place

    def _written(self, count: int) -> None:
        self._bytes -= count
        while count:
            piece = self._pieces[0]
            if count < piece.data.nbytes:
                piece.data = piece.data[count:]
                return
            count -= piece.data.nbytes
            self._pieces.popleft()
            if piece.buffer is not None:
                self._workers.give_back(piece.buffer)
            if piece.last:
                self._lefts.popleft()()
