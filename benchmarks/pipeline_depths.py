"""Whether threads and depths of the pipeline that are set by hand are faster than those that a run has by itself.

Each setting trains the same job for some epochs, one setting after the other and all of them again in every round, so
that a busier machine slows all. Of each the fastest epoch of all rounds counts; the figure is the time of the run's own
setting over that of the fastest (1.03: 3 % slower).

Run: python benchmarks/pipeline_depths.py [--graph FOLDER] [--scale 0.3] [--minutes 4] [--epochs 3] [--json]
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.graph.generate import make_graph, recipe_named
from penstock.graph.graph import Graph
from penstock.train.job import job_of
from penstock.train.run import start_run

JOB = {"model": "sage", "hidden": 128, "fanouts": [10, 10], "batch_size": 1024, "evaluate_every": -1}
DEEPER = {"seeds_depth": 16, "sample_depth": 8, "gather_depth": 8, "transfer_depth": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "depths of 1": {"seeds_depth": 1, "sample_depth": 1, "gather_depth": 1, "transfer_depth": 1},
    "deeper queues": DEEPER,
    "sample_depth 4": {"sample_depth": 4},
    "gather_depth 4": {"gather_depth": 4},
    "transfer_depth 4": {"transfer_depth": 4},
    "gather_threads 2": {"gather_threads": 2},
    "transfer_threads 2": {"transfer_threads": 2},
    "all threads 2, deeper": {"gather_threads": 2, "transfer_threads": 2, **DEEPER},
    "trace_batches 0": {"trace_batches": 0},
}


def epoch_seconds(graph: Graph, setting: dict[str, Any], epochs: int, first_layer: str) -> list[float]:
    """Seconds of each epoch but the first of a run."""
    with tempfile.TemporaryDirectory() as folder:
        fields = {**JOB, "epochs": epochs + 1, "first_layer": first_layer, "device": "cpu"}
        run = start_run(job_of({**fields, "run": str(Path(folder) / "run"), **setting}), graph)
        found: list[float] = run.facts["result"]["epoch_seconds"][1:]
        run.close()
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, help="a graph folder; by default a scaled synthetic-arxiv is made")
    parser.add_argument("--scale", type=float, default=0.3)
    parser.add_argument("--minutes", type=float, default=4.0, help="no round begins that would end later")
    parser.add_argument("--epochs", type=int, default=3, help="of each run that are timed")
    parser.add_argument("--first-layer", default="gather", help="gather has the host copy rows, which takes longest")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if args.graph is None:
            graph = make_graph(recipe_named("synthetic-arxiv").scaled(args.scale), Path(scratch) / "graph")
        else:
            graph = Graph.open(args.graph)
        taken: dict[str, list[float]] = {name: [] for name in SETTINGS}
        began, rounds = time.monotonic(), 0
        while rounds == 0 or time.monotonic() - began < 60 * args.minutes * rounds / (rounds + 1):
            for name, setting in SETTINGS.items():
                taken[name] += epoch_seconds(graph, setting, args.epochs, args.first_layer)
            rounds += 1
    fastest = {name: min(seconds) for name, seconds in taken.items()}
    best = min(fastest, key=lambda name: fastest[name])
    ratio = fastest["as it is"] / fastest[best]
    if args.json:
        print(json.dumps({"rounds": rounds, "seconds": fastest, "best": best, "ratio": ratio}))
        return
    for name, seconds in fastest.items():
        print(f"{name:24} {seconds:.3f} s  {seconds / fastest[best]:.3f}")
    print(f"The run's own setting takes {ratio:.3f} times the fastest ({best}).")


if __name__ == "__main__":
    main()
