"""Sampling and training on one machine, arranged in many ways: GraphSAGE and GraphSAINT with batches of 8,192.

    python benchmarks/execution_table.py [--graphs arxiv,products,reddit] [--scale 0.2] [--seconds 2] [--out FILE]

Each line is a configuration of our own. Where it is named for another system, it arranges the same work in the order of
that system, which itself is not run here:
  none       a thread draws, and the GPU trains when it is done: the sum of both times, measured apart
  host       a thread of the host draws ahead, the GPU trains (as DGL)
  overlapped all threads of the host draw and gather ahead, copies beside the training (as SALIENT)
  device     the GPU draws and trains, steps captured where the sampler allows it
  beside     two trainers that know nothing of each other, on CPU and GPU; their rates are added (as ByteGNN)
  intra      what the host does of the first layer and the order of products are decided by prediction and timing
  inter      batches are drawn in groups by all processors
  intra+inter  both
Every line is printed when it ends, and the file is written anew. Lines that the file has already are not measured
again, and none is begun after `--limit` seconds: the rest can be measured by another call.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from first_layer_gpu import measured, session_of
from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.graph.generate import make_graph, recipe_named
from penstock.pipeline.schedule import Schedule
from penstock.processes import default_threads
from penstock.train.auto_values import with_order_costs
from penstock.train.finalists import settle
from penstock.train.job import job_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BATCH = 8192
BUDGET = 16_384
MODELS: dict[str, dict[str, Any]] = {
    "sage": {"fanouts": [10, 5], "batch_size": BATCH},
    "saint": {"sampler": "saint-vertex", "batch_size": BUDGET, "fanouts": [10, 5]},
}
HOST = {"sample_on": "host", "capture": False}
THREADS = {"sample_threads": default_threads(), "gather_threads": 4, "transfer_depth": 2}
WAYS: dict[str, dict[str, Any]] = {
    "host": {**HOST, "sample_threads": 1},
    "overlapped": {**HOST, **THREADS, "placement": {"features": "host"}},
    "device": {},
    "beside": {},
    "intra": {**HOST, "placement": {"features": "host"}, "first_layer": "auto"},
    "inter": {**HOST, **THREADS, "groups": "auto"},
    "intra+inter": {**HOST, **THREADS, "groups": "auto", "first_layer": "auto", "placement": {"features": "host"}},
}


def rate_of(graph: Graph, fields: dict[str, Any], seconds: float, device: str) -> dict[str, Any]:
    """Batches a second of a configuration, and how long its stages were busy for each batch."""
    job = with_order_costs(
        job_of({"hidden": 128, "device": device, "epochs": 10_000, "evaluate_every": -1, "dropout": 0.0, **fields})
    )
    with session_of(job, graph) as session:
        if "first_layer" in fields:
            settle(session)
        rate, _, stages = measured(session, seconds, warm_seconds=seconds)
        return {"batches_per_second": round(rate, 2), "execution": session.execution.name, "stages": stages}


def drawing_seconds(graph: Graph, fields: dict[str, Any], batches: int = 6) -> float:
    """Seconds in which one thread of the host draws a batch."""
    job = job_of({**fields, "device": "cpu", "hidden": 8})
    with session_of(job, graph) as session:
        schedule = Schedule(session.task.items, session.task.batch_size, 0)
        planned = [each for each, _ in zip(schedule.from_position(), range(batches), strict=False)]
        session.task.sample(planned[0])
        began = time.perf_counter()
        for each in planned:
            session.task.sample(each)
        return (time.perf_counter() - began) / len(planned)


def of_both(folder: Path, graph: Graph, name: str, fields: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A trainer on the CPU in a process of its own beside one on the GPU."""
    words = [sys.executable, __file__, "--only-cpu", str(folder), "--models", name, "--seconds", str(3 * seconds)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        found = rate_of(graph, fields, seconds, DEVICE)
        told, _ = other.communicate()
    of_cpu = json.loads(told.splitlines()[-1])["batches_per_second"]
    return {
        "gpu": found["batches_per_second"],
        "cpu": of_cpu,
        "batches_per_second": found["batches_per_second"] + of_cpu,
    }


class Table:
    """Lines as they come, in a file as well."""

    def __init__(self, out: Path | None, limit: float) -> None:
        self._out, self._end = out, time.perf_counter() + limit
        known = json.loads(out.read_text())["rows"] if out and out.exists() else []
        self._rows: list[dict[str, Any]] = known

    @property
    def is_over(self) -> bool:
        """Whether no line may be begun any more."""
        return time.perf_counter() > self._end

    def find(self, line: dict[str, Any]) -> dict[str, Any] | None:
        """A line with the same fields, from this call or another."""
        return next((row for row in self._rows if line.items() <= row.items()), None)

    def add(self, line: dict[str, Any]) -> None:
        """Print a line and write the file anew."""
        self._rows.append(line)
        print(json.dumps(line), flush=True)
        if self._out:
            self._out.write_text(json.dumps({"benchmark": "execution table", "rows": self._rows}, indent=1) + "\n")


def compare(folder: Path, what: str, args: argparse.Namespace, table: Table) -> None:
    """All ways of one graph."""
    graph = Graph.open(folder)
    for name in args.models.split(","):
        fields = MODELS[name]
        for way in ("none", *args.ways.split(",")):
            line: dict[str, Any] = {"graph": what, "model": name, "way": way}
            if table.find(line):
                continue
            if table.is_over:
                return
            began = time.perf_counter()
            try:
                if way == "none":
                    apart = {"sampling_s": drawing_seconds(graph, fields)}
                    alone = rate_of(graph, {**fields, **WAYS["host"]}, args.seconds, DEVICE)
                    apart["training_s"] = alone["stages"]["compute"]
                    line |= {each: round(value, 5) for each, value in apart.items()}
                    line["batches_per_second"] = round(1 / sum(apart.values()), 2)
                elif way == "beside":
                    line |= of_both(folder, graph, name, {**fields, **WAYS["device"]}, args.seconds)
                else:
                    line |= rate_of(graph, {**fields, **WAYS[way]}, args.seconds, DEVICE)
            except (PenstockError, RuntimeError) as error:
                line["error"] = f"{type(error).__name__}: {error}"
            table.add({**line, "took_s": round(time.perf_counter() - began, 1)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", default="arxiv,products,reddit")
    parser.add_argument("--models", default="sage,saint")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--scale", type=float, default=0.2, help="of each graph")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a configuration is measured for")
    parser.add_argument("--folder", type=Path, default=Path("/tmp/penstock-execution-table"), help="keeps the graphs")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no line is begun")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only-cpu", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only_cpu:
        print(json.dumps(rate_of(Graph.open(args.only_cpu), MODELS[args.models], args.seconds, "cpu")))
        return
    table = Table(args.out, args.limit)
    for what in args.graphs.split(","):
        folder = args.folder / f"{what}-{args.scale:g}"
        if table.is_over:
            return
        if not (folder / "graph.json").exists():
            make_graph(recipe_named(f"synthetic-{what}").scaled(args.scale), folder)
        compare(folder, what, args, table)


if __name__ == "__main__":
    main()
