"""`penstock evaluate`, `predict` and `embed`: a run's best model put to use."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import ForceOption, JsonOption, measured, print_json
from penstock.cli.progress import shown_progress
from penstock.graph.convert import load
from penstock.graph.graph import Graph
from penstock.quantities import counted
from penstock.train.use import embed_run, evaluate_run, predict_run

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
OutOption = Annotated[Path, typer.Option("--out", help="The Parquet file to write.")]
GraphOption = Annotated[str | None, typer.Option("--graph", help="Another graph of the same shape than the run's own.")]


def evaluate_command(
    run: RunArgument,
    split: Annotated[str, typer.Option(help="Splits to judge by: train, val, test.")] = "val,test",
    graph: GraphOption = None,
    as_json: JsonOption = False,
) -> None:
    """Metrics of a run's best model, by exact inference over whole neighbourhoods.

    Example: penstock evaluate runs/synthetic-arxiv-sage-1 --split test
    """
    splits = [name.strip() for name in split.split(",") if name.strip()]
    with measured() as cost, shown_progress(as_json) as progress:
        found = evaluate_run(run, splits, _opened(graph), progress=progress)
    if as_json:
        print_json({**found, **cost.fields()})
        return
    table = Table("", *splits)
    for name in next(iter(found.values())):
        table.add_row(name, *(f"{found[each][name]:.4f}" for each in splits))
    Console().print(table)


def predict_command(
    run: RunArgument,
    out: OutOption,
    split: Annotated[str | None, typer.Option(help="One split instead of all vertices (links: test).")] = None,
    graph: GraphOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write predictions as Parquet, with the ids of your tables: a class and its probability, a number, a link's score.

    Example: penstock predict runs/synthetic-arxiv-sage-1 --out predictions.parquet
    """
    with measured() as cost, shown_progress(as_json) as progress:
        rows = predict_run(run, out, split, force, _opened(graph), progress=progress)
    _tell(out, rows, cost.fields(), as_json)


def embed_command(
    run: RunArgument,
    out: OutOption,
    node_type: Annotated[str | None, typer.Option("--type", help="The node type to embed.")] = None,
    graph: GraphOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write vertex embeddings as Parquet, with the ids of your tables.

    Example: penstock embed runs/synthetic-arxiv-sage-1 --out embeddings.parquet
    """
    with measured() as cost, shown_progress(as_json) as progress:
        rows = embed_run(run, out, node_type, force, _opened(graph), progress=progress)
    _tell(out, rows, cost.fields(), as_json)


def _opened(graph: str | None) -> Graph | None:
    return None if graph is None else load(graph)


def _tell(out: Path, rows: int, cost: dict[str, float], as_json: bool) -> None:
    if as_json:
        print_json({"path": str(out), "rows": rows, **cost})
    else:
        print(f"{counted(rows, 'rows')} written to {out}")
