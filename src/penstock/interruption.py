"""Long computations that Ctrl-C can end.

Python hears a signal only between bytecodes of the main thread, and a kernel or a native library may take minutes
between two of them.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

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
