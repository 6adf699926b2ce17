"""Ctrl-C and SIGTERM end a command within a second, also inside a kernel that does not come back to Python.

A signal raises KeyboardInterrupt in the main thread as soon as that runs Python again, and the command cleans up. While
the main thread is in a kernel it cannot: then a thread that reads the signals from a pipe ends the process. Commands
with handlers of their own, such as training, which finishes its step first, are left alone.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
_PATIENCE_S = 0.6
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptWatch:
    """Handlers for both signals, and the thread that acts where they are not run."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` says that the command was interrupted and ends the process."""
        self._heard = threading.Event()
        self._give_up = give_up

    def start(self) -> None:
        """Install the handlers and start watching; in the main thread, before anything long."""
        for number in _SIGNALS:
            # A shell lets its background jobs ignore Ctrl-C: that is kept.
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        self._pipe, arrivals = os.pipe()
        os.set_blocking(arrivals, False)
        signal.set_wakeup_fd(arrivals, warn_on_full_buffer=False)
        # A child's signals are not the parent's.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def _interrupt(self, number: int, frame: Any) -> None:
        """A polite kill cleans up like Ctrl-C."""
        self._heard.set()
        raise KeyboardInterrupt

    def _watch(self) -> None:
        while numbers := os.read(self._pipe, 64):
            ours = [each for each in _SIGNALS if each in numbers and signal.getsignal(each) == self._interrupt]
            if ours and not self._heard.wait(_PATIENCE_S):
                self._give_up()
            self._heard.clear()


def comes_of_interrupt(error: BaseException) -> bool:
    """Whether an error was raised because of a KeyboardInterrupt.

    Python 3.11 makes a RuntimeError of one that it meets while it makes a class, as imports do.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False
