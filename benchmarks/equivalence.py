"""Does a job come to the same on one machine and on clusters of all sorts?

Trains a small job on one machine and then on 1, 2 and 4 parts, with 1 to 4 workers, batches drawn by the workers or by
samplers of their own, gradients summed among the workers or by servers. Shown is the largest relative difference of
any recorded loss from one machine's, and whether the last checkpoint has the same bits as the one it must have: that of
one machine where one worker sums alone, else that of the same parts and workers without samplers.
Run: python benchmarks/equivalence.py [--parts 1 2 4] [--workers 1 2 3 4] [--data ../shared/data] [--json]
"""

import argparse
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from clusters import cluster_file, communities, losses, result_of, same_end, trained
from penstock.partition import Cut, cut
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import make_job

TOLERANCE = 1e-4
JOB = {
    "fanouts": "5,5",
    "hidden": 32,
    "batch-size": 40,
    "epochs": 3,
    "dropout": 0.3,
    "schedule": "ExponentialLR",
    "schedule-options": "{gamma: 0.9}",
    "checkpoint-minutes": 0,
    "threads": 1,
}


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), arguments.parts, arguments.workers, arguments.data)
    good = all(row["difference"] <= TOLERANCE and row["equal"] is not False for row in rows)
    if arguments.json:
        print(json.dumps({"job": JOB, "tolerance": TOLERANCE, "good": good, "rows": rows}))
    else:
        _print(rows)
    sys.exit(not good)


def measure(folder: Path, parts: list[int], workers: list[int], data: Path) -> list[dict[str, Any]]:
    """One row a cluster."""
    graph = _graph(folder, data)
    one = trained(graph, folder / "one", None, JOB)
    rows: list[dict[str, Any]] = []
    plain: dict[tuple[int, int, str], Path] = {}
    ways = itertools.product(parts, workers, ("all-reduce", "servers"), (0, 1))
    for number, (count, world, reduce, samplers) in enumerate(ways):
        spread = _machines(count, world)
        partition = str(folder / f"parts-{count}")
        more = {"samplers": samplers, "reduce": reduce, "servers": 2}
        cluster = cluster_file(folder / f"{number}.yaml", machines=spread, partition=partition, **more)
        run = trained(graph, folder / f"run-{number}", cluster, JOB)
        like = one if world == 1 and reduce == "all-reduce" else plain.get((count, world, reduce))
        plain.setdefault((count, world, reduce), run)
        row = {"parts": count, "workers": world, "reduce": reduce, "samplers": samplers}
        row["difference"] = _difference(losses(run), losses(one))
        row["equal"] = None if like is None else same_end(run, like)
        row["test"] = result_of(run)["test"].get("accuracy")
        rows.append(row)
        print(f"{number + 1}: {row}", file=sys.stderr)
    return rows


def _machines(parts: int, workers: int) -> list[dict[str, Any]]:
    """A machine a part; workers on them in turn."""
    return [{"name": f"m{k}", "workers": len(range(k, workers, parts))} for k in range(parts)]


def _graph(folder: Path, data: Path) -> Path:
    """Cora if it is there, saved as a folder and in parts."""
    real = data / "cora.npz"
    graph = open_data(make_job({"graph": str(real), "fanouts": [1]})) if real.exists() else communities()
    graph.save(folder / "graph")
    for parts in (1, 2, 4):
        cut(graph, Cut(parts, 1, "metis" if parts > 1 else "chunk"), folder / f"parts-{parts}")
    return folder / "graph"


def _difference(ours: list[float], theirs: list[float]) -> float:
    """The largest, as a part of the loss; infinite where other steps are recorded."""
    if len(ours) != len(theirs):
        return float("inf")
    return float(np.max(np.abs(np.array(ours) - theirs) / np.abs(theirs)))


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table("parts", "workers", "sums", "samplers", "loss differs by", "same bits", "test accuracy")
    for row in rows:
        bits = {None: "-", True: "yes", False: "NO"}[row["equal"]]
        sizes = (str(row["parts"]), str(row["workers"]), row["reduce"], str(row["samplers"]))
        table.add_row(*sizes, f"{row['difference']:.1e}", bits, f"{row['test']:.4f}")
    Console().print(table)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--parts", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
