"""A task of a cluster whose wire sends at a limited rate: a link of a machine, for machines that have no own network.

All tasks of a machine share one token bucket, a file of two numbers: the rate in bytes a second, which may change at
any time, and until when what was sent keeps the link busy. What leaves by the wire is limited. What comes, and sums of
gradients by gloo, which has connections of its own, are not.
Run by slow_links.py: python limited_task.py BUCKET, with the task's setup on standard input.
"""

import fcntl
import mmap
import os
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

from penstock.wire.transport import frames

_PIECE = 16 << 10
"""Bytes that are sent at a time."""
_AHEAD = 0.004
"""Seconds by which the link may be taken in advance."""
_BUDGET = 1 << 20
"""Bytes before other connections have their turn."""
_NUMBERS = struct.Struct("dd")


class Bucket:
    """A machine's link, shared by its processes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("r+b")
        self._memory = mmap.mmap(self._file.fileno(), _NUMBERS.size)

    @staticmethod
    def make(path: Path, rate: float) -> "Bucket":
        """A new one, of a rate in bytes a second."""
        path.write_bytes(_NUMBERS.pack(rate, 0.0))
        return Bucket(path)

    def set_rate(self, rate: float) -> None:
        """From now on bytes leave at this rate."""
        with _Locked(self._file):
            _, busy = _NUMBERS.unpack(self._memory[:])
            self._memory[:] = _NUMBERS.pack(rate, busy)

    def take(self, wanted: int) -> tuple[int, float]:
        """How many bytes may leave now; where none may, seconds after which to ask again."""
        with _Locked(self._file):
            rate, busy = _NUMBERS.unpack(self._memory[:])
            now = time.monotonic()
            # One busy for longer than a piece takes was so at another rate.
            busy = min(max(busy, now), now + _AHEAD + _PIECE / rate)
            if busy - now > _AHEAD:
                return 0, busy - now - _AHEAD / 2
            granted = min(wanted, _PIECE)
            self._memory[:] = _NUMBERS.pack(rate, busy + granted / rate)
            return granted, 0.0


class _Locked:
    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN)


def limited_write(bucket: Bucket) -> Any:
    """`Outbox.write` that leaves some of what it has for later."""

    def write(self: Any, own: socket.socket) -> bool:
        written = 0
        while written < _BUDGET:
            self._prepare()
            first = next((piece for piece in list(self._pieces)[:1] if piece.ready), None)
            if first is None:
                return False
            granted, wait = bucket.take(first.data.nbytes)
            if not granted:
                timer = threading.Timer(wait, self._wake)
                timer.daemon = True
                timer.start()
                return False
            try:
                count = own.send(first.data.data[:granted])
            except BlockingIOError:
                return True
            written += count
            self._written(count)
        return True

    return write


def main() -> int:
    from penstock.cluster.tasks.__main__ import main as run_task

    cast(Any, frames.Outbox).write = limited_write(Bucket(Path(sys.argv[1])))
    return run_task()


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone.
    os._exit(status)
