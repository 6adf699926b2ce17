"""What explaining costs a run whose explainers have no core of their own.

The same job is trained with sampler neighbour and with sampler explained, which with `remote_bias: 0` and
`feature_share: 1` draws as many remote neighbours and reads the same columns: what it takes longer is the explaining
and the drawing. Runs alternate. An epoch's seconds are the median over the last two thirds of the epochs, so that the
start of explainers is left out; `seconds` has all. `arithmetic_percent` is what to expect: processor seconds of one
explanation over the seconds of the steps between two. `step_processor_ms` are processor milliseconds of all processes
of a run for each step, over the same epochs: where no core is idle they decide how long a step takes, and other work on
the machine hardly changes them, as it changes seconds. `cores` and `memory_mb` are those of all processes of a run from
its start to its end: processor seconds over seconds, and the most memory that was seen, shared pages divided.

Run: python benchmarks/cost_of_explaining.py [--scale 0.1] [--machines 2] [--epochs 12] [--rounds 2]
[--settings 256,50,auto 256,20,auto]   (explain_rows, explain_steps, explain_every)
With `--used` runs with sampler explained draw fewer remote neighbours and read fewer columns, as they do by default.
"""

import argparse
import json
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from clusters import cluster_file, result_of, trained
from penstock.graph.generate.make import make_graph, recipe_named
from penstock.partition import Cut, cut
from penstock.train.run_files.run_folder import METRICS

PACE = ("epoch_s", "step_processor_ms")
AS_PLAIN = {"remote-bias": 0.0, "feature-share": 1.0}
"""With these sampler explained draws as many remote neighbours as sampler neighbour, and reads the same columns."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=0.1, help="of the synthetic graph like ogbn-arxiv")
    parser.add_argument("--machines", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--settings", nargs="+", default=["256,50,auto", "256,20,auto"])
    parser.add_argument("--used", action="store_true", help="with remote_bias and feature_share as they are by default")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        graph = make_graph(recipe_named("synthetic-arxiv").scaled(args.scale), folder / "graph")
        cut(graph, Cut(args.machines, 1, "metis"), folder / "parts")
        machines = [{"name": f"m{number}", "workers": 1} for number in range(args.machines)]
        cluster = cluster_file(folder / "cluster.yaml", machines=machines, partition=str(folder / "parts"))
        found: dict[str, list[dict[str, Any]]] = {}
        for number in range(args.rounds):
            for setting in ["neighbour", *args.settings]:
                run = folder / f"run-{setting}-{number}"
                found.setdefault(setting, []).append(one_run(args, folder / "graph", cluster, run, setting))
        plain = {name: statistics.median(each[name] for each in found["neighbour"]) for name in PACE}
        for setting, runs in found.items():
            print(json.dumps({"setting": setting, **summary(setting, runs, plain)}), flush=True)


def one_run(args: argparse.Namespace, graph: Path, cluster: str, run: Path, setting: str) -> dict[str, Any]:
    """Train once; an epoch's seconds and what explaining took."""
    job: dict[str, Any] = {
        "fanouts": "10,10",
        "hidden": args.hidden,
        "batch-size": args.batch,
        "epochs": args.epochs,
        "evaluate-every": args.epochs,
        "threads": 1,
    }
    internals = {}
    if setting != "neighbour":
        rows, steps, every = setting.split(",")
        job |= {"sampler": "explained"} if args.used else {"sampler": "explained", **AS_PLAIN}
        job |= {"explain-every": every}
        internals = {"explain_rows": int(rows), "explain_steps": int(steps)}
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with watched(run) as seen:
        trained(graph, run, cluster, job, internals=internals)
    after, whole = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    result = result_of(run)
    epochs = result["epoch_seconds"]
    told = result.get("explanations", {})
    made = max(1, told.get("made", 0))
    return {
        "epoch_s": statistics.median(epochs[len(epochs) // 3 :]),
        "steps_per_epoch": result["steps"] / len(epochs),
        "seconds": result["seconds"],
        "made": told.get("made", 0),
        "every": told.get("every", 0),
        "processor_s": told.get("processor_seconds", 0.0) / made,
        "waited_s": told.get("waited_s", 0.0),
        "cores": processor / whole,
        "memory_mb": max(each.memory for each in seen) / 1e6,
        "step_processor_ms": 1e3 * processor_seconds_of_a_step(seen, result["steps"] // 3),
    }


class Seen(NamedTuple):
    """All descendants of this process at one moment: steps that their run has recorded, processor seconds, bytes."""

    steps: int
    processor_s: float
    memory: int


@contextmanager
def watched(run: Path) -> Iterator[list[Seen]]:
    """What a run's processes have used, seen twice a second."""
    seen, over = [Seen(0, 0.0, 0)], threading.Event()

    def look() -> None:
        while not over.wait(0.5):
            seconds, memory = 0.0, 0
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    seconds, memory = seconds + times.user + times.system, memory + process.memory_full_info().pss
            seen.append(Seen(_steps(run / METRICS), seconds, memory))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def _steps(metrics: Path) -> int:
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    return max((json.loads(line)["step"] for line in lines if line.startswith("{") and line.endswith("}")), default=0)


def processor_seconds_of_a_step(seen: list[Seen], first: int) -> float:
    """The slope of processor seconds over steps, from step `first` on, while all processes were there."""
    points = [(each.steps, each.processor_s) for each in seen if each.steps >= first]
    most = max(range(len(points)), key=lambda place: points[place][1])
    slope, _ = np.polyfit(*np.array(points[: most + 1], np.float64).T, 1)
    return float(slope)


def summary(setting: str, runs: list[dict[str, Any]], plain: dict[str, float]) -> dict[str, Any]:
    """Medians over rounds, and how much more an epoch takes than with neighbour sampling, whose medians are `plain`."""
    median = {name: round(statistics.median(each[name] for each in runs), 4) for name in runs[0]}
    found = {**median, "slower_percent": round(100 * (median["epoch_s"] / plain["epoch_s"] - 1), 1)}
    found["more_processor_percent"] = round(100 * (median["step_processor_ms"] / plain["step_processor_ms"] - 1), 1)
    if setting != "neighbour":
        between = median["every"] * plain["epoch_s"] / median["steps_per_epoch"]
        found["arithmetic_percent"] = round(100 * median["processor_s"] / between, 1)
    return found


if __name__ == "__main__":
    main()
