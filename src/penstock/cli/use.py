"""`penstock evaluate`, `predict` and `embed`: use the best model of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import ForceOption, JsonOption, TrustOption, UncheckedOption, measured, print_json
from penstock.quantities import counted
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.graph import Graph

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
OutOption = Annotated[
    Path, typer.Option("--out", help="The file to write: .parquet, .csv, .npz or .jsonl, by its extension.")
]
GraphOption = Annotated[str | None, typer.Option("--graph", help="Another graph of the same shape than the run's own.")]


def evaluate_command(
    run: RunArgument,
    split: Annotated[str, typer.Option(help="Splits to judge by: train, val, test.")] = "val,test",
    graph: GraphOption = None,
    trust_module: TrustOption = False,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Metrics of a run's best model, by exact inference over whole neighbourhoods.

    Example: penstock evaluate runs/synthetic-arxiv-sage-1 --split test
    """
    splits = [name.strip() for name in split.split(",") if name.strip()]
    with measured() as cost, shown_progress(as_json, f"Evaluating the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train.use import evaluate_run
        found = evaluate_run(
            run,
            splits,
            opened_graph(graph),
            progress=progress,
            trust_module=trust_module,
            unchecked=unchecked,
        )
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
    trust_module: TrustOption = False,
    force: ForceOption = False,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write predictions with the ids of your tables: a class and its probability, a number, a link's score.

    Example: penstock predict runs/synthetic-arxiv-sage-1 --out predictions.parquet
    """
    from penstock.train.table_file import check_table_file

    check_table_file(out, force)
    with measured() as cost, shown_progress(as_json, f"Predicting with the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train.use import predict_run
        rows = predict_run(
            run,
            out,
            split,
            force,
            opened_graph(graph),
            progress=progress,
            trust_module=trust_module,
            unchecked=unchecked,
        )
    _tell(out, rows, cost.fields(), as_json)


def embed_command(
    run: RunArgument,
    out: OutOption,
    node_type: Annotated[str | None, typer.Option("--type", help="The node type to embed.")] = None,
    graph: GraphOption = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write vertex embeddings with the ids of your tables.

    Example: penstock embed runs/synthetic-arxiv-sage-1 --out embeddings.npz
    """
    from penstock.train.table_file import check_table_file

    check_table_file(out, force)
    with measured() as cost, shown_progress(as_json, f"Embedding with the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train.use import embed_run
        rows = embed_run(
            run,
            out,
            node_type,
            force,
            opened_graph(graph),
            progress=progress,
            trust_module=trust_module,
            unchecked=unchecked,
        )
    _tell(out, rows, cost.fields(), as_json)


def opened_graph(graph: str | None) -> "Graph | None":
    """The graph that stands for a run's own, where one is named."""
    from penstock.graph.convert import load

    return None if graph is None else load(graph)


def _tell(out: Path, rows: int, cost: dict[str, float], as_json: bool) -> None:
    if as_json:
        print_json({"path": str(out), "rows": rows, **cost})
    else:
        print(f"{counted(rows, 'rows')} written to {out}")
