"""A chart of a few batches of the steady state, with one lane for each thread, so that overlap can be seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from penstock.pipeline.stages import STAGES
from penstock.report.charts import exact, time_unit
from penstock.report.markup import seconds, stage_look
from penstock.report.run_logs import Bar, EventTrace

_BATCHES = 8
_MOST_BARS = 500
_MOST_LANES = 16
_LANE = 44
_BAR_TOP, _BAR_HEIGHT = 16, 20
_SIZE = 1000.0


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
        drawn.append(f'<rect class="track" x="0" y="{top + _BAR_TOP}" width="{_SIZE:g}" height="{_BAR_HEIGHT}"/>')
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
        f'<div class="plot lanes" style="height:{height}px"><svg viewBox="0 0 {_SIZE:g} {height}" role="img"'
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
        f'<rect class="bar {stage_look(bar.stage)}{thin}" x="{left * _SIZE:.1f}" y="{top + _BAR_TOP}"'
        f' width="{max((right - left) * _SIZE, 0.6):.1f}" height="{_BAR_HEIGHT}" data-tip="{text}"{number}/>'
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
