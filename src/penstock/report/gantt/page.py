"""The page of a simulation, and its file: a page, or trace events that Perfetto and Chrome open."""

import json
from collections.abc import Iterator
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.formatting import counted, percent
from penstock.graph.arrays import Array
from penstock.graph.files import check_ending, write_whole
from penstock.report.gantt.bars import GanttBar, Merged, lay_out, pack
from penstock.report.gantt.drawing import (
    SCRIPT,
    STYLE,
    Drawing,
    drawing_of,
    link_use_over_time,
    path_by_kind,
    path_sentence,
)
from penstock.report.markup import card, cut, key, large_figure, page_header, page_text, small_figures, table
from penstock.report.words import milliseconds, seconds, short
from penstock.simulate import CriticalStep, Pace, Timeline, critical_path, gap_of

# The page of a simulation: its time, its critical path, every machine's lanes, and the use of links.

_MOST_LINKS = 24
_HELP = (
    "Drag to move; wheel over the axis, or Ctrl and wheel anywhere, to zoom; double-click to zoom in, with Shift out."
)


class Shown(NamedTuple):
    """A simulation as a page or a trace shows it."""

    title: str
    policy: str
    timeline: Timeline
    placement: Array  # int32 [tasks]: machine
    bound: float  # seconds that no schedule beats
    language_model: bool = False  # whether its machines are devices, with switches among them
    pace: Pace | None = None  # of a plan, whose first iterations alone are drawn


def render_page(shown: Shown) -> str:
    """The page as text, in one file that loads nothing."""
    timeline = shown.timeline
    path = critical_path(timeline)
    laid = _seen(lay_out(timeline, shown.placement, path), shown)
    drawing = drawing_of(timeline, laid, path)
    cards = [_chart_card(drawing, laid.notes), _links_card(drawing), _path_card(path), _use_card(shown)]
    data = f'<script id="bars" type="application/json">{drawing.data}</script>'
    return page_text(shown.title, _headline(shown, path, laid), cards, "Simulated", STYLE, SCRIPT, data)


def _seen(laid: Merged, shown: Shown) -> Merged:
    """The bands without those of switches between devices, which compute nothing; idle machines stay."""
    if not shown.language_model:
        return laid
    return laid._replace(bands=[band for band in laid.bands if band.lanes])


def _where(shown: Shown, laid: Merged) -> str:
    """The number of places that compute: `4 machines`, or of a language model `8 devices`."""
    if not shown.language_model:
        return counted(len(shown.timeline.network.machines), "machines")
    return counted(sum(any(bar.bytes == 0 for bar in band.lanes[0].bars) for band in laid.bands), "devices")


def _headline(shown: Shown, path: list[CriticalStep], laid: Merged) -> str:
    timeline = shown.timeline
    load, network = timeline.load, timeline.network
    busiest = int(np.argmax(timeline.link_use)) if len(network.link_names) else 0
    figures = [
        ("flow policy", shown.policy),
        *_times(shown),
        ("busiest link", f"{network.link_names[busiest]}, {percent(timeline.link_use[busiest])}"),
    ]
    # A number and its unit stay on one line.
    shown_figures = ((name, value.replace(" %", "\u00a0%")) for name, value in figures)
    flows = f"{short(load.flows)} {'flow' if load.flows == 1 else 'flows'} in each iteration"
    parts = (_where(shown, laid), counted(load.tasks, "tasks"), flows)
    large = seconds(timeline.makespan) if shown.pace is None else milliseconds(shown.pace.iteration_s)
    what = "makespan" if shown.pace is None else "an iteration, in the long run"
    limit = f'<p class="limit">Critical path: {escape(path_sentence(path_by_kind(path)))}</p>'
    sub = " · ".join(f"<span>{part}</span>" for part in parts)
    below = small_figures(shown_figures) + limit
    return page_header("simulated", cut(shown.title, 80), sub, figure=large_figure(large, what), below=below)


def _times(shown: Shown) -> list[tuple[str, str]]:
    """An iteration's time and its lower bound: of a plan in the long run, else of what is drawn."""
    timeline, count = shown.timeline, f"{shown.timeline.iterations:,}"
    if shown.pace is None:
        each = seconds(timeline.makespan / timeline.iterations)
        least, gap = seconds(shown.bound), gap_of(timeline.makespan, shown.bound)
        return [
            ("iterations", count),
            ("an iteration", each),
            ("no schedule takes less than", least),
            ("gap to that", percent(gap)),
        ]
    return [
        ("no schedule takes less than", milliseconds(shown.pace.bound_s)),
        ("gap to that", percent(shown.pace.gap)),
        ("drawn: the first", f"{count} iterations, {seconds(timeline.makespan)}"),
    ]


def _chart_card(drawing: Drawing, notes: list[str]) -> str:
    buttons = "".join(
        f'<button type="button" data-act="{act}" aria-label="{name}" title="{name}">{face}</button>'
        for act, name, face in (
            ("left", "Earlier", "←"),
            ("right", "Later", "→"),
            ("out", "Zoom out", "\u2212"),
            ("in", "Zoom in", "+"),
            ("all", "All of it", "all"),
        )
    )
    keys = "".join(key(name, look) for name, look in drawing.kinds)
    tools = f'<div class="tools">{keys}<span class="mark">critical path</span><span class="buttons">{buttons}</span>'
    foot = escape(" ".join([_HELP, "Marks below the times: where each iteration ends.", *notes]))
    lanes, side, _ = drawing.sides
    chart = f'<div class="chart"{_room(side, lanes)}>{drawing.machines}</div>'
    body = f"{tools}</div>{chart}<noscript>The chart needs scripts.</noscript>"
    return card("Tasks and flows", body, "by machine", wide=True, foot=foot)


def _room(side: int, lane: int = 0) -> str:
    return f' style="--side:{side}px;--lane:{lane or side}px"'


def _links_card(drawing: Drawing) -> str:
    unused = f" Links that carry nothing are left out: {drawing.unused:,}." if drawing.unused else ""
    foot = f'0 %<i class="scale"></i>100 % of the rate; means of {drawing.slots:,} equal stretches of time.{unused}'
    body = (
        f'<div class="chart links"{_room(drawing.sides[2])}>{drawing.links}</div>'
        if drawing.links
        else '<p class="none">Nothing flows.</p>'
    )
    return card("Links", body, "how full, over time", wide=True, foot=foot)


def _path_card(path: list[CriticalStep]) -> str:
    total = sum(step.end - step.start for step in path)
    rows = [
        [
            each.kind,
            f"{each.steps:,}",
            seconds(each.seconds),
            percent(each.seconds / total),
            seconds(each.waited) if each.waited else "",
            each.waited_for,
        ]
        for each in path_by_kind(path)
    ]
    head = ["kind", "steps", "time", "share", "of it waiting", "mostly for"]
    return card("Critical path", table(head, rows), "the chain that set the pace, by kind", wide=True)


def _use_card(shown: Shown) -> str:
    timeline = shown.timeline
    use, capacities = timeline.link_use, timeline.network.capacities
    order = [link for link in np.argsort(-use, kind="stable").tolist() if use[link] > 0]
    rows = [
        [
            timeline.network.link_names[link],
            percent(use[link]),
            _amount(timeline.link_bytes[link], "B"),
            _amount(capacities[link] * 8, "bit/s"),
        ]
        for link in order[:_MOST_LINKS]
    ]
    head = ["link", "used", "carried", "rate"]
    return card("Use of links", table(head, rows, len(order)), "over the time that is drawn", wide=True)


def _amount(value: float, unit: str) -> str:
    """Bytes as text: `1.25 GB`, `40 B`."""
    return f"{short(value)}{'' if value >= 999.5 else ' '}{unit}"


# Writes a timeline in the form that its file's extension names: a page, or a trace for Perfetto and Chrome.


def write_timeline(shown: Shown, path: Path) -> None:
    """Write a page (.html) or a Perfetto trace (.json); the timeline must have been made with `segments`."""
    check_form(path)
    write_whole(path, render_page(shown) if path.suffix == ".html" else trace_text(shown.timeline, shown.placement))


def check_form(path: Path) -> None:
    """Refuse a name that ends in neither .html nor .json, or a folder that does not exist, before the simulation."""
    check_ending(path, "neither a page nor a trace", ".html", ".json")


_SLOTS = 1000


def trace_text(timeline: Timeline, placement: Array) -> str:
    """The trace as JSON: every task and every flow (at its sender) a slice, every link a counter in percent."""
    events = chain(_slices(timeline, placement), _counters(timeline))
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _slices(timeline: Timeline, placement: Array) -> Iterator[dict[str, Any]]:
    load = timeline.load
    kinds = load.item_kinds
    homes = np.concatenate([placement, placement[load.sources]])
    targets = placement[load.targets]
    on_path = {(step.name, step.iteration): step for step in critical_path(timeline)}
    lanes: dict[tuple[int, str], list[GanttBar]] = {}
    for n, item in zip(*(each.tolist() for each in np.nonzero(timeline.ends > timeline.starts)), strict=True):
        name, flow = load.item_name(item), item - load.tasks
        size = float(timeline.case.amounts.sizes[n, flow]) if flow >= 0 else 0.0
        lane = f"out to {timeline.network.machines[targets[flow]]}" if flow >= 0 else kinds[item]
        times = float(timeline.starts[n, item]), float(timeline.ends[n, item])
        bar = GanttBar(*times, kinds[item], name, n, 1, size, (name, n) in on_path)
        lanes.setdefault((int(homes[item]), lane), []).append(bar)
    for machine, name in enumerate(timeline.network.machines):
        yield _named("process_name", machine + 1, 0, name)
    thread = 0
    for (machine, lane), bars in sorted(lanes.items(), key=lambda each: (each[0][0], each[0][1].startswith("out to"))):
        placed, rows = pack(bars)
        for row in range(rows):
            yield _named("thread_name", machine + 1, thread + row + 1, lane if rows == 1 else f"{lane} {row}")
        for bar in placed:
            details: dict[str, Any] = {"iteration": bar.iteration, "kind": bar.kind, "critical": bar.critical}
            if bar.bytes:
                details |= {"bytes": bar.bytes, "waited_s": _waited(on_path, bar)}
            yield {
                "name": bar.name,
                "cat": bar.kind,
                "ph": "X",
                "pid": machine + 1,
                "tid": thread + bar.row + 1,
                "ts": bar.start * 1e6,
                "dur": (bar.end - bar.start) * 1e6,
                "args": details,
            }
        thread += rows


def _counters(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """Counter events of the use of links: one where it changes, each the mean of a thousandth of the makespan."""
    links = len(timeline.network.machines) + 1
    yield _named("process_name", links, 0, "links")
    use = np.round(link_use_over_time(timeline, _SLOTS) * 100, 1)
    for name, row in zip(timeline.network.link_names, use, strict=True):
        if not row.any():
            continue
        changed = np.flatnonzero(np.diff(row, prepend=-1.0))
        for slot in [*changed.tolist(), _SLOTS]:
            percent = float(row[slot]) if slot < _SLOTS else 0.0
            when = slot * timeline.makespan / _SLOTS * 1e6
            yield {"name": name, "ph": "C", "pid": links, "tid": 0, "ts": when, "args": {"percent": percent}}


def _waited(on_path: dict[tuple[str, int], Any], bar: GanttBar) -> float | None:
    """Seconds that a flow on the critical path shared its links; None for others, of which this is not known."""
    step = on_path.get((bar.name, bar.iteration))
    return None if step is None else float(step.waited)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
