"""Programs as forks of one process that has imported everything, instead of programs that import it each.

What is tested is then the same code in a process of its own, without the seconds of CPU that importing PyTorch and
getting Numba ready take. The process is started on first use and ends with the one that started it. It runs no Python
threads when it forks.
"""

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import NoReturn

from penstock import kernels, registry
from penstock.cli import main as run_the_command_line
from penstock.cluster.launch import local
from penstock.cluster.tasks.__main__ import main as run_task
from penstock.graph.files import open_bytes
from penstock.service.workers import pool, warm

_LONGEST = 1 << 20
"""Bytes of a request or an answer."""


_IMPORTED = (
    *("penstock.cli.data", "penstock.cli.partition", "penstock.cli.train", "penstock.train.run"),
    *(f"penstock.cluster.tasks.{task}" for task in ("server", "store", "worker")),
    *("penstock.cluster.worker.batch_source", "penstock.nn.layers.entry"),
    *("cryptography.hazmat.backends.openssl.backend", "encodings.idna"),
)
"""What tasks and commands import, some of it only when they need it."""

_FORKING_FOR_A_PROGRAM = "forks-tasks"
"""The name, as the system shows it, of a process that only forks the tasks of one program."""


class ForkingProcess:
    """The process that forks, as the process that it forks for sees it."""

    def __init__(self, requests: socket.socket, process: subprocess.Popen | None = None) -> None:
        self._socket, self._lock, self._process = requests, Lock(), process
        self._sessions: set[int] = set()
        """Forks. Each began a session, in which stays what it starts itself; one that is found empty is forgotten."""

    def start(self, words, files, folder=None, environment=None) -> int:
        """Fork a program: `words` are its name and its arguments, `files` its three standard ones, and what else it is
        given. Its number."""
        environment = dict(os.environ if environment is None else environment)
        request = {"words": words, "folder": str(folder or Path.cwd()), "environment": environment}
        fork = self._ask(request, files)
        self._sessions.add(fork)
        return fork

    def poll(self, fork: int) -> int | None:
        """A fork's exit status; None while it runs. A number stays a fork's own until its status was told."""
        return self._ask({"fork": fork})

    def running(self) -> list[int]:
        """Forks that run now, and what forks have forked. Processes that have ended are left out, and those that only
        fork the tasks of one program: they end by themselves after it, a moment later if it was killed.
        """
        import psutil  # which a machine that tests only its GPU need not have

        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                session = os.getsid(process.pid)
                lives = process.status() != psutil.STATUS_ZOMBIE and process.name() != _FORKING_FOR_A_PROGRAM
                if session in self._sessions and lives:
                    found.append((session, process.pid))
        self._sessions &= {session for session, _ in found}
        return [process for _, process in found]

    def _ask(self, request, files=()):
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            answer = self._socket.recv(_LONGEST)
        if not answer:
            raise RuntimeError("the process that forks has ended")
        return json.loads(answer)


_known: list[ForkingProcess] = []
"""The process that forks for this one, once it is there."""


def forking_process() -> ForkingProcess:
    """The process that forks for this one, started on first use."""
    if not _known:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
        _known.append(ForkingProcess(ours, process))
    return _known[0]


def running_forks() -> list[int]:
    """What this process has had forked and that runs now, with what that has forked."""
    return _known[0].running() if _known else []


class Fork:
    """A process that was forked for this one, as subprocess.Popen shows it."""

    def __init__(self, words, files, folder=None, environment=None) -> None:
        self.pid, self.returncode = forking_process().start(words, files, folder, environment), None

    def poll(self) -> int | None:
        """The exit status, or None while it runs."""
        if self.returncode is None:
            self.returncode = forking_process().poll(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once, if it still runs."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 300) -> int:
        """Its exit status, when it has ended; after `timeout` seconds it is killed."""
        until = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > until:
                self.kill()
            time.sleep(0.005)
        return self.returncode


def fork_warm_program(requests: int) -> Fork:
    """Stands for penstock.service.workers.pool.start_warm_program."""
    with Path(os.devnull).open("r+b") as nothing:
        return Fork(["warm"], [nothing.fileno(), 1, 2, requests])


class ForkedTask(Fork):
    """Stands for penstock.cluster.launch.local.LocalProcess: a task of a cluster."""

    trouble = ""

    def __init__(self, setup, log: Path, folder: Path | None = None, words=("task",)) -> None:
        reading, writing = os.pipe()
        self._writing = os.fdopen(writing, "wb")
        try:
            with open_bytes(log, "ab") as out:
                super().__init__(list(words), [reading, out.fileno(), out.fileno()], folder)
        except BaseException:
            self._writing.close()
            raise
        finally:
            os.close(reading)
        with suppress(BrokenPipeError):
            self._writing.write(setup.model_dump_json().encode() + b"\n")
            self._writing.flush()

    def poll(self) -> int | None:
        """The exit status, or None while the process runs."""
        if super().poll() is not None:
            with suppress(OSError):
                self._writing.close()
        return self.returncode

    def kill(self) -> None:
        """End the process at once."""
        super().kill()
        self.wait()


class ForkedProgram(Fork):
    """A program that runs: what subprocess.Popen shows of one, with its output as text.

    Its words are `penstock` and its arguments, or `python` and the text of a script.
    """

    def __init__(self, words, cwd=None, env=None) -> None:
        self.args = list(map(str, words))
        self._said = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115 (closed by communicate)
        with Path(os.devnull).open("rb") as nothing:
            files = [each.fileno() for each in (nothing, *self._said)]
            super().__init__(self.args, files, cwd, env)

    def said(self) -> tuple[str, str]:
        """What it has said so far on stdout and stderr."""
        out, err = (os.pread(file.fileno(), _LONGEST, 0).decode() for file in self._said)
        return out, err

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """What it has said on stdout and stderr, when it has ended; after `timeout` seconds it is killed."""
        self.wait(timeout)
        said = self.said()
        for file in self._said:
            file.close()
        return said


def run_forked(words, cwd=None, env=None, timeout=300) -> subprocess.CompletedProcess:
    """A program from its beginning to its end, as subprocess.run would give it, with its output as text."""
    program = ForkedProgram(words, cwd, env)
    said = program.communicate(timeout)
    return subprocess.CompletedProcess(program.args, program.returncode, *said)


def forked_command(*arguments, cwd=None, env=None, timeout=300) -> subprocess.CompletedProcess:
    """`penstock` with these arguments, from its beginning to its end."""
    return run_forked(["penstock", *arguments], cwd, env, timeout)


def _import_everything() -> None:
    """Import what tasks and commands import, look for plug-ins of installed packages, and load kernels."""
    for name in _IMPORTED:
        importlib.import_module(name)
    warm.import_everything()
    registry.plugins("penstock.partitioners")
    _load_kernels()


_loaded: dict[Path, int] = {}
"""When indexes of compiled kernels had changed last when they were read, in ns."""


def _load_kernels() -> None:
    """Load what Numba has compiled since the last time of the kernels that were imported: each fork would load it."""
    for name, kernel in list(kernels._kept_kernels.items()):
        index = Path(kernel._cache._cache_file._index_path)
        with suppress(FileNotFoundError):
            changed = index.stat().st_mtime_ns
            if _loaded.get(index) != changed:
                _loaded[index] = changed
                kernels.load_kept(name)


def _serve(requests: socket.socket, sessions: bool) -> None:
    """Fork on request until nobody is left to ask; whether forks begin sessions of their own."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, _LONGEST, 4)
        if not data:
            return
        request = json.loads(data)
        if "words" in request:
            if sessions:
                _load_kernels()
            answer = os.fork()
            if answer == 0:
                requests.close()
                _become(**request, files=files, session=sessions)
        else:
            ended, status = os.waitpid(request["fork"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        for file in files:
            os.close(file)
        requests.send(json.dumps(answer).encode())


def _become(words: list[str], folder: str, environment: dict[str, str], files: list[int], session: bool) -> NoReturn:
    """What happens in a fork from its beginning to its end."""
    status = 1
    try:
        if session or words[0] == "warm":
            os.setsid()
        _name_this_process("python")
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        for own, given in enumerate(files[:3]):
            os.dup2(given, own)
        for given in files[:3]:
            os.close(given)
        sys.stdin, sys.argv = os.fdopen(0, closefd=False), words
        status = _program_status(words, files[3:])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _name_this_process(name: str) -> None:
    """Where the system lets a process choose what it is called."""
    with suppress(FileNotFoundError):
        Path("/proc/self/comm").write_text(name)


def _program_status(words: list[str], more: list[int]) -> int:
    if words[0] == "task":
        return run_task()
    if words[0] == "warm":
        warm.run(*more)
        return 0
    if words[0] == "python":
        registry.look_again()  # It may have installed some itself.
    with _tasks_forked_from_here():
        try:
            if words[0] == "python":
                exec(compile(words[1], "<script>", "exec"), {"__name__": "__main__"})
            else:
                run_the_command_line()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@contextmanager
def _tasks_forked_from_here() -> Iterator[None]:
    """Tasks of this program are forks, too, of a process that is forked now, while there are no other threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    helper = os.fork()
    if helper == 0:
        _name_this_process(_FORKING_FOR_A_PROGRAM)
        ours.close()
        _serve(theirs, sessions=False)
        os._exit(0)
    theirs.close()
    _known.append(ForkingProcess(ours))
    local.LocalProcess, pool.start_warm_program = ForkedTask, fork_warm_program
    try:
        yield
    finally:
        ours.close()
        os.waitpid(helper, 0)


if __name__ == "__main__":
    _import_everything()
    gc.freeze()  # A fork need not look at what it shares with others.
    _serve(socket.socket(fileno=int(sys.argv[1])), sessions=True)
