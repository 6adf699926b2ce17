"""The cards with curves by epoch or over time: loss, seconds for each epoch, memory."""

from bisect import bisect_left
from collections.abc import Callable
from html import escape
from statistics import median

from penstock.report.axes import Axis, epoch_axis, exact, fitted, logarithmic, spans_decades, time_unit
from penstock.report.charts import Point, Series, column_chart, line_chart
from penstock.report.markup import card
from penstock.report.run_folder import RunRecord
from penstock.report.words import mebibytes, seconds

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
    """The median where there are enough epochs for one to say something."""
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
        peak += f"; the graph is {mebibytes(held / (1 << 20))}"
    return f"{peak}." if peak else ""


def _texts(points: list[Point], words: Callable[[float], str]) -> dict[float, str]:
    return {at: words(value) for at, value in points if value is not None}


def _steps_in_epochs(run: RunRecord) -> list[Point]:
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


def _divergence(run: RunRecord) -> str:
    first = next((each.epoch for each in run.log.epochs if each.diverged), None)
    return "" if first is None else f'<b class="bad">The loss was not a finite number at epoch {first:,}.</b>'
