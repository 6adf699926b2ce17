"""`penstock partition`: cut a graph, or compare ways of cutting it."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import (
    ForceOption,
    JsonOption,
    MeasuredCommand,
    SeedOption,
    ThreadsOption,
    UncheckedOption,
    as_named,
    measured,
    print_json,
    print_rows,
    short,
)
from penstock.errors import PenstockError
from penstock.partition.methods import METHODS
from penstock.terminal_progress import shown_progress

if TYPE_CHECKING:
    from penstock.graph import Graph
    from penstock.partition import Cut, Metrics


def partition_command(
    graph: Annotated[str, typer.Argument(help="A graph folder, or anything `ps.load` recognises.")],
    parts: Annotated[int, typer.Option("--parts", help="Parts, one a machine.")],
    out: Annotated[Path | None, typer.Option("--out", help="The partition folder to write.")] = None,
    trainers: Annotated[int, typer.Option(help="Sub-parts of every part, one a trainer.")] = 1,
    method: Annotated[str, typer.Option(help=f"{METHODS.words('auto')}.")] = "metis",
    refine: Annotated[str | None, typer.Option(help="balanced: lower what the busiest part sends or reads.")] = None,
    balance: Annotated[str, typer.Option(help="Constraints: vertices, edges, train, val, test, types.")] = "",
    tolerance: Annotated[float, typer.Option(help="Largest load of a part over the mean.")] = 1.05,
    passes: Annotated[int, typer.Option(help="How often `stream` moves vertices; more passes, less cut.")] = 1,
    seed: SeedOption = 0,
    threads: ThreadsOption = None,
    compare: Annotated[bool, typer.Option("--compare", help="Measure several methods and write nothing.")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Predict seconds, memory and cut, and write nothing.")] = False,
    methods: Annotated[str, typer.Option(help="With --compare: which, METHOD or METHOD+balanced.")] = "",
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Have the nodes of the Ray cluster at HOST:PORT, or of this host's (auto), write the parts; they share"
            " the folders of GRAPH and --out.",
        ),
    ] = None,
    unchecked: UncheckedOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cut a graph into parts.

    Example: penstock partition data/arxiv --parts 4 --trainers 2 --out data/arxiv-4

    Example: penstock partition data/arxiv --parts 4 --compare

    Example: penstock partition data/arxiv --parts 4 --plan
    """
    from penstock.partition import Cut, Metrics, cut

    names = tuple(name.strip() for name in balance.split(",") if name.strip())
    if parts == 1 and trainers == 1:
        raise PenstockError(
            "--parts 1 cuts nothing: use the graph folder as it is, ask for more parts, or add --trainers.",
            code="value-out-of-range",
        )
    how = Cut(parts, trainers, method, refine, names, tolerance, seed, passes)
    if compare or plan:
        other = "--compare" if compare else "--plan"
        if ray is not None:
            raise PenstockError(f"{other} writes no parts: remove --ray.", code="conflicting-options")
        if out is not None or (compare and plan):
            raise PenstockError(
                f"{other} writes nothing: leave out {'--plan' if out is None else '--out'}, or leave out {other}.",
                code="conflicting-options",
            )
    if plan:
        _plan(graph, how, threads, unchecked, as_json)
        return
    if compare:
        _compare(graph, how, methods, threads, unchecked, as_json)
        return
    if out is None:
        raise PenstockError(
            "Name the folder to write with --out, or add --compare to write nothing.", code="option-missing"
        )
    with measured() as cost, shown_progress(as_json) as progress:
        if ray is None:
            result = cut(_load(graph, unchecked), how, out, force, threads, progress)
        else:
            from penstock.cluster.launch.ray_cluster import ray_tasks

            with ray_tasks(ray) as mapped:
                result = cut(_load(graph, unchecked), how, out, force, threads, progress, mapped)
    metrics = Metrics(**{key: result.document.metrics[key] for key in Metrics.__dataclass_fields__})
    fields = {
        "path": as_named(out),
        **_fields(how, metrics, cost),
        "method": result.document.method,
        "chosen": result.document.chosen,
        "trainer_balance": result.document.trainer_balance,
        "notes": progress.notes,
    }
    if as_json:
        print_json(fields)
    else:
        _print_table([fields])
        print(f"Written to {as_named(out)}")


def _plan(graph: str, how: "Cut", threads: int | None, unchecked: bool, as_json: bool) -> None:
    """Print what each method will probably take, and which one `auto` would take."""
    from penstock.memory import available_mb
    from penstock.partition.assignment import check_cut
    from penstock.partition.forecast import AUTO, chosen, forecasts
    from penstock.processes import default_threads

    if how.method != AUTO:
        METHODS[how.method]
    opened = _load(graph, unchecked)
    check_cut(opened, how)
    given = opened, how.parts, how.passes, threads or default_threads()
    found = forecasts(*given)
    method, why = chosen(*given)
    if as_json:
        rows = [each.document() for each in found]
        print_json({"graph": graph, "parts": how.parts, "auto": method, "why": why, "plan": rows})
        return
    table = Table("", "seconds", "MB", "edges cut", "", box=None)
    for each in found:
        low, high = each.cut
        cut = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
        remark = "" if each.fits else "does not fit"
        table.add_row(
            each.method,
            f"{each.seconds:,.2g}" if each.seconds < 10 else f"{each.seconds:,.0f}",
            f"{each.memory_mb:,.0f}",
            cut,
            remark if each.installed else "is not installed",
        )
    Console().print(table)
    print(f"Estimates for this class of machine; {available_mb():,} MB are free. {why}")


def _compare(graph: str, base: "Cut", methods: str, threads: int | None, unchecked: bool, as_json: bool) -> None:
    from penstock.graph.integrity import check_graph
    from penstock.partition import assign

    wanted = methods.split(",") if methods else ["random", "chunk", "stream", "metis", "metis+balanced", "hypergraph"]
    ways = [_named_cut(base, name.strip()) for name in wanted]
    rows: list[dict[str, Any]] = []
    with shown_progress(as_json) as progress:
        opened = _load(graph, unchecked)
        # A graph that is wrong is wrong for every method.
        check_graph(opened)
        for how in ways:
            try:
                with measured() as cost:
                    progress.note(f"{how.method}{'+' + how.refine if how.refine else ''}:")
                    assigned = assign(opened, how, threads, progress)
            except PenstockError as error:
                if len(ways) == 1:
                    raise
                progress.note(f"{how.method}: {error}")
                continue
            rows.append({**_fields(assigned.how, assigned.metrics, cost), "chosen": assigned.chosen})
    if as_json:
        print_json({"graph": graph, "compare": rows, "notes": progress.notes})
    elif rows:
        _print_table(rows)


def _named_cut(base: "Cut", name: str) -> "Cut":
    from penstock.partition.assignment import REFINEMENTS
    from penstock.partition.forecast import AUTO

    method, _, refine = name.partition("+")
    if method != AUTO:
        METHODS[method]
    if refine and refine not in REFINEMENTS:
        raise PenstockError(
            f"There is no refinement {refine!r}: use one of {', '.join(REFINEMENTS)}.", code="unknown-name"
        )
    return replace(base, method=method, refine=refine or base.refine)


def _load(graph: str, unchecked: bool) -> "Graph":
    from penstock.graph.convert import load

    return load(graph, unchecked=unchecked)


def _fields(how: "Cut", metrics: "Metrics", cost: MeasuredCommand) -> dict[str, Any]:
    """A cut as fields of the JSON interface."""
    return {
        "method": how.method,
        "refine": how.refine,
        "parts": how.parts,
        "trainers": how.trainers,
        **asdict(metrics),
        "max_send": metrics.max_send,
        "max_recv": metrics.max_recv,
        **cost.fields(),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    """Print a table with one column for each method, so that many constraints fit a narrow terminal."""
    names = [row["method"] + (f"+\n{row['refine']}" if row["refine"] else "") for row in rows]
    lines = {
        "edges cut": [f"{row['edge_cut_fraction']:.2%}" for row in rows],
        "volume": [short(row["comm_volume"]) for row in rows],
        "most sent": [short(row["max_send"]) for row in rows],
        "most read": [short(row["max_recv"]) for row in rows],
        "copies a vertex": [f"{row['replication']:.2f}" for row in rows],
        **{f"balance {key}": [f"{row['balance'][key]:.3f}" for row in rows] for key in rows[0]["balance"]},
        "seconds": [f"{row['seconds']:.1f}" for row in rows],
        "peak MB": [f"{row['peak_rss_mb']:,.0f}" for row in rows],
    }
    print_rows(["", *names], ([what, *values] for what, values in lines.items()), width=None)
