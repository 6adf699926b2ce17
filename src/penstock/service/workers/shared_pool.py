"""The service's side of processes that train several jobs at once (`shared_jobs`)."""

import os
import signal
from pathlib import Path
from typing import Any, NamedTuple

from penstock.service.workers.pool import TaskProcess, WarmPool


class ProcessKind(NamedTuple):
    """What jobs must have in common to share a process."""

    environment: tuple[tuple[str, str], ...]
    threads: int
    """MKL has one number of threads for a process."""
    tf32: bool
    """torch has one switch for a process."""
    alone: bool
    """A job that is to run alone shares no process either."""


class SharedPool:
    """Starts jobs in processes that they share: those that can be together are in one."""

    def __init__(self, pool: WarmPool, folder: Path) -> None:
        """`folder` gets the logs of processes; jobs have their own."""
        self._pool, self._folder = pool, folder
        self._processes = dict[ProcessKind, SharedProcess]()

    def start(self, folder: Path, environment: dict[str, str], task: dict[str, Any]) -> "SharedTask":
        """A place for a job in a process; what it prints goes to the log in `folder`."""
        self._pool.make_log(folder).close()
        document = task["document"]
        kind = ProcessKind(
            tuple(sorted(environment.items())), document["threads"], document["compute_type"] == "tf32", task["alone"]
        )
        for other, process in list(self._processes.items()):
            # What waits idle would keep its memory from this job; where it is the same kind it is warm.
            if not process.is_alive or (other != kind and not process.jobs):
                self._processes.pop(other).close()
        if kind not in self._processes:
            self._processes[kind] = SharedProcess(self._pool.fork(self._folder, environment, "shared"))
        return SharedTask(self._processes[kind], folder)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()


class SharedProcess:
    """A process with the jobs that are in it."""

    def __init__(self, process: TaskProcess) -> None:
        self._process, self.jobs = process, dict[int, SharedTask]()
        self._numbers, self._killed = 0, False

    @property
    def process(self) -> TaskProcess:
        """The process itself."""
        return self._process

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.name.is_alive

    def add(self, task: "SharedTask", fields: dict[str, Any], log: Path) -> int:
        """Begin a job; its number in this process."""
        self._numbers += 1
        self.jobs[self._numbers] = task
        self._process.tell({"job": self._numbers, "task": fields, "log": str(log)})
        return self._numbers

    def listen(self) -> bool:
        """Hand what the process has said to the jobs that it is about; whether it has ended."""
        messages, ended = self._process.heard()
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
        self._process.tell({"job": number})

    def kill(self) -> None:
        """End the process with all its jobs, for the sake of one of them: the others are not at fault."""
        self._killed = True
        self._process.name.signal(signal.SIGKILL)

    def close(self) -> None:
        """End the process."""
        self._process.name.kill()
        self._process.close()


class SharedName:
    """What stands for the process of one job among others."""

    def __init__(self, task: "SharedTask", process: SharedProcess) -> None:
        self._task, self._shared, self._name = task, process, process.process.name
        self.pid: int | None = self._name.pid
        self.started: str | None = self._name.started

    @property
    def is_alive(self) -> bool:
        """Whether the job still runs."""
        return not self._task.has_ended and self._name.is_alive

    def signal(self, number: int) -> None:
        """Ask the job to stop. To end it at once, its whole process is ended; the others go on from checkpoints."""
        if not self.is_alive:
            return
        if number == signal.SIGKILL:
            self._shared.kill()
        else:
            self._task.stop()

    def kill(self) -> bool:
        """A job that has ended leaves nothing behind; its process stays for the others and those to come."""
        if not self._task.has_ended:
            self._shared.kill()
        return True

    def resident_bytes(self) -> int:
        """Memory of the process beyond what its other jobs were granted: what one job holds nobody can tell."""
        others = sum(each.granted for each in self._shared.jobs.values() if each is not self._task)
        return max(0, self._name.resident_bytes() - others)


class SharedTask:
    """A job in a process that it shares, with what `TaskProcess` shows of one in a process of its own."""

    def __init__(self, process: SharedProcess, folder: Path) -> None:
        self._process, self._folder, self._number = process, folder, 0
        self._messages = list[dict[str, Any]]()
        self.has_ended = self.ended_with_others = False
        self.granted = 0
        """Bytes of the host's memory."""
        self.name = SharedName(self, process)
        # Each job is waited for with a descriptor of its own.
        self._heard: int | None = os.dup(process.process.fileno())

    def fileno(self) -> int:
        """The descriptor that is readable when its process has something to say, or is gone."""
        assert self._heard is not None
        return self._heard

    def begin(self, task: dict[str, Any]) -> None:
        """Tell its process what to do."""
        self.granted = task["host_bytes"]
        self._number = self._process.add(self, task, self._folder / "log.txt")

    def stop(self) -> None:
        """Let the job finish its step and write a checkpoint."""
        self._process.stop(self._number)

    def take(self, message: dict[str, Any]) -> None:
        """Something was said about the job."""
        self._messages.append(message)
        if "outcome" in message:
            self.has_ended = True
            self._process.jobs.pop(self._number, None)

    def lost(self, with_others: bool) -> None:
        """The process is gone, and the job with it."""
        self.has_ended, self.ended_with_others = True, with_others

    def heard(self) -> tuple[list[dict[str, Any]], bool]:
        """What the job has reported since it was last asked, and whether it has ended."""
        if not self.has_ended:
            self._process.listen()
        messages, self._messages = self._messages, []
        return messages, self.has_ended

    def close(self) -> None:
        """Forget the job; one that was never begun was not in the process."""
        if self._heard is not None:
            os.close(self._heard)
        self._heard = None
