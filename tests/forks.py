"""Programs as forks of one process that has imported everything, instead of programs that import it each.

What is tested is then the same code in a process of its own, without the seconds of CPU that importing PyTorch and
getting Numba ready take. The process is started on first use and ends with the one that started it. It runs no Python
threads when it forks.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import NoReturn

import numpy as np

from penstock.cli import main as run_the_command_line
from penstock.cluster.tasks.__main__ import main as run_task
from penstock.graph.output_files import open_bytes

_LONGEST = 1 << 20
"""Bytes of a request or an answer."""


class ForkingProcess:
    """The process that forks, as the process that started it sees it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        self._socket, self._lock = ours, Lock()
        self.forks: set[int] = set()
        """Processes that were started and are not known to have ended."""

    def start(self, words, files, folder=None, environment=None) -> int:
        """Fork a program: `words` are its name and its arguments, `files` its three standard ones. Its number."""
        environment = dict(os.environ if environment is None else environment)
        request = {"words": words, "folder": str(folder or Path.cwd()), "environment": environment}
        fork = self._ask(request, files)
        self.forks.add(fork)
        return fork

    def poll(self, fork: int) -> int | None:
        """A fork's exit status; None while it runs. A number stays a fork's own until its status was told."""
        status = self._ask({"fork": fork})
        if status is not None:
            self.forks.discard(fork)
        return status

    def running(self) -> list[int]:
        """Forks that run now."""
        return [fork for fork in sorted(self.forks) if self.poll(fork) is None]

    def _ask(self, request, files=()):
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(_LONGEST)
        if not answer:
            raise RuntimeError("the process that forks has ended")
        return json.loads(answer)


@cache
def forking_process() -> ForkingProcess:
    """The one of this process."""
    return ForkingProcess()


def running_forks() -> list[int]:
    """What this process has had forked and that runs now."""
    return forking_process().running() if forking_process.cache_info().currsize else []


class ForkedTask:
    """Stands for penstock.cluster.launch.local.LocalProcess: a task of a cluster."""

    trouble = ""

    def __init__(self, setup, log: Path, folder: Path | None = None) -> None:
        reading, writing = os.pipe()
        self._writing = os.fdopen(writing, "wb")
        try:
            with open_bytes(log, "ab") as out:
                self.pid = forking_process().start(["task"], [reading, out.fileno(), out.fileno()], folder)
        except BaseException:
            self._writing.close()
            raise
        finally:
            os.close(reading)
        self._status: int | None = None
        with suppress(BrokenPipeError):
            self._writing.write(setup.model_dump_json().encode() + b"\n")
            self._writing.flush()

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        if self._status is None:
            self._status = forking_process().poll(self.pid)
            if self._status is not None:
                with suppress(OSError):
                    self._writing.close()
        return self._status

    def wait(self) -> int:
        """Its exit status, when it has ended."""
        while (status := self.poll()) is None:
            time.sleep(0.01)
        return status

    def kill(self) -> None:
        """End the process at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.wait()


def forked_command(*arguments, cwd=None, env=None, timeout=300) -> subprocess.CompletedProcess:
    """`penstock` with these arguments, as subprocess.run would give it: exit status, stdout and stderr as text."""
    words = ["penstock", *map(str, arguments)]
    with Path(os.devnull).open("rb") as nothing, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        fork = forking_process().start(words, [each.fileno() for each in (nothing, out, err)], cwd, env)
        until = time.monotonic() + timeout
        while (status := forking_process().poll(fork)) is None:
            if time.monotonic() > until:
                os.kill(fork, signal.SIGKILL)
            time.sleep(0.005)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(words, status, *said)


def _import_everything() -> None:
    """Import what tasks and commands import, and load one kernel, for which Numba gets ready for all others."""
    import penstock.cli.data
    import penstock.cli.partition
    import penstock.cli.train
    import penstock.train.run
    from penstock.cluster.tasks import sampler, server, store, worker
    from penstock.partition.owners import split_by_owner

    assert penstock.cli.train and sampler and server and store and worker
    split_by_owner(np.zeros(1, np.int64), np.array([0, 1]))


def _serve(requests: socket.socket) -> None:
    while True:
        data, files, _, _ = socket.recv_fds(requests, _LONGEST, 3)
        if not data:
            return
        request = json.loads(data)
        if "words" in request:
            answer = os.fork()
            if answer == 0:
                requests.close()
                _become(**request, files=files)
        else:
            ended, status = os.waitpid(request["fork"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        for file in files:
            os.close(file)
        requests.send(json.dumps(answer).encode())


def _become(words: list[str], folder: str, environment: dict[str, str], files: list[int]) -> NoReturn:
    """What happens in a fork from its beginning to its end."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for own, given in enumerate(files):
            os.dup2(given, own)
        for given in files:
            os.close(given)
        sys.stdin, sys.argv = os.fdopen(0), words
        status = run_task() if words[0] == "task" else _command_status()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _command_status() -> int:
    try:
        run_the_command_line()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    _import_everything()
    _serve(socket.socket(fileno=int(sys.argv[1])))
