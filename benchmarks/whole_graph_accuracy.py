"""Full-graph training beside mini-batches and Cluster-GCN on real graphs: accuracy, throughput, and time to accuracy.

Each way trains the same model on the same split with several seeds. Time to accuracy counts the seconds of training
epochs, without validation, until the validation accuracy first comes to 99 % of the lowest of the ways' best ones.
`utilisation` is the share of this machine's processors that the process keeps busy, sampled every 10 ms from the first
epoch to the last with validation and all, and `idle` the share of samples in which it keeps less than half of one busy.
With `--columns` features are projected at random to so many columns.
Run: OMP_WAIT_POLICY=passive python benchmarks/whole_graph_accuracy.py FOLDER_OF_NPZ_FILES [--layers 2 3 4]
[--columns 16 64 256] [--graphs cora] [--seeds 2] [--share 0.2].
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.api import train
from penstock.graph.convert import load

GRAPHS = ("cora", "citeseer", "amazon-photo", "coauthor-cs")
FANOUTS = {2: [25, 10], 3: [25, 15, 10], 4: [25, 20, 15, 10]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--layers", type=int, nargs="+", default=[2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--columns", type=int, nargs="+", default=[0], help="0: those of the graph")
    parser.add_argument("--share", type=float, default=1.0, help="of the epochs of a whole run")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for name in args.graphs:
            for columns in args.columns:
                graph = projected(args.folder / f"{name}.npz", columns, Path(scratch) / f"{name}-{columns}")
                for layers in args.layers:
                    compare(args, graph, {"graph": name, "columns": columns or "all", "layers": layers})


def compare(args: argparse.Namespace, graph: str, about: dict[str, Any]) -> None:
    """Train in all ways and print a line for each."""
    layers = about["layers"]
    runs = {way: [trained(args, graph, layers, way, seed) for seed in range(args.seeds)] for way in ways(layers)}
    goal = 0.99 * min(max(run["best"] for run in found) for found in runs.values())
    for way, found in runs.items():
        print(json.dumps(about | row(way, found, goal)), flush=True)


def projected(file: Path, columns: int, folder: Path) -> str:
    """The graph with its features projected to so many columns; 0: as it is."""
    if not columns:
        return str(file)
    graph = load(file)
    (nodes,) = graph.nodes.values()
    x = np.asarray(nodes.fields["x"], np.float32)
    directions = np.random.default_rng(0).standard_normal((x.shape[1], columns), np.float32)
    nodes.fields["x"] = x @ directions / np.float32(np.sqrt(columns))
    graph.save(folder)
    return str(folder)


@contextmanager
def sampled_utilisation(every: float = 0.01) -> Iterator[list[float]]:
    """Processors that this process keeps busy, sampled; the list is filled when the block ends."""
    found: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        used, at = time.process_time(), time.perf_counter()
        while not ended.wait(every):
            now_used, now = time.process_time(), time.perf_counter()
            found.append((now_used - used) / (now - at))
            used, at = now_used, now

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def ways(layers: int) -> dict[str, dict[str, Any]]:
    """The fields of each way of training. An epoch of the whole graph is one step."""
    return {
        "whole": {"sampler": "whole", "layers": layers, "epochs": 150},
        "mini-batch": {"fanouts": FANOUTS[layers], "batch_size": 1000, "epochs": 60},
        "cluster": {"sampler": "cluster", "layers": layers, "clusters": 20, "batch_size": 4, "epochs": 60},
    }


def trained(args: argparse.Namespace, graph: str, layers: int, way: str, seed: int) -> dict[str, Any]:
    """One run: its best validation, its test accuracy, and the seconds of its epochs with the accuracy after each."""
    fields = {"model": "sage", "hidden": 64, "lr": 0.01, "weight_decay": 5e-4, "seed": seed, "device": args.device}
    chosen = ways(layers)[way]
    chosen["epochs"] = max(2, round(args.share * chosen["epochs"]))
    with tempfile.TemporaryDirectory() as folder:
        with sampled_utilisation() as busy:
            run = train(graph, run=f"{folder}/run", **fields, **chosen)
        lines = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((Path(run.path) / "run.json").read_text())["result"]
    epochs = [(line["seconds"], line["val"]["accuracy"]) for line in lines if line["kind"] == "epoch" and "val" in line]
    best, test = max(value for _, value in epochs), result["test"]["accuracy"]
    return {"epochs": epochs, "best": best, "test": test, "busy": busy}


def row(way: str, runs: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    """The mean of the runs of one way."""
    times = [time_to(run["epochs"], goal) for run in runs]
    reached = [each for each in times if each is not None]
    tests = [run["test"] for run in runs]
    busy = [each for run in runs for each in run["busy"]]
    return {
        "way": way,
        "test": round(statistics.mean(tests), 4),
        "spread": round(statistics.pstdev(tests), 4),
        "epoch_s": round(statistics.median(seconds for run in runs for seconds, _ in run["epochs"]), 5),
        "utilisation": round(statistics.mean(busy) / (os.cpu_count() or 1), 3),
        "idle": round(sum(each < 0.5 for each in busy) / len(busy), 3),
        "goal": round(goal, 4),
        "reached": len(reached),
        "time_to_goal_s": round(statistics.mean(reached), 4) if reached else None,
    }


def time_to(epochs: list[tuple[float, float]], goal: float) -> float | None:
    """Seconds of training until an accuracy is reached; None: it never is."""
    spent = 0.0
    for seconds, value in epochs:
        spent += seconds
        if value >= goal:
            return spent
    return None


if __name__ == "__main__":
    main()
