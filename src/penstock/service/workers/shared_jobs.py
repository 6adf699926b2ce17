"""A process that trains several jobs at once, each in a thread of its own.

They share what a process has once: imports, compiled kernels, the CUDA context, and the mapping and the GPU copy of a
graph that several of them use. On a GPU each job computes on streams of its own, and so in memory of its own. A crash
ends all of them: they continue from their checkpoints.
"""

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.processes import stopped_by
from penstock.service.workers.tasks import JobReports, ProcessLimit, Reports, SharedDevice, outcome_of, run_task, train
from penstock.store.device.copies import SharedCopies, copies_shared
from penstock.train.job import Job


def run_shared(descriptor: int) -> int:
    """Begin and stop jobs as standard input says, one JSON object per line, until it closes because the service is
    gone.
    """
    jobs = SharedJobs(Reports(descriptor))
    for message in _messages():
        if "task" in message:
            jobs.begin(message["job"], message["task"], Path(message["log"]))
        else:
            jobs.stop(message["job"])
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


class SharedJobs:
    """The jobs of this process."""

    def __init__(self, reports: Reports) -> None:
        self._reports, self._stops = reports, dict[int, threading.Event]()
        self._graphs, self._copies, self._limit = OpenGraphs(), SharedCopies(), ProcessLimit()

    def begin(self, job: int, task: dict[str, Any], log: Path) -> None:
        """Train a job in a thread."""
        stop = self._stops[job] = threading.Event()
        threading.Thread(target=self._run, args=[job, task, log, stop], name=f"job-{job}", daemon=True).start()

    def stop(self, job: int) -> None:
        """Let a job finish its step and write a checkpoint."""
        stop = self._stops.get(job)
        if stop is not None:
            stop.set()

    def _run(self, job: int, task: dict[str, Any], log_file: Path, stop: threading.Event) -> None:
        reports, device = JobReports(self._reports, job), SharedDevice(task, self._limit, stop.set)
        with log_file.open("a", buffering=1) as log, stopped_by(stop), copies_shared(self._copies):
            outcome = outcome_of(lambda: train(task, reports, device, log, self._graphs.of), device, log)
        if device.exceeded and outcome["state"] != "done":
            outcome |= {"state": "failed", "code": "out-of-memory", "reason": device.exceeded, "fault": False}
        del self._stops[job]
        reports.say(outcome=outcome)


class OpenGraphs:
    """Graphs that jobs of this process have open: jobs on the same one share its mapping and cached facts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: WeakValueDictionary[tuple[str, int, bool], Graph] = WeakValueDictionary()
        self._newest: Graph | None = None
        """Kept open for the next job on it."""

    def of(self, job: Job) -> Graph:
        """The graph that a job names."""
        key = job.graph, job.split_number, job.unchecked
        with self._lock:
            found = self._open.get(key)
            if found is None:
                chosen: dict[str, Any] = {"split": job.split_number} if job.split_number else {}
                found = self._open[key] = load(job.graph, **chosen)
            self._newest = found
            return found


def _messages() -> Iterator[dict[str, Any]]:
    unread = b""
    while chunk := os.read(0, 1 << 16):
        *lines, unread = (unread + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)


# The programs that a fork of the warm program can run.

PROGRAMS: dict[str, Callable[[int], int]] = {"task": run_task, "shared": run_shared}
"""By name; each is given the descriptor that it reports to, and returns an exit status."""
