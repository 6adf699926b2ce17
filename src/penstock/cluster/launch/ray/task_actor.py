"""The Ray actor of one task: starts its process on the actor's node and reports how it ended.

The task runs in a process of its own, as everywhere else: its memory, its log and how it dies are not Ray's.
"""

from pathlib import Path

from penstock.cluster.launch.local import LocalProcess, started_here
from penstock.cluster.setup import read_setup
from penstock.errors import PenstockError


class TaskActor:
    """Lives while its task does. If it is killed, the task's standard input closes, and the task ends."""

    def __init__(self, setup: str, folder: str) -> None:
        """`folder`: where the run was started, and where the task runs if there is such a folder here."""
        self._process: LocalProcess | None = None
        self._refusal = ""
        try:
            where = Path(folder)
            self._process = started_here(read_setup(setup), where if where.is_dir() else None)
        except PenstockError as error:
            self._refusal = str(error)

    def pid(self) -> int | None:
        """The number of the task's process."""
        return self._process.pid if self._process else None

    def wait(self) -> tuple[int, str]:
        """How it ended: the exit status, or why there was no process."""
        return (self._process.wait(), "") if self._process else (0, self._refusal)

    def end(self) -> None:
        """End the task at once."""
        if self._process:
            self._process.kill()
