"""`penstock data inspect`: a graph at a glance."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from penstock.cli.output import JsonOption, print_json
from penstock.quantities import counted
from penstock.terminal_progress import shown_progress

if TYPE_CHECKING:
    from penstock.graph.inspect import DegreeReport, Inspection

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
    """The inspection as the JSON interface names it; a graph without a folder has its source for `path`."""
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
            edge_key(kind): {
                "count": edges.count,
                "self_loops": edges.self_loops,
                "duplicates": edges.duplicates,
            }
            for kind, edges in found.edges.items()
        },
        "degree": {"mean": found.degree.mean, "max": found.degree.max},
        "isolated": found.isolated,
        "bytes": found.nbytes,
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
    parts += [_node_table(found), "", _edge_table(found), "", *_degrees(found.degree), "", _warnings(found)]
    return Group(*parts)


def _node_table(found: "Inspection") -> Table:
    table = _table("Vertices", "Count", "Isolated", "Fields", "Splits")
    for name, nodes in found.nodes.items():
        fields = [
            f"{escape(key)} {each.dtype} {escape(str(each.shape[1:] or ''))}".rstrip()
            for key, each in nodes.fields.items()
        ]
        splits = [f"{escape(key)} {size:,}" for key, size in nodes.splits.items()]
        table.add_row(
            escape(name),
            f"{nodes.count:,}",
            f"{nodes.isolated:,}",
            "\n".join(fields) or "-",
            "\n".join(splits) or "-",
        )
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
    """A bar in eighths of a character; whatever is there shows at least one."""
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
