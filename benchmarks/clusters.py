"""What the benchmarks of clusters share: a small job, its runs as processes, and how two of them compare."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.progress import Progress
from penstock.train.run_files.checkpoints import read_best, take_newest
from resuming import equal

PENSTOCK = [sys.executable, str(Path(__file__).with_name("with_internals.py"))]
MARK = "PENSTOCK_BENCHMARK_RUN"
"""In the environment of all processes of a run, so that none is overlooked."""


class ClusterRun:
    """`penstock train --cluster` as a process of its own, with its tasks."""

    def __init__(self, run: Path, *arguments: str, internals: Mapping[str, Any] | None = None) -> None:
        self.run, self.mark = run, uuid.uuid4().hex
        self.process = subprocess.Popen(
            [*PENSTOCK, json.dumps(internals or {}), "train", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, MARK: self.mark},
        )

    def tasks(self) -> dict[str, psutil.Process]:
        """Those that run, by name, which their logs have."""
        found = {}
        for process in _children(self.process.pid):
            try:
                log = Path(f"/proc/{process.pid}/fd/1").readlink()
            except OSError:
                continue
            if log.parent.name == "logs" and process.status() != psutil.STATUS_ZOMBIE:
                found[log.stem] = process
        return found

    def ended(self) -> bool:
        """Whether it has."""
        return self.process.poll() is not None

    def finished(self, limit: float) -> tuple[int, str, str]:
        """Its exit status, its answer and its complaint; a run that takes longer than `limit` seconds is killed."""
        try:
            out, err = self.process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self.kill()
            out, err = self.process.communicate()
            err = f"did not end within {limit:g} s; {err}"
        return self.process.returncode, out, err.strip()

    def kill(self) -> None:
        """Everything of it."""
        for process in [*_children(self.process.pid), psutil.Process(self.process.pid)]:
            process.kill()

    def left(self) -> list[str]:
        """Processes of the run that are still there."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(" ".join(process.cmdline()))
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found


def arguments_for(graph: Path | str, run: Path, cluster: str | None, job: Mapping[str, Any]) -> list[str]:
    """The command line of a run."""
    flags = [part for name, value in job.items() for part in (f"--{name}", str(value))]
    spread = [] if cluster is None else ["--cluster", cluster]
    return ["--graph", str(graph), "--run", str(run), *flags, *spread]


def trained(
    graph: Path | str,
    run: Path,
    cluster: str | None,
    job: Mapping[str, Any],
    limit: float = 300,
    internals: Mapping[str, Any] | None = None,
) -> Path:
    """A run that nothing happens to."""
    started = ClusterRun(run, *arguments_for(graph, run, cluster, job), internals=internals)
    status, _, complaint = started.finished(limit)
    if status:
        raise SystemExit(f"A run that nothing happened to failed: {complaint}")
    return run


def same_end(run: Path, other: Path) -> bool:
    """Whether two runs have the same last checkpoint and best model, bit for bit."""
    return equal(_state(run), _state(other)) and equal(_best(run), _best(other))


def losses(run: Path) -> list[float]:
    """Of all recorded steps and epochs."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] in ("step", "epoch")]


def result_of(run: Path) -> dict[str, Any]:
    """What run.json says came of it."""
    found: dict[str, Any] = json.loads((run / "run.json").read_text())
    return {"state": found["state"], **found.get("result", {})}


def cluster_file(path: Path, **fields: Any) -> str:
    """A cluster file with these fields."""
    path.write_text(yaml.safe_dump(fields))
    return str(path)


def communities(count: int = 400, classes: int = 5) -> Graph:
    """Communities whose features say a little of them."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, count)
    near = [rng.choice(np.flatnonzero(y == kind), 6) for kind in y]
    src, dst = np.concatenate(near), np.repeat(np.arange(count), 6)
    indptr, indices, _ = build_lists(np.append(src, dst), np.append(dst, src), count, count)
    x = (np.eye(classes)[y] + rng.normal(0, 1.5, (count, classes))).astype(np.float32)
    parts = zip(("train", "val", "test"), np.split(rng.permutation(count), [count // 2, count * 3 // 4]), strict=True)
    nodes = NodeSet(count, {"x": x, "y": y}, {name: np.sort(part) for name, part in parts})
    return Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "communities")


def _children(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
        return found
    except psutil.NoSuchProcess:
        return []


def _state(run: Path) -> dict[str, Any]:
    state = take_newest(run / "checkpoints", Progress()).state
    state["standing"].pop("epoch_elapsed")
    return state


def _best(run: Path) -> dict[str, Any]:
    best = read_best(run / "checkpoints")
    return {name: best[name] for name in ("learned", "tables")}
