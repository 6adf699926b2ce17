"""A program that does one task, for machines without a warm program. Its argument is the address that it reports to."""

import os
import sys
from pathlib import Path

from penstock.graph.files import PRIVATE_UMASK, open_bytes
from penstock.processes import start_python
from penstock.service.workers.pool import ProcessName, TaskProcess


def cold_process(folder: Path, environment: dict[str, str]) -> TaskProcess:
    """A process that imports what it needs and then waits for its task; its log is in `folder`."""
    entry, told = os.pipe()
    reports, told_back = os.pipe()
    try:
        with open_bytes(folder / "log.txt", "ab") as log:
            process = start_python(
                ["-m", "penstock.service.workers.cold", str(told_back)],
                stdin=entry,
                stdout=log,
                stderr=log,
                pass_fds=[told_back],
                cwd=folder,
                env={**os.environ, **environment},
                start_new_session=True,
            )
    finally:
        os.close(entry)
        os.close(told_back)
    os.set_blocking(reports, False)
    return TaskProcess(ProcessName.of(process.pid) or ProcessName(process.pid, "gone"), told, reports)


def main() -> int:
    """Do the task that is sent on standard input."""
    from penstock.service.workers.tasks import run_task

    os.umask(PRIVATE_UMASK)
    return run_task(int(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
