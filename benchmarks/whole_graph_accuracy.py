"""Full-graph training beside mini-batches and Cluster-GCN on real graphs: accuracy, throughput, and time to accuracy.

Each way trains the same model on the same split with several seeds. Time to accuracy counts the seconds of training
epochs, without validation, until the validation accuracy first comes to 99 % of the lowest of the ways' best ones.
Run: OMP_WAIT_POLICY=passive python benchmarks/whole_graph_accuracy.py FOLDER_OF_NPZ_FILES.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from penstock.api import train

GRAPHS = ("cora", "citeseer", "amazon-photo", "coauthor-cs")
FANOUTS = {2: [25, 10], 3: [25, 15, 10], 4: [25, 20, 15, 10]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--layers", type=int, nargs="+", default=[2])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    for name in args.graphs:
        for layers in args.layers:
            runs = {way: [trained(args, name, layers, way, seed) for seed in range(args.seeds)] for way in ways(layers)}
            goal = 0.99 * min(max(run["best"] for run in found) for found in runs.values())
            for way, found in runs.items():
                print(json.dumps(row(name, layers, way, found, goal)), flush=True)


def ways(layers: int) -> dict[str, dict[str, Any]]:
    """The fields of each way of training. An epoch of the whole graph is one step."""
    return {
        "whole": {"sampler": "whole", "layers": layers, "epochs": 150},
        "mini-batch": {"fanouts": FANOUTS[layers], "batch_size": 1000, "epochs": 60},
        "cluster": {"sampler": "cluster", "layers": layers, "clusters": 20, "clusters_per_batch": 4, "epochs": 60},
    }


def trained(args: argparse.Namespace, name: str, layers: int, way: str, seed: int) -> dict[str, Any]:
    """One run: its best validation, its test accuracy, and the seconds of its epochs with the accuracy after each."""
    fields = {"model": "sage", "hidden": 64, "lr": 0.01, "weight_decay": 5e-4, "seed": seed, "device": args.device}
    with tempfile.TemporaryDirectory() as folder:
        graph = str(args.folder / f"{name}.npz")
        run = train(graph, run=f"{folder}/run", **fields, **ways(layers)[way])
        lines = [json.loads(line) for line in (Path(run.path) / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((Path(run.path) / "run.json").read_text())["result"]
    epochs = [(line["seconds"], line["val"]["accuracy"]) for line in lines if line["kind"] == "epoch" and "val" in line]
    return {"epochs": epochs, "best": max(value for _, value in epochs), "test": result["test"]["accuracy"]}


def row(name: str, layers: int, way: str, runs: list[dict[str, Any]], goal: float) -> dict[str, Any]:
    """The mean of the runs of one way."""
    times = [time_to(run["epochs"], goal) for run in runs]
    reached = [each for each in times if each is not None]
    tests = [run["test"] for run in runs]
    return {
        "graph": name,
        "layers": layers,
        "way": way,
        "test": round(statistics.mean(tests), 4),
        "spread": round(statistics.pstdev(tests), 4),
        "epoch_s": round(statistics.median(seconds for run in runs for seconds, _ in run["epochs"]), 5),
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
