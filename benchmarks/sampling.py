"""How many edges a second does the neighbour sampler draw, on one thread and on two, beside torch-sparse?

`synthetic-products`, fan-out 15,10,5, batch 1024. torch-sparse's `neighbor_sample`, PyG's CPU sampler from the package
index, runs the same seeds on the same graph in the same process, one batch after the other; it is left out, with a
line saying so, where it is not installed.
Run: python benchmarks/sampling.py [--nodes 500000] [--batches 39] [--json-out rows.json]
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.graph.arrays import Array
from penstock.graph.generate import make_graph, recipe_named
from penstock.graph.graph import Graph
from penstock.sampling import BatchKey, NeighbourSampler

FANOUTS = [15, 10, 5]
BATCH = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--batches", type=int, default=39)
    parser.add_argument("--json-out", type=Path)
    args = parser.parse_args()
    recipe = recipe_named("synthetic-products")
    with tempfile.TemporaryDirectory() as scratch:
        graph = make_graph(recipe.scaled(args.nodes / recipe.nodes["node"].count), Path(scratch) / "graph")
        seeds = np.random.default_rng(0).permutation(np.asarray(graph.split("train")))
        batches = [seeds[i * BATCH : (i + 1) * BATCH] for i in range(min(args.batches, len(seeds) // BATCH))]
        rows = [*penstock_rows(graph, batches), *torch_sparse_rows(graph, batches[:3])]
    table = Table("sampler", "threads", "edges a batch", "million edges/s", "batches/s")
    for row in rows:
        speed = f"{row['edges'] / row['seconds'] / 1e6:.2f}", f"{row['batches'] / row['seconds']:.2f}"
        table.add_row(row["sampler"], str(row["threads"]), f"{row['edges'] / row['batches']:,.0f}", *speed)
    Console().print(table)
    if args.json_out:
        args.json_out.write_text(json.dumps(rows, indent=1) + "\n")


def penstock_rows(graph: Graph, batches: list[Array]) -> list[dict[str, Any]]:
    """Ours, a batch a thread; the best of three rounds."""
    sampler = NeighbourSampler(graph, FANOUTS)

    def edges(index: int) -> int:
        return sampler.sample(batches[index], BatchKey(0, 0, index)).num_edges

    rows = []
    for threads in (1, 2):
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(edges, range(2 * threads)))
            rounds = [timed(lambda: sum(pool.map(edges, range(len(batches))))) for _ in range(3)]
        seconds, total = min(rounds)
        rows.append(row("penstock", threads, len(batches), total, seconds))
    return rows


def torch_sparse_rows(graph: Graph, batches: list[Array]) -> list[dict[str, Any]]:
    """torch-sparse, which has no threads of its own here."""
    try:
        import torch
        import torch_sparse  # noqa: F401
    except ImportError:
        Console().print("torch-sparse is not installed: `pip install torch-sparse` to measure it too.")
        return []
    indptr, indices = torch.from_numpy(np.array(graph.indptr)), torch.from_numpy(np.array(graph.indices, np.int64))

    def edges() -> int:
        sample = torch.ops.torch_sparse.neighbor_sample
        found = (sample(indptr, indices, torch.from_numpy(seeds), FANOUTS, False, True) for seeds in batches)
        return sum(len(rows) for _, rows, _, _ in found)

    edges()
    seconds, total = min(timed(edges) for _ in range(3))
    return [row("torch-sparse", 1, len(batches), total, seconds)]


def timed(work: Callable[[], int]) -> tuple[float, int]:
    """Seconds, and what the work counted."""
    start = time.perf_counter()
    total = work()
    return time.perf_counter() - start, total


def row(sampler: str, threads: int, batches: int, edges: int, seconds: float) -> dict[str, Any]:
    """One line of the table."""
    return {"sampler": sampler, "threads": threads, "batches": batches, "edges": edges, "seconds": seconds}


if __name__ == "__main__":
    main()
