"""The card of validation metrics: one chart for each, and a table of what the best model reached."""

from typing import NamedTuple

from penstock.report.axes import epoch_axis, fitted
from penstock.report.charts import Mark, Series, line_chart
from penstock.report.markup import card, key
from penstock.report.run_folder import RunRecord
from penstock.report.values import numbers
from penstock.report.words import is_percentage, metric_name, metric_value

_MOST_CHARTS, _FEW_CHARTS = 4, 2
"""Charts in all, and those below each other in one column."""


class _Curve(NamedTuple):
    """Metrics whose values agree in every epoch, as accuracy and micro F1 do where every vertex has one class."""

    metrics: list[str]
    points: list[tuple[float, float]]
    look: str

    @property
    def name(self) -> str:
        return " and ".join(metric_name(each) for each in self.metrics) + (" (equal)" if len(self.metrics) > 1 else "")


def validation_card(run: RunRecord) -> str:
    """Every validation metric by epoch in a chart of its own; the best epoch is marked in the one that decides."""
    curves = _curves(run)[:_MOST_CHARTS]
    results = _results(run, curves)
    if not curves:
        return card("Results", results) if results else ""
    charts = [_chart(run, curve) for curve in curves]
    if len(charts) <= _FEW_CHARTS:
        return card("Validation", "".join(charts) + results, "by epoch")
    body = "".join(f"<div>{chart}</div>" for chart in charts)
    return card("Validation", f'<div class="charts">{body}</div>{results}', "by epoch", wide=True)


def _curves(run: RunRecord) -> list[_Curve]:
    """The metric that decides first; metrics with the same values share a curve."""
    names = list(dict.fromkeys(name for each in run.log.epochs for name in each.val))
    names.sort(key=lambda name: name != run.metric)
    found: list[_Curve] = []
    for name in names:
        # Validation every few epochs is one curve, not dots: epochs without it are no breaks.
        points = [(float(each.epoch), each.val[name]) for each in run.log.epochs if name in each.val]
        same = next((curve for curve in found if _alike(curve.points, points)), None)
        if same is not None and is_percentage(same.metrics[0]) == is_percentage(name):
            same.metrics.append(name)
        else:
            found.append(_Curve([name], points, f"c{2 + len(found) % _MOST_CHARTS}"))
    return found


def _alike(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> bool:
    """Whether two curves would look the same on the page."""
    return len(some) == len(others) and all(
        at == other_at and abs(value - other) <= 1e-9 * max(abs(value), abs(other))
        for (at, value), (other_at, other) in zip(some, others, strict=True)
    )


def _chart(run: RunRecord, curve: _Curve) -> str:
    metric, decides = curve.metrics[0], run.metric in curve.metrics
    scale = 100.0 if is_percentage(metric) else 1.0
    series = [_series(metric_name(metric), metric, curve.points, scale, curve.look)]
    tested = [(float(each.epoch), each.test[metric]) for each in run.log.epochs if metric in each.test]
    if tested:
        series.append(_series(f"test {metric_name(metric)}", metric, tested, scale, "c1"))
    values = [value for each in series for _, value in each.points if value is not None]
    mark = _mark(run, metric, scale) if decides else None
    if mark is not None:
        # Room for the mark's words beyond the best value.
        room = (max(values) - min(values)) * 0.08
        values.append(max(values) + room if run.higher_is_better else min(values) - room)
    x = epoch_axis(float(each.epoch) for each in run.log.epochs)
    drawn = line_chart(f"Validation {curve.name}", series, x, fitted(values), mark=mark)
    unit = "%" if scale == 100 else ""
    tested_key = key("on the test split", "c1") if tested else ""
    title = f'<h3>{key(curve.name, curve.look)}<span class="about">{unit}</span>{tested_key}</h3>'
    return title + drawn


def _series(name: str, metric: str, points: list[tuple[float, float]], scale: float, look: str) -> Series:
    texts = {at: metric_value(metric, value) for at, value in points}
    return Series(name, [(at, value * scale) for at, value in points], look, texts)


def _mark(run: RunRecord, metric: str, scale: float) -> Mark | None:
    best = run.best
    if best is None or metric not in best.val:
        return None
    words = f"{metric_value(metric, best.val[metric])} at epoch {best.epoch:,}"
    return Mark(float(best.epoch), best.val[metric] * scale, words, above=run.higher_is_better)


def _results(run: RunRecord, curves: list[_Curve]) -> str:
    """Every metric of the best model, with the colours of those that are drawn."""
    val, test = numbers(run.result.get("val")), numbers(run.result.get("test"))
    if not val and not test:
        return ""
    looks = {name: curve.look for curve in curves for name in curve.metrics}
    rows = []
    for name in sorted(dict.fromkeys([*looks, *val, *test]), key=lambda name: name != run.metric):
        cells = "".join(f"<td>{metric_value(name, each[name]) if name in each else ''}</td>" for each in (val, test))
        rows.append(f"<tr><td>{key(metric_name(name), looks.get(name, 'undrawn'))}</td>{cells}</tr>")
    return (
        "<table><thead><tr><th>best model</th><th>validation</th><th>test</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )
