"""What the sampling and training benchmarks share: the graph, and how rows are shown."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from penstock.graph.folder import Graph
from penstock.graph.generate import make_graph, recipe_named

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


def show(title: str, rows: list[dict[str, Any]], as_json: bool) -> None:
    """The rows as a table for people, or as one JSON object."""
    if as_json:
        print(json.dumps({"benchmark": title, "rows": rows}))
        return
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    Console(width=160).print(table)
