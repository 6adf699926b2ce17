"""The service's side of the warm program: tasks are started through it and report through their pipes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from penstock.errors import PenstockError
from penstock.graph.files import make_private_folder, open_bytes, writing
from penstock.processes import start_python
from penstock.service.database import boot
from penstock.service.workers.warm import rest_of_line

# Processes identified by number and start time: their memory, and how to end them.

_GONE_S = 10.0


class ProcessName(NamedTuple):
    """Identifies one process for good: numbers are reused, but not with the same start time."""

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessName | None":
        """The process that has this number now; None where there is none, or only a zombie."""
        started = _started(pid)
        return None if started is None else cls(pid, started)

    @property
    def is_alive(self) -> bool:
        return _started(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal to the process and to its session, if it still exists."""
        if not self.is_alive:
            return
        with suppress(ProcessLookupError, PermissionError):
            # A task's process leads a session that includes its children; one that has only just been forked does not
            # yet.
            send = os.killpg if os.getpgid(self.pid) == self.pid else os.kill
            send(self.pid, number)

    def kill(self) -> bool:
        """Kill it and wait until it is gone; returns whether it is."""
        until = time.monotonic() + _GONE_S
        while self.is_alive and time.monotonic() < until:
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        return not self.is_alive

    def resident_bytes(self) -> int:
        """Memory that only it holds: without pages of files, which the system can reclaim."""
        if not sys.platform.startswith("linux"):
            return int(_ps(self.pid, "rss") or 0) << 10
        total = 0
        with suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "RssShmem:")):
                    total += int(line.split()[1]) << 10
        return total


def _started(pid: int) -> str | None:
    if not sys.platform.startswith("linux"):
        state, _, started = _ps(pid, "stat=,lstart").partition(" ")
        return started.strip() or None if not state.startswith("Z") else None
    try:
        # The process's name may contain anything, and ends with the last bracket.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        # Other errors, such as too many open files, do not mean that it has ended.
        return None
    return None if fields[0] in "ZX" else f"{boot()}:{fields[19]}"


def _ps(pid: int, wanted: str) -> str:
    asked = ["ps", "-o", f"{wanted}=", "-p", str(pid)]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


_ANSWER_S = 180.0
"""Seconds in which the warm program must fork, including its imports."""


class TaskProcess:
    """A process that waits for its task, and then does it."""

    ended_with_others = False

    def __init__(self, name: ProcessName, entry: int, reports: int) -> None:
        self.name = name
        self._entry: int | None = entry
        self._reports: int | None = reports
        self._unread = b""

    def fileno(self) -> int:
        """The descriptor that is readable when the process has reported something, or is gone."""
        assert self._reports is not None
        return self._reports

    def begin(self, task: dict[str, Any]) -> None:
        """Send it its task. Before that it does nothing, and ends if the service does."""
        self.tell(task)

    def tell(self, message: dict[str, Any]) -> None:
        """Send the process a message; does nothing where it has ended."""
        assert self._entry is not None
        data = json.dumps(message).encode() + b"\n"
        with suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._entry, data) :]

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
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
        """Close the pipes; a process that still runs ends when it notices."""
        for descriptor in (self._entry, self._reports):
            if descriptor is not None:
                os.close(descriptor)
        self._entry = self._reports = None


def start_warm_program(requests: int) -> subprocess.Popen[bytes]:
    """Start the warm program, which takes requests through the socket of this number."""
    arguments = ["-m", "penstock.service.workers.warm", str(requests)]
    return start_python(arguments, stdin=subprocess.DEVNULL, pass_fds=[requests], start_new_session=True)


class WarmPool:
    """Starts tasks as forks of a warm program, which is started on first use and again when it was killed."""

    def __init__(self) -> None:
        self._program: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Start the warm program, which imports for some seconds in the background."""
        if self._program is None or self._program.poll() is not None:
            self.close()
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(_ANSWER_S)
            with theirs:
                self._program = start_warm_program(theirs.fileno())

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> TaskProcess:
        """A process that waits for its task; its log is in `folder`."""
        return self.fork(folder, environment, "task")

    def fork(self, folder: Path, environment: dict[str, str], program: str) -> TaskProcess:
        """A process that runs one of `shared_jobs.PROGRAMS`; its log is in `folder`."""
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
        """End the warm program; its forks continue."""
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


# What the scheduler requires of those that start processes for it, on this machine or elsewhere.


class StartedProcess(Protocol):
    """A process, on this machine or another."""

    @property
    def pid(self) -> int | None:
        """Its id; with `started` it identifies one process. None where it is on another machine."""

    @property
    def started(self) -> str | None:
        """When it started, as the system reports it."""

    @property
    def is_alive(self) -> bool:
        """Whether it still runs, or waits to."""

    def signal(self, number: int) -> None:
        """Ask it to stop (SIGTERM), or end it (SIGKILL)."""

    def kill(self) -> bool:
        """Kill it; returns whether it is gone."""

    def resident_bytes(self) -> int:
        """Memory that only it holds."""


class StartedTask(Protocol):
    """A process that waits for its task, and then does it."""

    @property
    def name(self) -> StartedProcess:
        """The process that does it, to be signalled or killed."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is a report."""

    def begin(self, task: dict[str, Any]) -> None:
        """Send it the task that it waits for; it is sent one only."""

    @property
    def ended_with_others(self) -> bool:
        """Whether its process ended by itself while it trained other jobs as well, so that the cause is unknown."""

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        """Its reports since the last call, and whether it has ended."""

    def close(self) -> None:
        """Release what is held for it."""


class Starter(Protocol):
    """Starts processes that wait for tasks."""

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> StartedTask:
        """A process for a task, with its log in `folder`; the task begins with `begin`."""


# The service's side of processes that train several jobs at once (`shared_jobs`).


class ProcessKind(NamedTuple):
    """What jobs must have in common to share a process."""

    environment: tuple[tuple[str, str], ...]
    threads: int
    """MKL has one number of threads for a process."""
    tf32: bool
    """torch has one switch for a process."""
    alone: bool
    """A job that must run alone shares no process either."""


class SharedPool:
    """Starts jobs in shared processes: those that can share one do."""

    def __init__(self, pool: WarmPool, folder: Path) -> None:
        """`folder` gets the logs of processes; jobs have their own."""
        self._pool, self._folder = pool, folder
        self._processes = dict[ProcessKind, SharedProcess]()

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> "SharedTask":
        """Add a job to a process; what it prints goes to the log in `folder`."""
        self._pool.make_log(folder).close()
        document = task["document"]
        kind = ProcessKind(
            tuple(sorted(environment.items())), document["threads"], document["compute_type"] == "tf32", task["alone"]
        )
        for other, process in list(self._processes.items()):
            # An idle process would keep its memory from this job; one of the same kind is reused, as it is warm.
            if not process.process.name.is_alive or (other != kind and not process.jobs):
                self._processes.pop(other).close()
        if kind not in self._processes:
            self._processes[kind] = SharedProcess(self._pool.fork(self._folder, environment, "shared"))
        return SharedTask(self._processes[kind], folder)

    def close(self) -> None:
        """End the shared processes with all jobs in them."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()


class SharedProcess:
    """A process with the jobs that are in it."""

    def __init__(self, process: TaskProcess) -> None:
        self.process, self.jobs = process, dict[int, SharedTask]()
        self._numbers, self._killed = 0, False

    def add(self, task: "SharedTask", fields: dict[str, Any], log: Path) -> int:
        """Begin a job; returns its number in this process."""
        self._numbers += 1
        self.jobs[self._numbers] = task
        self.process.tell({"job": self._numbers, "task": fields, "log": str(log)})
        return self._numbers

    def listen(self) -> bool:
        """Pass the process's reports on to the jobs concerned; returns whether it has ended."""
        messages, ended = self.process.heard()
        for message in messages:
            job = self.jobs.get(message.pop("job"))
            if job is not None:
                job.take(message)
        if ended:
            for job in self.jobs.values():
                job.lost(with_others=len(self.jobs) > 1 and not self._killed)
            self.jobs.clear()
        return ended

    def stop(self, number: int) -> None:
        """Let a job finish its step."""
        self.process.tell({"job": number})

    def kill(self) -> None:
        """End the process with all its jobs because of one of them: the others are not at fault."""
        self._killed = True
        self.process.name.signal(signal.SIGKILL)

    def close(self) -> None:
        """End the process with all jobs in it, and close its pipes."""
        self.process.name.kill()
        self.process.close()


class SharedName:
    """Represents the process of one job among others."""

    def __init__(self, task: "SharedTask", process: SharedProcess) -> None:
        self._task, self._shared, self._name = task, process, process.process.name
        self.pid: int | None = self._name.pid
        self.started: str | None = self._name.started

    @property
    def is_alive(self) -> bool:
        return not self._task.has_ended and self._name.is_alive

    def signal(self, number: int) -> None:
        """Ask the job to stop. To kill it, its whole process is killed; the others continue from checkpoints."""
        if not self.is_alive:
            return
        if number == signal.SIGKILL:
            self._shared.kill()
        else:
            self._task.stop()

    def kill(self) -> bool:
        """True once the job has ended; its process stays for other jobs."""
        if not self._task.has_ended:
            self._shared.kill()
        return True

    def resident_bytes(self) -> int:
        """Memory of the process beyond what its other jobs were granted: the memory of one job cannot be measured."""
        others = sum(each.granted for each in self._shared.jobs.values() if each is not self._task)
        return max(0, self._name.resident_bytes() - others)


class SharedTask:
    """A job in a shared process, with the interface of `TaskProcess`."""

    def __init__(self, process: SharedProcess, folder: Path) -> None:
        self._process, self._folder, self._number = process, folder, 0
        self._messages = list[dict[str, Any]]()
        self.has_ended = self.ended_with_others = False
        self.granted = 0
        """Granted bytes of host memory."""
        self.name = SharedName(self, process)
        # Each job has a descriptor of its own to wait for.
        self._heard: int | None = os.dup(process.process.fileno())

    def fileno(self) -> int:
        assert self._heard is not None
        return self._heard

    def begin(self, task: dict[str, Any]) -> None:
        """Send the job's task to its process."""
        self.granted = task["host_bytes"]
        self._number = self._process.add(self, task, self._folder / "log.txt")

    def stop(self) -> None:
        """Let the job finish its step and write a checkpoint."""
        self._process.stop(self._number)

    def take(self, message: dict[str, Any]) -> None:
        """Store a report about the job."""
        self._messages.append(message)
        if "outcome" in message:
            self.has_ended = True
            self._process.jobs.pop(self._number, None)

    def lost(self, with_others: bool) -> None:
        """Record that the process is gone, and the job with it."""
        self.has_ended, self.ended_with_others = True, with_others

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        if not self.has_ended:
            self._process.listen()
        messages, self._messages = self._messages, []
        return messages, self.has_ended

    def close(self) -> None:
        """Drop the job; one that was never begun is not in the process."""
        if self._heard is not None:
            os.close(self._heard)
        self._heard = None
