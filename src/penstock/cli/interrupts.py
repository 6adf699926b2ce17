"""Ctrl-C and SIGTERM end a command within a second, also inside a kernel that does not return to Python.

A signal raises KeyboardInterrupt in the main thread as soon as that runs Python again, and the command cleans up. While
the main thread is in a kernel it cannot: then a thread that reads the signals from a pipe ends the process. While the
main thread imports a module, or is in LLVM, it must not: extension modules turn the interrupt into other errors, and
LLVM crashes. The watching thread then repeats the signal until this is over. Commands with handlers of their own, such
as training, which finishes its step first, are left alone.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

_PATIENCE_S = 0.6
_ASKED_AGAIN_S = 0.02
_LEFT_ALONE = ("<frozen importlib._bootstrap>", f"{os.sep}llvmlite{os.sep}")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptWatch:
    """Handlers for both signals, and a thread that acts where Python cannot run them."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` prints that the command was interrupted and ends the process."""
        self._raised = threading.Event()
        self._answered = False
        self._give_up = give_up
        self._pipe, self._arrivals = os.pipe()

    def start(self) -> None:
        """Install the handlers and start the thread; to be called in the main thread, before anything long."""
        for number in _SIGNALS:
            # A shell makes its background jobs ignore Ctrl-C: that is kept.
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        os.set_blocking(self._arrivals, False)
        signal.set_wakeup_fd(self._arrivals, warn_on_full_buffer=False)
        # A forked child does not write its signals into the parent's pipe.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def stop(self) -> None:
        """Stop watching: the command's exit code is decided, and a signal cannot change it any more."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def interrupted(self) -> bool:
        """Whether a signal has asked the command to end."""
        return self._raised.is_set()

    def ask_again(self) -> None:
        """Raise KeyboardInterrupt again soon, because the last one was dropped before it reached the command."""
        self._raised.clear()
        self._answered = False
        os.write(self._arrivals, bytes([signal.SIGINT]))

    def _interrupt(self, number: int, frame: Any) -> None:
        """Raise KeyboardInterrupt for SIGTERM as for Ctrl-C, and only once, so that cleaning up is not interrupted."""
        if self._raised.is_set() or _left_alone(frame):
            return
        self._raised.set()
        raise KeyboardInterrupt

    def _watch(self) -> None:
        while numbers := os.read(self._pipe, 64):
            for number in _SIGNALS:
                if number in numbers and self._is_ours(number):
                    self._insist(number)

    def _is_ours(self, number: int) -> bool:
        return signal.getsignal(number) == self._interrupt

    def _insist(self, number: signal.Signals) -> None:
        """Repeat a signal until the main thread has handled it, and end the process where it does not in time."""
        patient_until = time.monotonic() + _PATIENCE_S
        while self._answered or not self._raised.wait(_ASKED_AGAIN_S):
            if time.monotonic() > patient_until:
                self._give_up()
            if self._answered:
                # A second signal: the command is cleaning up and is given this long.
                time.sleep(_ASKED_AGAIN_S)
            elif self._is_ours(number):
                _thread.interrupt_main(number)
                os.read(self._pipe, 1)  # the byte that this wrote
        self._answered = True


def _left_alone(frame: Any) -> bool:
    """Whether this frame imports a module or uses LLVM, where an interrupt must not be raised."""
    while frame is not None:
        if any(each in frame.f_code.co_filename for each in _LEFT_ALONE):
            return True
        frame = frame.f_back
    return False


def comes_of_interrupt(error: BaseException) -> bool:
    """Whether an error was caused by a KeyboardInterrupt.

    Python 3.11 turns one into a RuntimeError while it creates a class, as imports do.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            return True
        cause = cause.__cause__
    return False
