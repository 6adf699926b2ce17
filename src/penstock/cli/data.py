"""`penstock data`: graphs in and out."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from penstock.cli.output import (
    ForceOption,
    JsonOption,
    MeasuredCommand,
    SeedOption,
    ThreadsOption,
    answer,
    as_named,
    measured,
    print_json,
    print_rows,
    short,
    unwrapped,
)
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.graph.new_folders import check_target
from penstock.progress import Progress
from penstock.terminal_progress import shown_progress

if TYPE_CHECKING:
    from penstock.graph import Graph
    from penstock.graph.inspect import DegreeReport, Inspection
    from penstock.graph.schema import SegmentInfo


# `penstock data inspect`: a graph at a glance.

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_BAR_WIDTH = 40
# Knowledge graphs have hundreds of edge types; the largest are shown.
_MOST_ROWS = 20

GraphArgument = Annotated[
    str, typer.Argument(metavar="GRAPH", help="A graph folder, OGB folder, .npz archive or data set name.")
]


def inspect_command(graph: GraphArgument, as_json: JsonOption = False) -> None:
    """Show what a graph holds, how its degrees are spread, and what will hurt training.

    Example: penstock data inspect data/arxiv
    """
    from penstock.graph.convert import load
    from penstock.graph.inspect import inspect_graph

    loaded = load(graph)
    with shown_progress(as_json) as progress:
        found = inspect_graph(loaded, progress)
    if as_json:
        print_json(as_fields(found, graph))
    else:
        Console(highlight=False).print(_report(found, graph))


def as_fields(found: "Inspection", source: str) -> dict[str, Any]:
    """The inspection as fields of the JSON interface; a graph without a folder has its source as `path`."""
    from penstock.graph.data import SPLITS
    from penstock.graph.schema import edge_key

    return {
        "path": str(found.path or source),
        "node_types": {
            name: {
                "count": nodes.count,
                "fields": {key: {"dtype": each.dtype, "shape": each.shape} for key, each in nodes.fields.items()},
                "splits": {**dict.fromkeys(SPLITS, 0), **nodes.splits},
            }
            for name, nodes in found.nodes.items()
        },
        "edge_types": {
            edge_key(kind): {name: getattr(edges, name) for name in ("count", "self_loops", "duplicates")}
            for kind, edges in found.edges.items()
        },
        "degree": {"mean": found.degree.mean, "max": found.degree.max},
        "isolated": found.isolated,
        "bytes": found.nbytes,
        "segments": [each.model_dump() for each in _segments_of(found.path)],
        "warnings": found.warnings,
    }


def _report(found: "Inspection", source: str) -> RenderableType:
    vertices = sum(nodes.count for nodes in found.nodes.values())
    edges = sum(each.count for each in found.edges.values())
    memory = f"{_bytes(found.nbytes)} in memory"
    disk = f", {_bytes(found.bytes_on_disk)} on disk" if found.bytes_on_disk is not None else ""
    size = f"{counted(vertices, 'vertices')}, {counted(edges, 'edges')}, {memory}{disk}"
    head = f"[bold]{escape(found.name)}[/bold]  {size}"
    parts: list[RenderableType] = [head, f"[dim]{escape(str(found.path or source))}[/dim]", ""]
    parts += [_node_table(found), "", _edge_table(found), ""]
    for segment in _segments_of(found.path):
        parts += [f"[bold]Segment {segment.name}[/bold]", *map(escape, _segment_lines(segment)), ""]
    parts += [*_degrees(found.degree), "", _warnings(found)]
    return Group(*parts)


def _node_table(found: "Inspection") -> Table:
    table = _table("Vertices", "Count", "Isolated", "Fields", "Splits")
    for name, nodes in found.nodes.items():
        fields = [
            f"{escape(key)} {each.dtype} {escape(str(each.shape[1:] or ''))}".rstrip()
            for key, each in nodes.fields.items()
        ]
        splits = [f"{escape(key)} {size:,}" for key, size in nodes.splits.items()]
        texts = ("\n".join(some) or "-" for some in (fields, splits))
        table.add_row(escape(name), f"{nodes.count:,}", f"{nodes.isolated:,}", *texts)
    return table


def _edge_table(found: "Inspection") -> Table:
    table = _table("Edges", "Count", "Self loops", "Parallel", "With reverse")
    largest = sorted(found.edges.items(), key=lambda item: -item[1].count)
    for kind, edges in largest[:_MOST_ROWS]:
        reverse = "-" if edges.reciprocal is None else "all" if edges.symmetric else f"{edges.reciprocal:,}"
        name = escape(" → ".join(kind))
        table.add_row(name, f"{edges.count:,}", f"{edges.self_loops:,}", f"{edges.duplicates:,}", reverse)
    if len(largest) > _MOST_ROWS:
        rest = largest[_MOST_ROWS:]
        table.add_row(f"[dim]and {len(rest)} more[/dim]", f"{sum(edges.count for _, edges in rest):,}", "", "", "")
    return table


def _degrees(degree: "DegreeReport") -> list[RenderableType]:
    """The in-degrees as bars, a row for each power of two."""
    shares = ", ".join(f"{share} % ≤ {value:,}" for share, value in degree.percentiles.items())
    head = f"[bold]In-degree[/bold]  mean {degree.mean:,.1f}, {shares}, max {degree.max:,}"
    table = Table(box=None, show_header=False, padding=(0, 1))
    table.add_column(justify="right", style="dim")
    table.add_column(style="cyan", min_width=_BAR_WIDTH, no_wrap=True)
    table.add_column(justify="right")
    tallest = max(degree.histogram)
    for power, count in enumerate(degree.histogram):
        low, high = (1 << power >> 1), (1 << power) - 1
        name = f"{low:,}" if low == high or power == 0 else f"{low:,}-{high:,}"
        table.add_row(name, _bar(count / tallest if tallest else 0), f"{count:,}")
    return [head, table]


def _bar(share: float) -> str:
    """A bar in eighths of a character; a share above 0 shows at least one."""
    eighths = max(round(share * _BAR_WIDTH * 8), 1 if share else 0)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _warnings(found: "Inspection") -> RenderableType:
    if not found.warnings:
        return "[green]✓[/green] Nothing here will hurt training."
    lines = Table.grid(padding=(0, 1))
    for warning in found.warnings:
        lines.add_row("[yellow]•[/yellow]", escape(warning))
    title = f"What may hurt training ({len(found.warnings)})"
    return Panel(lines, title=title, title_align="left", border_style="yellow")


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="left" if name in ("Fields", "Splits") else "right")
    return table


def _bytes(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} TiB"


# `penstock data import` and `penstock data export`: graphs from tables and back.


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
    memory_gb: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The memory that tables may take; what exceeds it is sorted on disk beside --out. Such an import goes"
            " on after it was killed.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say how many seconds and how much memory and disk it would take.")
    ] = False,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Divide the import among the nodes of the Ray cluster at HOST:PORT, or of this host's (auto);"
            " --memory-gb is then that of each task (without: 2). The nodes share the folders of SPEC and --out.",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a graph folder from tables: Parquet, CSV, TSV or JSON lines, compressed or not.

    Example: [bold]penstock data import spec.yaml --out data/shop[/bold]
    """
    if plan:
        if ray is not None:
            raise PenstockError(
                "--plan says what an import takes on one machine: remove --ray.", code="conflicting-options"
            )
        _plan_import(source, out, memory_gb, as_json)
        return
    with measured() as took, shown_progress(as_json) as progress:
        graph, resumed = _import(source, out, force, progress, memory_gb, ray)
    notes: dict[str, Any] = {what: graph.origin[what] for what in ("dropped", "created") if what in graph.origin}
    lines = []
    for what, counts in notes.items():
        thing = "edges" if what == "dropped" else "vertices"
        lines.append(f"  {what}: " + ", ".join(f"{counted(count, thing)} of {name}" for name, count in counts.items()))
    told = {name: each for name, each in (("resumed", resumed), ("notes", progress.notes)) if each}
    answer(as_json, {**_fields(graph, out, took), **notes, **told}, *_lines(graph), *lines, _written(out, took))


# `penstock data append` and `penstock data compact`: segments of a graph that grows.


def append_command(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")],
    tables: Annotated[
        Path, typer.Option("--with", metavar="SPEC", help="A spec (.yaml) of the new rows, like that of the import.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Add vertices and edges to a graph, as a segment; old vertices keep their numbers.

    Example: [bold]penstock data append data/shop --with june/spec.yaml[/bold]
    """
    from penstock.graph.tables import append_tables

    with measured() as took, shown_progress(as_json) as progress:
        segment = append_tables(graph, tables, progress)
    added = {"nodes": {name: stop - first for name, (first, stop) in segment.nodes.items()}, "edges": segment.edges}
    answer(
        as_json,
        {"path": str(graph), "segment": segment.name, **added, **took.fields()},
        *_segment_lines(segment),
        _written(f"segment {segment.name} of {graph}", took),
    )


def compact_command(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph folder.")], as_json: JsonOption = False
) -> None:
    """Make a graph with segments a plain one, with the same vertices and edges.

    Example: [bold]penstock data compact data/shop[/bold]
    """
    from penstock.graph.segments import compact

    with measured() as took:
        segments = compact(graph)
    answer(
        as_json,
        {"path": str(graph), "segments": segments, **took.fields()},
        f"{graph}: {counted(segments, 'segments')} compacted in {took.seconds:.1f} s.",
    )


def _segment_lines(segment: "SegmentInfo") -> list[str]:
    """A line for each node type and each edge type that a segment has added to."""
    nodes = [
        f"  {name}: {counted(stop - first, 'vertices')} from {first:,} on"
        for name, (first, stop) in segment.nodes.items()
    ]
    return nodes + [f"  {key}: {counted(count, 'edges')}" for key, count in segment.edges.items()]


def _segments_of(folder: Path | None) -> "list[SegmentInfo]":
    """The segments of a graph folder; none where the graph is no folder."""
    from penstock.graph.schema import DOCUMENT, read_document

    return (read_document(folder).segments or []) if folder is not None and (folder / DOCUMENT).is_file() else []


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
    written = _written(f"{counted(len(files), 'files')} to {as_named(out)}", took)
    answer(as_json, {**_fields(graph, out, took), "files": files}, *_lines(graph), written)


def prepare_command(
    graph: GraphArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="The graph folder to make.")],
    scale_features: Annotated[
        bool, typer.Option("--scale-features", help="Divide each vertex's features by their sum.")
    ] = False,
    largest_component: Annotated[
        bool, typer.Option("--largest-component", help="Labels count in the largest connected component only.")
    ] = False,
    train_on_validation: Annotated[
        bool, typer.Option("--train-on-validation", help="Train on validation vertices too; nothing is validated.")
    ] = False,
    features: Annotated[str, typer.Option(help="Vertex field with features.")] = "x",
    label: Annotated[str, typer.Option(help="Vertex field with labels.")] = "y",
    split: Annotated[int, typer.Option(min=0, help="Which of several given splits an archive has.")] = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Make a changed copy of a graph, as some published figures are of one.

    Example: [bold]penstock data prepare cora.npz --scale-features --out data/cora-scaled[/bold]
    """
    from penstock.graph.convert import load
    from penstock.graph.prepare import prepare

    if not (scale_features or largest_component or train_on_validation):
        raise PenstockError(
            "Nothing is asked for: add --scale-features, --largest-component or --train-on-validation.",
            code="option-missing",
        )
    with measured() as took:
        made = prepare(
            load(graph, split=split) if split else load(graph),
            out,
            scale_features=scale_features,
            largest_component=largest_component,
            train_on_validation=train_on_validation,
            features=features,
            label=label,
            force=force,
        )
    answer(as_json, _fields(made, out, took), *_lines(made), _written(out, took))


def _plan_import(source: Path, out: Path, memory_gb: float | None, as_json: bool) -> None:
    """Print what an import would take."""
    from dataclasses import asdict

    from penstock.graph.tables import plan_import

    if source.suffix.lower() not in (".yaml", ".yml"):
        raise PenstockError(
            f"--plan is for the import of tables, and {source} is no spec of tables (.yaml): remove it.",
            code="conflicting-options",
        )
    found = plan_import(source, out, memory_gb)
    if as_json:
        print_json(asdict(found))
        return
    for each in found.tables:
        size = f"{counted(each.files, 'files')} of {_bytes(each.bytes)} together"
        print(f"{each.table}: about {counted(each.rows, 'rows')} in {size}")
    if found.ids_on_disk:
        print(f"ids on disk: {', '.join(found.ids_on_disk)}")
    print(
        f"About {found.seconds:,.0f} s, {_bytes(found.memory_bytes)} of memory and {_bytes(found.disk_bytes)} of disk"
        f" ({_bytes(found.free_disk_bytes)} are free) for a graph of {_bytes(found.graph_bytes)}."
    )


def _import(
    source: Path, out: Path, force: bool, progress: Progress, memory_gb: float | None, ray: str | None
) -> "tuple[Graph, dict[str, Any] | None]":
    """The graph, and where an import that was stopped went on."""
    if source.suffix.lower() in (".yaml", ".yml"):
        from dataclasses import asdict

        from penstock.graph.tables.importer import TASK_GB, run_import

        if ray is None:
            graph, resumed = run_import(source, out, force, progress, memory_gb)
        else:
            from penstock.cluster.launch.ray_cluster import ray_tasks

            with ray_tasks(ray, memory_gb or TASK_GB) as mapped:
                graph, resumed = run_import(source, out, force, progress, memory_gb, mapped)
        return graph, asdict(resumed) if resumed else None
    for flag in [name for name, given in (("--memory-gb", memory_gb), ("--ray", ray)) if given is not None]:
        raise PenstockError(
            f"{flag} is for the import of tables, and {source} is no spec of tables (.yaml): remove it.",
            code="conflicting-options",
        )
    from penstock.graph.convert.detect import load

    check_target(out, force)
    return load(source).save(out, force), None


def _fields(graph: "Graph", out: Path, took: MeasuredCommand) -> dict[str, Any]:
    return {"path": as_named(out), "nodes": graph.num_nodes, "edges": graph.num_edges, **took.fields()}


def _written(what: object, took: MeasuredCommand) -> str:
    return f"Wrote {what} in {took.seconds:.1f} s, peak memory {took.peak_rss_mb:,.0f} MB."


def _lines(graph: "Graph") -> list[str]:
    """A line for each node type and each edge type."""
    from penstock.graph.schema import edge_key

    def line(name: str, count: str, fields: dict[str, Any]) -> str:
        return f"  {name}: {count}, fields {', '.join(fields) or 'none'}"

    lines = [line(name, counted(each.count, "vertices"), each.fields) for name, each in graph.nodes.items()]
    if len(graph.edges) > _LISTED and not any(edges.fields for edges in graph.edges.values()):
        together = counted(graph.num_edges, "edges")
        return [*lines, f"  {len(graph.edges)} relations: {together}; `penstock data inspect` lists them"]
    return lines + [line(edge_key(k), counted(each.count, "edges"), each.fields) for k, each in graph.edges.items()]


_LISTED = 8
"""The most relations without fields that are listed singly; files of triples have hundreds."""


data = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Make, import, inspect and export graphs.",
    epilog="Example: penstock data make synthetic-arxiv --out data/arxiv",
)
data.command("import")(import_command)
data.command("inspect")(inspect_command)
data.command("append")(append_command)
data.command("compact")(compact_command)
data.command("prepare")(prepare_command)
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
    cells = ([row["name"], short(row["nodes"]), short(row["edges"]), row["summary"]] for row in rows)
    print_rows([*unwrapped(["data set"]), "vertices", "edges", "like"], cells, width=None)


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
    if nodes is not None:
        scale = nodes / sum(node.count for node in recipe.nodes.values())
    recipe = replace(recipe.scaled(1.0 if scale is None else scale), feature_dtype=feature_dtype)
    if both_directions:
        recipe = recipe.made_symmetric()
    with measured() as cost, shown_progress(as_json) as progress:
        graph = make_graph(recipe, out, seed, force, threads, progress)
    size = f"{counted(graph.num_nodes, 'vertices')}, {counted(graph.num_edges, 'edges')}"
    answer(as_json, _fields(graph, out, cost), f"{as_named(out)}: {size} in {cost.seconds:.1f} s")
