"""Does a queue lose a job, run one twice at once or change its weights when everything is disturbed at random?

Queues jobs that differ in their seed. At random moments it kills without warning the service, the process of a job, the
program that starts jobs, or all of them at once; lets the service write nothing, as on a full disk; locks its database;
leaves it no descriptors; floods it with connections, with bodies and with absurd jobs. A killed service is started
again. When all jobs have ended, each one's last checkpoint (weights, optimiser, position) is compared bit for bit with
that of the same job, run undisturbed.
Run: python benchmarks/queue_chaos.py [--jobs 20] [--disturbances 60] [--seed 0] [--json]
"""

import argparse
import json
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from penstock.graph.generate import make_graph, recipe_named
from penstock.train.job import make_job
from penstock.train.run import start_run
from penstock.train.run_files.checkpoints import read_state
from queue_floods import ABSURD, DESCRIPTORS, connected
from queue_service import ServiceProcess

JOB = {
    "model": "sage",
    "fanouts": [5, 5],
    "hidden": 32,
    "batch_size": 64,
    "epochs": 40,
    "evaluate_every": 5,
    "checkpoint_steps": 10,
    "checkpoint_minutes": 0,
    "threads": 1,
}
_FLOOD_S = 3.0
"""Seconds that a disturbance lasts which is no kill."""
_TIMES = ("elapsed", "epoch_elapsed", "epoch_seconds")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        answer = measure(Path(folder), arguments.jobs, arguments.disturbances, arguments.seed)
    if arguments.json:
        print(json.dumps(answer))
    else:
        for name, value in answer.items():
            print(f"{name}: {value}")
    lost = answer["twice"] or answer["service died of"]
    sys.exit(bool(lost) or not answer["ended"] == answer["equal"] == arguments.jobs)


def measure(folder: Path, jobs: int, disturbances: int, seed: int) -> dict[str, Any]:
    """What became of the jobs."""
    graph = folder / "graph"
    make_graph(recipe_named("synthetic-arxiv").scaled(0.02), graph)
    service, draws = ServiceProcess(folder / "queue", descriptors=DESCRIPTORS), random.Random(seed)
    service.start()
    fields = {**JOB, "graph": str(graph)}
    numbers = service.queue.submit(fields, sweep={"seed": list(range(jobs))})
    began, done, twice = time.monotonic(), Counter[str](), 0
    turn: list[str] = []
    while sum(done.values()) < disturbances and not _all_ended(service.folder):
        # A disturbance when nothing trains would prove nothing.
        if not _processes(service.folder):
            time.sleep(0.02)
            continue
        time.sleep(draws.uniform(0.05, 1.5))
        twice += _run_twice(service.folder)
        turn = turn or draws.sample([*DISTURBANCES], len(DISTURBANCES))
        if DISTURBANCES[turn[-1]](service, draws):
            done[turn[-1]] += 1
        turn.pop()
    found = service.queue.wait(*numbers)
    seconds = time.monotonic() - began
    service.stop()
    equal = sum(_same(fields | {"seed": at}, Path(job["run"]), folder / f"alone-{at}") for at, job in enumerate(found))
    return {
        "jobs": jobs,
        "disturbances": dict(done),
        "service died of": _deaths(service),
        "ended": sum(job["state"] == "ended" for job in found),
        "equal": equal,
        "twice": twice,
        "tries": sum(job["tries"] for job in found),
        "seconds": round(seconds, 1),
        "reasons": [job["reason"] for job in found if job["state"] != "ended"],
    }


def _kill_job(service: ServiceProcess, draws: random.Random) -> bool:
    pids = _processes(service.folder)
    return bool(pids) and _kill(draws.choice(pids))


def _kill_warm(service: ServiceProcess, draws: random.Random) -> bool:
    warm = _warm_programs(service)
    return bool(warm) and _kill(warm[0])


def _kill_service(service: ServiceProcess, draws: random.Random) -> bool:
    service.kill()
    service.start()
    return True


def _kill_everything(service: ServiceProcess, draws: random.Random) -> bool:
    pids = (*_processes(service.folder), *_warm_programs(service))
    service.kill()
    for pid in pids:
        _kill(pid)
    service.start()
    return True


def _fill_disk(service: ServiceProcess, draws: random.Random) -> bool:
    """No file of the service's can grow for a while."""
    with _limited(service, resource.RLIMIT_FSIZE, 0):
        time.sleep(_FLOOD_S)
    return service.runs


def _take_descriptors(service: ServiceProcess, draws: random.Random) -> bool:
    """The service can open nothing for a while."""
    with _limited(service, resource.RLIMIT_NOFILE, 4):
        time.sleep(_FLOOD_S)
    return service.runs


def _lock_database(service: ServiceProcess, draws: random.Random) -> bool:
    """Nothing can be written, for longer than SQLite waits."""
    with closing(sqlite3.connect(service.folder / "queue.sqlite", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(2 * _FLOOD_S)
        connection.execute("ROLLBACK")
    return service.runs


def _flood_with_sockets(service: ServiceProcess, draws: random.Random) -> bool:
    """More connections than the service may open, on which a request is begun."""
    return _flood(service, 1200, b"GET /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n")


def _flood_with_bodies(service: ServiceProcess, draws: random.Random) -> bool:
    """Requests without a token, whose bodies are half sent."""
    head = b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1048576\r\n\r\n"
    return _flood(service, 300, head + b" " * 100_000)


def _flood_with_absurd_jobs(service: ServiceProcess, draws: random.Random) -> bool:
    """Jobs that no machine could hold; they are refused, and not counted among the others."""
    graph = str(service.folder.parent / "graph")
    hidden = [ABSURD + 2 * draws.randrange(1 << 20) for _ in range(5)]
    service.queue.submit({**JOB, "graph": graph}, sweep={"hidden": hidden})
    time.sleep(_FLOOD_S)
    return service.runs


DISTURBANCES: dict[str, Callable[[ServiceProcess, random.Random], bool]] = {
    "job killed": _kill_job,
    "service killed": _kill_service,
    "warm program killed": _kill_warm,
    "everything killed": _kill_everything,
    "disk full": _fill_disk,
    "no descriptors": _take_descriptors,
    "database locked": _lock_database,
    "sockets": _flood_with_sockets,
    "bodies": _flood_with_bodies,
    "absurd jobs": _flood_with_absurd_jobs,
}
"""Each tells whether it has disturbed the service."""


def _flood(service: ServiceProcess, count: int, said: bytes) -> bool:
    opened = connected(service, count, said)
    time.sleep(_FLOOD_S)
    for each in opened:
        each.close()
    return service.runs


@contextmanager
def _limited(service: ServiceProcess, kind: int, most: int) -> Iterator[None]:
    before = resource.prlimit(service.pid, kind)
    resource.prlimit(service.pid, kind, (most, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(service.pid, kind, before)


def _deaths(service: ServiceProcess) -> list[str]:
    """What services have said that ended by themselves: none should."""
    said = (service.folder.parent / "serve.log").read_text(errors="replace")
    return [line[:300] for line in said.splitlines() if line.startswith(("Error:", "Traceback"))]


def _kill(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False


def _rows(folder: Path, query: str) -> list[Any]:
    """What the queue's own database says: a killed service cannot be asked."""
    with closing(sqlite3.connect(f"file:{folder / 'queue.sqlite'}?mode=ro", uri=True)) as connection:
        return connection.execute(query).fetchall()


def _processes(folder: Path) -> list[int]:
    return [row[0] for row in _rows(folder, "SELECT pid FROM jobs WHERE pid IS NOT NULL AND state = 'running'")]


def _all_ended(folder: Path) -> bool:
    return not _rows(folder, "SELECT 1 FROM jobs WHERE state NOT IN ('ended', 'failed', 'cancelled') LIMIT 1")


def _warm_programs(service: ServiceProcess) -> list[int]:
    """The program that starts jobs, a child of the service."""
    asked = ["pgrep", "-P", str(service.pid), "-f", "penstock.service.workers.warm"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return [int(pid) for pid in found]


def _run_twice(folder: Path) -> int:
    """How many run folders are held by more than one process."""
    held = Counter[str]()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            held.update({str(link.readlink()) for link in (place / "fd").iterdir() if link.readlink().name == ".lock"})
    return sum(count > 1 for path, count in held.items() if path.startswith(str(folder / "jobs")))


def _same(fields: dict[str, Any], run: Path, alone: Path) -> bool:
    """Whether a job's last checkpoint is that of the same job, run undisturbed."""
    start_run(make_job({**fields, "run": str(alone), "device": "cpu"}))
    return _equal(*(read_state(max((each / "checkpoints").glob("step-*.ckpt"))) for each in (run, alone)))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(_equal(a[name], b[name]) for name in a if name not in _TIMES)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if hasattr(a, "shape"):
        return torch.equal(torch.as_tensor(a), torch.as_tensor(b))
    return bool(a == b or (a != a and b != b))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--disturbances", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
