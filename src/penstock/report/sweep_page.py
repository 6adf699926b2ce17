"""The page of a sweep: what an iteration takes over the swept values, and the table behind it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from penstock.graph.atomic import write_whole
from penstock.quantities import counted
from penstock.report.axes import exact, fitted, logarithmic, spans_decades, time_unit
from penstock.report.charts import Series, line_chart
from penstock.report.markup import THEME_BUTTON, card, cut, key, page_text, table
from penstock.report.words import seconds

_LOOKS = ("c1", "c2", "c3", "c4", "c5")
_TIMES = ("iteration_s", "step_s", "makespan_s")


def write_sweep_page(
    title: str, rows: list[dict[str, Any]], head: list[str], cells: list[list[str]], path: Path
) -> None:
    """Write a page that works offline; `head` and `cells` are the table as the command prints it."""
    fields = ", ".join(rows[0]["point"])
    header = (
        f'<header class="good"><div class="top"><p class="state"><b>sweep</b></p>{THEME_BUTTON}</div>'
        f'<div class="hero"><div><h1>{escape(cut(title, 80))}</h1>'
        f'<p class="sub"><span>{counted(len(rows), "combinations")} of {escape(fields)}</span></p></div></div></header>'
    )
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
