"""Independent pieces of work on several threads, which end soon after Ctrl-C.

Simulations are kernels that hold no lock of the interpreter, so threads are enough to use several cores. Kernels return
to Python a few times a second; an exception that is set for a thread is raised there when they do.
"""

import ctypes
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")


class _StoppedError(BaseException):
    """Raised in threads whose results nobody waits for any more."""


def in_threads(works: Sequence[Callable[[], Result]], threads: int) -> list[Result]:
    """What every piece of work returns, in order. The first exception, Ctrl-C among them, stops all others."""
    if threads <= 1 or len(works) <= 1:
        return [work() for work in works]
    left: SimpleQueue[int] = SimpleQueue()
    for number in range(len(works)):
        left.put(number)
    done: SimpleQueue[tuple[int, Result | None, BaseException | None]] = SimpleQueue()

    def take() -> None:
        try:
            while True:
                number = left.get_nowait()
                try:
                    done.put((number, works[number](), None))
                except Exception as error:
                    done.put((number, None, error))
        except (Empty, _StoppedError):
            return

    # Daemons: a command that is broken off does not wait for them.
    started = [threading.Thread(target=take, daemon=True) for _ in range(min(threads, len(works)))]
    results: dict[int, Result] = {}
    try:
        for thread in started:
            thread.start()
        while len(results) < len(works):
            number, result, error = done.get()
            if error is not None:
                raise error
            results[number] = result  # type: ignore[assignment]
    except BaseException:
        _stop(started)
        raise
    return [results[number] for number in range(len(works))]


def _stop(threads: Sequence[threading.Thread]) -> None:
    """Raise an exception in each thread as soon as it is back in Python."""
    for thread in threads:
        if thread.ident is not None and thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_StoppedError))
