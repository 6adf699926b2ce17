"""`penstock explain`: which neighbours and columns a run's prediction for a vertex rests on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import (
    ForceOption,
    JsonOption,
    SeedOption,
    TrustOption,
    UncheckedOption,
    check_new_file,
    measured,
    print_json,
)
from penstock.cli.use import GraphOption, RunArgument, opened_graph
from penstock.quantities import counted
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.explain.explanation import Explanation


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
        print(f"Page written to {out}")


def _print(found: "Explanation", top: int) -> None:
    from penstock.report.explanation_page import judgement, prediction_words

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
