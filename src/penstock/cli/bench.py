"""`penstock bench`: how fast this machine samples batches and trains on them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import JsonOption, UncheckedOption, print_json
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.graph import Graph

bench = typer.Typer(no_args_is_help=True, help="Measure sampling and training on this machine.")

GraphOption = Annotated[str, typer.Option("--graph", help="A graph folder, or anything `ps.load` recognises.")]
FanoutsOption = Annotated[str, typer.Option("--fanouts", help="Neighbours a vertex and hop, from the seeds.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Seeds a batch.")]
BatchesOption = Annotated[int, typer.Option("--batches", min=1, help="Batches to measure.")]


@bench.command("sampling")
def sampling_command(
    graph: GraphOption = "synthetic-arxiv",
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchOption = 1024,
    batches: BatchesOption = 40,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Batches drawn a second, alone and with features, on one thread and on all.

    Example: penstock bench sampling --graph data/arxiv
    """
    from penstock.cost.sampling_rate import measure_sampling, seed_batches
    from penstock.graph.blocks import default_threads

    opened = _opened(graph, unchecked)
    chosen = seed_batches(opened, batch_size, batches)
    rows = [
        measure_sampling(opened, chosen, _numbers(fanouts), threads, gather)
        for gather in (False, True)
        for threads in dict.fromkeys((1, default_threads()))
    ]
    _show([dict(row) for row in rows], as_json)


@bench.command("training")
def training_command(
    graph: GraphOption = "synthetic-arxiv",
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchOption = 1024,
    batches: BatchesOption = 12,
    hidden: Annotated[int, typer.Option(min=1, help="Width between GraphSAGE's layers.")] = 256,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Seconds a GraphSAGE step, and an epoch of the whole pipeline beside what its parts take alone.

    Example: penstock bench training --graph data/arxiv --hidden 64
    """
    from penstock.cost.sampling_rate import seed_batches
    from penstock.cost.step_time import loaded, measure_epoch, measure_steps, sage_step

    opened, numbers = _opened(graph, unchecked), _numbers(fanouts)
    chosen = seed_batches(opened, batch_size, batches)
    ready = [loaded(opened, number, seeds, numbers) for number, seeds in enumerate(chosen[:6])]
    rows = measure_steps({"step": sage_step(opened, hidden, len(numbers))}, ready)
    rows.append(measure_epoch(opened, chosen, numbers, hidden))
    _show([dict(row) for row in rows], as_json)


def _opened(name: str, unchecked: bool) -> "Graph":
    from penstock.graph.convert import load
    from penstock.graph.integrity import check_graph

    graph = load(name, unchecked=unchecked)
    if not graph.is_homogeneous or not {"x", "y"} <= set(next(iter(graph.nodes.values())).fields):
        raise PenstockError(
            f"{name} cannot be used for this benchmark: use a graph with one node type, features x and labels y.",
            code="unsupported-combination",
        )
    check_graph(graph)
    return graph


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PenstockError(
            f"--fanouts {text!r} is not a list of numbers: write it as 15,10,5.", code="invalid-value"
        ) from None


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"rows": rows})
        return
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    Console().print(table)
