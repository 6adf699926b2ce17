"""Runs on clusters of this host as tests start, disturb and compare them."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import yaml

from forks import ForkedTask, running_forks
from penstock.cluster import run as cluster_run
from penstock.cluster.controller import Controller
from penstock.cluster.layout import CONTROLLER, Setup, lay_out
from penstock.cluster.member import Member
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.partition import Cut, cut
from penstock.progress import Progress
from penstock.train.job import job_of
from penstock.wire.endpoint import Endpoint
from penstock.wire.message import Message
from penstock.wire.transport.tls import make_credentials
from training_graphs import lines_of

JOB = {
    "fanouts": [4, 3],
    "hidden": 16,
    "batch_size": 30,
    "epochs": 3,
    "dropout": 0.3,
    "checkpoint_minutes": 0,
    "threads": 1,
}
MARK = "PENSTOCK_TEST_RUN"
"""In the environment of every process that a test starts, so that none is overlooked."""


class Starts:
    """A launcher that lets another one start tasks, and knows the newest process of each."""

    def __init__(self, launcher, handles, then):
        self._launcher, self._handles, self._then = launcher, handles, then
        self.interface = launcher.interface

    def start(self, setup):
        """Start a task."""
        handle = self._handles[setup.task.id] = self._launcher.start(setup)
        self._then(handle)
        return handle

    def close(self):
        """Nothing more will be started."""
        self._launcher.close()


class AtEpoch(Progress):
    """Does something once, when the controller hears that the n-th epoch has ended."""

    def __init__(self, number: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._left, self._action, self.said = number, action, []

    def status(self, line: str) -> None:
        """One line an epoch."""
        self.said.append(line)
        self._left -= 1
        if self._left == 0:
            self._action()


@contextmanager
def recorded_starts(then: Callable = id) -> Iterator[dict]:
    """The handles of all tasks that runs start meanwhile, by name; something may be done to each."""
    handles: dict = {}
    original = cluster_run.make_launcher
    with patch.object(cluster_run, "make_launcher", lambda *given: Starts(original(*given), handles, then)):
        yield handles


class OneGpuForAll:
    """A launcher whose workers all find the first GPU, and whom NCCL takes for workers of different hosts.

    Else it refuses two of them on one GPU. They are joined by sockets, as between machines.
    """

    def __init__(self, launcher):
        self._launcher = launcher
        self.interface = launcher.interface

    def start(self, setup):
        """Start a task."""
        own = {"NCCL_HOSTID": setup.task.id, "CUDA_VISIBLE_DEVICES": "0,0,0,0"}
        with patch.dict(os.environ, own):
            return self._launcher.start(setup)

    def close(self):
        """Nothing more will be started."""
        self._launcher.close()


@contextmanager
def one_gpu_for_all() -> Iterator[None]:
    """Runs meanwhile have as many GPUs as they ask for, all of them the same."""
    original = cluster_run.make_launcher
    with patch.object(cluster_run, "make_launcher", lambda *given: OneGpuForAll(original(*given))):
        yield


def cluster_file(folder: Path, **fields) -> str:
    """A cluster file with these fields."""
    path = folder / f"cluster-{len(list(folder.glob('cluster-*.yaml')))}.yaml"
    path.write_text(yaml.safe_dump(fields))
    return str(path)


def machines(*workers: int, **more) -> list[dict]:
    """Machines with so many workers each."""
    return [{"name": f"m{number}", "workers": count, **more} for number, count in enumerate(workers)]


def in_parts(graph, parts: int, folder: Path) -> str:
    """A graph cut by hash, which is the worst that can happen to it."""
    path = folder / f"{graph.name}-{parts}"
    if not path.exists():
        cut(graph, Cut(parts, 1, "random" if parts > 1 else "chunk"), path)
    return str(path)


def run_on(cluster: str, graph: Path, run: Path, progress: Progress | None = None, **fields):
    """A run from its beginning to its end."""
    job = job_of({**JOB, "graph": str(graph), "run": str(run), **fields})
    return cluster_run.start_cluster_run(job, cluster, False, progress or Progress())


@contextmanager
def at_report_of_epoch(number: int, action: Callable[[], None]) -> Iterator[None]:
    """Something is done once, before the first worker's report of its n-th epoch is answered.

    That worker waits for the answer: however fast the machine, a run cannot be over before.
    """
    epochs = iter(range(1, 1 << 30))

    def queue(controller, message, sender):
        if message.body.get("what") == "status" and next(epochs) == number:
            action()
        return answer(controller, message, sender)

    answer = Controller._queue
    with patch.object(Controller, "_queue", queue):
        yield


def disturbed_run(task: str, number: int, cluster: str, graph: Path, run: Path, how: int = signal.SIGKILL, /, **fields):
    """A run in which a task gets a signal after its n-th epoch."""
    with recorded_starts() as handles, at_report_of_epoch(number, lambda: os.kill(handles[task].pid, how)):
        return run_on(cluster, graph, run, **fields)


def losses_of(run: Path) -> list[tuple]:
    """Every recorded step's and epoch's loss, in order."""
    return [(line["kind"], line["step"], line["loss"]) for line in lines_of(run) if line["kind"] in ("step", "epoch")]


def assert_same_losses(run: Path, other: Path, tolerance: float) -> None:
    """The same steps, with losses that differ by rounding at most."""
    ours, theirs = losses_of(run), losses_of(other)
    assert [line[:2] for line in ours] == [line[:2] for line in theirs]
    np.testing.assert_allclose([line[2] for line in ours], [line[2] for line in theirs], rtol=tolerance, atol=tolerance)


def marked_processes(mark: str) -> list[str]:
    """The commands of processes that a test has started and that still run; a fork's is its number."""
    found = [f"fork {task}" for task in running_forks()]
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def result_of(run: Path) -> dict:
    """What run.json says came of it."""
    return json.loads((Path(run) / "run.json").read_text())["result"]


@contextmanager
def running_worker(partition, job, folder, alone=False, machines=None):
    """A worker beside the first part, as the run's tasks know it, while the stores of all parts run, each a process.
    `alone`: it is the run's only worker. `machines`: how many there are; None: one for each part."""
    count = partition.parts if machines is None else machines
    cluster = ClusterDocument(machines=[Machine(name=f"m{n}", workers=0 if alone and n else 1) for n in range(count)])
    layout = lay_out(cluster, partition.parts)
    keys = make_credentials([CONTROLLER, *(task.id for task in layout.tasks)])
    (folder / "logs").mkdir(parents=True)
    with Endpoint(keys[CONTROLLER], "127.0.0.1", cluster.wire) as controller:
        addresses = {}

        def here(message, sender):
            if message.body["ready"]:
                addresses[sender] = message.body["address"]
            return Message("here", addresses)

        controller.serve("here", here)
        controller.serve("beat", lambda message, sender: Message("beat"))
        template = Setup(
            task=layout.tasks[0],
            incarnation=0,
            credentials="",
            controller=controller.address,
            run=str(folder),
            partition=str(partition.path),
            job=job.model_dump(mode="json"),
            cluster=cluster,
            layout=layout,
            addresses={},
        )

        def told(task):
            return template.model_copy(update={"task": task, "credentials": keys[task.id].to_json()})

        stores = [ForkedTask(told(task), folder / "logs" / f"{task.id}.log") for task in layout.of_kind("store")]
        try:
            with Member(told(layout.of_kind("worker")[0])) as worker:
                while len(addresses) < len(stores):
                    assert all(store.poll() is None for store in stores), (folder / "logs").iterdir()
                    worker.stopped.wait(0.01)
                worker.announce(ready=False)
                yield worker
        finally:
            for store in stores:
                store.kill()
