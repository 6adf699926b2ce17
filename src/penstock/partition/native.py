"""Calls into native partitioners that Ctrl-C can leave."""

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def call_interruptibly(work: Callable[[], Result]) -> Result:
    """Run `work` in a daemon thread and wait where signals are heard.

    Python hears Ctrl-C only between bytecodes of the main thread; a partitioner may stay in C for minutes. On
    interruption the thread is left to itself: the command is about to end the process.
    """
    answer: list[Result] = []
    trouble: list[BaseException] = []

    def body() -> None:
        try:
            answer.append(work())
        except BaseException as error:
            trouble.append(error)

    thread = threading.Thread(target=body, daemon=True, name="partitioner")
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
    if trouble:
        raise trouble[0]
    return answer[0]
