"""The service's side of the warm program: tasks are started through it and heard through their pipes."""

import json
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import PenstockError
from penstock.graph.output_files import make_private_folder, open_bytes, writing
from penstock.python_program import start_python
from penstock.service.workers.process import ProcessName
from penstock.service.workers.warm import rest_of_line

_ANSWER_S = 180.0
"""Seconds in which the warm program forks, the time included that it needs to import everything."""


class TaskProcess:
    """A process that waits for its task, and then does it."""

    def __init__(self, name: ProcessName, entry: int, reports: int) -> None:
        self.name = name
        self._entry: int | None = entry
        self._reports: int | None = reports
        self._unread = b""

    def fileno(self) -> int:
        """The descriptor that is readable when the process has something to say, or is gone."""
        assert self._reports is not None
        return self._reports

    def begin(self, task: dict[str, Any]) -> None:
        """Tell it what to do. Before that it does nothing, and ends where the service does."""
        self.tell(task)

    def tell(self, message: dict[str, Any]) -> None:
        """Send it a message."""
        assert self._entry is not None
        data = json.dumps(message).encode() + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._entry, data) :]

    @property
    def ended_with_others(self) -> bool:
        """No other job is in it."""
        return False

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        """What it has reported since it was last asked, and whether it has ended."""
        ended = False
        while self._reports is not None:
            try:
                chunk = os.read(self._reports, 1 << 16)
            except BlockingIOError:
                break
            self._unread += chunk
            if not chunk:
                ended = True
                break
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines], ended or not self.name.is_alive

    def close(self) -> None:
        """Forget the process; one that still runs ends when it notices."""
        for descriptor in (self._entry, self._reports):
            if descriptor is not None:
                os.close(descriptor)
        self._entry = self._reports = None


def start_warm_program(requests: int) -> subprocess.Popen[bytes]:
    """The warm program, which is asked through the socket of this number."""
    arguments = ["-m", "penstock.service.workers.warm", str(requests)]
    return start_python(arguments, stdin=subprocess.DEVNULL, pass_fds=[requests], start_new_session=True)


class WarmPool:
    """Starts tasks as forks of a warm program, which is started on first use and again when it was killed."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Start the warm program, which imports for some seconds while others go on."""
        if self._program is None or self._program.poll() is not None:
            self.close()
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_ANSWER_S)
            with theirs:
                self._program = start_warm_program(theirs.fileno())

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> TaskProcess:
        """A process that waits for its task in `folder`, which gets its log."""
        return self.fork(folder, environment, "task")

    def fork(self, folder: Path, environment: dict[str, str], program: str) -> TaskProcess:
        """A process that runs a program of `workers.programs` in `folder`, which gets its log."""
        with self.make_log(folder) as log:
            for _ in range(2):
                self.prepare()
                with suppress(ConnectionError, TimeoutError):
                    return self._forked(folder, environment, program, log.fileno())
                self.close()
        raise PenstockError(
            "The program that starts jobs ends at once, or does not answer: see the service's output.", code="peer-lost"
        )

    def make_log(self, folder: Path) -> BinaryIO:
        """The log of a process or a job in its folder, which is made where it is not there."""
        with writing(folder):
            make_private_folder(folder)
            return open_bytes(folder / "log.txt", "ab")

    def close(self) -> None:
        """End the warm program; what it has forked goes on."""
        if self._socket is not None:
            self._socket.close()
        if self._program is not None:
            self._program.kill()
            self._program.wait()
        self._program = self._socket = None

    def _forked(self, folder: Path, environment: dict[str, str], program: str, log: int) -> TaskProcess:
        assert self._socket is not None
        entry, told = os.pipe()
        try:
            reports, told_back = os.pipe()
        except OSError:
            os.close(entry)
            os.close(told)
            raise
        try:
            asked = {"environment": environment, "folder": str(folder), "program": program}
            request = json.dumps(asked).encode() + b"\n"
            sent = socket.send_fds(self._socket, [request], [entry, log, told_back])
            self._socket.sendall(request[sent:])
            answer = rest_of_line(self._socket, b"")
            if not answer.endswith(b"\n"):
                raise ConnectionResetError
            os.set_blocking(reports, False)
            pid = int(json.loads(answer)["pid"])
            return TaskProcess(ProcessName.of(pid) or ProcessName(pid, "gone"), told, reports)
        except BaseException:
            os.close(told)
            os.close(reports)
            raise
        finally:
            os.close(entry)
            os.close(told_back)
