"""Tasks as processes of this host."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from penstock.cluster.setup import Setup
from penstock.errors import PenstockError

_ENDING = 10.0
"""Seconds for a killed process to be gone."""


class LocalProcess:
    """A process with its setup on its standard input, which stays open: when it closes, the starter is gone."""

    def __init__(self, setup: Setup, log: Path) -> None:
        command = [sys.executable, "-m", "penstock.cluster.tasks"]
        try:
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=out, stderr=out, start_new_session=True
                )
        except OSError as error:
            raise PenstockError(f"Task {setup.task.id} could not be started ({error}).") from None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(setup.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    @property
    def pid(self) -> int | None:
        """Its number."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        status = self._process.poll()
        if status is not None:
            self._close_input()
        return status

    def kill(self) -> None:
        """End it at once."""
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
        self._logs = run / "logs"
        self._logs.mkdir(exist_ok=True)

    def start(self, setup: Setup) -> LocalProcess:
        """Start a task."""
        return LocalProcess(setup, self._logs / f"{setup.task.id}.log")

    def close(self) -> None:
        """Nothing is kept."""
