"""What the sampling and training benchmarks share: the graph, its batches, rows of a table."""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock.graph.arrays import Array
from penstock.graph.generate import make_graph, recipe_named
from penstock.graph.graph import Graph

FANOUTS = [15, 10, 5]
BATCH = 1024


@contextmanager
def products(nodes: int, folder: Path | None) -> Iterator[Graph]:
    """synthetic-products with so many vertices: from a folder where it is made once, or a temporary one."""
    recipe = recipe_named("synthetic-products")
    recipe = recipe.scaled(nodes / recipe.nodes["node"].count)
    if folder is not None:
        yield Graph.open(folder) if folder.exists() else make_graph(recipe, folder)
        return
    with tempfile.TemporaryDirectory() as scratch:
        yield make_graph(recipe, Path(scratch) / "graph")


def seed_batches(graph: Graph, count: int) -> list[Array]:
    """Training vertices in a fixed random order, cut into batches."""
    seeds = np.random.default_rng(0).permutation(np.asarray(graph.split("train")))
    return [seeds[i * BATCH : (i + 1) * BATCH] for i in range(min(count, len(seeds) // BATCH))]


def best_of(rounds: int, work: Callable[[], int]) -> tuple[float, int]:
    """The shortest of some rounds in seconds, and what the work counted."""
    times = []
    total = 0
    for _ in range(rounds):
        start = time.perf_counter()
        total = work()
        times.append(time.perf_counter() - start)
    return min(times), total


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """The rows as a table for people, or as one JSON object."""
    if as_json:
        print(json.dumps({"benchmark": title, "rows": rows}))
        return
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    Console(width=160).print(table)
