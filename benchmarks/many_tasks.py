"""What does a run of a thousand tasks ask of its controller, and of who opens its run folder?

The controller is the real one, and every task speaks to it as real tasks do, over TLS: it starts, waits for all others,
agrees, joins a round, meets the others at barriers, gives signs of life for a while, and leaves. Many tasks share a
process, as threads, and nothing is trained. Seconds and the controller's processor seconds are shown for each stage,
then the time in which the run folder that such a run would leave is opened and its report is written.
Run: python benchmarks/many_tasks.py [--tasks 64,250,1000] [--processes 4] [--seconds 10] [--json]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from penstock.api.run_handle import Run
from penstock.cluster.controller import Controller, RunOutcome
from penstock.cluster.layout import Setup, lay_out, read_setup
from penstock.cluster.member import Member
from penstock.cluster.run import result_of
from penstock.errors import PenstockError
from penstock.graph.generate import make_graph, recipe_named
from penstock.hardware.cluster import ClusterDocument, FailureOptions, Machine
from penstock.pipeline.options import STAGES
from penstock.progress import SILENT
from penstock.report import write_report
from penstock.train.job import Job
from penstock.train.run import start_run
from penstock.train.run_files.records import add_workers, is_traced
from penstock.train.run_files.run_folder import EVENTS, RunFolder

SPANS = 400
"""Spans that each worker leaves in the trace: eighty batches of five stages."""
BARRIERS = 4
STORES = 4
"""Stores that each worker connects to; real ones connect to all, from hosts of their own."""


def main() -> None:
    arguments = _arguments()
    if arguments.stubs:
        _stubs(arguments.seconds)
        return
    rows = [_measured(int(count), arguments) for count in arguments.tasks.split(",")]
    if arguments.json:
        print(json.dumps({"cores": len(os.sched_getaffinity(0)), "seconds": arguments.seconds, "rows": rows}))
        return
    table = Table(title=f"A run of many tasks, {arguments.seconds:g} s of them idle")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(*(f"{value:,}" for value in row.values()))
    Console(width=170).print(table)


def _measured(count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run of so many workers, with as many stores, and its folder."""
    launcher = StubLauncher(arguments.processes, arguments.seconds)
    marks = _Marks()
    try:
        outcome = Controller(_template(count), launcher, marks).run(lambda: False, lambda facts: None)
    finally:
        launcher.close()
    marks.note("ended")
    folder = _folder_seconds(outcome)
    return {"workers": count, "tasks": len(outcome.tasks), **marks.stages(), **folder}


class _Marks(type(SILENT)):  # type: ignore[misc]
    """Notes of the first worker: each begins a stage of the run."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = [("began", time.monotonic(), time.process_time())]

    def note(self, sentence: str) -> None:
        """A stage is over."""
        self._seen.append((sentence, time.monotonic(), time.process_time()))

    def stages(self) -> dict[str, float]:
        """Seconds, and the controller's processor seconds, of each stage."""
        found = {}
        for (_, began, spent), (name, end, after) in zip(self._seen, self._seen[1:], strict=False):
            found[f"{name}_s"], found[f"{name}_cpu_s"] = round(end - began, 2), round(after - spent, 2)
        return found


def _template(count: int) -> Setup:
    machines = [Machine(name=f"m{number}", workers=1) for number in range(count)]
    failure = FailureOptions(patience=300, start_patience=3000, restarts=0)
    cluster = ClusterDocument(machines=machines, failure=failure)
    layout = lay_out(cluster, count)
    told = {"credentials": "", "controller": "", "run": "/nowhere", "partition": "/nowhere", "job": {}}
    return Setup(task=layout.tasks[0], incarnation=0, cluster=cluster, layout=layout, addresses={}, **told)


class StubLauncher:
    """Starts a task as a thread of one of a few processes."""

    interface = None

    def __init__(self, processes: int, seconds: float) -> None:
        command = [sys.executable, __file__, "--stubs", "--seconds", str(seconds)]
        pipe = subprocess.PIPE
        self._processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(processes)]
        self._started, self._ended = 0, set[str]()
        for process in self._processes:
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def start(self, setup: Setup) -> "StubLauncher.Stub":
        """In the next process."""
        process = self._processes[self._started % len(self._processes)]
        self._started += 1
        assert process.stdin is not None
        process.stdin.write(setup.text().encode() + b"\n")
        process.stdin.flush()
        return StubLauncher.Stub(setup.task.id, self._ended)

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._ended.add(line.decode().strip())

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()

    class Stub:
        """A task's handle."""

        trouble, pid = "", None

        def __init__(self, name: str, ended: set[str]) -> None:
            self._name, self._ended = name, ended

        def poll(self) -> int | None:
            """0 once its process has said that its thread is over."""
            return 0 if self._name in self._ended else None

        def kill(self) -> None:
            """Its process ends with the launcher."""


def _stubs(seconds: float) -> None:
    """A process whose tasks are threads; it ends when its input is closed and all tasks have left."""
    torch.set_num_threads(1)
    threading.stack_size(1 << 18)
    threads = []
    for line in sys.stdin:
        thread = threading.Thread(target=_task_to_its_end, args=(read_setup(line), seconds), daemon=True)
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _task_to_its_end(setup: Setup, seconds: float) -> None:
    try:
        # A task that still waits for others when the run is over is told so by an error.
        with suppress(PenstockError):
            _task(setup, seconds)
    finally:
        # In one piece, since the process's other threads write there as well.
        sys.stdout.write(f"{setup.task.id}\n")
        sys.stdout.flush()


def _task(setup: Setup, seconds: float) -> None:
    """What a task says to the controller, from its start to its end."""
    task, world = setup.task, setup.layout.world
    with Member(setup, handler_threads=1) as member:
        member.announce()
        if task.kind == "worker":
            first = task.rank == 0
            member.await_tasks("store", "worker")
            _said(member, "met", first)
            _polled(member, "agree", matter="device", finding="cpu")
            asked = {"step": 0, "after": 0, "incarnation": 0}
            generation = _polled(member, "join", **asked).body["generation"]
            for number in range(BARRIERS):
                _polled(member, "barrier", generation=generation, name=f"{number}")
            _said(member, "joined", first)
            member.counts = lambda: {"received": 1000, "minimum": 900}
            kept = SPANS if is_traced(task.rank, world) else 0
            member.spans = lambda: [
                [number % len(STAGES), 0, number * 1000, 900, 0, number // 5] for number in range(kept)
            ]
            time.sleep(seconds)
            _said(member, "idle", first)
            for other in range(min(STORES, world)):
                member.endpoint.channel(f"store-m{other}", "rows")
            member.leave()
            _polled(member, "barrier", generation=generation, name="left")
            _said(member, "left", first)
            if first:
                member.ask("result", state="finished")
        member.stopped.wait()


def _said(member: Member, name: str, first: bool) -> None:
    if first:
        member.ask("progress", what="note", text=name)


def _polled(member: Member, kind: str, **body: Any) -> Any:
    """An answer for which others must ask as well."""
    return member.ask_until_known(kind, **body)


def _folder_seconds(outcome: RunOutcome) -> dict[str, float]:
    """Seconds in which a run folder with these tasks is written, opened, and its report is made."""
    with tempfile.TemporaryDirectory() as name:
        graph = Path(name) / "graph"
        make_graph(recipe_named("synthetic-arxiv").scaled(0.02), graph)
        job = Job(graph=str(graph), model="sage", hidden=16, fanouts=[4, 4], epochs=4, run=str(Path(name) / "run"))
        folder = start_run(job)
        path, result = folder.path, folder.facts["result"]
        folder = RunFolder.open(path, writing=True)
        began = time.monotonic()
        add_workers(path / EVENTS, outcome.spans)
        folder.write_facts(result={**result, **result_of(outcome)})
        folder.close()
        wrote = time.monotonic()
        assert len(Run.open(path).result["tasks"]) == len(outcome.tasks)
        opened = time.monotonic()
        page = write_report(path)
        end = time.monotonic()
        sizes = {"run_json_mb": path / "run.json", "events_mb": path / EVENTS, "page_mb": page}
        megabytes = {which: round(file.stat().st_size / 1e6, 2) for which, file in sizes.items()}
    return {
        "writing_s": round(wrote - began, 2),
        "opening_s": round(opened - wrote, 2),
        "report_s": round(end - opened, 2),
        **megabytes,
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="64,250,1000", help="numbers of workers, with commas between them")
    parser.add_argument("--processes", type=int, default=4, help="processes that the tasks are threads of")
    parser.add_argument("--seconds", type=float, default=10.0, help="of signs of life and nothing else")
    parser.add_argument("--stubs", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
