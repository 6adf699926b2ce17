"""Ctrl-C and SIGTERM end a command within a second, also inside a kernel that does not come back to Python.

A signal raises KeyboardInterrupt in the main thread as soon as that runs Python again, and the command cleans up. While
the main thread is in a kernel it cannot: then a thread that reads the signals from a pipe ends the process. While the
main thread imports a module, or is in LLVM, it should not: extension modules make other errors of it and print it, and
LLVM does not survive it. That thread then asks again until this is over. Commands with handlers of their own, such as
training, which finishes its step first, are left alone.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

INTERRUPTED = 130
"""Exit code of a command that was interrupted."""
_PATIENCE_S = 0.6
_ASKED_AGAIN_S = 0.02
_LEFT_ALONE = ("<frozen importlib._bootstrap>", f"{os.sep}llvmlite{os.sep}")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptWatch:
    """Handlers for both signals, and the thread that acts where they are not run."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        """`give_up` says that the command was interrupted and ends the process."""
        self._raised = threading.Event()
        self._answered = False
        self._give_up = give_up
        self._pipe, self._arrivals = os.pipe()

    def start(self) -> None:
        """Install the handlers and start watching; in the main thread, before anything long."""
        for number in _SIGNALS:
            # A shell lets its background jobs ignore Ctrl-C: that is kept.
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        os.set_blocking(self._arrivals, False)
        signal.set_wakeup_fd(self._arrivals, warn_on_full_buffer=False)
        # A child's signals are not the parent's.
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
        threading.Thread(target=self._watch, name="signals", daemon=True).start()

    def stop(self) -> None:
        """The command is over and its exit code is known: what arrives now comes too late to change it."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def interrupted(self) -> bool:
        """Whether the command has been told to end."""
        return self._raised.is_set()

    def ask_again(self) -> None:
        """The KeyboardInterrupt was dropped on its way to the command: raise another one soon."""
        self._raised.clear()
        self._answered = False
        os.write(self._arrivals, bytes([signal.SIGINT]))

    def _interrupt(self, number: int, frame: Any) -> None:
        """A polite kill cleans up like Ctrl-C. The command is told once: cleaning up is not interrupted."""
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
        """Wait until the main thread has heard a signal, asking again, and end the process where it does not."""
        patient_until = time.monotonic() + _PATIENCE_S
        while self._answered or not self._raised.wait(_ASKED_AGAIN_S):
            if time.monotonic() > patient_until:
                self._give_up()
            if self._answered:
                # A second signal: the command has been told and is given this long to clean up.
                time.sleep(_ASKED_AGAIN_S)
            elif self._is_ours(number):
                _thread.interrupt_main(number)
                os.read(self._pipe, 1)  # the byte that this wrote
        self._answered = True


def _left_alone(frame: Any) -> bool:
    """Whether a module is being imported or LLVM used at this frame."""
    while frame is not None:
        if any(each in frame.f_code.co_filename for each in _LEFT_ALONE):
            return True
        frame = frame.f_back
    return False


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
