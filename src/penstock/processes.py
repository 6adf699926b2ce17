"""Processes: Python programs that Penstock starts, and long work that Ctrl-C can end."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

# Long work that Ctrl-C can end: computations at once, runs after their step.
#
# Python hears a signal only between bytecodes of the main thread, and a kernel or a native library may take minutes
# between two of them.

Result = TypeVar("Result")


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Run `work`, which must not hold the interpreter's lock, in a daemon thread and wait where signals are heard.

    On interruption the thread is left to itself: the command is about to end the process. Off the main thread, where no
    signal arrives, `work` is simply called.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    answer: list[Result] = []
    trouble: list[BaseException] = []

    def body() -> None:
        try:
            answer.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=body, daemon=True, name="computation")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if trouble:
        raise trouble[0]
    return answer[0]


@contextmanager
def stopped_by(asked: threading.Event) -> Iterator[None]:
    """Within it, in a thread that no signal reaches, a run finishes its step and ends when `asked` is set."""
    token = _stop.set(asked)
    try:
        yield
    finally:
        _stop.reset(token)


_stop: ContextVar[threading.Event | None] = ContextVar("_stop", default=None)


@contextmanager
def polite_interrupt() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM lets a run finish its step, and a service its jobs; a second one ends at once."""
    given = _stop.get()
    asked = threading.Event() if given is None else given
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def hear(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The one way in which Penstock starts Python programs as processes of their own.


def start_python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start this interpreter with `arguments`, such as ("-m", MODULE); `options` are those of subprocess.Popen.

    The working folder may hold anybody's files. With -P none of them stands in for a module that is installed; code of
    the user's own that lies there is found by its path (`nn.user_module`).
    """
    return subprocess.Popen([sys.executable, "-P", *arguments], **options)
