"""The actor that keeps one task: starts its process on the actor's node and tells how it ended.

The task runs in a process of its own, as everywhere else: its memory, its log and how it dies are not Ray's.
"""

from pathlib import Path

from penstock.cluster.launch.local import LocalProcess, log_of
from penstock.cluster.setup import Setup
from penstock.errors import PenstockError


class TaskKeeper:
    """Lives while its task does. If it is killed, the task's standard input closes, and the task ends."""

    def __init__(self, setup: str, folder: str) -> None:
        """`folder`: where the run was started, and where the task runs if there is such a folder here."""
        self._process: LocalProcess | None = None
        self._refusal = ""
        try:
            self._process = _started(Setup.model_validate_json(setup), Path(folder))
        except PenstockError as error:
            self._refusal = str(error)

    def pid(self) -> int | None:
        """The task's process."""
        return self._process.pid if self._process else None

    def wait(self) -> tuple[int, str]:
        """How it ended: the exit status, or why there was no process."""
        return (self._process.wait(), "") if self._process else (0, self._refusal)

    def end(self) -> None:
        """End it at once."""
        if self._process:
            self._process.kill()


def _started(setup: Setup, folder: Path) -> LocalProcess:
    log = log_of(setup)
    if not log.parent.is_dir():
        raise PenstockError(
            f"Machine {setup.task.machine} does not see the run folder {setup.run}: keep runs where all machines see them."
        )
    return LocalProcess(setup, log, folder if folder.is_dir() else None)
