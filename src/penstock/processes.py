"""Processes and threads: Python programs that Penstock starts, long work that Ctrl-C can end, and work cut into blocks
of rows that threads share.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from penstock.errors import PenstockError

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


BlockResult = TypeVar("BlockResult")


# Work cut into blocks of rows and spread over threads; results never depend on how many.


def default_threads() -> int:
    """The cores this process may use, or PENSTOCK_THREADS."""
    asked = os.environ.get("PENSTOCK_THREADS")
    if asked:
        if not asked.isdigit() or int(asked) < 1:
            raise PenstockError(
                f"PENSTOCK_THREADS={asked} is not a number of threads: give 1 or more.", code="value-out-of-range"
            )
        return int(asked)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    """[0, total) cut into consecutive ranges of at most `size`."""
    for start in range(0, total, size):
        yield start, min(start + size, total)


def map_blocks(
    work: Callable[[int, int], BlockResult], total: int, size: int, threads: int | None = None
) -> Iterator[BlockResult]:
    """`work(start, stop)` of every block, in order, with at most two blocks per thread in progress; a single block is
    worked on by the caller's thread.

    `work` should spend its time in kernels that release the interpreter lock.
    """
    threads = threads or default_threads()
    if threads == 1 or total <= size:
        for start, stop in ranges(total, size):
            yield work(start, stop)
        return
    with ThreadPoolExecutor(threads) as pool:
        todo = ranges(total, size)
        pending = [pool.submit(work, *block) for block in islice(todo, 2 * threads)]
        try:
            while pending:
                done = pending.pop(0).result()
                pending.extend(pool.submit(work, *block) for block in islice(todo, 1))
                yield done
        finally:
            for future in pending:
                future.cancel()


def run_blocks(work: Callable[[int, int], object], total: int, size: int, threads: int | None = None) -> None:
    """`map_blocks` for work that writes its result in place."""
    for _ in map_blocks(work, total, size, threads):
        pass
