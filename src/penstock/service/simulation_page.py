"""The page of a simulated queue: when jobs are done under each policy, what runs when, and how full memory is."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from penstock.formatting import counted
from penstock.graph.files import write_whole
from penstock.report.charts import Axis, Point, Series, exact, fitted, line_chart, time_unit
from penstock.report.markup import card, cut, key, large_figure, page_header, page_text, table
from penstock.report.words import seconds
from penstock.service import POLICIES
from penstock.service.simulation import GB, JobOutcome, QueueOutcome, QueueTrace

_LOOKS = ("c1", "c2", "c3", "c4", "c5", "other")
_LANE_PX = 18
_MOST_BARS = 2000
_STYLE = """
.queue { margin: 0 0 26px; }
.queue .bar { fill: var(--look); }
"""


def write_queue_page(
    title: str,
    trace: QueueTrace,
    outcomes: Sequence[QueueOutcome],
    head: list[str],
    cells: list[list[str]],
    bounds: dict[str, float],
    path: Path,
) -> None:
    """Write a page that works offline; `head` and `cells` are the table as the command prints it."""
    looks = {each.method: look for each, look in zip(outcomes, _LOOKS, strict=False)}
    foot = _bound_sentence(bounds) + _refused(outcomes[0])
    cards = [
        card("Policies", table(head, cells), wide=True, foot=foot),
        _completions_card(outcomes, looks),
        _memory_card(trace, outcomes, looks),
        *(_gantt_card(each, looks[each.method], _longest(outcomes)) for each in outcomes),
    ]
    write_whole(path, page_text(title, _headline(title, trace, outcomes), cards, "Simulated", style=_STYLE))


def _headline(title: str, trace: QueueTrace, outcomes: Sequence[QueueOutcome]) -> str:
    first = outcomes[0]
    where = ", ".join(f"{each.name} with {each.memory_gb:g} GB" for each in trace.devices[:4])
    sub = f"<span>{counted(len(first.jobs), 'jobs')} on {escape(cut(where, 120))}</span>"
    figure = large_figure(seconds(first.makespan_s), f"until all jobs are done, under {first.method}")
    return page_header("simulated queue", cut(title, 80), sub, figure=figure)


def _bound_sentence(bounds: dict[str, float]) -> str:
    makespan, completion = seconds(bounds["makespan_s"]), seconds(bounds["mean_completion_s"])
    return f"No schedule is done before {makespan}, or completes jobs in less than {completion} on average."


def _refused(outcome: QueueOutcome) -> str:
    if not outcome.refused:
        return ""
    job, reason = next(iter(outcome.refused.items()))
    return f" {escape(counted(len(outcome.refused), 'jobs'))} refused, such as {escape(job)}: {escape(reason)}"


def _completions_card(outcomes: Sequence[QueueOutcome], looks: dict[str, str]) -> str:
    """The share of jobs that is done after a time since arrival."""
    size, unit = time_unit(max(job.completion_s for each in outcomes for job in each.jobs))
    series = []
    for each in outcomes:
        times = sorted(job.completion_s for job in each.jobs)
        parts = [(at / size, 100 * (place + 1) / len(times)) for place, at in enumerate(times)]
        texts = {at: f"{part:.0f} % within {seconds(at * size)}" for at, part in parts}
        series.append(Series(each.method, list(parts), looks[each.method], texts))
    last = max(at for each in series for at, _ in each.points)
    drawn = line_chart("Jobs done over time", series, exact(0.0, last), fitted([0.0, 100.0]), x_name="")
    keys = "".join(key(each.name, each.look) for each in series)
    return card("Jobs done", drawn, f"% of jobs, over {unit} since they arrived", foot=keys)


def _memory_card(trace: QueueTrace, outcomes: Sequence[QueueOutcome], looks: dict[str, str]) -> str:
    """How much memory of all devices jobs hold over time."""
    capacity = sum(device.memory_gb for device in trace.devices)
    if not capacity or not any(job.device_bytes for job in outcomes[0].jobs):
        return ""
    size, unit = time_unit(_longest(outcomes))
    # One job after the other would cover the other curves.
    together = [each for each in outcomes if each.method in POLICIES] or outcomes
    series = [Series(each.method, _held(each.jobs, size), looks[each.method], {}) for each in together]
    last = max(at for each in series for at, _ in each.points)
    y = fitted([0.0, capacity], from_zero=True)
    drawn = line_chart("Memory held over time", series, exact(0.0, last), y, x_name=unit)
    keys = "".join(key(each.name, each.look) for each in series)
    return card("Memory held", drawn, f"GB of {capacity:g}, over {unit}", foot=keys)


def _held(jobs: Sequence[JobOutcome], size: float) -> list[Point]:
    """Gigabytes of a device that jobs hold over time, as steps; `size` is the seconds of the axis's unit."""
    changes: dict[float, int] = {}
    for job in jobs:
        changes[job.start_s] = changes.get(job.start_s, 0) + job.device_bytes
        changes[job.end_s] = changes.get(job.end_s, 0) - job.device_bytes
    points: list[Point] = []
    held = 0
    for at in sorted(changes):
        points.append((at / size, held / GB))
        held += changes[at]
        points.append((at / size, held / GB))
    return points


def _gantt_card(outcome: QueueOutcome, look: str, longest: float) -> str:
    """A bar for each job, on as few lanes of each device as possible; all policies have one axis of time."""
    size, unit = time_unit(longest)
    axis = exact(0.0, longest / size)
    shown = sorted(outcome.jobs, key=lambda job: job.start_s)[:_MOST_BARS]
    bars, labels, lane = [], [], 0
    for device in sorted({job.device for job in shown}):
        labels.append(f'<span class="lane" style="top:{lane * _LANE_PX}px">{escape(cut(device, 40))}</span>')
        lane += 1
        free_from: list[float] = []
        for job in (each for each in shown if each.device == device):
            at = next((place for place, free in enumerate(free_from) if free <= job.start_s), len(free_from))
            free_from[at : at + 1] = [job.end_s]
            bars.append(_bar(job, look, axis, size, lane + at))
        lane += len(free_from)
    ticks = "".join(
        f'<span class="x" style="left:{axis.place(at) * 100:.2f}%">{escape(text)}</span>' for at, text in axis.ticks
    )
    height = lane * _LANE_PX
    drawn = (
        f'<div class="plot lanes queue" style="height:{height}px"><svg viewBox="0 0 1000 {height}"'
        f' preserveAspectRatio="none" role="img" aria-label="What ran when under {escape(outcome.method)}">'
        f"{''.join(bars)}</svg>{''.join(labels)}{ticks}</div>"
    )
    left = len(outcome.jobs) - len(shown)
    more = f"{counted(left, 'more jobs')} started later and {'is' if left == 1 else 'are'} not drawn." if left else ""
    return card(outcome.method, drawn, f"what ran when, over {unit}", wide=True, foot=more)


def _bar(job: JobOutcome, look: str, axis: Axis, size: float, lane: int) -> str:
    left, right = axis.place(job.start_s / size) * 1000, axis.place(job.end_s / size) * 1000
    times = f"{seconds(job.end_s - job.start_s)}, waited {seconds(job.queueing_s)}"
    text = f"{job.name} · {times} · {job.device_bytes / GB:g} GB"
    return (
        f'<rect class="bar {look}" x="{left:.1f}" y="{lane * _LANE_PX + 1}" width="{max(right - left, 0.6):.1f}"'
        f' height="{_LANE_PX - 2}" data-tip="{escape(text)}"/>'
    )


def _longest(outcomes: Sequence[QueueOutcome]) -> float:
    return max(job.end_s for each in outcomes for job in each.jobs)
