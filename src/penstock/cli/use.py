"""`penstock evaluate`, `predict`, `embed`, `explain` and `export`: use the best model of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import (
    ForceOption,
    JsonOption,
    RunArgument,
    SeedOption,
    TrustOption,
    UncheckedOption,
    answer,
    as_named,
    check_new_file,
    measured,
    print_json,
)
from penstock.formatting import counted
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.explain.explainer import Explanation
    from penstock.graph import Graph

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
    given = {"graph": graph, "trust_module": trust_module, "unchecked": unchecked}
    _write_rows("Predicting", "predict_run", run, out, split, force, as_json, given)


def embed_command(
    run: RunArgument,
    out: OutOption,
    node_type: Annotated[str | None, typer.Option("--type", help="The node type to embed.")] = None,
    changed_since: Annotated[
        str | None,
        typer.Option(metavar="SEGMENT", help="Update the table in --out by what this segment and later ones changed."),
    ] = None,
    graph: GraphOption = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write vertex embeddings with the ids of your tables.

    Example: penstock embed runs/synthetic-arxiv-sage-1 --out embeddings.npz

    Example: penstock embed runs/may --out embeddings.parquet --changed-since 3
    """
    given = {"graph": graph, "trust_module": trust_module, "unchecked": unchecked}
    if changed_since is not None:
        _update_rows(run, out, changed_since, node_type, as_json, given)
        return
    _write_rows("Embedding", "embed_run", run, out, node_type, force, as_json, given)


def _update_rows(run: Path, out: Path, since: str, node_type: str | None, as_json: bool, given: dict[str, Any]) -> None:
    """Compute the rows that segments have changed, and write them into the table."""
    with measured() as cost, shown_progress(as_json, f"Embedding what changed with the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train.use import embed_changes
        given["graph"] = opened_graph(given["graph"])
        rows, computed = embed_changes(run, out, since, node_type, progress=progress, **given)
    fields = {"path": as_named(out), "rows": rows, "computed": computed, **cost.fields()}
    answer(as_json, fields, f"{counted(computed, 'rows')} of {rows:,} computed again in {out}")


def opened_graph(graph: str | None) -> "Graph | None":
    """The graph to use in place of the run's own; None where none is named."""
    from penstock.graph.convert import load

    return None if graph is None else load(graph)


def _write_rows(
    doing: str,
    function: str,
    run: Path,
    out: Path,
    which: str | None,
    force: bool,
    as_json: bool,
    given: dict[str, Any],
) -> None:
    """Write a table by a function of `penstock.train.use`, which is imported after the first line is shown."""
    from penstock.train.run_files.run_folder import check_table_file

    check_table_file(out, force)
    with measured() as cost, shown_progress(as_json, f"{doing} with the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train import use
        given["graph"] = opened_graph(given["graph"])
        rows = getattr(use, function)(run, out, which, force, progress=progress, **given)
    answer(
        as_json,
        {"path": as_named(out), "rows": rows, **cost.fields()},
        f"{counted(rows, 'rows')} written to {as_named(out)}",
    )


# `penstock explain`: which neighbours and columns a run's prediction for a vertex rests on.


def explain_command(
    run: RunArgument,
    vertex: Annotated[str, typer.Option("--vertex", help="The vertex to explain, by its id in your tables.")],
    node_type: Annotated[str | None, typer.Option("--type", help="Its node type; that which the run predicts.")] = None,
    graph: GraphOption = None,
    split: Annotated[str | None, typer.Option(help="Refuse a vertex that is not in this split.")] = None,
    hops: Annotated[int | None, typer.Option(help="Explain only edges within so many hops; all by default.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the masks' optimisation.")] = 100,
    lr: Annotated[float, typer.Option(help="Their learning rate.")] = 0.1,
    max_edges: Annotated[int, typer.Option(min=1, help="The largest neighbourhood that is explained.")] = 50_000,
    seed: SeedOption = 0,
    top: Annotated[int, typer.Option(min=1, help="Edges and columns in the printed tables.")] = 10,
    out: Annotated[Path | None, typer.Option(help="Write an HTML page with a picture of the neighbourhood.")] = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Which neighbours and columns a prediction rests on: masks under GNNExplainer's objective.

    Example: penstock explain runs/synthetic-arxiv-sage-1 --vertex 17 --out vertex-17.html
    """
    if out is not None:
        check_new_file(out, force)
    with measured() as cost, shown_progress(as_json, f"Explaining vertex {vertex} with the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.report import write_explanation_page
            from penstock.train.explain_run import ExplainOptions, explain_run
        options = ExplainOptions(hops, steps, lr, 0.0, seed, max_edges, split)
        found = explain_run(
            run,
            vertex,
            node_type,
            opened_graph(graph),
            options=options,
            progress=progress,
            trust_module=trust_module,
            unchecked=unchecked,
        )
        if out is not None:
            write_explanation_page(found, out)
    if as_json:
        print_json({**found.fields(), "page": None if out is None else str(out), **cost.fields()})
        return
    _print(found, top)
    if out is not None:
        print(f"Page written to {as_named(out)}")


def _print(found: "Explanation", top: int) -> None:
    from penstock.report.explanations import judgement, prediction_words

    what, score, others = prediction_words(found)
    console = Console(highlight=False)
    console.print(f"Vertex {found.vertex} ({found.node_type}): {what}, {score}", markup=False)
    for sentence in judgement(found):
        console.print(sentence, markup=False)
    console.print("; ".join(f"{name} {value}" for name, value in others))
    around = f"{counted(found.vertices, 'vertices')} and {counted(found.neighbourhood_edges, 'edges')}"
    console.print(f"Its exact neighbourhood has {around}.")
    for note in found.notes:
        console.print(note, markup=False)
    edges = Table("source", "", "destination", "relation", "hop", "mask")
    for edge in found.edges[:top]:
        edges.add_row(str(edge.source), "→", str(edge.destination), edge.relation, str(edge.hop), f"{edge.mask:.3f}")
    columns = Table("type", "column", "value", "mask")
    for column in found.columns[:top]:
        value = "" if column.value is None else f"{column.value:.4g}"
        columns.add_row(column.node_type, str(column.column), value, f"{column.mask:.3f}")
    if found.edges:
        console.print(edges)
    if found.columns:
        console.print(columns)
    if found.edge_columns:
        carried = Table("relation", "field of edges", "column", "mask")
        for each in found.edge_columns[:top]:
            carried.add_row(each.relation, each.field, str(each.column), f"{each.mask:.3f}")
        console.print(carried)


# `penstock export`: a run's model as a plain PyTorch module.


def export_command(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    to: Annotated[str, typer.Option(help="torch, program (torch.export) or onnx.")] = "torch",
    graph: GraphOption = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's best model as a PyTorch module that needs no Penstock, with weights in safetensors.

    Example: penstock export runs/synthetic-arxiv-sage-1 --out exported
    """
    with measured() as cost, shown_progress(as_json, f"Exporting the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.export.exported import export_session
            from penstock.train.use import open_session
        session = open_session(run, opened_graph(graph), progress=progress, trust_module=trust_module)
        found = export_session(session, out, to, force)
    answer(as_json, {**found, **cost.fields()}, f"{', '.join(found['files'])} written to {as_named(out)}")
