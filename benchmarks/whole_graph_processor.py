"""What do workers that train on the whole graph take of the processors, with `exchange: layer` and with bins?

Workers on this machine train without limits on links or processors, so seconds of the clock say nothing: what counts is
processor time (user and system) of all threads of all workers in an epoch, by kind of thread, and the messages of rows
that they send. `main` computes, `wire` owns the sockets, `handlers` take messages, `others` are threads of libraries.
The first two epochs are left out. Results are the sum over workers, in milliseconds of an epoch; of several `--repeats`
the one with the least in all, since others on the machine can only add to it.
Run: python benchmarks/whole_graph_processor.py [--model gcn] [--workers 4] [--bins 1 2 4 8] [--nodes 40000] [--json]
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from penstock.cluster.launch.local import LocalProcess
from penstock.cluster.run import start_cluster_run
from penstock.graph.convert import load
from penstock.graph.generate import make_graph, recipe_named
from penstock.partition import Cut, cut
from penstock.train.job import job_of
from testbed import NOTHING_ELSE
from whole_graph_counter import VARIABLE

COUNTER = Path(__file__).with_name("whole_graph_counter.py")
SKIPPED = 2
"""Epochs in which inputs are fetched and aggregated, and memory is touched first."""


def main() -> None:
    options = _options()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if options.folder is None else options.folder
        if not (folder / "graph").exists():
            recipe = recipe_named(f"synthetic-{options.graph}")
            make_graph(recipe.scaled(options.nodes / recipe.nodes["node"].count), folder / "graph")
            cut(load(folder / "graph"), Cut(options.workers, refine="balanced"), folder / "parts")
        for bins in options.bins:
            found = [_measured(folder, options, bins, number) for number in range(options.repeats)]
            rows.append(min(found, key=lambda each: each["all"]))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"options": vars(options), "rows": rows}))


def _measured(folder: Path, options: argparse.Namespace, bins: str, number: int) -> dict[str, Any]:
    way = {"exchange": "layer", "bins": 1} if bins == "layer" else {"exchange": "bins", "bins": bins}
    run = folder / f"{bins}-{number}-{os.getpid()}"
    counts = folder / f"{run.name}-counts"
    counts.mkdir()
    job = job_of(
        {"graph": str(folder / "graph"), "run": str(run), "sampler": "whole", "model": options.model, "scope": "all"}
        | {"layers": options.layers, "hidden": options.hidden, "epochs": options.epochs, "threads": 1}
        | {**NOTHING_ELSE, **way}
    )
    machines = [{"name": f"host{place}", "workers": 1} for place in range(options.workers)]
    file = run.with_suffix(".yaml")
    about = {"machines": machines, "partition": str(folder / "parts"), "wire": {"security": "token"}}
    file.write_text(yaml.safe_dump(about))
    arguments = (str(COUNTER),)
    with patch.object(LocalProcess, "arguments", arguments), patch.dict(os.environ, {VARIABLE: str(counts)}):
        result = start_cluster_run(job, str(file)).facts["result"]
    totals = _totals(counts)
    spent = {kind: 1000 * value for kind, value in totals.pop("threads").items()}
    figures = {"all": sum(spent.values()), **spent, **totals}
    return {
        "model": options.model,
        "way": bins,
        "bins": result["bins"],
        **{name: round(value, 1) for name, value in figures.items()},
    }


def _totals(counts: Path) -> dict[str, Any]:
    """Of all workers, for an epoch."""
    threads: dict[str, float] = {}
    totals: dict[str, Any] = {"threads": threads}
    for file in counts.iterdir():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        first, last = lines[SKIPPED], lines[-1]
        epochs = last["epoch"] - first["epoch"]
        for kind, spent in last["threads"].items():
            threads[kind] = threads.get(kind, 0.0) + (spent - first["threads"].get(kind, 0.0)) / epochs
        for name in ("messages", "answers", "bytes"):
            totals[name] = totals.get(name, 0.0) + (last[name] - first[name]) / epochs
    return totals


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="arxiv")
    parser.add_argument("--nodes", type=int, default=40_000)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--bins", nargs="+", default=["layer", "2", "4", "8"], help="numbers of bins, auto, or layer")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keep the graph and its parts there for another time")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
