"""The cards with curves: loss, validation, seconds an epoch, memory."""

from bisect import bisect_left
from collections.abc import Callable
from html import escape

from penstock.report.axes import Axis, exact, fitted, logarithmic, spans_decades, time_unit
from penstock.report.charts import Mark, Point, Series, column_chart, line_chart
from penstock.report.markup import card, key
from penstock.report.run_folder import Run
from penstock.report.values import numbers
from penstock.report.words import is_percentage, mebibytes, metric_name, metric_value, seconds

_MOST_COLUMNS = 60
_LOOKS = ("c1", "c2", "c3", "c4", "c5")


def loss_card(run: Run) -> str:
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
    x = _x_axis([at for at, _ in [*points, *steps]])
    series = Series("", points, "c1", {at: f"{value:.5g}" for at, value in points if value is not None})
    name = "step" if by_step else "epoch"
    drawn = line_chart("Training loss", [series], x, y, behind=steps, x_name=name)
    about = f"training, by {name}{', logarithmic' if log else ''}{'; faint: single batches' if steps else ''}"
    return card("Loss", drawn, about, foot=foot)


def validation_card(run: Run) -> str:
    """Every validation metric by epoch, and the test's where it was measured; the best epoch is marked."""
    epochs = run.log.epochs
    names = list(dict.fromkeys(key for each in epochs for key in each.val))
    names.sort(key=lambda name: name != run.metric)
    # Metrics of another scale would flatten the one that decides.
    names = [name for name in names if is_percentage(name) == is_percentage(names[0])][: len(_LOOKS) - 1]
    results = _results(run, names)
    if not names:
        return card("Results", results) if results else ""
    scale = 100.0 if is_percentage(names[0]) else 1.0
    curves = [(metric_name(name), name, [(each.epoch, each.val.get(name)) for each in epochs]) for name in names]
    tested = [(each.epoch, each.test.get(names[0])) for each in epochs]
    if any(value is not None for _, value in tested):
        curves.append((f"test {metric_name(names[0])}", names[0], tested))
    series = [_metric_series(curve, scale, f"c{place + 2}") for place, curve in enumerate(curves)]
    values = [value for each in series for _, value in each.points if value is not None]
    x = _x_axis([float(each.epoch) for each in epochs])
    best = run.best
    mark = None
    if best is not None and names[0] in best.val:
        value = best.val[names[0]]
        words = f"{metric_value(names[0], value)} at epoch {best.epoch:,}"
        mark = Mark(float(best.epoch), value * scale, words, above=run.higher_is_better)
    # Room for the mark's words beyond the best value.
    room = (max(values) - min(values)) * 0.08
    values.append(max(values) + room if run.higher_is_better else min(values) - room)
    drawn = line_chart("Validation", series, x, fitted(values), mark=mark)
    unit = ", %" if scale == 100 else ""
    legend = "" if results else "".join(key(each.name, each.look) for each in series)
    return card("Validation", drawn + results, f"by epoch{unit}", foot=legend)


def epoch_seconds_card(run: Run) -> str:
    """How long each epoch took: columns while they can be told apart, a curve beyond."""
    points: list[Point] = [(float(each.epoch), each.seconds) for each in run.log.epochs if each.seconds is not None]
    values = [value for _, value in points if value is not None]
    if not values:
        return ""
    size, unit = time_unit(max(values))
    series = Series(
        "", [(at, value / size) for at, value in points if value is not None], "c1", _texts(points, seconds)
    )
    y = fitted([value / size for value in values], from_zero=True)
    ends = points[0][0], points[-1][0]
    if ends[1] - ends[0] < _MOST_COLUMNS:
        inner = _x_axis([at for at, _ in points])
        x = Axis(ends[0] - 0.6, ends[1] + 0.6, inner.ticks)
        drawn = column_chart("Seconds an epoch", series, x, y)
    else:
        drawn = line_chart("Seconds an epoch", [series], exact(*ends, whole=True), y, area=True)
    middle = sorted(values)[len(values) // 2]
    foot = f"Half of the epochs took {seconds(middle)} or less, the longest {seconds(max(values))}."
    return card("Time an epoch", drawn, unit, foot=escape(foot) if len(values) > 1 else "")


def memory_card(run: Run) -> str:
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


def _room(run: Run) -> str:
    machine = run.machine.get("memory_mb")
    peak = f"Peak {mebibytes(run.peak_rss_mb)}" if run.peak_rss_mb else ""
    if peak and isinstance(machine, int | float) and machine > 0:
        peak += f" of the machine's {mebibytes(machine)}"
    held = run.graph.get("bytes")
    if peak and isinstance(held, int | float) and held > 0:
        peak += f"; the graph is {mebibytes(held / (1 << 20))}"
    return f"{peak}." if peak else ""


def _results(run: Run, drawn: list[str]) -> str:
    """Every metric of the finished run, with the colours of those that are drawn: the legend too."""
    val, test = numbers(run.result.get("val")), numbers(run.result.get("test"))
    names = sorted(dict.fromkeys([*drawn, *val, *test]), key=lambda name: name != run.metric)
    if not val and not test:
        return ""
    rows = []
    for name in names:
        look = f"c{drawn.index(name) + 2}" if name in drawn else "undrawn"
        cells = "".join(f"<td>{metric_value(name, each[name]) if name in each else ''}</td>" for each in (val, test))
        rows.append(f"<tr><td>{key(metric_name(name), look)}</td>{cells}</tr>")
    return (
        "<table><thead><tr><th></th><th>validation</th><th>test</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _metric_series(curve: tuple[str, str, list[tuple[int, float | None]]], scale: float, look: str) -> Series:
    name, metric, points = curve
    known = [(float(at), value) for at, value in points if value is not None]
    texts = {at: metric_value(metric, value) for at, value in known}
    # Validation every few epochs is one curve, not dots: epochs without it are no breaks.
    return Series(name, [(at, value * scale) for at, value in known], look, texts)


def _texts(points: list[Point], words: Callable[[float], str]) -> dict[float, str]:
    return {at: words(value) for at, value in points if value is not None}


def _steps_in_epochs(run: Run) -> list[Point]:
    """Losses within epochs at the fraction of the epoch where they were met."""
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


def _x_axis(places: list[float]) -> Axis:
    return exact(min(places), max(places), whole=True)


def _divergence(run: Run) -> str:
    first = next((each.epoch for each in run.log.epochs if each.diverged), None)
    return "" if first is None else f'<b class="bad">The loss was not a finite number at epoch {first:,}.</b>'
