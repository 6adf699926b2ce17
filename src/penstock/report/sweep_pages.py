"""The pages of sweeps: what an iteration takes over the swept values, and latency of paths over load."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from penstock.formatting import counted
from penstock.graph.files import write_whole
from penstock.report.charts import Point, Series, exact, fitted, line_chart, logarithmic, spans_decades, time_unit
from penstock.report.markup import card, cut, key, page_header, page_text, table
from penstock.report.words import seconds

# The page of a sweep: an iteration's time over the swept values, and the table of results.

_LOOKS = ("c1", "c2", "c3", "c4", "c5")
_TIMES = ("iteration_s", "step_s", "makespan_s")


def write_sweep_page(
    title: str, rows: list[dict[str, Any]], head: list[str], cells: list[list[str]], path: Path
) -> None:
    """Write a page that works offline; `head` and `cells` are the table as the command prints it."""
    fields = ", ".join(rows[0]["point"])
    sub = f"<span>{counted(len(rows), 'combinations')} of {escape(fields)}</span>"
    header = page_header("sweep", cut(title, 80), sub)
    cards = [_chart_card(rows), card("All combinations", table(head, cells), wide=True)]
    write_whole(path, page_text(title, header, cards, "Computed"))


def _chart_card(rows: list[dict[str, Any]]) -> str:
    """The time over the first field whose values are numbers, with one curve for each combination of the others."""
    field = next((name for name in rows[0]["point"] if all(_is_number(row["point"][name]) for row in rows)), None)
    time = next((name for name in _TIMES if all(row.get(name) is not None for row in rows)), None)
    if field is None or time is None or len({row["point"][field] for row in rows}) < 2:
        return ""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        others = ", ".join(f"{name} {value}" for name, value in row["point"].items() if name != field)
        curves.setdefault(others, []).append((float(row["point"][field]), float(row[time])))
    left = len(curves) - len(_LOOKS)
    drawn = dict(list(curves.items())[: len(_LOOKS)])
    size, unit = time_unit(max(value for points in drawn.values() for _, value in points))
    series = [_series(name, points, size, look) for (name, points), look in zip(drawn.items(), _LOOKS, strict=False)]
    values = [value for each in series for _, value in each.points if value is not None]
    places = sorted({at for each in series for at, _ in each.points})
    x = logarithmic(places) if spans_decades(places) else exact(places[0], places[-1])
    chart = line_chart(f"Time over {field}", series, x, fitted(values, from_zero=True), x_name=field)
    keys = "".join(key(each.name, each.look) for each in series) if len(curves) > 1 else ""
    more = f" {counted(left, 'more combinations')} {'is' if left == 1 else 'are'} in the table." if left > 0 else ""
    what = {"iteration_s": "iteration", "step_s": "step"}.get(time, "makespan")
    return card(f"Time for each {what}" if what != "makespan" else "Makespan", chart,
                f"{unit}, over {escape(field)}", wide=True, foot=keys + more)  # fmt: skip


def _series(name: str, points: Sequence[tuple[float, float]], size: float, look: str) -> Series:
    ordered = sorted(points)
    return Series(
        name, [(at, value / size) for at, value in ordered], look, {at: seconds(value) for at, value in ordered}
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# The page of simulated paths: median latency against offered load, which paths were taken, and all figures.

_SELECTOR_LOOKS = ("c1", "c2", "c3", "c4", "c5", "other")


def write_paths_page(
    application: str,
    workload: str,
    rows: list[dict[str, Any]],
    bounds: list[dict[str, Any]],
    highest_rate: float,
    path: Path,
) -> None:
    """Write a page that works offline; `rows` and `bounds` are those of the JSON interface."""
    title = f"{application}: {workload}"
    sub = f"<span>at most {highest_rate / 1e6:.3g} million requests per second can be served</span>"
    header = page_header("paths", title, sub)
    curves = _curves(rows)
    cards = [
        _chart("Median latency", "median_us", curves, rows, bounds, wide=True),
        _chart("99 of 100 requests within", "p99_us", curves, rows, [], wide=True),
        card("All simulations", table(_HEAD, [_cells(row) for row in rows]), wide=True),
    ]
    write_whole(path, page_text(title, header, cards, "Simulated"))


_HEAD = ["load", "requests/s", "selector", "median", "99 of 100", "mean", "served/s", "followed", "paths"]


def _curves(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The selectors that get a curve, with their looks: as many as can be told apart."""
    return dict(zip(dict.fromkeys(row["selector"] for row in rows), _SELECTOR_LOOKS, strict=False))


def _chart(
    title: str, field: str, curves: dict[str, str], rows: list[dict[str, Any]], bounds: list[dict[str, Any]], wide: bool
) -> str:
    series = [
        Series(name, points, look, {at: f"{value:.4g} us" for at, value in points if value is not None})
        for name, look in curves.items()
        if (points := _points([row for row in rows if row["selector"] == name], field))
    ]
    behind = _points([bound for bound in bounds if bound["mean_us"] is not None], "mean_us")
    values = [value for points in [*(each.points for each in series), behind] for _, value in points if value]
    places = sorted({row["rate"] / 1e6 for row in rows})
    y = logarithmic(values) if spans_decades(values) else fitted(values, from_zero=True)
    chart = line_chart(title, series, exact(places[0], places[-1]), y, behind=behind, x_name="Mreq/s")
    keys = "".join(key(each.name, each.look) for each in series)
    left = len(dict.fromkeys(row["selector"] for row in rows)) - len(curves)
    more = f" The table has {counted(left, 'selectors')} more." if left > 0 else ""
    faint = " The faint line is the fluid bound of the mean." if behind else ""
    about = "microseconds, over million requests per second"
    return card(title, chart, about, wide=wide, foot=keys + more + faint)


def _points(rows: list[dict[str, Any]], field: str) -> list[Point]:
    return sorted((row["rate"] / 1e6, row[field]) for row in rows)


def _cells(row: dict[str, Any]) -> list[str]:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row["shares"].items() if share > 0)
    times = [f"{row[name]:.4g} us" for name in ("median_us", "p99_us", "mean_us")]
    rates = f"{row['rate']:.3g}", f"{row['requests_per_s']:.3g}"
    return [f"{row['load']:g}", rates[0], row["selector"], *times, rates[1], f"{row['followed']:.1%}", shares]
