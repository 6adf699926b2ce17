"""`penstock data`: graphs in and out."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.inspect import inspect_command
from penstock.cli.output import ForceOption, JsonOption, SeedOption, ThreadsOption, measured, print_json, short
from penstock.cli.tables import export_command, import_command
from penstock.errors import PenstockError
from penstock.quantities import counted
from penstock.terminal_progress import shown_progress

data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Make, import, inspect and export graphs.",
    epilog="Example: penstock data make synthetic-arxiv --out data/arxiv",
)
data.command("import")(import_command)
data.command("inspect")(inspect_command)
data.command("export")(export_command)


@data.command("list")
def list_command(as_json: JsonOption = False) -> None:
    """The data sets that `make` knows.

    Example: penstock data list
    """
    from penstock.graph.generate import DATASETS, DEFAULT

    rows: list[dict[str, Any]] = [
        {
            "name": name,
            "nodes": sum(node.count for node in recipe.nodes.values()),
            "edges": sum(edge.count for edge in recipe.edges),
            "features": max(node.features for node in recipe.nodes.values()),
            "classes": recipe.classes,
            "summary": recipe.summary,
            "default": name == DEFAULT,
        }
        for name, recipe in DATASETS.items()
    ]
    if as_json:
        print_json({"datasets": rows})
        return
    table = Table("data set", "vertices", "edges", "like", box=None)
    for row in rows:
        table.add_row(str(row["name"]), short(row["nodes"]), short(row["edges"]), str(row["summary"]))
    table.columns[0].no_wrap = True
    Console().print(table)


@data.command("make")
def make_command(
    name: Annotated[str, typer.Argument(help="A data set of `penstock data list`.")],
    out: Annotated[Path, typer.Option("--out", help="The graph folder to write.")],
    scale: Annotated[float | None, typer.Option(help="Vertices, edges and splits times this.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Instead of --scale: so many vertices in all.")] = None,
    seed: SeedOption = 0,
    both_directions: Annotated[bool, typer.Option(help="Store both directions of one-directional edges.")] = False,
    feature_dtype: Annotated[str, typer.Option(help="float32 or float16.")] = "float32",
    threads: ThreadsOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a synthetic graph.

    Example: penstock data make synthetic-products --scale 0.2 --out data/products
    """
    from dataclasses import replace

    from penstock.graph.generate import make_graph, recipe_named

    if feature_dtype not in ("float32", "float16"):
        raise PenstockError(
            f"--feature-dtype {feature_dtype} is not known: use float32 or float16.", code="unknown-name"
        )
    if scale is not None and nodes is not None:
        raise PenstockError("Give --scale or --nodes, not both.", code="conflicting-options")
    recipe = recipe_named(name)
    total = sum(node.count for node in recipe.nodes.values())
    if nodes is not None:
        scale = nodes / total
    recipe = replace(recipe.scaled(1.0 if scale is None else scale), feature_dtype=feature_dtype)
    if both_directions:
        recipe = recipe.made_symmetric()
    with measured() as cost, shown_progress(as_json) as progress:
        graph = make_graph(recipe, out, seed, force, threads, progress)
    if as_json:
        print_json({"path": str(out), "nodes": graph.num_nodes, "edges": graph.num_edges, **cost.fields()})
    else:
        size = f"{counted(graph.num_nodes, 'vertices')}, {counted(graph.num_edges, 'edges')}"
        print(f"{out}: {size} in {cost.seconds:.1f} s")
