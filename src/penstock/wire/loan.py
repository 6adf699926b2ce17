"""Memory that a message is sent from, and the callback when it may be used again."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("penstock.wire")


class Loan:
    """Memory that somebody may still read from: `done` is called once, when nobody does any more."""

    def __init__(self, done: Callable[[], None] | None) -> None:
        self._done, self._holders, self._lock = done, 1, threading.Lock()

    def hold(self) -> None:
        """One more reads from it."""
        with self._lock:
            self._holders += 1

    def release(self) -> None:
        """Release one use of the memory."""
        with self._lock:
            self._holders -= 1
            done = self._done if self._holders == 0 else None
        if done is None:
            return
        try:
            done()
        except Exception:
            log.exception("What was to be done when a message had left failed.")
