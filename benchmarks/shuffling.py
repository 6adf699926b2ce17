"""Ways to order and reuse batches on real graphs: test scores and seconds of training, paired by seed.

Every way trains the same model on the same splits with the same seeds. For each way and graph a line gives the mean
test score in percent (accuracy, or the area under the curve), its mean difference to the first way with a 95 %
confidence interval (Student's t over the paired seeds), the median of the first shuffled epoch and of the seconds of
training epochs without validation, and how much of those is saved in the median of the pairs. Ways take turns within a
seed, so that a busier machine slows all; with `--processes` several seeds are trained at once. `--ways staleness`
compares gradients of older weights instead.
Run: OMP_WAIT_POLICY=passive python benchmarks/shuffling.py FOLDER_OF_NPZ_FILES [--graphs cora] [--seeds 10]
[--epochs 30] [--batch-size 32] [--minutes 8] [--processes 1].
"""

import argparse
import json
import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from penstock.graph.convert import load
from penstock.train.job import job_of
from penstock.train.run import start_run

GRAPHS = ("cora", "citeseer", "minesweeper", "tolokers")
METRICS = {"minesweeper": "roc-auc", "tolokers": "roc-auc"}
"""Accuracy where nothing else is said."""
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "shuffle": {
        "always": {"shuffle": "always"},
        "never": {"shuffle": "never"},
        "adaptive": {"shuffle": "adaptive"},
        "adaptive, reused": {"shuffle": "adaptive", "reuse_batches": True},
    },
    "staleness": {str(updates): {"staleness": updates} for updates in (0, 1, 2, 4)},
}
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ways", choices=list(WAYS), default="shuffle")
    parser.add_argument("--graphs", nargs="+", default=list(GRAPHS))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--train-share", type=float, default=0.0, help="0: the graph's split, or 20 a class; else this")
    parser.add_argument("--minutes", type=float, default=8.0, help="no seed is begun after this time")
    parser.add_argument("--processes", type=int, default=1, help="seeds that are trained at the same time")
    args = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(args.graphs):
            graph = str(Path(scratch) / name)
            load(args.folder / f"{name}.npz").save(graph)
            until = began + 60 * args.minutes * (number + 1) / len(args.graphs)
            for row in compared(args, graph, until):
                print(json.dumps({"graph": name, **row}), flush=True)


def compared(args: argparse.Namespace, graph: str, until: float) -> list[dict[str, Any]]:
    """One row for each way."""
    ways = WAYS[args.ways]
    seeds = [(args, graph, seed, until) for seed in range(args.seeds)]
    if args.processes == 1:
        runs = [each for each in map(_one_seed, seeds) if each]
    else:
        with get_context("spawn").Pool(args.processes) as pool:
            runs = [each for each in pool.map(_one_seed, seeds, chunksize=1) if each]
    found = {way: [run[number] for run in runs] for number, way in enumerate(ways)}
    first = found[next(iter(ways))]
    return [_row(way, runs, first) for way, runs in found.items()]


def _one_seed(case: tuple[argparse.Namespace, str, int, float]) -> list[dict[str, float]]:
    """A run of each way; none where the time is over, except with the first seed."""
    args, graph, seed, until = case
    if seed and time.monotonic() > until:
        return []
    return [trained(args, graph, seed, fields) for fields in WAYS[args.ways].values()]


def trained(args: argparse.Namespace, graph: str, seed: int, fields: dict[str, Any]) -> dict[str, float]:
    """The test score at the best validation, and seconds of the epochs."""
    split = {"split_ratio": [args.train_share, 0.2, 0.8 - args.train_share], "split": "ratio"}
    if not args.train_share:
        split = {"split": "auto"}
    with tempfile.TemporaryDirectory() as folder:
        size = {"epochs": args.epochs, "batch_size": args.batch_size, "hidden": 64, "fanouts": [10, 5]}
        metric = METRICS.get(Path(graph).name, "accuracy")
        rest = {
            "metric": metric,
            "lr": args.lr,
            "dropout": 0.5,
            "checkpoint_minutes": 0,
            "seed": seed,
            **split,
            **fields,
        }
        run = start_run(job_of({"graph": graph, "run": f"{folder}/run", **size, **rest}))
        result = run.facts["result"]
    begun = result["shuffled_from"]
    return {
        "score": 100 * result["test"][metric],
        "seconds": sum(result["epoch_seconds"]),
        "shuffled_from": args.epochs + 1 if begun is None else begun,
    }


def _row(way: str, runs: Sequence[dict[str, float]], first: Sequence[dict[str, float]]) -> dict[str, Any]:
    differences = [run["score"] - other["score"] for run, other in zip(runs, first, strict=True)]
    times = [run["seconds"] / other["seconds"] for run, other in zip(runs, first, strict=True)]
    return {
        "way": way,
        "seeds": len(runs),
        "score": round(statistics.mean(run["score"] for run in runs), 2),
        "difference": round(statistics.mean(differences), 2),
        "interval": round(_half_interval(differences), 2),
        "shuffled_from": statistics.median(run["shuffled_from"] for run in runs),
        "seconds": round(statistics.median(run["seconds"] for run in runs), 2),
        "saved_percent": round(100 * (1 - statistics.median(times)), 1),
    }


def _half_interval(values: Sequence[float]) -> float:
    if len(values) < 2:
        return math.nan
    freedom = len(values) - 1
    quantile = _T[max(known for known in _T if known <= freedom)]
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


if __name__ == "__main__":
    main()
