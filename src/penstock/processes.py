"""Processes: Python programs that Penstock starts, and long work that Ctrl-C can end."""

import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

# Long work that Ctrl-C can end: computations at once, runs after their step.
#
# Python handles a signal only between bytecodes of the main thread, and a kernel or a native library may take minutes
# between two of them.

Result = TypeVar("Result")


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Run `work`, which must release the interpreter's lock, in a daemon thread, so that signals are handled meanwhile.

    On interruption the thread is abandoned: the command is about to end the process. Off the main thread, where no
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


_scratch = set[Path]()


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder in the system's temporary one that is gone behind it, and where a command is interrupted in a kernel."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    _scratch.add(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _scratch.discard(folder)


def remove_scratch() -> None:
    """Remove the scratch folders of this process, which is about to end in the middle of its work."""
    for folder in list(_scratch):
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def stopped_by(asked: threading.Event) -> Iterator[None]:
    """Within it, a run in a thread that no signal reaches finishes its step and ends when `asked` is set."""
    token = _stop.set(asked)
    try:
        yield
    finally:
        _stop.reset(token)


_stop: ContextVar[threading.Event | None] = ContextVar("_stop", default=None)


@contextmanager
def polite_interrupt() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C or SIGTERM lets a run finish its step, or a service its jobs; a second ends at once.

    Yields a function that says whether the first has arrived.
    """
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


# The one function by which Penstock starts Python programs as processes of their own.


def start_python(arguments: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start this interpreter with `arguments`, such as ("-m", MODULE); `options` are those of subprocess.Popen.

    The working folder may hold anybody's files. With -P none of them can replace an installed module; the user's own
    code there is found by its path (`nn.user_module`).
    """
    return subprocess.Popen([sys.executable, "-P", *arguments], **options)
