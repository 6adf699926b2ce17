"""Tasks as processes of this host."""

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.cluster.launch.registry import LauncherEntry
from penstock.cluster.layout import Setup
from penstock.errors import PenstockError
from penstock.graph.files import make_private_folder, open_bytes
from penstock.hardware.cluster import LAUNCHER_FACTS
from penstock.processes import start_python

_ENDING = 10.0
"""Seconds for a killed process to end."""


class LocalProcess:
    """A process with its setup on its standard input, which stays open: when it closes, the starter is gone."""

    arguments: Sequence[str] = ("-m", "penstock.cluster.tasks")
    """Python's arguments."""
    trouble = ""
    """The process's log says what went wrong."""

    def __init__(self, setup: Setup, log: Path, folder: Path | None = None) -> None:
        """Start the process in `folder`, or in this process's own folder where that is None."""
        try:
            with open_bytes(log, "ab") as out:
                self._process = start_python(
                    self.arguments, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True, cwd=folder
                )
        except OSError as error:
            raise PenstockError(
                f"Task {setup.task.id} could not be started ({error}).", code="external-failure"
            ) from None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(setup.text().encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def poll(self) -> int | None:
        status = self._process.poll()
        if status is not None:
            self._close_input()
        return status

    def wait(self) -> int:
        """Wait until it has ended; returns its exit status."""
        status = self._process.wait()
        self._close_input()
        return status

    def kill(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING)
        self._close_input()

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


class LocalLauncher:
    """Every machine of the cluster is this host. Tasks write to logs/TASK.log in the run folder."""

    def __init__(self, run: Path) -> None:
        self.interface: str | None = None
        log_folder(run)

    def start(self, setup: Setup) -> LocalProcess:
        """Start a task as a process of this host."""
        return LocalProcess(setup, log_of(setup))

    def close(self) -> None:
        """Do nothing: processes are ended through their handles."""


def started_here(setup: Setup, folder: Path | None = None) -> LocalProcess:
    """Start a task on this machine on behalf of the controller."""
    log = log_of(setup)
    if not log.parent.is_dir():
        raise PenstockError(
            f"Machine {setup.task.machine} cannot see the run folder {setup.run}: keep runs in a folder that all"
            " machines share.",
            code="file-not-found",
        )
    return LocalProcess(setup, log, folder)


def log_folder(run: Path) -> Path:
    """The folder of the tasks' logs."""
    return make_private_folder(run / "logs")


def log_of(setup: Setup) -> Path:
    """A task's log, in the run folder that all machines share."""
    return Path(setup.run) / "logs" / f"{setup.task.id}.log"


LOCAL = LauncherEntry(lambda cluster, run: LocalLauncher(run), facts=LAUNCHER_FACTS["local"])
