"""A process of a run. Its setup comes on standard input, which closes when the process that started it ends."""

import logging
import os
import signal
import sys
import threading

from penstock.cluster.layout import read_setup
from penstock.cluster.tasks import run_task
from penstock.errors import PenstockError
from penstock.memory import keep_freed_memory

_ORPHANED, _REFUSED = 75, 2


def main() -> int:
    """Run the task; the exit status is 0, 2 for an error that the user must correct, 1 for an unexpected one."""
    # A terminal's Ctrl-C is for the controller, which asks its tasks to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    line = sys.stdin.readline()
    threading.Thread(target=_end_with_starter, name="starter", daemon=True).start()
    try:
        return run_task(read_setup(line))
    except PenstockError as error:
        logging.error("%s", error)
        return _REFUSED
    except Exception:
        logging.exception("The task failed.")
        return 1


def _end_with_starter() -> None:
    sys.stdin.read()
    os._exit(_ORPHANED)


if __name__ == "__main__":
    sys.stdout.flush()
    status = main()
    sys.stderr.flush()
    # Threads of libraries may still wait for peers that are gone, so exit without joining them.
    os._exit(status)
