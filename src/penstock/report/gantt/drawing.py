"""What a simulation's time was spent on, and its bands: HTML places, and numbers that the page's script draws there."""

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.formatting import percent
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.report.gantt.bars import Band, GanttBar, GanttLane, Merged
from penstock.report.markup import read_asset
from penstock.report.words import milliseconds, seconds
from penstock.simulate import CriticalStep, Pace, Timeline

_MOST_NAMED = 5
_LEAST_NAMED = 0.005  # of the time


class KindShare(NamedTuple):
    """The share of one kind of task or flow in the critical path."""

    kind: str
    steps: int
    seconds: float
    waited: float  # seconds of it in which others had the links
    waited_for: str  # the link most of that time was waited for; empty where there was no wait


def pace_sentence(pace: Pace) -> str:
    """One sentence: `an iteration takes 7.518 ms, where no schedule takes less than 7.09 ms: a gap of 6 %`."""
    least = f"where no schedule takes less than {milliseconds(pace.bound_s)}: a gap of {percent(pace.gap)}"
    return f"an iteration takes {milliseconds(pace.iteration_s)}" + (f", {least}" if pace.bound_s else "")


def path_by_kind(path: Sequence[CriticalStep]) -> list[KindShare]:
    """The kinds on the path, longest first."""
    kinds: dict[str, list[CriticalStep]] = {}
    for step in path:
        kinds.setdefault(step.kind, []).append(step)
    found = []
    for kind, steps in kinds.items():
        links: dict[str, float] = {}
        for step in steps:
            if step.waited:
                links[step.waited_for] = links.get(step.waited_for, 0.0) + step.waited
        spent = sum(step.end - step.start for step in steps)
        worst = max(links, key=lambda link: links[link]) if links else ""
        found.append(KindShare(kind, len(steps), spent, sum(links.values()), worst))
    return sorted(found, key=lambda each: -each.seconds)


def path_sentence(shares: Sequence[KindShare]) -> str:
    """One sentence: `sampler 62 %, pull 30 % (18 % waiting, mostly for m0 out), worker 8 %`."""
    total = sum(each.seconds for each in shares)
    if not total:
        return "Nothing took any time."
    parts = []
    named = [each for each in shares[:_MOST_NAMED] if each.seconds >= _LEAST_NAMED * total]
    for each in named:
        waited = each.waited / total
        wait = f" ({percent(waited)} waiting, mostly for {each.waited_for})" if waited >= _LEAST_NAMED else ""
        parts.append(f"{each.kind} {percent(each.seconds / total)}{wait}")
    more = len(shares) - len(named)
    return ", ".join(parts) + (f", and {more} more" if more > 0 else "")


def link_use_over_time(timeline: Timeline, slots: int) -> Array:
    """Mean share of each link's capacity in `slots` equal stretches of the makespan, float64 [links, slots]."""
    load, routes = timeline.load, timeline.case.routes
    out = np.zeros((len(timeline.network.capacities), slots))
    if timeline.makespan <= 0 or load.flows == 0:
        return out
    if len(timeline.owner) == 0:
        raise PenstockError(
            "The timeline does not hold the flows' rates: simulate it with segments=True.", code="option-missing"
        )
    # Of several changes at one instant the last counts, so the sort has to be stable.
    changes = timeline.changes[np.argsort(timeline.changes["serial"], kind="stable")]
    _fill(
        np.ascontiguousarray(timeline.starts[:, load.tasks :]),
        np.ascontiguousarray(timeline.sent),
        timeline.owner,
        timeline.weight,
        changes["serial"].copy(),
        changes["when"].copy(),
        changes["speed"].copy(),
        routes.flow_path,
        routes.paths["first"].copy(),
        routes.paths["last"].copy(),
        routes.path_links,
        routes.path_copies,
        slots / timeline.makespan,
        out,
    )
    shares: Array = out * (slots / timeline.makespan) / routes.links["capacity"][:, None]
    return shares


@njit(nogil=True, cache=True)
def _fill(
    starts: Array,
    ends: Array,
    owner: Array,
    weight: Array,
    serials: Array,
    whens: Array,
    speeds: Array,
    flow_path: Array,
    firsts: Array,
    lasts: Array,
    path_links: Array,
    path_copies: Array,
    scale: float,
    out: Array,
) -> None:
    """Add the bytes of every flow's stretches of constant rate to the slots (`scale` of them a second) of its links."""
    iterations, flows = starts.shape
    for n in range(iterations):
        for flow in range(flows):
            path = flow_path[flow]
            start, end = starts[n, flow], ends[n, flow]
            if path < 0 or not end > start:
                continue
            share = weight[min(n, weight.shape[0] - 1), min(flow, weight.shape[1] - 1)]
            at = np.searchsorted(serials, owner[n * flows + flow])
            while at < len(serials) and serials[at] == owner[n * flows + flow] and whens[at] < end:
                last = at + 1 == len(serials) or serials[at + 1] != serials[at]
                until = end if last else min(end, whens[at + 1])
                since = max(start, whens[at])
                if until > since and speeds[at] > 0:
                    for k in range(firsts[path], lasts[path]):
                        _spread(out[path_links[k]], since, until, speeds[at] * share * path_copies[k], scale)
                at += 1


@njit(nogil=True, cache=True)
def _spread(row: Array, since: float, until: float, rate: float, scale: float) -> None:
    """Add a stretch's bytes to the slots it touches."""
    last = row.shape[0] - 1
    for slot in range(min(last, int(since * scale)), min(last, int(until * scale)) + 1):
        lower, upper = max(since, slot / scale), min(until, (slot + 1) / scale)
        if upper > lower:
            row[slot] += rate * (upper - lower)


# What the page of a simulation adds to the style of reports: bands with a common time axis, and colours of kinds.

LOOKS = 10
"""The number of colours for kinds; further kinds reuse them."""

_LIGHT = (
    "#3a6bcb", "#14968a", "#d08a22", "#9a62b4", "#5f7f95", "#4d7d48", "#b0789a", "#8a8a2e", "#b5534a", "#7a6a5a",
)  # fmt: skip
_DARK = (
    "#6f9df0", "#35b0a0", "#dd9a3c", "#b884cf", "#8fb0c6", "#7fb378", "#d79cbd", "#bcbc5a", "#e0837a", "#ad9c8a",
)  # fmt: skip


def _variables(colours: tuple[str, ...], path: str, heat: str) -> str:
    return "".join(f"--k{n}: {colour}; " for n, colour in enumerate(colours)) + f"--path: {path}; --heat: {heat};"


_DARK_VARIABLES = _variables(_DARK, "#ffffff", "#f08a5d")

STYLE = f"""
:root {{ {_variables(_LIGHT, "#101010", "#b8401f")} }}
@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {_DARK_VARIABLES} }} }}
@media screen {{ :root[data-theme="dark"] {{ {_DARK_VARIABLES} }} }}
{"".join(f".k{n} {{ --look: var(--k{n}); }} " for n in range(LOOKS))}
""" + read_asset("gantt/gantt.css")
SCRIPT = read_asset("gantt/gantt.js")
"""Draws the bands: the part of time in view, what a pointer shows, zooming and moving."""


_UNITS = 10_000_000  # the makespan in whole numbers
_SLOTS = 800
_LETTER = 6.6  # pixels, of the labels' letters
_GAP, _STRIP, _TALLEST = 3, 14, 130  # pixels


class Drawing(NamedTuple):
    """HTML of the bands, the script's data, and what a legend needs."""

    machines: str
    links: str
    data: str
    kinds: list[tuple[str, str]]  # those drawn: name, colour's class
    slots: int
    unused: int  # links that carry nothing
    sides: tuple[int, int, int]  # pixels for labels: of lanes, of machines and their lanes, of links


def drawing_of(timeline: Timeline, laid: Merged, path: Sequence[CriticalStep]) -> Drawing:
    """Everything the script draws: the axis, the critical path, the machines and the links."""
    kinds = list(dict.fromkeys(timeline.load.item_kinds))
    names: dict[str, int] = {}
    writer = _Writer(timeline.makespan, {kind: place for place, kind in enumerate(kinds)}, names)
    bands: list[dict[str, Any]] = []
    machines = [_axis(bands), _chain(bands, path, writer)]
    machines += [_machine(bands, band, writer, len(laid.bands)) for band in laid.bands]
    use = np.rint(link_use_over_time(timeline, _SLOTS) * 100).astype(int)
    carrying = np.flatnonzero(timeline.link_bytes)
    links = [_axis(bands)] + [_link(bands, timeline.network.link_names[link], use[link]) for link in carrying.tolist()]
    looks = [(kind, f"k{place % LOOKS}") for place, kind in enumerate(kinds)]
    seen = {bar.kind for band in laid.bands for lane in band.lanes for bar in lane.bars}
    data = {
        "makespan": timeline.makespan,
        "units": _UNITS,
        "ends": timeline.iteration_ends.tolist(),
        "kinds": looks,
        "names": list(names),
        "bands": bands,
        "waits": [f"shared {step.waited_for}: {seconds(step.waited)} longer" if step.waited else "" for step in path],
    }
    # "<" is escaped, so that a name cannot close the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    drawn = "".join(links) if len(carrying) else ""
    return Drawing(
        "".join(machines),
        drawn,
        text,
        [look for look in looks if look[0] in seen],
        _SLOTS,
        len(use) - len(carrying),
        _sides(laid, [timeline.network.link_names[link] for link in carrying.tolist()]),
    )


def _sides(laid: Merged, links: Sequence[str]) -> tuple[int, int, int]:
    """Pixels for the longest labels, limited so that most of the page is left to the bars."""
    lanes = _room((lane.label for band in laid.bands for lane in band.lanes), 40, 160)
    machines = _room((band.machine for band in laid.bands), 40, 160)
    return lanes, lanes + machines, _room(links, 96, 300)


def _room(names: Iterable[str], least: int, most: int) -> int:
    return min(max(round(max(map(len, names), default=0) * _LETTER) + 14, least), most)


class _Writer(NamedTuple):
    """Writes bars as flat lists of integers, in the order of the script's fields."""

    makespan: float
    kinds: dict[str, int]
    names: dict[str, int]

    def write(self, bars: Sequence[GanttBar]) -> list[int]:
        scale = _UNITS / (self.makespan or 1.0)
        out: list[int] = []
        for bar in bars:
            name = self.names.setdefault(bar.name, len(self.names))
            out += [round(bar.start * scale), round(bar.end * scale), bar.row, self.kinds[bar.kind], bar.iteration]
            out += [name, bar.items, round(bar.bytes), int(bar.critical)]
        return out


def _axis(bands: list[dict[str, Any]]) -> str:
    bands.append({"axis": True})
    sides = (
        '<span class="side whole" style="top:1px">time</span><span class="side whole" style="top:26px">iteration</span>'
    )
    return f'<div class="band axis" data-band="{len(bands) - 1}">{sides}</div>'


def _chain(bands: list[dict[str, Any]], path: Sequence[CriticalStep], writer: _Writer) -> str:
    """The critical path as one row of its own."""
    bars = [GanttBar(step.start, step.end, step.kind, step.name, step.iteration, 1, 0.0, True) for step in path]
    bands.append({"plain": True, "lanes": [{"top": 4, "row": 20, "rows": 1, "bars": writer.write(bars)}]})
    side = '<span class="side whole" style="top:8px">critical path</span>'
    return f'<div class="band chain" data-band="{len(bands) - 1}" style="height:28px">{side}</div>'


def _machine(bands: list[dict[str, Any]], band: Band, writer: _Writer, machines: int) -> str:
    top = float(_GAP)
    lanes, sides = [], []
    for lane in band.lanes:
        row = _row_height(lane, machines)
        tall = max(row * lane.rows, 12)
        lanes.append({"top": top, "row": round(row, 3), "rows": lane.rows, "bars": writer.write(lane.bars)})
        sides.append(f'<span class="side" style="top:{top + tall / 2 - 6:g}px">{escape(lane.label)}</span>')
        top += tall + _GAP
    bands.append({"lanes": lanes})
    name = f'<span class="side machine" title="{escape(band.machine)}">{escape(band.machine)}</span>'
    height = max(top, 22)
    return f'<div class="band" data-band="{len(bands) - 1}" style="height:{height:g}px">{name}{"".join(sides)}</div>'


def _row_height(lane: GanttLane, machines: int) -> float:
    """Pixels: lanes of many rows, and clusters of many machines, get flat rows."""
    room = 120 if machines <= 4 else 60 if machines <= 8 else 48
    return min(14.0, max(1.5, room / lane.rows), _TALLEST / lane.rows)


def _link(bands: list[dict[str, Any]], name: str, use: np.ndarray[Any, Any]) -> str:
    bands.append({"link": name, "use": use.tolist()})
    side = f'<span class="side" style="top:1px" title="{escape(name)}">{escape(name)}</span>'
    return f'<div class="band" data-band="{len(bands) - 1}" style="height:{_STRIP}px">{side}</div>'
