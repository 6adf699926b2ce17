"""The page: its sections in order, in one file that loads nothing."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.atomic import write_whole
from penstock.pipeline.clock import PASSES
from penstock.progress import Progress
from penstock.quantities import counted, percent
from penstock.report.axes import time_unit
from penstock.report.cluster import cluster_cards
from penstock.report.curves import epoch_seconds_card, loss_card, memory_card
from penstock.report.explanations import explanations_card
from penstock.report.facts import device_card, graph_card, machine_card, notes_card, settings_card, settled_card
from penstock.report.headline import headline, run_title
from penstock.report.markup import card, key, page_text, stage_look
from penstock.report.run_folder import STAGES, RunRecord, StageRecord, read_run
from penstock.report.timeline import numbering, steady_window, timeline_chart
from penstock.report.validation import validation_card
from penstock.report.whole_graph import whole_graph_card
from penstock.report.words import FULL, advice, seconds
from penstock.train.job import job_defaults


def write_report(run: Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Write `report.html` into the run folder and return its path; `defaults` tell which settings were chosen."""
    page = render(read_run(run), defaults)
    target = Path(run) / "report.html"
    write_whole(target, page)
    return target


def write_report_or_note(run: Path, state: str, progress: Progress) -> None:
    """Write the page of a run that was trained, or note why there is none: what was trained stands without it."""
    try:
        write_report(run, job_defaults())
    except (PenstockError, OSError) as error:
        progress.note(f"The run is {state}, but its report could not be made. {error}")


def render(run: RunRecord, defaults: Mapping[str, Any] | None = None) -> str:
    """The page as text."""
    cards = [
        loss_card(run),
        epoch_seconds_card(run),
        validation_card(run),
        stages_card(run),
        timeline_card(run),
        notes_card(run),
        settings_card(run, defaults),
        *cluster_cards(run),
        memory_card(run),
        whole_graph_card(run),
        explanations_card(run),
        device_card(run),
        settled_card(run),
        graph_card(run),
        machine_card(run),
    ]
    return page_text(run_title(run), headline(run), cards, f"Run {run.name} · page written")


def stages_card(run: RunRecord) -> str:
    """A bar for each stage: solid while it worked, pale while it waited."""
    stages, limiting = run.stages, run.limiting
    if not stages or limiting is None:
        return ""
    in_turn = limiting.name in PASSES
    what = "a step's time" if in_turn else f"the {seconds(run.training_s)} of training in which each was at work"
    how = "one after the other" if in_turn else "side by side"
    # Where no stage was at work throughout, none limits; passes in turn never do.
    named = "" if in_turn or limiting.share < FULL else limiting.name
    rows = "".join(_row(each, each.name == named, in_turn, run.training_s) for each in stages)
    whose = "of the first worker, " if run.cluster else ""
    about = f"{whose}{how}; the share of {what}"
    return card("Stages", f'<ul class="stages">{rows}</ul>', about, wide=True, foot=escape(advice(limiting)))


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
    workers = {bar.worker for lane in window.lanes for bar in lane.bars}
    if run.cluster and len(workers) == 1:
        hidden += " Of the workers, the first is shown: the others recorded none of these batches."
    elif len(workers) > 1:
        hidden += " The workers' clocks are aligned at the ends of their common steps."
    unit = time_unit((window.end - window.start) / 1e6)[1]
    about = f"{unit}; one lane for each thread, numbers are {numbering(window)}: point at one to follow it"
    return card("Timeline", timeline_chart(window), about, wide=True, foot=legend + hidden)


def _in_order(present: dict[str, str]) -> list[tuple[str, str]]:
    order = (*STAGES, "other")
    return sorted(present.items(), key=lambda item: order.index(item[0]))


def _row(stage: StageRecord, limits: bool, in_turn: bool, longest: float) -> str:
    look = stage_look(stage.name)
    used = stage.busy_s + stage.wait_s > 0
    several = (stage.threads or 1) > 1
    details = [f"{seconds(stage.each_s)} of work{' for each thread' if several else ''}"] if used else ["not used"]
    if stage.each_s > longest > 0:
        details.append("some of it during validations")
    if stage.threads and not in_turn:
        details.append(counted(stage.threads, "threads"))
    if stage.depth and not in_turn:
        details.append(f"queue of {counted(stage.depth, 'batches')}")
    # A stage that has worked does not look as if it had not.
    share = "&lt; 1 %" if 0 < stage.share < 0.005 else percent(stage.share)
    badge = "<em>limits</em>" if limits else ""
    bar = (
        f'<div class="meter"><i style="width:{stage.share * 100:.2f}%"></i></div>'
        if used
        else '<div class="meter off"></div>'
    )
    return (
        f'<li class="{look}"><div><b>{escape(stage.name)}</b>{badge}<strong>{share}</strong></div>'
        f"{bar}<small>{' · '.join(details)}</small></li>"
    )
