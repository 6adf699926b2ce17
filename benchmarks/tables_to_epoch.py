"""What do the steps from tables to a trained epoch cost, for graphs of 10^7 to 10^9 edges on a small machine?

Citations like ogbn-papers100M's are made, exported to Parquet, imported, cut into parts and trained for an epoch by two
machines whose tasks all run on this host. Every step is a command in a control group of memory, which ends it if it
takes more than it may; what the next steps do not read is deleted. Anonymous memory is what processes hold themselves:
pages of mapped files, which the system takes back when it needs them, are no part of it. Needs root.
Run: python benchmarks/tables_to_epoch.py --edges 1e7 1e8 1e9 --memory-gb 4 --folder FOLDER [--json-out costs.json]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

EDGES = 1.615e9
"""Edges of the whole made graph."""
PARTS = 16
_LOOK = 0.2
"""Seconds between two looks at the memory in use."""


class Cost(NamedTuple):
    """What a step took."""

    step: str
    seconds: float
    processor_s: float
    anonymous_mb: float
    disk_gb: float
    """What its folder takes."""


class ControlGroup:
    """A control group of memory, of either version of the interface."""

    def __init__(self, limit: int) -> None:
        old = Path("/sys/fs/cgroup/memory")
        self._folder = (old if old.is_dir() else old.parent) / f"penstock-tables-to-epoch-{os.getpid()}"
        self._name = "total_rss" if old.is_dir() else "anon"
        self._folder.mkdir()
        (self._folder / ("memory.limit_in_bytes" if old.is_dir() else "memory.max")).write_text(str(limit))

    def enter(self) -> None:
        """Put the calling process into it."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def anonymous(self) -> int:
        """Bytes of anonymous memory of all its processes."""
        numbers = dict(line.split() for line in (self._folder / "memory.stat").read_text().splitlines())
        return int(numbers[self._name])

    def close(self) -> None:
        """Remove it; its processes have ended."""
        with suppress(OSError):
            self._folder.rmdir()


def main() -> None:
    """Measure every size, print, and write what was found."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--edges", type=float, nargs="+", default=[1e7, 1e8])
    words.add_argument("--memory-gb", type=float, default=4.0)
    words.add_argument("--folder", type=Path, required=True, help="a new folder for the graphs, which are deleted")
    words.add_argument("--json-out", type=Path)
    asked = words.parse_args()
    asked.folder.mkdir()
    found = []
    for edges in asked.edges:
        folder = asked.folder / f"{edges:.0e}"
        folder.mkdir()
        with closing(ControlGroup(int(asked.memory_gb * 1e9))) as group:
            costs = list(steps(edges, folder, asked.memory_gb, group))
        shutil.rmtree(folder)
        found.append({"edges": edges, "steps": [each._asdict() for each in costs]})
        show(edges, costs)
        if asked.json_out:
            asked.json_out.write_text(json.dumps({"memory_gb": asked.memory_gb, "sizes": found}, indent=1) + "\n")


def steps(edges: float, folder: Path, memory_gb: float, group: ControlGroup) -> Iterator[Cost]:
    """The cost of each step, in turn."""
    made, tables, graph, cut, run = (folder / name for name in ("made", "tables", "graph", "cut", "run"))
    scale = ("--scale", str(edges / EDGES), "--feature-dtype", "float16")
    yield _cost("make", group, made, "data", "make", "synthetic-papers", *scale, "--out", made)
    yield _cost("export", group, tables, "data", "export", made, "--out", tables)
    shutil.rmtree(made)
    bound = ("--memory-gb", str(memory_gb / 2))
    yield _cost("import", group, graph, "data", "import", tables / "spec.yaml", "--out", graph, *bound)
    shutil.rmtree(tables)
    yield _cost("cut", group, cut, "partition", graph, "--parts", PARTS, "--method", "stream", "--out", cut)
    cluster = folder / "cluster.yaml"
    cluster.write_text(f"partition: {cut}\nmachines: [{{name: a}}, {{name: b}}]\n")
    job = ("--graph", graph, "--cluster", cluster, "--epochs", 1, "--evaluate-every", -1, "--fanouts", "10,5")
    yield _cost("train", group, run, "train", *job, "--hidden", 64, "--run", run)


def _cost(step: str, group: ControlGroup, folder: Path, *words: object) -> Cost:
    """Run a command in the group, and see what it takes."""
    print(f"{step} ...", file=sys.stderr, flush=True)
    began, most = time.perf_counter(), 0
    command = [sys.executable, "-m", "penstock", *map(str, words), "--json"]
    with (folder.parent / f"{step}.txt").open("w+b") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, preexec_fn=group.enter)
        while (ended := os.wait4(process.pid, os.WNOHANG))[0] == 0:
            most = max(most, group.anonymous())
            time.sleep(_LOOK)
        seconds = time.perf_counter() - began
        if ended[1]:
            said.seek(0)
            sys.exit(f"{step} ended with status {ended[1]}: {said.read()[-2000:].decode()}")
    spent = ended[2].ru_utime + ended[2].ru_stime
    taken = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    cost = Cost(step, seconds, spent, most / 1e6, taken / 1e9)
    print(f"{step}: {seconds:.1f} s, {most / 1e6:.0f} MB", file=sys.stderr, flush=True)
    return cost


def show(edges: float, costs: list[Cost]) -> None:
    """Print a table."""
    table = Table("step", "s", "processor s", "anonymous MB", "GB on disk", title=f"{edges:.3g} edges")
    for each in costs:
        table.add_row(each.step, *(f"{value:.4g}" for value in each[1:]))
    Console().print(table)


if __name__ == "__main__":
    main()
