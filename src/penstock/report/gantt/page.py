"""The page of a simulation: what it took, what set the pace, every machine's lanes, and how full links were."""

from html import escape
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.quantities import counted, percent
from penstock.report.gantt.bars import Merged, lay_out
from penstock.report.gantt.drawing import Drawing, drawing_of
from penstock.report.gantt.findings import path_by_kind, path_sentence
from penstock.report.gantt.script import SCRIPT
from penstock.report.gantt.style import STYLE
from penstock.report.markup import THEME_BUTTON, card, cut, key, page_text, table
from penstock.report.words import milliseconds, seconds, short
from penstock.simulate import CriticalStep, Pace, Timeline, critical_path, gap_of

_MOST_LINKS = 24
_HELP = (
    "Drag to move; wheel over the axis, or Ctrl and wheel anywhere, to zoom; double-click to zoom in, with Shift out."
)


class Shown(NamedTuple):
    """What a page is about."""

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
    """Idle machines are worth seeing; switches between devices, which only have names, are not."""
    if not shown.language_model:
        return laid
    return laid._replace(bands=[band for band in laid.bands if band.lanes])


def _where(shown: Shown, laid: Merged) -> str:
    """`4 machines`, or of a language model `8 devices`: the places at which something is computed."""
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
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown_figures)
    flows = f"{short(load.flows)} {'flow' if load.flows == 1 else 'flows'} in each iteration"
    parts = (_where(shown, laid), counted(load.tasks, "tasks"), flows)
    large = seconds(timeline.makespan) if shown.pace is None else milliseconds(shown.pace.iteration_s)
    number, _, unit = large.partition(" ")
    what = "makespan" if shown.pace is None else "an iteration, in the long run"
    return (
        f'<header class="good"><div class="top"><p class="state"><b>simulated</b></p>{THEME_BUTTON}</div>'
        f'<div class="hero"><div><h1>{escape(cut(shown.title, 80))}</h1>'
        f'<p class="sub">{" · ".join(f"<span>{part}</span>" for part in parts)}</p></div>'
        f'<p class="figure"><b>{escape(number)}<small>{escape(unit)}</small></b><span>{what}</span></p></div>'
        f'<dl class="figures">{items}</dl>'
        f'<p class="limit">Critical path: {escape(path_sentence(path_by_kind(path)))}</p></header>'
    )


def _times(shown: Shown) -> list[tuple[str, str]]:
    """What an iteration takes and takes at least: of a plan in the long run, as it says, else of what is drawn."""
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
