"""Tasks and flows as bars in lanes, a band of lanes per machine; too many bars are merged into fewer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate import CriticalStep, Timeline

MOST_TASK_BARS = 30_000
MOST_FLOW_BARS = 6_000  # as they are, each flow at its sender and its receiver
MOST_PAIR_BARS = 40_000  # merged by pair of machines
MOST_ROWS = 40  # of a lane


class GanttBar(NamedTuple):
    """One task or flow of one iteration, or several merged."""

    start: float  # seconds
    end: float
    kind: str
    name: str
    iteration: int
    items: int  # how many it stands for
    bytes: float  # 0 for tasks
    critical: bool
    row: int = 0  # within its lane


@dataclass(frozen=True)
class GanttLane:
    """Bars in rows; the bars of one row do not overlap."""

    label: str
    rows: int
    bars: list[GanttBar]


@dataclass(frozen=True)
class Band:
    """A machine's lanes: its tasks by kind, then what it sends and what it receives."""

    machine: str
    lanes: list[GanttLane]


class Merged(NamedTuple):
    """Bands, and sentences on what was merged or left out."""

    bands: list[Band]
    notes: list[str]


class _Items(NamedTuple):
    """Tasks or flows that took time, of all iterations."""

    iteration: Array
    item: Array
    start: Array
    end: Array
    bytes: Array
    critical: Array


def lay_out(timeline: Timeline, placement: Array, path: Sequence[CriticalStep]) -> Merged:
    """Lay out the bars of all machines in bands."""
    load = timeline.load
    items = _timed(timeline, path)
    is_task = items.item < load.tasks
    tasks, task_note = _task_lanes(timeline, _Items(*(column[is_task] for column in items)), placement)
    flows, flow_note = _flow_lanes(timeline, _Items(*(column[~is_task] for column in items)), placement)
    bands = [
        Band(name, [*tasks.get(machine, []), *flows.get(machine, [])])
        for machine, name in enumerate(timeline.network.machines)
    ]
    left = timeline.starts.size - len(items.item)
    instant = f"Tasks and flows that take no time (as flows within a machine) are not drawn: {left:,}." if left else ""
    return Merged(bands, [note for note in (task_note, flow_note, instant) if note])


def pack(bars: Iterable[GanttBar]) -> tuple[list[GanttBar], int]:
    """Bars in rows, and how many rows: each in the row of its name's last bar if free, else in the first free one."""
    ends: list[float] = []
    usual: dict[str, int] = {}
    out = []
    for bar in sorted(bars, key=lambda each: (each.start, each.end, each.name)):
        row = usual.get(bar.name, -1)
        if row < 0 or ends[row] > bar.start:
            row = next((place for place, end in enumerate(ends) if end <= bar.start), len(ends))
        if row == len(ends):
            ends.append(0.0)
        ends[row] = bar.end
        usual[bar.name] = row
        out.append(bar._replace(row=row))
    return out, len(ends)


def _timed(timeline: Timeline, path: Sequence[CriticalStep]) -> _Items:
    load = timeline.load
    critical = np.zeros(timeline.starts.shape, bool)
    for step in path:
        critical[step.iteration, load.item_numbers[step.name]] = True
    iteration, item = np.nonzero(timeline.ends > timeline.starts)
    sizes = np.concatenate([np.zeros_like(timeline.case.amounts.seconds), timeline.case.amounts.sizes], axis=1)
    found = (each[iteration, item] for each in (timeline.starts, timeline.ends, sizes, critical))
    return _Items(iteration, item, *found)


def _task_lanes(timeline: Timeline, tasks: _Items, placement: Array) -> tuple[dict[int, list[GanttLane]], str]:
    """A lane for every kind of task on a machine, by machine."""
    here, kind = placement[tasks.item], _kind_numbers(timeline)[tasks.item]
    keys, name, note = [np.arange(len(here))], "", ""
    if len(here) > MOST_TASK_BARS:
        keys, name = [here, kind, tasks.iteration], "{kind} on {here}"
        note = f"{len(here):,} runs of tasks are drawn as one bar per machine, kind and iteration."
    out: dict[int, list[GanttLane]] = {}
    for machine, bars in _bars(timeline, tasks, keys, here, here, name).items():
        by_kind: dict[str, list[GanttBar]] = {kind: [] for kind in dict.fromkeys(timeline.load.task_kinds)}
        for bar in bars:
            by_kind[bar.kind].append(bar)
        out[machine] = [_packed(kind, some) for kind, some in by_kind.items() if some]
    return out, note


def _flow_lanes(timeline: Timeline, flows: _Items, placement: Array) -> tuple[dict[int, list[GanttLane]], str]:
    """The lanes of what every machine sends and receives, merged only as far as the limits of bars require."""
    load, kind = timeline.load, _kind_numbers(timeline)[flows.item]
    sent, received = (placement[ends][flows.item - load.tasks] for ends in (load.sources, load.targets))
    levels: tuple[tuple[str, list[Array], float], ...] = (
        ("", [np.arange(len(kind))], MOST_FLOW_BARS),
        ("pair of machines", [sent, received, kind, flows.iteration], MOST_PAIR_BARS),
        ("machine and direction", [], np.inf),
    )
    for apart, keys, most in levels:
        if keys and 2 * len(np.unique(np.stack(keys, axis=1), axis=0)) > most:
            continue
        out: dict[int, list[GanttLane]] = {}
        for way, here, there in (("out", sent, received), ("in", received, sent)):
            arrow = "{kind} {here} → {there}" if way == "out" else "{kind} {there} → {here}"
            whole = "{kind} out of {here}" if way == "out" else "{kind} into {here}"
            name = {"": "", "pair of machines": arrow}.get(apart, whole)
            bars = _bars(timeline, flows, keys or [here, kind, flows.iteration], here, there, name)
            for machine, some in bars.items():
                out.setdefault(machine, []).append(_packed(way, some))
        if not keys or max((lane.rows for lanes in out.values() for lane in lanes), default=0) <= MOST_ROWS:
            break
    note = f"{len(kind):,} flows are drawn as one bar per {apart}, kind and iteration; a trace (.json) has them all."
    return out, note if apart else ""


def _kind_numbers(timeline: Timeline) -> Array:
    return np.asarray(np.unique(timeline.load.item_kinds, return_inverse=True)[1])


def _bars(
    timeline: Timeline, items: _Items, keys: Sequence[Array], here: Array, there: Array, name: str
) -> dict[int, list[GanttBar]]:
    """A bar for all items that agree in `keys`, by machine; `name` is a pattern, or empty for the item's own name."""
    if len(items.item) == 0:
        return {}
    load, machines = timeline.load, timeline.network.machines
    rows = np.stack(keys, axis=1)
    _, first, group, counts = np.unique(rows, axis=0, return_index=True, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    starts, ends = np.full(len(first), np.inf), np.zeros(len(first))
    np.minimum.at(starts, group, items.start)
    np.maximum.at(ends, group, items.end)
    sizes = np.bincount(group, weights=items.bytes).tolist()
    critical = (np.bincount(group, weights=items.critical) > 0).tolist()
    kinds = load.item_kinds
    out: dict[int, list[GanttBar]] = {}
    for place, at in enumerate(first.tolist()):
        item, iteration = int(items.item[at]), int(items.iteration[at])
        words = {"kind": kinds[item], "here": machines[here[at]], "there": machines[there[at]]}
        title = name.format(**words) if name else load.item_name(item)
        times = float(starts[place]), float(ends[place])
        bar = GanttBar(*times, kinds[item], title, iteration, int(counts[place]), sizes[place], critical[place])
        out.setdefault(int(here[at]), []).append(bar)
    return out


def _packed(label: str, bars: list[GanttBar]) -> GanttLane:
    placed, rows = pack(bars)
    return GanttLane(label, rows, placed)
