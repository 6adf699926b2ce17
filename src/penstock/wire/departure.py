"""Sending without copying, and knowing when ZeroMQ has let go of the memory."""

import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import zmq

from penstock.graph.arrays import Array
from penstock.wire.sockets import Socket

log = logging.getLogger("penstock.wire")

_COPIED_BELOW = 8 << 10
"""Bytes of a frame that is sooner copied than watched."""


_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)


class Loan:
    """Memory that somebody may still read from: `done` is called once, when nobody does any more."""

    def __init__(self, done: Callable[[], None] | None) -> None:
        self._done, self._holders, self._lock = done, 1, threading.Lock()

    def hold(self) -> None:
        """One more reads from it."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """One fewer."""
        with self._lock:
            self._holders -= 1
            done = self._done if self._holders == 0 else None
        if done is None:
            return
        try:
            done()
        except Exception:
            log.exception("What was to be done when a message had left failed.")


def send(socket: Socket, route: bytes | None, frames: list[bytes | Array], left: Callable[[], None]) -> bool:
    """Hand frames to ZeroMQ without waiting. Returns whether it already needs none of their memory; else `left` will
    be called when it does not, in any thread.

    Raises `zmq.ZMQError` if nothing was handed over, and then keeps the frames; else empties the list.
    """
    loan, lent = Loan(left), False
    if route is not None:
        socket.send(route, _MORE)
    frame: Any  # bytes or an array
    for place, frame in enumerate(frames, 1):
        flags = _MORE if place < len(frames) else _LAST
        if isinstance(frame, np.ndarray) and frame.nbytes >= _COPIED_BELOW:
            lent = True
            loan.hold()
            _Watched(frame, loan)
            socket.send(zmq.Frame(frame, copy=False), flags, copy=False)
        else:
            socket.send(frame, flags)
    frames.clear()
    if lent:
        # Not before the last frame is with ZeroMQ: the first may have left by then.
        loan.release()
    return not lent


class _Watched:
    """Sees an array go. The array is a view made for one sending: ZeroMQ's reference to it is the last."""

    _all: ClassVar[set["_Watched"]] = set()

    def __init__(self, array: Array, loan: Loan) -> None:
        self._loan, self._reference = loan, weakref.ref(array, self._gone)
        # A weak reference tells nothing once it is itself gone.
        self._all.add(self)

    def _gone(self, _: object) -> None:
        self._all.discard(self)
        self._loan.release()
