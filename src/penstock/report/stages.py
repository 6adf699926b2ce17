"""The pipeline's cards: how busy each stage was, and a few batches in their lanes."""

from html import escape

from penstock.quantities import counted, percent
from penstock.report.axes import time_unit
from penstock.report.markup import card, key, stage_look
from penstock.report.run_folder import STAGES, RunRecord, Stage
from penstock.report.timeline import numbering, steady_window, timeline_chart
from penstock.report.words import advice, seconds


def stages_card(run: RunRecord) -> str:
    """A bar a stage: solid while it worked, pale while it waited."""
    stages, limiting = run.stages, run.limiting
    if not stages or limiting is None:
        return ""
    rows = "".join(_row(each, each.name == limiting.name) for each in stages)
    return card(
        "Stages", f'<ul class="stages">{rows}</ul>', "busy, and waiting", wide=True, foot=escape(advice(limiting))
    )


def timeline_card(run: RunRecord) -> str:
    """What each thread did during a few batches in the middle of the run."""
    window = steady_window(run.trace)
    if window is None:
        return ""
    present = {stage_look(bar.stage): bar.stage for lane in window.lanes for bar in lane.bars}
    legend = "".join(key(name, look) for look, name in _in_order(present))
    hidden = (
        f" {counted(window.hidden, 'more threads')} {'is' if window.hidden == 1 else 'are'} not shown."
        if window.hidden
        else ""
    )
    unit = time_unit((window.end - window.start) / 1e6)[1]
    about = f"{unit}; one lane for each thread, numbers are {numbering(window)}: point at one to follow it"
    return card("Timeline", timeline_chart(window), about, wide=True, foot=legend + hidden)


def _in_order(present: dict[str, str]) -> list[tuple[str, str]]:
    order = (*STAGES, "other")
    return sorted(present.items(), key=lambda item: order.index(item[0]))


def _row(stage: Stage, limits: bool) -> str:
    look = stage_look(stage.name)
    used = stage.busy_s + stage.wait_s > 0
    details = [f"busy {seconds(stage.busy_s)}", f"waited {seconds(stage.wait_s)}"] if used else ["not used"]
    if stage.threads:
        details.append(counted(stage.threads, "threads"))
    if stage.depth:
        details.append(f"queue of {stage.depth}")
    badge = "<em>limits</em>" if limits else ""
    bar = (
        f'<div class="meter"><i style="width:{stage.share * 100:.2f}%"></i></div>'
        if used
        else '<div class="meter off"></div>'
    )
    return (
        f'<li class="{look}"><div><b>{escape(stage.name)}</b>{badge}<strong>{percent(stage.share)}</strong></div>'
        f"{bar}<small>{' · '.join(details)}</small></li>"
    )
