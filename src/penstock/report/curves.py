"""The cards with curves: loss, seconds and memory by epoch or over time, and validation metrics."""

from bisect import bisect_left
from html import escape
from statistics import median
from typing import NamedTuple

from penstock.report.charts import (
    Axis,
    Mark,
    Point,
    Series,
    column_chart,
    epoch_axis,
    exact,
    fitted,
    line_chart,
    logarithmic,
    spans_decades,
    time_unit,
)
from penstock.report.markup import byte_size, card, is_percentage, key, mebibytes, metric_name, metric_value, seconds
from penstock.report.run_folder import RunRecord
from penstock.report.run_logs import numbers

# The cards with curves by epoch or over time: loss, seconds for each epoch, memory.

_MOST_COLUMNS = 60
_FEW_EPOCHS = 5


def loss_card(run: RunRecord) -> str:
    """The training loss by epoch, with the losses between epochs faint behind it."""
    points: list[Point] = [
        (float(each.epoch), each.loss) for each in run.log.epochs if each.diverged or each.loss is not None
    ]
    steps = _steps_in_epochs(run)
    by_step = not any(value is not None for _, value in points) and bool(run.log.steps)
    if by_step:
        points, steps = [(float(step), loss) for step, loss in run.log.steps], []
    values = [value for _, value in [*points, *steps] if value is not None]
    foot = _divergence(run)
    if not values:
        return card("Loss", '<p class="none">No finite loss was recorded.</p>', foot=foot) if points else ""
    log = spans_decades(values)
    y = logarithmic(values) if log else fitted(values)
    x = epoch_axis([at for at, _ in [*points, *steps]])
    series = Series("", points, "c1", {at: f"{value:.5g}" for at, value in points if value is not None})
    name = "step" if by_step else "epoch"
    drawn = line_chart("Training loss", [series], x, y, behind=steps, x_name=name)
    about = f"training, by {name}{', logarithmic' if log else ''}{'; faint: single batches' if steps else ''}"
    return card("Loss", drawn, about, foot=foot)


def epoch_seconds_card(run: RunRecord) -> str:
    """How long each epoch took: columns while they can be told apart, a curve beyond."""
    points = [(float(each.epoch), each.seconds) for each in run.log.epochs if each.seconds is not None]
    values = [value for _, value in points]
    if not values:
        return ""
    size, unit = time_unit(max(values))
    texts = {at: seconds(value) for at, value in points}
    series = Series("", [(at, value / size) for at, value in points], "c1", texts)
    y = fitted([value / size for value in values], from_zero=True)
    ends = points[0][0], points[-1][0]
    if ends[1] - ends[0] < _MOST_COLUMNS:
        inner = epoch_axis([at for at, _ in points])
        x = Axis(ends[0] - 0.6, ends[1] + 0.6, inner.ticks)
        drawn = column_chart("Seconds for each epoch", series, x, y)
    else:
        drawn = line_chart("Seconds for each epoch", [series], exact(*ends, whole=True), y, area=True)
    return card("Time for each epoch", drawn, unit, foot=escape(_epoch_times(values)))


def memory_card(run: RunRecord) -> str:
    """Resident memory over time, from the trace or, without one, from the epochs."""
    samples = run.trace.memory
    by_epoch = [(each.time, each.rss_mb) for each in run.log.epochs if each.time is not None and each.rss_mb]
    traced = samples[-1][0] if samples else 0.0
    if (len(by_epoch) > 1 and traced < 0.8 * by_epoch[-1][0]) or len(samples) < 2:
        # No trace, or one that stops long before the run does.
        samples = by_epoch
    if not samples:
        return ""
    gib = max(rss for _, rss in samples) >= 1024
    size, unit = time_unit(max(at for at, _ in samples))
    points: list[Point] = [(at / size, rss / 1024 if gib else rss) for at, rss in samples]
    texts = {at / size: f"{mebibytes(rss)} after {seconds(at)}" for at, rss in samples}
    x, y = exact(points[0][0], points[-1][0]), fitted([value for _, value in points if value], from_zero=True)
    drawn = line_chart("Memory", [Series("", points, "c1", texts)], x, y, x_name="", area=True)
    return card("Memory", drawn, f"{'GiB' if gib else 'MiB'} resident, over {unit}", foot=escape(_room(run)))


def _epoch_times(values: list[float]) -> str:
    """A sentence on the epochs' times; it names the median where there are enough epochs for one."""
    if len(values) < 2:
        return ""
    if len(values) < _FEW_EPOCHS:
        return f"The shortest epoch took {seconds(min(values))}, the longest {seconds(max(values))}."
    return f"The median epoch took {seconds(median(values))}, the longest {seconds(max(values))}."


def _room(run: RunRecord) -> str:
    machine = run.machine.get("memory_mb")
    peak = f"Peak {mebibytes(run.peak_rss_mb)}" if run.peak_rss_mb else ""
    if peak and isinstance(machine, int | float) and machine > 0:
        peak += f" of the machine's {mebibytes(machine)}"
    held = run.graph.get("bytes")
    if peak and isinstance(held, int | float) and held > 0:
        peak += f"; the graph is {byte_size(held)}"
    return f"{peak}." if peak else ""


def _steps_in_epochs(run: RunRecord) -> list[Point]:
    """The losses of single batches, each at its fraction of the epoch."""
    ends = [(each.step, each.epoch) for each in run.log.epochs if each.step is not None]
    if not ends or ends != sorted(ends):
        return []
    known = [0, *(step for step, _ in ends)]
    epochs = [ends[0][1] - 1, *(epoch for _, epoch in ends)]
    places: list[Point] = []
    for step, loss in sorted(run.log.steps, key=lambda each: each[0]):
        after = min(max(bisect_left(known, step), 1), len(known) - 1)
        width = known[after] - known[after - 1]
        if width > 0:
            share = (step - known[after - 1]) / width
            places.append((epochs[after - 1] + share * (epochs[after] - epochs[after - 1]), loss))
    return places


def _divergence(run: RunRecord) -> str:
    first = next((each.epoch for each in run.log.epochs if each.diverged), None)
    return "" if first is None else f'<b class="bad">The loss was not a finite number at epoch {first:,}.</b>'


# The card of validation metrics: one chart for each, and a table of the best model's values.

_MOST_CHARTS, _FEW_CHARTS = 4, 2
"""The most charts in all, and the most that are stacked in one column."""


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
    """The curves, the deciding metric's first; metrics with the same values share a curve."""
    names = list(dict.fromkeys(name for each in run.log.epochs for name in each.val))
    names.sort(key=lambda name: name != run.metric)
    found: list[_Curve] = []
    for name in names:
        # Where only every few epochs are validated, the curve connects them: epochs without a value are no breaks.
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
        # Leaves room for the mark's text beyond the best value.
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
