"""The page of simulated paths: median latency against offered load, which paths were taken, and all figures."""

from html import escape
from pathlib import Path
from typing import Any

from penstock.graph.atomic import write_whole
from penstock.quantities import counted
from penstock.report.axes import exact, fitted, logarithmic, spans_decades
from penstock.report.charts import Point, Series, line_chart
from penstock.report.markup import THEME_BUTTON, card, key, page_text, table

_LOOKS = ("c1", "c2", "c3", "c4", "c5", "other")


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
    header = (
        f'<header class="good"><div class="top"><p class="state"><b>paths</b></p>{THEME_BUTTON}</div>'
        f'<div class="hero"><div><h1>{escape(title)}</h1><p class="sub"><span>at most {highest_rate / 1e6:.3g} million'
        " requests per second can be served</span></p></div></div></header>"
    )
    curves = _curves(rows)
    cards = [
        _chart("Median latency", "median_us", curves, rows, bounds, wide=True),
        _chart("99 of 100 requests within", "p99_us", curves, rows, [], wide=True),
        card("All simulations", table(_HEAD, [_cells(row) for row in rows]), wide=True),
    ]
    write_whole(path, page_text(title, header, cards, "Simulated"))


_HEAD = ["load", "requests/s", "selector", "median", "99 of 100", "mean", "served/s", "followed", "paths"]


def _curves(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The selectors with a curve and their looks: as many as can be told apart."""
    return dict(zip(dict.fromkeys(row["selector"] for row in rows), _LOOKS, strict=False))


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
