"""`penstock data import` and `penstock data export`: graphs from tables and back."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import ForceOption, JsonOption, measured, print_json
from penstock.errors import PenstockError
from penstock.graph.atomic import check_target
from penstock.progress import Progress
from penstock.quantities import counted
from penstock.terminal_progress import shown_progress

if TYPE_CHECKING:
    from penstock.graph import Graph


class TableFormatChoice(StrEnum):
    """The formats that `penstock data export` writes."""

    parquet = "parquet"
    csv = "csv"


def import_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SPEC",
            help="A spec (.yaml) that describes your tables, an OGB folder, an .npz file, or"
            " files of triples (a .tsv, or a folder with train.tsv, valid.tsv and test.tsv).",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The graph folder to make.")],
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a graph folder from tables: Parquet, CSV, TSV or JSON lines, compressed or not.

    Example: [bold]penstock data import spec.yaml --out data/shop[/bold]
    """
    with measured() as took, shown_progress(as_json) as progress:
        graph = _import(source, out, force, progress)
    notes: dict[str, Any] = {what: graph.origin[what] for what in ("dropped", "created") if what in graph.origin}
    if as_json:
        print_json({"path": str(out), "nodes": graph.num_nodes, "edges": graph.num_edges, **took.fields(), **notes})
        return
    _print_graph(graph)
    for what, counts in notes.items():
        thing = "edges" if what == "dropped" else "vertices"
        print(f"  {what}: " + ", ".join(f"{counted(count, thing)} of {name}" for name, count in counts.items()))
    print(f"Wrote {out} in {took.seconds:.1f} s, peak memory {took.peak_rss_mb:,.0f} MB.")


def export_command(
    source: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write the tables to.")],
    form: Annotated[TableFormatChoice, typer.Option("--format", help="What to write.")] = TableFormatChoice.parquet,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a graph as tables with its original ids, and a spec that imports them again.

    Example: [bold]penstock data export data/shop --out tables/shop --format csv[/bold]
    """
    from penstock.graph import Graph
    from penstock.graph.tables import export_tables

    if out.suffix.lower() in (".csv", ".parquet", ".jsonl", ".npz"):
        raise PenstockError(
            f"--out {out} must be a folder, because each node and edge type becomes a table: give a name without"
            " extension, and choose --format.",
            code="invalid-value",
        )
    with measured() as took, shown_progress(as_json) as progress:
        graph = Graph.open(source)
        files = export_tables(graph, out, form.value, force, progress)
    if as_json:
        counts: dict[str, Any] = {"path": str(out), "nodes": graph.num_nodes, "edges": graph.num_edges}
        print_json({**counts, "files": files, **took.fields()})
        return
    _print_graph(graph)
    written = counted(len(files), "files")
    print(f"Wrote {written} to {out} in {took.seconds:.1f} s, peak memory {took.peak_rss_mb:,.0f} MB.")


def _import(source: Path, out: Path, force: bool, progress: Progress) -> "Graph":
    if source.suffix.lower() in (".yaml", ".yml"):
        from penstock.graph.tables import import_tables

        return import_tables(source, out, force, progress)
    from penstock.graph.convert.detect import load

    check_target(out, force)
    return load(source).save(out, force)


def _print_graph(graph: "Graph") -> None:
    from penstock.graph.schema import edge_key

    for name, nodes in graph.nodes.items():
        print(f"  {name}: {counted(nodes.count, 'vertices')}, fields {', '.join(nodes.fields) or 'none'}")
    if len(graph.edges) > _LISTED and not any(edges.fields for edges in graph.edges.values()):
        together = sum(edges.count for edges in graph.edges.values())
        print(f"  {len(graph.edges)} relations: {counted(together, 'edges')}; `penstock data inspect` lists them")
        return
    for edge_type, edges in graph.edges.items():
        print(f"  {edge_key(edge_type)}: {counted(edges.count, 'edges')}, fields {', '.join(edges.fields) or 'none'}")


_LISTED = 8
"""Relations without fields beyond which a line says how many there are; files of triples have hundreds."""
