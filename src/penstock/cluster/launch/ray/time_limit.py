"""A time limit for calls that have none of their own."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TimeLimit(Exception):  # noqa: N818
    """The call took too long."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeLimit in the block after so many seconds. Only the main thread can be interrupted; others are not.

    An alarm that was set before is set again afterwards, for what is left of its time.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeLimit

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)), interval)
