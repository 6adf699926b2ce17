"""Does a queue lose a job, run one twice at once or change its weights when everything is killed at random?

Queues jobs that differ in their seed, and kills without warning, at random moments, the service, the process of a job,
the program that starts jobs, or all of them at once; a killed service is started again. When all jobs have ended, each
one's last checkpoint (weights, optimiser, position) is compared bit for bit with that of the same job, run undisturbed.
Run: python benchmarks/queue_chaos.py [--jobs 20] [--kills 30] [--seed 0] [--json]
"""

import argparse
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from penstock.graph.generate import make_graph, recipe_named
from penstock.train.job import make_job
from penstock.train.run import start_run
from penstock.train.state_file import read_state
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
TARGETS = ("job", "job", "service", "warm", "everything")
_TIMES = ("elapsed", "epoch_elapsed", "epoch_seconds")


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        answer = measure(Path(folder), arguments.jobs, arguments.kills, arguments.seed)
    if arguments.json:
        print(json.dumps(answer))
    else:
        for name, value in answer.items():
            print(f"{name}: {value}")
    sys.exit(not (answer["ended"] == answer["equal"] == arguments.jobs and not answer["twice"]))


def measure(folder: Path, jobs: int, kills: int, seed: int) -> dict[str, Any]:
    """What became of the jobs."""
    graph = folder / "graph"
    make_graph(recipe_named("synthetic-arxiv").scaled(0.02), graph)
    service, draws = ServiceProcess(folder / "queue"), random.Random(seed)
    service.start()
    fields = {**JOB, "graph": str(graph)}
    numbers = service.queue.submit(fields, sweep={"seed": list(range(jobs))})
    began, done, twice = time.monotonic(), Counter[str](), 0
    while sum(done.values()) < kills and not _all_ended(service.folder):
        # A kill when nothing trains would prove nothing.
        if not _processes(service.folder):
            time.sleep(0.02)
            continue
        time.sleep(draws.uniform(0.05, 1.5))
        twice += _run_twice(service.folder)
        target = draws.choice(TARGETS)
        if _killed(service, target, draws):
            done[target] += 1
    found = service.queue.wait(*numbers)
    seconds = time.monotonic() - began
    service.stop()
    equal = sum(_same(fields | {"seed": at}, Path(job["run"]), folder / f"alone-{at}") for at, job in enumerate(found))
    return {
        "jobs": jobs,
        "kills": dict(done),
        "ended": sum(job["state"] == "ended" for job in found),
        "equal": equal,
        "twice": twice,
        "tries": sum(job["tries"] for job in found),
        "seconds": round(seconds, 1),
        "reasons": [job["reason"] for job in found if job["state"] != "ended"],
    }


def _killed(service: ServiceProcess, target: str, draws: random.Random) -> bool:
    """Kill what was drawn, if there is any; a service that is dead is started again."""
    pids = _processes(service.folder)
    if target == "job":
        return bool(pids) and _kill(draws.choice(pids))
    warm = _warm_programs(service)
    if target == "warm":
        return bool(warm) and _kill(warm[0])
    service.kill()
    if target == "everything":
        for pid in (*pids, *warm):
            _kill(pid)
    service.start()
    return True


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
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
