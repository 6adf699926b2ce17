"""What does it save that neighbouring batches of LABOR share their draws (`shared_draws`), and what does it cost?

    python benchmarks/dependent_batches.py --nodes 200000 --data ../data/amazon-photo.npz --json-out dependent.json

Rows are counted on a graph like ogbn-products: those that an epoch's batches need, and those of them that a cache of an
eighth, a quarter and a half of the features does not have and reads (SIEVE, as for features on disk; the epoch before
has filled it). Test accuracies are of real graphs, over several seeds.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import penstock as ps
from penstock.graph import Graph
from penstock.pipeline.schedule import Schedule
from penstock.sampling.labor import Labor
from penstock.store.disk_rows import SieveCache
from products_graph import FANOUTS, products

SHARED = 1, 4, 16, 64
CACHED = 8, 4, 2


def main() -> None:
    """Count rows and train, print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="graphs to train on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json-out", type=Path)
    options = parser.parse_args()
    with products(options.nodes, None) as graph:
        rows = [_rows_read(graph, shared, options.batch_size) for shared in SHARED]
    for row in rows:
        row["accuracy"] = {path.stem: _accuracies(path, row["shared_draws"], options.seeds) for path in options.data}
    _print(rows)
    if options.json_out:
        options.json_out.write_text(json.dumps(rows, indent=1))


def _rows_read(graph: Graph, shared: int, batch_size: int) -> dict[str, Any]:
    """The rows that the second epoch's batches need, and those that caches of several sizes read for it."""
    sampler = Labor(graph, FANOUTS, shared_draws=shared)
    caches = {size: SieveCache(graph.num_nodes, graph.num_nodes // size, 1) for size in CACHED}
    needed, read = 0, dict.fromkeys(CACHED, 0)
    for planned in Schedule(graph.split("train"), batch_size, 0, epochs=2).from_position():
        vertices = sampler.sample(planned.seeds, planned.key).vertices["node"].astype(np.int64)
        for size, cache in caches.items():
            missing = int(np.count_nonzero(cache.admit(vertices) < 0))
            read[size] += missing * planned.key.epoch
        needed += len(vertices) * planned.key.epoch
    return {"shared_draws": shared, "rows": needed, "read": {f"1/{size}": count for size, count in read.items()}}


def _accuracies(path: Path, shared: int, seeds: int) -> list[float]:
    """Test accuracies of a model that trains in many small batches."""
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            run = ps.train(
                str(path), sampler="labor", shared_draws=shared, fanouts=[5, 5], batch_size=64, hidden=64, epochs=30,
                lr=0.01, seed=seed, evaluate_every=5, run=str(Path(name) / "run"),
            )  # fmt: skip
            found.append(run.test["accuracy"])
    return found


def _print(rows: list[dict[str, Any]]) -> None:
    graphs = list(rows[0]["accuracy"])
    table = Table("shared_draws", "rows needed", *(f"read, cache of 1/{size}" for size in CACHED), *graphs)
    for row in rows:
        accuracies = [f"{np.mean(each):.4f} ± {np.std(each):.4f}" for each in row["accuracy"].values()]
        read = [f"{count:,} ({count / row['rows']:.1%})" for count in row["read"].values()]
        table.add_row(str(row["shared_draws"]), f"{row['rows']:,}", *read, *accuracies)
    Console().print(table)


if __name__ == "__main__":
    main()
