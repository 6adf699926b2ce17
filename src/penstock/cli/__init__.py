"""The command line: one file per command group; everything it does is a call into the library."""

import _thread
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from penstock.errors import INTERRUPTED


def main() -> None:
    """Run a command. Bad input is one sentence and exit code 2; Ctrl-C is one sentence and 130."""
    watch = InterruptWatch(_give_up)
    # Set before torch loads, so that its threads sleep while they wait for each other. By default they spin, and a core
    # that samples the next batch, or that another program uses, makes all of them spin.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    sys.unraisablehook = partial(_heard_in_a_callback, watch)
    try:
        watch.start()
        # Imported here, so that Ctrl-C during the first second of imports is handled like any other.
        from penstock.cli.main import run
        from penstock.cli.output import keep_stdout_for_answers

        keep_stdout_for_answers()
        code = run()
    except KeyboardInterrupt as interrupt:
        code = INTERRUPTED
        _say(str(interrupt) or "Interrupted: nothing was written.")
    except Exception as error:
        if not comes_of_interrupt(error):
            raise
        code = INTERRUPTED
        _say("Interrupted: nothing was written.")
    watch.stop()
    if code == INTERRUPTED:
        # A native partitioner may still be running in its thread; do not wait for it.
        sys.stdout.flush()
        _exit_interrupted()
    sys.exit(code)


def _give_up() -> None:
    """End the process from another thread, while the main thread is in a kernel that does not return to Python."""
    _say("Interrupted in the middle of a computation.")
    _exit_interrupted()


def _exit_interrupted() -> NoReturn:
    # Nothing is imported now: without the module there are no such folders.
    processes = sys.modules.get("penstock.processes")
    if processes is not None:
        processes.remove_scratch()
    os._exit(INTERRUPTED)


def _say(sentence: str) -> None:
    text = json.dumps({"error": sentence, "code": "interrupted"}) if "--json" in sys.argv else f"Error: {sentence}"
    print(text, file=sys.stderr, flush=True)


def _heard_in_a_callback(watch: "InterruptWatch", trouble: Any) -> None:
    """Repeat a Ctrl-C that arrived in a finaliser or a callback of Numba's compiler, where Python drops it."""
    if issubclass(trouble.exc_type, KeyboardInterrupt):
        watch.ask_again()
    elif not watch.interrupted():
        sys.__unraisablehook__(trouble)


__all__ = ["main"]


_PATIENCE_S = 0.6
_ASKED_AGAIN_S = 0.02
_LEFT_ALONE = ("<frozen importlib._bootstrap>", f"{os.sep}llvmlite{os.sep}")
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


# Ctrl-C and SIGTERM end a command within a second, also inside a kernel that does not return to Python.
#
# A signal raises KeyboardInterrupt in the main thread as soon as that runs Python again, and the command cleans up.
# While the main thread is in a kernel it cannot: then a thread that reads the signals from a pipe ends the process.
# While the main thread imports a module, or is in LLVM, it must not: extension modules turn the interrupt into other
# errors, and LLVM crashes. The watching thread then repeats the signal until this is over. Commands with handlers of
# their own, such as training, which finishes its step first, are left alone.


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
