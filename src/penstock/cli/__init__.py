"""The command line: one file per command group; everything it does is a call into the library."""

import json
import os
import sys
from functools import partial
from typing import Any, NoReturn

from penstock.cli.interrupts import InterruptWatch, comes_of_interrupt
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


def _heard_in_a_callback(watch: InterruptWatch, trouble: Any) -> None:
    """Repeat a Ctrl-C that arrived in a finaliser or a callback of Numba's compiler, where Python drops it."""
    if issubclass(trouble.exc_type, KeyboardInterrupt):
        watch.ask_again()
    elif not watch.interrupted():
        sys.__unraisablehook__(trouble)


__all__ = ["main"]
