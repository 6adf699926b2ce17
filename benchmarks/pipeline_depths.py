"""Whether threads and depths of the pipeline that are set by hand are faster than those that a run has by itself.

Every round trains some epochs of the same job under each setting, in turn, so that a busier machine slows all. The
pipeline does not stop between them, as in a run: in a single epoch, deep queues gain by what they hold at its end. Of
each setting the median over the rounds of its time over that of the run's own setting in the same round counts: below
0.97 a hand-set value would be more than 3 % faster.

Run: python benchmarks/pipeline_depths.py [--graph FOLDER] [--scale 0.1] [--epochs 8] [--minutes 4] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from penstock.graph.folder import Graph
from penstock.graph.generate import make_graph, recipe_named
from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.run_context import run_context
from penstock.train.session import Session

JOB = {"model": "sage", "hidden": 128, "fanouts": [10, 10], "batch_size": 1024, "evaluate_every": -1}
DEEPER = {"seeds_depth": 16, "sample_depth": 8, "gather_depth": 8, "transfer_depth": 8}
OWN = "as it is"
SETTINGS: dict[str, dict[str, Any]] = {
    OWN: {},
    "depths of 1": {"seeds_depth": 1, "sample_depth": 1, "gather_depth": 1, "transfer_depth": 1},
    "deeper queues": DEEPER,
    "sample_depth 4": {"sample_depth": 4},
    "gather_depth 4": {"gather_depth": 4},
    "transfer_depth 4": {"transfer_depth": 4},
    "gather_threads 2": {"gather_threads": 2},
    "transfer_threads 2": {"transfer_threads": 2},
    "all threads 2, deeper": {"gather_threads": 2, "transfer_threads": 2, **DEEPER},
}


def seconds_of(session: Session, epochs: int) -> float:
    """Seconds that some epochs of training take, their pipeline started anew."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed, epochs)
    began = time.perf_counter()
    with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
        for _ in steps:
            pass
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, help="a graph folder; by default a scaled synthetic-arxiv is made")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=8, help="epochs that a pipeline runs for before it is stopped")
    parser.add_argument("--minutes", type=float, default=4.0, help="no round begins after this time")
    parser.add_argument("--first-layer", default="gather", help="gather has the host copy rows, which takes longest")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        if args.graph is None:
            graph = make_graph(recipe_named("synthetic-arxiv").scaled(args.scale), Path(scratch) / "graph")
        else:
            graph = Graph.open(args.graph)
        fields = {**JOB, "epochs": args.epochs, "first_layer": args.first_layer, "device": "cpu"}
        taken: dict[str, list[float]] = {name: [] for name in SETTINGS}
        with run_context(job_of(fields)):
            sessions = {name: make_session(job_of({**fields, **own}), graph) for name, own in SETTINGS.items()}
            for session in sessions.values():
                seconds_of(session, 1)
            while time.monotonic() - began < 60 * args.minutes:
                # Another one begins each round, as the first may pay for what the last left behind.
                first = len(taken[OWN]) % len(SETTINGS)
                for name in [*SETTINGS][first:] + [*SETTINGS][:first]:
                    taken[name].append(seconds_of(sessions[name], args.epochs))
    usual = taken[OWN]
    ratios = {
        name: statistics.median(one / own for one, own in zip(seconds, usual, strict=True))
        for name, seconds in taken.items()
    }
    seconds = {name: statistics.median(each) for name, each in taken.items()}
    if args.json:
        print(json.dumps({"rounds": len(usual), "seconds": seconds, "ratios": ratios}))
        return
    for name, ratio in ratios.items():
        print(f"{name:24} {seconds[name]:.3f} s  {ratio:.3f}")


if __name__ == "__main__":
    main()
