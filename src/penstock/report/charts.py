"""Curves and columns as SVG that stretches while its text does not.

The drawing is stretched to whatever width the page has; labels and dots lie over it as HTML at percentages, so a phone
and a wide screen show the same text size. What a pointer shows is in a data attribute of the chart.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from penstock.pipeline.options import STAGES
from penstock.report.markup import stage_look
from penstock.report.run_folder import Bar, EventTrace
from penstock.report.words import seconds

# Axes: where a value lies between two ends, and which round values get a label.

_LOG_FROM = 30.0


@dataclass(frozen=True)
class Axis:
    """A range of values; `ticks` are pairs of a value and its label."""

    low: float
    high: float
    ticks: list[tuple[float, str]]
    log: bool = False

    def place(self, value: float) -> float:
        """The position of `value` along the axis: 0 at the low end, 1 at the high one."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        if high <= low:
            # Numbers so large that no float lies between two neighbouring ticks.
            return 0.5
        return min(max((value - low) / (high - low), 0.0), 1.0)


def fitted(values: Iterable[float], from_zero: bool = False, most: int = 5) -> Axis:
    """A linear axis over the values, ending on round ones."""
    seen = [*values, 0.0] if from_zero else list(values)
    low, high = min(seen), max(seen)
    size = max(abs(low), abs(high))
    if high - low <= size * 1e-6:
        # All values are equal: the axis is a band around them.
        low, high = (0.0, 1.0) if from_zero else (low - (size * 0.1 or 1.0), high + (size * 0.1 or 1.0))
    step = _round_step((high - low) / most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, [(n * step, _label(n * step, step)) for n in range(first, last + 1)])


def logarithmic(values: Iterable[float]) -> Axis:
    """A logarithmic axis over positive values, with labels at decades or, when there are few, at 1, 2 and 5."""
    seen = list(values)
    low, high = min(seen), max(seen)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1,) if last - first > 2 else (1, 2, 5)
    every = max(1, math.ceil((last - first) / 6))
    marks = [digit * 10.0**power for power in range(first, last + 1, every) for digit in digits]
    low, high = max(low * 0.9, 10.0**first), min(high * 1.1, 10.0**last)
    return Axis(low, high, [(mark, f"{mark:g}") for mark in marks if low <= mark <= high * 1.0001], log=True)


def spans_decades(values: Iterable[float]) -> bool:
    """Whether a linear axis would hide the small values."""
    seen = list(values)
    return bool(seen) and min(seen) > 0 and max(seen) / min(seen) >= _LOG_FROM


def exact(low: float, high: float, most: int = 6, whole: bool = False) -> Axis:
    """An axis that ends where the values end, with labels at the round values between."""
    if not high > low:
        return Axis(low - 0.5, low + 0.5, [(low, f"{low:g}")])
    step = _round_step((high - low) / most)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, [(n * step, _label(n * step, step)) for n in range(first, last + 1)])


def epoch_axis(places: Iterable[float]) -> Axis:
    """An axis over epochs or steps, with labels at whole numbers only."""
    seen = list(places)
    return exact(min(seen), max(seen), whole=True)


def time_unit(longest: float) -> tuple[float, str]:
    """The unit that suits a duration in seconds: the factor from seconds to it, and its name."""
    for size, name in ((3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "milliseconds")):
        if longest >= 2 * size:
            return size, name
    return 1e-6, "microseconds"


def _round_step(rough: float) -> float:
    """The least of 1, 2 or 5 times a power of ten that is not below `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((digit * power for digit in (1, 2, 5) if rough <= digit * power * 1.0001), 10 * power)


def _label(value: float, step: float) -> str:
    place = math.floor(math.log10(step) + 1e-9)
    if abs(value) >= 1e6 or place < -5:
        digits = math.floor(math.log10(abs(value))) - place + 1 if value else 1
        return f"{value:.{max(digits, 1)}g}"
    return f"{value + 0.0:,.{max(0, -place)}f}"


MOST_POINTS = 400
_MOST_HOVERS = 240
_SIZE = 1000.0

Point = tuple[float, float | None]


@dataclass(frozen=True)
class Series:
    """A curve: its points in order of x, None where it is broken; `look` is a class of the style sheet."""

    name: str
    points: list[Point]
    look: str
    texts: dict[float, str]


@dataclass(frozen=True)
class Mark:
    """A highlighted point: a dot with a few words above or below it."""

    x: float
    y: float
    text: str
    above: bool = True


def line_chart(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    behind: Sequence[Point] = (),
    mark: Mark | None = None,
    x_name: str = "epoch",
    area: bool = False,
) -> str:
    """Curves over common axes, as HTML; `behind` is a faint curve without tooltips, `area` fills below the first."""
    drawn = [_grid(y)]
    if behind:
        drawn.append(f'<path class="behind" d="{_path(thinned(behind, MOST_POINTS), x, y)}"/>')
    dots = []
    # Drawn in reverse order, so that the first lies on top.
    for each in reversed(series):
        points = thinned(each.points, MOST_POINTS)
        if area and each is series[0]:
            drawn.append(f'<path class="area {each.look}" d="{_area(points, x, y)}"/>')
        drawn.append(f'<path class="curve {each.look}" d="{_path(points, x, y)}"/>')
        dots += [_dot(at, value, x, y, each.look) for at, value in _lonely(points)]
    if mark is not None:
        dots.append(_marked(mark, x, y))
    return _plot(title, "".join(drawn), dots, x, y, _hovers(series, x, y, x_name))


def column_chart(title: str, series: Series, x: Axis, y: Axis, x_name: str = "epoch") -> str:
    """One column for each point, as HTML; for few enough points that columns can be told apart."""
    width = min(_SIZE / max(x.high - x.low, 1.0) * 0.72, 90.0)
    drawn = [_grid(y)]
    for at, value in series.points:
        if value is not None:
            top = (1 - y.place(value)) * _SIZE
            left = x.place(at) * _SIZE - width / 2
            drawn.append(
                f'<rect class="column {series.look}" x="{left:.1f}" y="{top:.1f}" width="{width:.1f}"'
                f' height="{_SIZE - top:.1f}"/>'
            )
    return _plot(title, "".join(drawn), [], x, y, _hovers([series], x, y, x_name))


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most `most` points that look the same: the lowest and the highest of every stretch, in order."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept: list[Point] = []
    for each in range(stretches):
        part = points[each * len(points) // stretches : (each + 1) * len(points) // stretches]
        finite = [(value, place) for place, (_, value) in enumerate(part) if value is not None]
        if not finite:
            kept.append(part[0])
            continue
        kept += [part[place] for place in sorted({min(finite)[1], max(finite)[1]})]
    return kept


def _plot(title: str, drawn: str, dots: Sequence[str], x: Axis, y: Axis, hovers: str) -> str:
    labels = [
        f'<span class="y" style="top:{(1 - y.place(at)) * 100:.2f}%">{escape(text)}</span>' for at, text in y.ticks
    ]
    labels += [f'<span class="x" style="left:{x.place(at) * 100:.2f}%">{escape(text)}</span>' for at, text in x.ticks]
    return (
        f'<div class="plot" data-hover="{escape(hovers)}">'
        f'<svg viewBox="0 0 {_SIZE:g} {_SIZE:g}" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f"{drawn}</svg>{''.join(labels)}{''.join(dots)}</div>"
    )


def _grid(y: Axis) -> str:
    lines = "".join(f"M0 {(1 - y.place(at)) * _SIZE:.1f}H{_SIZE:g}" for at, _ in y.ticks)
    return f'<path class="grid" d="{lines}"/>'


def _path(points: Sequence[Point], x: Axis, y: Axis) -> str:
    pieces, pen = [], "M"
    for at, value in points:
        if value is None:
            pen = "M"
            continue
        pieces.append(f"{pen}{x.place(at) * _SIZE:.1f} {(1 - y.place(value)) * _SIZE:.1f}")
        pen = "L"
    return "".join(pieces)


def _area(points: Sequence[Point], x: Axis, y: Axis) -> str:
    known = [point for point in points if point[1] is not None]
    if not known:
        return ""
    ends = x.place(known[0][0]) * _SIZE, x.place(known[-1][0]) * _SIZE
    return f"{_path(known, x, y)}L{ends[1]:.1f} {_SIZE:g}L{ends[0]:.1f} {_SIZE:g}Z"


def _lonely(points: Sequence[Point]) -> list[tuple[float, float]]:
    """Points without a neighbour, which a line would not show; they are drawn as dots."""
    values = [None, *(value for _, value in points), None]
    return [
        (at, value)
        for place, (at, value) in enumerate(points)
        if value is not None and values[place] is None and values[place + 2] is None
    ]


def _dot(at: float, value: float, x: Axis, y: Axis, look: str) -> str:
    return f'<i class="dot {look}" style="left:{x.place(at) * 100:.2f}%;top:{(1 - y.place(value)) * 100:.2f}%"></i>'


def _marked(mark: Mark, x: Axis, y: Axis) -> str:
    across, down = x.place(mark.x), 1 - y.place(mark.y)
    side = "left" if across > 0.5 else "right"
    height = "above" if mark.above else "below"
    return (
        f'<i class="best {side} {height}" style="left:{across * 100:.2f}%;top:{down * 100:.2f}%">'
        f"<b>{escape(mark.text)}</b></i>"
    )


def _hovers(series: Sequence[Series], x: Axis, y: Axis, x_name: str) -> str:
    """The data of tooltips as JSON: for every x its position, its name, and per curve the height, look and text."""
    by_x: dict[float, list[tuple[float, str, str]]] = {}
    for each in series:
        for at, value in each.points:
            if value is not None:
                text = f"{each.name} {each.texts.get(at, f'{value:.4g}')}".strip()
                by_x.setdefault(at, []).append((round(1 - y.place(value), 4), each.look, text))
    places = sorted(by_x)
    if len(places) > _MOST_HOVERS:
        places = [places[each * (len(places) - 1) // (_MOST_HOVERS - 1)] for each in range(_MOST_HOVERS)]
    return json.dumps(
        [[round(x.place(at), 4), f"{x_name} {at:g}".strip(), by_x[at]] for at in places], separators=(",", ":")
    )


_BATCHES = 8
_MOST_BARS = 500
_MOST_LANES = 16
_LANE = 44
_BAR_TOP, _BAR_HEIGHT = 16, 20
_LABEL_SIZE = 1000.0


@dataclass(frozen=True)
class ThreadLane:
    """One thread's bars within the window."""

    name: str
    bars: list[Bar]


@dataclass(frozen=True)
class Window:
    """A stretch of the run, in microseconds, and the threads at work in it."""

    start: float
    end: float
    lanes: list[ThreadLane]
    hidden: int


def steady_window(trace: EventTrace) -> Window | None:
    """A stretch of several successive batches, inside one epoch where one is long enough; None without bars."""
    pace = _paced([bar for bar in trace.bars if bar.stage in ("compute", "forward")] or trace.bars)
    if not pace:
        return None
    pace = sorted(pace, key=lambda bar: bar.start)
    count = min(_BATCHES, len(pace))
    while True:
        first = _first_of(pace, count)
        start, end = pace[first].start, max(bar.end for bar in pace[first : first + count])
        inside = [bar for bar in trace.bars if bar.end >= start and bar.start <= end and bar.duration > 0]
        if len(inside) <= _MOST_BARS or count == 1:
            break
        count = max(1, count // 2)
    if not end > start or not inside:
        return None
    lanes = _lanes(inside[:_MOST_BARS])
    return Window(start, end, lanes[:_MOST_LANES], max(len(lanes) - _MOST_LANES, 0))


def _paced(bars: list[Bar]) -> list[Bar]:
    """The first worker's bars, restricted to batches that all workers recorded where there are any."""
    places: dict[str, set[tuple[int | None, int | None]]] = {}
    for bar in bars:
        places.setdefault(bar.worker, set()).add((bar.epoch, bar.batch))
    if len(places) < 2:
        return bars
    first, common = min(places), set.intersection(*places.values())
    own = [bar for bar in bars if bar.worker == first]
    return [bar for bar in own if (bar.epoch, bar.batch) in common] or own


def numbering(window: Window) -> str:
    """What the numbers on bars count: batches of one epoch, epochs of one batch each, or both."""
    known = [bar for lane in window.lanes for bar in lane.bars if bar.batch is not None]
    if len({bar.epoch for bar in known}) <= 1:
        return "batches"
    return "epochs" if all(bar.batch == 0 for bar in known) else "epoch.batch"


def timeline_chart(window: Window) -> str:
    """The window as lanes of bars, batch numbers on those wide enough."""
    span = window.end - window.start
    height = len(window.lanes) * _LANE
    drawn, over, counted_as = [], [], numbering(window)
    for row, lane in enumerate(window.lanes):
        top = row * _LANE
        over.append(f'<span class="lane" style="top:{top}px">{escape(lane.name)}</span>')
        drawn.append(f'<rect class="track" x="0" y="{top + _BAR_TOP}" width="{_LABEL_SIZE:g}" height="{_BAR_HEIGHT}"/>')
        for bar in lane.bars:
            left = max((bar.start - window.start) / span, 0.0)
            right = min((bar.end - window.start) / span, 1.0)
            drawn.append(_bar(bar, left, right, top))
            text = _number(bar, counted_as)
            if text and right - left > 0.03 * len(text):
                place = f"left:{(left + right) * 50:.2f}%;top:{top + _BAR_TOP}px"
                over.append(f'<span class="batch" style="{place}">{text}</span>')
    axis = exact(0.0, span / 1e6 / time_unit(span / 1e6)[0])
    over += [f'<span class="x" style="left:{axis.place(at) * 100:.2f}%">{text}</span>' for at, text in axis.ticks]
    return (
        f'<div class="plot lanes" style="height:{height}px"><svg viewBox="0 0 {_LABEL_SIZE:g} {height}" role="img"'
        f' preserveAspectRatio="none" aria-label="What each thread did">{"".join(drawn)}</svg>{"".join(over)}</div>'
    )


def _number(bar: Bar, counted_as: str) -> str:
    """The number on a bar, counted from 1; records count from 0."""
    if bar.batch is None:
        return ""
    if counted_as == "batches" or bar.epoch is None:
        return f"{bar.batch + 1}"
    return f"{bar.epoch + 1}" if counted_as == "epochs" else f"{bar.epoch + 1}.{bar.batch + 1}"


def _bar(bar: Bar, left: float, right: float, top: int) -> str:
    epoch = "" if bar.epoch is None else f"epoch {bar.epoch + 1}, "
    batch = "" if bar.batch is None else f" · {epoch}batch {bar.batch + 1}"
    text = escape(f"{bar.stage}{batch} · {seconds(bar.duration / 1e6)}")
    # A thin bar gets no gap, which would hide it.
    thin = " thin" if right - left < 0.008 else ""
    number = "" if bar.batch is None else f' data-batch="{bar.epoch}.{bar.batch}"'
    return (
        f'<rect class="bar {stage_look(bar.stage)}{thin}" x="{left * _LABEL_SIZE:.1f}" y="{top + _BAR_TOP}"'
        f' width="{max((right - left) * _LABEL_SIZE, 0.6):.1f}" height="{_BAR_HEIGHT}" data-tip="{text}"{number}/>'
    )


def _first_of(pace: Sequence[Bar], count: int) -> int:
    """The index of the window's first bar: of the stretches without a gap, or else of all, the middle one."""
    for follows in (_next_in_epoch, _next_or_new_epoch):
        length, firsts = 1, [0] if count == 1 else []
        for place in range(1, len(pace)):
            length = length + 1 if follows(pace[place - 1], pace[place]) else 1
            if length >= count:
                firsts.append(place - count + 1)
        if firsts:
            return firsts[len(firsts) // 2]
    return (len(pace) - count) // 2


def _next_in_epoch(bar: Bar, after: Bar) -> bool:
    return bar.batch is not None and (after.epoch, after.batch) == (bar.epoch, bar.batch + 1)


def _next_or_new_epoch(bar: Bar, after: Bar) -> bool:
    return _next_in_epoch(bar, after) or (bar.epoch is not None and (after.epoch, after.batch) == (bar.epoch + 1, 0))


def _lanes(bars: list[Bar]) -> list[ThreadLane]:
    """A lane for each thread, by worker and then by the stage that the thread mostly works on."""
    by_thread: dict[tuple[str, str], list[Bar]] = {}
    for bar in bars:
        by_thread.setdefault((bar.worker, bar.thread), []).append(bar)
    order = {name: place for place, name in enumerate(STAGES)}
    mostly = {lane: order.get(_main_stage(each), len(order)) for lane, each in by_thread.items()}
    several = len({worker for worker, _ in by_thread}) > 1
    return [
        ThreadLane(f"{worker}: {thread}" if several else thread, by_thread[worker, thread])
        for worker, thread in sorted(by_thread, key=lambda lane: (lane[0], mostly[lane], lane[1]))
    ]


def _main_stage(bars: list[Bar]) -> str:
    spent: dict[str, float] = {}
    for bar in bars:
        spent[bar.stage] = spent.get(bar.stage, 0.0) + bar.duration
    return max(spent, key=lambda stage: spent[stage])
