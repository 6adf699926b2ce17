"""`--sweep` of `penstock simulate` and `penstock plan`: every combination of values as one row of a table."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from penstock.cli.output import print_json, print_rows, unwrapped
from penstock.errors import PenstockError
from penstock.formatting import percent
from penstock.graph.document_sweep import Point, said
from penstock.graph.files import check_ending

SweepOption = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="FIELD=A,B,...", help="Try these values of a field; may be repeated."),
]
NOT_WITH_SWEEP = "--sweep and --{} cannot be combined: leave one of them out."
"""Said to options that show one result: a sweep is a table of many."""
ChartOption = Annotated[Path | None, typer.Option(help="With --sweep: draw the sweep as a page (.html).")]


class Quantity(NamedTuple):
    """A column of a sweep's table: the field of its rows, its title, and how its values are written."""

    name: str
    title: str
    written: Callable[[Any], str]


def _seconds(value: Any) -> str:
    from penstock.report.words import seconds

    return seconds(value)


SIMULATED_COLUMNS = (
    Quantity("step_s", "step", _seconds),
    Quantity("makespan_s", "makespan", _seconds),
    Quantity("lower_bound_s", "no less than", _seconds),
    Quantity("gap", "gap", percent),
    Quantity("mean_cct_s", "mean coflow", _seconds),
    Quantity("slowest_link", "slowest link", str),
    Quantity("utilisation", "used", percent),
)
PLANNED_COLUMNS = (
    Quantity("placement", "placement", str),
    Quantity("flows", "flows", str),
    Quantity("iteration_s", "iteration", _seconds),
    Quantity("epoch_s", "epoch", _seconds),
    Quantity("lower_bound_s", "no less than", _seconds),
    Quantity("slowest_link", "slowest link", str),
)


def check_chart(chart: Path | None, sweep: Sequence[str] | None) -> None:
    """Refuse a page that cannot be written, before anything is computed."""
    if chart is None:
        return
    if not sweep:
        raise PenstockError("--chart draws a sweep: give --sweep FIELD=VALUE,VALUE,... as well.", code="option-missing")
    check_page(chart)


def check_page(chart: Path) -> None:
    """Refuse a page that cannot be written."""
    check_ending(chart, "not a page", ".html")


def computed_rows(work: Iterable[tuple[Point, Callable[[], dict[str, Any]]]]) -> list[dict[str, Any]]:
    """A row for every point: the result of its work, or the reason why it failed; an error where all fail."""
    rows: list[dict[str, Any]] = []
    for point, compute in work:
        try:
            rows.append({"point": point, **compute(), "error": None, "code": None})
        except PenstockError as error:
            rows.append({"point": point, "error": str(error), "code": error.code})
    if all(row["error"] is not None for row in rows):
        raise PenstockError(rows[0]["error"], code=rows[0]["code"])
    return rows


def show_sweep(
    rows: list[dict[str, Any]], columns: Sequence[Quantity], title: str, as_json: bool, chart: Path | None
) -> None:
    """Print the rows as one JSON object or as a table, and write them as a page where `chart` is given."""
    head = [*rows[0]["point"], *(each.title for each in columns)]
    cells = [[*map(str, row["point"].values()), *(_written(row, each) for each in columns)] for row in rows]
    if chart is not None:
        from penstock.report.sweep_pages import write_sweep_page

        write_sweep_page(title, [row for row in rows if row["error"] is None], head, cells, chart)
    if as_json:
        print_json({"fields": list(rows[0]["point"]), "sweep": rows, "chart": None if chart is None else str(chart)})
        return
    print_rows(unwrapped(head), cells)
    for row in rows:
        if row["error"] is not None:
            print(f"{said(row['point'])}: {row['error']}")
    if chart is not None:
        print(f"Chart: {chart}")


def _written(row: dict[str, Any], column: Quantity) -> str:
    return "-" if row.get(column.name) is None else column.written(row[column.name])
