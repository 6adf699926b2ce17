"""Writes a timeline as its file's name asks: a page, or trace events that Perfetto and Chrome open."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.atomic import write_whole
from penstock.report.gantt.bars import GanttBar, pack
from penstock.report.gantt.findings import link_use_over_time
from penstock.report.gantt.page import Shown, render_page
from penstock.simulate import Timeline, critical_path

_FORMS = (".html", ".json")


def write_timeline(shown: Shown, path: Path) -> None:
    """Write a page (.html) or a Perfetto trace (.json); the timeline must have been made with `segments`."""
    check_form(path)
    write_whole(path, render_page(shown) if path.suffix == ".html" else trace_text(shown.timeline, shown.placement))


def check_form(path: Path) -> None:
    """Refuse a name that says neither page nor trace, or a folder that is not there, before anything is simulated."""
    if path.suffix not in _FORMS:
        raise PenstockError(
            f"{path} is neither a page nor a trace: end its name in .html or .json.", code="invalid-value"
        )
    if not path.parent.is_dir():
        raise PenstockError(
            f"The folder {path.parent} does not exist: make it, or write {path.name} elsewhere.", code="file-not-found"
        )


_SLOTS = 1000


def trace_text(timeline: Timeline, placement: Array) -> str:
    """The trace as JSON: every task and every flow (at its sender) a slice, every link a counter in percent."""
    events = chain(_slices(timeline, placement), _counters(timeline))
    lines = ",\n".join(json.dumps(event) for event in events)
    return f'{{"displayTimeUnit": "ms", "traceEvents": [\n{lines}\n]}}\n'


def _slices(timeline: Timeline, placement: Array) -> Iterator[dict[str, Any]]:
    load = timeline.load
    kinds = [*load.task_kinds, *load.flow_kinds]
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
    """A point where a link's use changes, each the mean of a thousandth of the time."""
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
    """Seconds that a flow on the critical path shared its links; of others this is not known."""
    step = on_path.get((bar.name, bar.iteration))
    return None if step is None else float(step.waited)


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
