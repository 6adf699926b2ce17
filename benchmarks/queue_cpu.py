"""How long do many small jobs take on a processor: one after the other, two at a time with xargs, and in a queue?

All ways train the same jobs, which differ in learning rate and width. One after the other each has all cores; with
xargs and in the queue each has one. Every way starts from nothing: the queue's time begins with `penstock serve`.
Run: python benchmarks/queue_cpu.py [--jobs 40] [--scale 0.05] [--json]
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from penstock.graph.generate import make_graph, recipe_named
from queue_service import PENSTOCK, ServiceProcess

JOB = {"model": "sage", "fanouts": [10, 5], "batch_size": 512, "epochs": 4, "checkpoint_minutes": 0}
WIDTHS = (32, 64, 96, 128)


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        graph = folder / "graph"
        make_graph(recipe_named("synthetic-arxiv").scaled(arguments.scale), graph)
        files = _job_files(folder, graph, arguments.jobs)
        # Kernels are compiled, and the graph's files are in memory, for everybody.
        _trained(files[0], folder / "first", 1)
        ways: dict[str, Callable[[], Any]] = {
            "one after the other": lambda: [_trained(file, folder / f"turn-{file.stem}", 0) for file in files],
            "xargs -P 2": lambda: _xargs(files, folder),
            "queue": lambda: _queue(files, folder),
        }
        seconds = {way: _timed(work) for way, work in ways.items() if way in (arguments.only or ways)}
    answer = {"jobs": len(files), "cores": len(os.sched_getaffinity(0)), "seconds": seconds}
    print(json.dumps(answer) if arguments.json else yaml.safe_dump(answer, sort_keys=False))


def _job_files(folder: Path, graph: Path, count: int) -> list[Path]:
    files = []
    for number in range(count):
        fields = {"graph": str(graph), **JOB, "lr": round(0.001 * (1 + number), 6), "hidden": WIDTHS[number % 4]}
        files.append(folder / f"job-{number}.yaml")
        files[-1].write_text(yaml.safe_dump(fields))
    return files


def _timed(work: Callable[[], Any]) -> float:
    start = time.monotonic()
    work()
    return round(time.monotonic() - start, 1)


def _command(file: str, run: str, threads: int) -> list[str]:
    return [*PENSTOCK, "train", file, "--run", run, "--threads", str(threads), "--json"]


def _trained(file: Path, run: Path, threads: int) -> None:
    subprocess.run(_command(str(file), str(run), threads), check=True, capture_output=True)


def _xargs(files: list[Path], folder: Path) -> None:
    command = ["xargs", "-P", "2", "-I", "{}", *_command(f"{folder}/job-{{}}.yaml", f"{folder}/xargs-{{}}", 1)]
    numbers = "\n".join(str(at) for at in range(len(files)))
    subprocess.run(command, input=numbers, text=True, check=True, capture_output=True)


def _queue(files: list[Path], folder: Path) -> None:
    service = ServiceProcess(folder / "queue", "--threads", "1")
    service.start()
    numbers = [number for file in files for number in service.queue.submit(file)]
    found = service.queue.wait(*numbers)
    service.stop()
    assert all(job["state"] == "ended" for job in found), [job["reason"] for job in found]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--scale", type=float, default=0.05)
    parser.add_argument("--only", action="append", help="only this way; may be repeated")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
