"""How fast do features in host memory reach a GPU, along each path alone and along both?

A graph like ogbn-papers100M (both directions, 128 float16 features, GraphSAGE 3x256, fan-out 15,10,5, batches of 1024,
as gpu_papers.py has it) whose features stay in pinned host memory. One session is placed and captured, and its steps go
on while the division of rows changes: all read by the GPU, all gathered by the host's threads, fixed shares, and
`feature_paths: auto`; then the same beside processes that keep all cores busy, and beside one that copies over the bus.
First the pinned path alone as recorded draws have it, whose losses are compared with those of `auto`.
Every case is a line of JSON. At a scale of 0.4 (11 GB of features) all of it takes about two minutes.
Run: python benchmarks/gpu_paths.py [--scale 0.4] [--seconds 2] [--out paths.json]
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_runs import SAGE, end_children_when_ended, folder_bytes, folder_with_room, given_fields, made, tell
from penstock.graph.generate import recipe_named
from penstock.pipeline.schedule import START, Schedule
from penstock.store.device import divided
from penstock.store.device.host_paths import FastestDivision, FixedDivision, HostThreads
from penstock.train.build import make_session
from penstock.train.execution_modes import choose_execution
from penstock.train.job import job_of
from penstock.train.run_context import run_context
from penstock.train.session import Session, state_kept

NAME = "synthetic-papers"
WORKING = 24 << 30
"""Bytes of memory wanted beside the graph while it is made and placed."""
BURST = 100
"""Steps that are launched without a look at their losses."""
COMPARED = 64
"""Losses that must be the same bits along all paths."""
SPIN = "while True: pass"
COPY = """
import torch
rows, there = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True), torch.empty(1 << 28, dtype=torch.uint8).cuda()
there.copy_(rows)
print("ready", flush=True)
while True:
    for _ in range(16):
        there.copy_(rows, non_blocking=True)
    torch.cuda.synchronize()
"""


def main() -> None:
    end_children_when_ended()
    args, began = arguments(), time.perf_counter()
    folder = args.graph or folder_with_room(f"penstock-papers-{args.scale:g}", room(args.scale), WORKING)
    made(NAME, folder, args.scale, symmetric=True, dtype="float16")
    fields = {**SAGE, "graph": str(folder), "device": "cuda", "epochs": 1000, "compute_type": args.compute}
    fields |= {"placement": {"features": "pinned", "cache_rows": args.cache_rows}, "feature_paths": "auto"}
    job = job_of({**fields, **given_fields(args.job)})
    rows: list[dict[str, Any]] = []
    with run_context(job):
        session = make_session(job)
        tell(f"a session in {time.perf_counter() - began:.1f} s")
        known = losses_of_pinned(session, args, rows)
        Cases(session, args, rows).run(known)
    if args.out:
        args.out.write_text(json.dumps({"benchmark": "paths of features", "rows": rows}, indent=1) + "\n")
    tell(f"all of it in {time.perf_counter() - began:.1f} s")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="where the graph is, or is made and kept")
    parser.add_argument("--scale", type=float, default=0.4)
    parser.add_argument("--compute", default="tf32", help="float32, tf32 or bfloat16")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a case is measured for")
    parser.add_argument("--shares", default="0.2,0.35,0.5,0.65,0.8", help="of rows that the GPU reads by itself")
    parser.add_argument("--cache-rows", type=int, default=0)
    parser.add_argument("--busy", type=int, default=16, help="processes that keep cores busy")
    parser.add_argument("--readers", default="", help="numbers of programs on each processor that read over the bus")
    parser.add_argument("--threads", default="", help="numbers of threads that gather")
    parser.add_argument("--conditions", default="quiet,cores,bus", help="what else the machine does")
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of the job")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    return parser.parse_args()


class Cases:
    """One session's captured steps, measured under one division after the other."""

    def __init__(self, session: Session, args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
        self._session, self._args, self._rows = session, args, rows
        self._paths = session.placed.table.paths

    def run(self, known: list[float]) -> None:
        """All cases; `known` are the losses that the first steps have to have."""
        shares = [float(share) for share in self._args.shares.split(",") if share]
        with state_kept(self._session), steps_of(self._session) as steps:
            self._some = iter(steps)
            found: list[float] = []
            while len(found) < COMPARED:
                found += [step.loss for step in next(self._some)]
            self._tell({"case": "losses", "compared": COMPARED, "equal": found[:COMPARED] == known[:COMPARED]})
            self._tune()
            for condition in self._args.conditions.split(","):
                with CONDITIONS[condition](self._args.busy):
                    self._compare(condition, shares)

    def _compare(self, condition: str, shares: Sequence[float]) -> None:
        """Each path alone, fixed shares, and what is decided live."""
        self._paths.division = FastestDivision()
        self._measure(condition, "auto, with its first trials")
        auto = [self._measure(condition, "auto")]
        fixed = {}
        for share in (1.0, *shares, 0.0):
            self._paths.division = FixedDivision(share)
            name = {1.0: "pinned alone", 0.0: "gathered alone"}.get(share, f"{share:.0%} pinned")
            fixed[name] = self._measure(condition, name)
        self._paths.division = FastestDivision()
        self._measure(condition, "auto, with its first trials")
        auto.append(self._measure(condition, "auto"))
        best = max(fixed, key=lambda name: fixed[name])
        share = sum(auto) / len(auto) / fixed[best]
        self._tell({"case": f"{condition}: auto over the best fixed", "best": best, "ratio": round(share, 3)})

    def _tune(self) -> None:
        """Each path alone with other numbers of programs and threads."""
        usual, threads = divided._READERS, self._paths.threads
        for readers in [int(each) for each in self._args.readers.split(",") if each]:
            divided._READERS = readers
            self._paths.division = FixedDivision(1.0)
            self._measure("quiet", f"pinned alone, {readers} readers a processor")
        divided._READERS = usual
        for count in [int(each) for each in self._args.threads.split(",") if each]:
            self._paths.threads = HostThreads(count)
            self._paths.division = FixedDivision(0.0)
            self._measure("quiet", f"gathered alone, {count} threads")
        self._paths.threads = threads

    def _measure(self, condition: str, what: str) -> float:
        """Batches a second, after a burst that is not counted; a line with what came along the paths."""
        next(self._some)
        before, began, steps = self._paths.use(), time.perf_counter(), 0
        while time.perf_counter() - began < self._args.seconds:
            steps += len(next(self._some))
        rate = steps / (time.perf_counter() - began)
        row: dict[str, Any] = {"condition": condition, "case": what, "batches_per_second": round(rate, 1)}
        for name, use in self._paths.use().items():
            last = before.get(name)
            size, seconds = use.bytes - (last.bytes if last else 0), use.seconds - (last.seconds if last else 0)
            if size:
                row[name] = {"gb_a_batch": round(size / steps / 1e9, 4), "gb_a_second": round(size / seconds / 1e9, 1)}
        self._tell(row)
        return rate

    def _tell(self, row: dict[str, Any]) -> None:
        self._rows.append(row)
        print(json.dumps(row), flush=True)


def losses_of_pinned(session: Session, args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[float]:
    """The pinned path in the recorded draw, as runs have it that gather nothing: its speed, and its first losses."""
    placed = session.placed
    tables = dict(placed.tables)
    placed.tables.update({name: table.below for name, table in tables.items()})
    session.execution = choose_execution(session, placed)
    losses: list[float] = []
    with state_kept(session), steps_of(session) as steps:
        some = iter(steps)
        # Steps run ahead of those that are looked at: the pace is steady from the second burst on.
        for _ in range(2):
            losses += [step.loss for step in next(some)]
        began, first = time.perf_counter(), len(losses)
        while time.perf_counter() - began < args.seconds or len(losses) < COMPARED:
            losses += [step.loss for step in next(some)]
        rate = (len(losses) - first) / (time.perf_counter() - began)
    row = {"condition": "quiet", "case": "pinned in the recorded draw", "batches_per_second": round(rate, 1)}
    rows.append(row)
    print(json.dumps(row), flush=True)
    placed.tables.update(tables)
    session.execution = choose_execution(session, placed)
    return losses


def steps_of(session: Session) -> Any:
    """The session's steps in bursts, epoch after epoch."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, session.job.epochs)
    return session.execution.steps(
        schedule, START, lambda position: min(BURST, schedule.batches - position.batch), lambda *_: None
    )


@contextmanager
def quiet(busy: int) -> Iterator[None]:
    """Nothing else."""
    yield


@contextmanager
def busy_cores(busy: int) -> Iterator[None]:
    """Processes that compute all the time."""
    with beside([[sys.executable, "-c", SPIN]] * busy):
        yield


@contextmanager
def busy_bus(busy: int) -> Iterator[None]:
    """A process that copies to the GPU all the time."""
    with beside([[sys.executable, "-c", COPY]]) as (copying,):
        assert copying.stdout is not None
        copying.stdout.readline()
        yield


@contextmanager
def beside(commands: Sequence[Sequence[str]]) -> Iterator[list["subprocess.Popen[bytes]"]]:
    """Processes that end with the block."""
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for command in commands]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
        for process in running:
            process.wait()


CONDITIONS = {"quiet": quiet, "cores": busy_cores, "bus": busy_bus}


def room(scale: float) -> int:
    """Bytes that the graph takes while it is made."""
    recipe = replace(recipe_named(NAME).scaled(scale), feature_dtype="float16")
    return folder_bytes(recipe.made_symmetric())


if __name__ == "__main__":
    main()
