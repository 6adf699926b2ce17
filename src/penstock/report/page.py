"""Composes the report of a run from its cards and writes it, as one file that loads nothing."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.formatting import counted, percent, singular
from penstock.graph.files import write_whole
from penstock.graph.object_folders import send
from penstock.graph.schema import TASK_FACTS
from penstock.nn.layer_table import WITHOUT_LAYERS
from penstock.nn.scorer_table import chosen_scorer
from penstock.pipeline.options import PASSES, STAGES
from penstock.progress import Progress
from penstock.report.cards import (
    device_card,
    epoch_seconds_card,
    graph_card,
    loss_card,
    machine_card,
    memory_card,
    notes_card,
    plan_card,
    settings_card,
    settled_card,
    validation_card,
)
from penstock.report.charts import numbering, steady_window, time_unit, timeline_chart
from penstock.report.cluster import WHOLE_GRAPH, cluster_cards, whole_graph_card
from penstock.report.explanations import explanations_card
from penstock.report.markup import (
    breakable,
    card,
    cut,
    key,
    large_figure,
    page_header,
    page_text,
    small_figures,
    stage_look,
    unbroken,
)
from penstock.report.run_folder import (
    RunRecord,
    StageRecord,
    graph_name,
    listed,
    mapping,
    number,
    numbers,
    of_triples,
    read_run,
    whole,
)
from penstock.report.words import (
    FULL,
    advice,
    limit_sentence,
    mebibytes,
    metric_name,
    metric_value,
    moment,
    seconds,
    short,
)
from penstock.train.job import job_defaults

# The top of the page: what ran, how it ended, and the figures people look for first.

# By state: the word for it, and the class that colours it.
_STATES = {
    "running": ("running", "going"),
    "finished": ("finished", "good"),
    "stopped-early": ("stopped early", "good"),
    "interrupted": ("interrupted", "warn"),
    "failed": ("failed", "bad"),
}
_SCORERS = {"distmult": "DistMult", "complex": "ComplEx", "transe": "TransE", "rotate": "RotatE", "dot": "dot products"}
"""Scorers as their papers spell them."""
_UNFINISHED = ("running", "interrupted")
# A run that has written nothing for this many seconds may have died.
_SILENT = 30.0


def headline(run: RunRecord) -> str:
    """Title, state, the large figure, a row of smaller ones, and which stage limits the run."""
    word, look = _STATES.get(run.state, (run.state, "warn"))
    started = f"<span>{escape(moment(run.started))}</span>" if run.started else ""
    sub = " · ".join(f"<span>{escape(part)}</span>" for part in _subtitle(run))
    below = small_figures(_figures(run)) + _limit(run)
    return page_header(
        word, run_title(run), sub, look=look, beside=started, banner=_banner(run), figure=_figure(run), below=below
    )


def run_title(run: RunRecord) -> str:
    """`sage on synthetic-arxiv`, for a knowledge graph `ComplEx on families`, or as much of it as the run says."""
    model, graph = _model(run), graph_name(run)
    return cut(f"{model} on {graph}" if model and graph else model or graph or run.name, 80)


def _model(run: RunRecord) -> str:
    """The model's name; of a knowledge graph its scorer, with the model before it where there is one."""
    scorer = str(run.job.get("scorer") or "")
    if not of_triples(run) or not scorer:
        return run.model
    # `auto` selects this scorer for knowledge graphs.
    name = _SCORERS.get(chosen_scorer(scorer, "triples"), scorer)
    return name if run.model in WITHOUT_LAYERS else f"{run.model} with {name}"


def _subtitle(run: RunRecord) -> list[str]:
    parts = [cut(run.task.replace("_", " ").replace("-", " ").capitalize(), 60)] if run.task else []
    hidden = whole(run.job.get("hidden"))
    # By default there is one layer for each fan-out. A module of the user's has its own layers.
    layers = whole(run.job.get("layers")) or len(listed(run.job.get("fanouts")))
    if layers and hidden and run.model == run.job.get("model") and not run.job.get("module"):
        parts.append(f"{counted(layers, 'layers')} of {hidden:,}")
    if run.parameters is not None:
        parts.append(f"{short(run.parameters)} {'parameter' if run.parameters == 1 else 'parameters'}")
    if of_triples(run) and (relations := len(mapping(run.graph.get("edges")))):
        parts.append(counted(relations, "relations"))
    names = ("entities", "triples") if of_triples(run) else ("vertices", "edges")
    for what, counts in zip(names, (run.graph.get("nodes"), run.graph.get("edges")), strict=True):
        total = sum(numbers(counts).values())
        if total:
            parts.append(f"{short(total)} {singular(what) if total == 1 else what}")
    return parts


def _figure(run: RunRecord) -> str:
    """The large figure: the test metric; before there is one the best validation, and before that the loss."""
    for kind, values in (("test", numbers(run.result.get("test"))), ("validation", _validation(run))):
        name = run.metric if run.metric in values else next(iter(values), None)
        if name is not None:
            so_far = " so far" if kind == "validation" and run.state in _UNFINISHED else ""
            return large_figure(metric_value(name, values[name]), f"{kind} {metric_name(name)}{so_far}")
    losses = [each.loss for each in run.log.epochs if each.loss is not None]
    partial = number(run.result.get("loss_so_far"))
    losses = losses or ([partial] if partial is not None else [])
    return large_figure(f"{losses[-1]:.4g}", "training loss") if losses else ""


def _validation(run: RunRecord) -> dict[str, float]:
    return numbers(run.result.get("val")) or (run.best.val if run.best else {})


def _banner(run: RunRecord) -> str:
    """A banner that says why the run failed or stopped, or that it is not finished; empty for a finished run."""
    if run.state == "failed":
        words = run.message or "The run failed and left no message."
        return f'<p class="banner bad"><b>This run failed.</b> {escape(words)}</p>'
    if run.state == "interrupted":
        words = run.message or "This run was interrupted."
        where = cut(str(run.result.get("run") or run.folder), 200)
        more = "The page shows what was done until then; resume with: penstock train --resume"
        return f'<p class="banner warn"><b>{escape(words)}</b> {more} {breakable(where)}</p>'
    if run.state == "running":
        silent = run.silent_s or 0.0
        words = f" {escape(run.message)}" if run.message else ""
        if silent <= _SILENT:
            return f'<p class="banner going"><b>Still running when this page was written.</b>{words}</p>'
        last = f"It had last written {seconds(silent)} before: if its process has ended, resume with: penstock train"
        where = cut(str(run.folder), 200)
        unsure = "<b>Not finished when this page was written.</b>"
        return f'<p class="banner warn">{unsure} {escape(last)} --resume {breakable(where)}{words}</p>'
    said = [run.message, *map(str, listed(run.result.get("notes")))]
    return "".join(f'<p class="banner">{escape(each)}</p>' for each in said if each)


def _figures(run: RunRecord) -> list[tuple[str, str]]:
    best, shown = run.best, _validation(run)
    epochs = whole(run.result.get("epochs")) or len(run.log.epochs)
    figures: list[tuple[str, str]] = []
    if numbers(run.result.get("test")) and run.metric in shown:
        figures.append(("validation", metric_value(run.metric, shown[run.metric])))
    planned = whole(run.job.get("epochs")) if run.state in _UNFINISHED else None
    if epochs or planned:
        figures.append(("epochs", f"{epochs:,} of {planned:,}" if planned else f"{epochs:,}"))
    steps, all_steps = (whole(run.result.get(name)) for name in ("steps", "steps_planned"))
    if run.state == "interrupted" and steps is not None and all_steps:
        figures.append(("batches", f"{steps:,} of {all_steps:,}"))
    if best is not None and run.metric in best.val:
        figures.append(("best epoch", f"{best.epoch:,}"))
    shuffled = whole(run.result.get("shuffled_from"))
    if shuffled is not None and shuffled > 1:
        figures.append(("shuffled", f"from epoch {shuffled:,}"))
    if stale := whole(run.result.get("staleness")):
        figures.append(("gradients", f"on weights {counted(stale, 'updates')} old"))
    about = TASK_FACTS[run.task].about if run.task in TASK_FACTS else "vertices"
    measured: list[tuple[str, float | None, Any]] = [
        ("time", run.seconds, seconds),
        (f"{about} a second", run.seeds_per_second, short),
        ("train loss", number(run.result.get("train_loss")), "{:.4g}".format),
        ("peak memory", run.peak_rss_mb, mebibytes),
    ]
    return figures + [(name, words(value)) for name, value, words in measured if value is not None]


def _limit(run: RunRecord) -> str:
    limiting = run.limiting
    if limiting is None:
        return ""
    sentence = limit_sentence(limiting, run.stages)
    return f'<p class="limit {stage_look(limiting.name)}">{unbroken(escape(sentence))}</p>'


def write_report(run: Path, defaults: Mapping[str, Any] | None = None) -> Path:
    """Write a run folder's `report.html` and return its path; `defaults` are a job's, to tell what was set."""
    page = render(read_run(run), defaults)
    target = Path(run) / "report.html"
    write_whole(target, page)
    return target


def write_report_or_note(run: Path, state: str, progress: Progress) -> None:
    """Write a trained run's page, or note why that failed: a missing page must not make the run fail.

    A run at an address is sent there with it, which may fail.
    """
    try:
        write_report(run, job_defaults())
    except (PenstockError, OSError) as error:
        progress.note(f"The run is {state}, but its report could not be made. {error}")
    send(run)


def render(run: RunRecord, defaults: Mapping[str, Any] | None = None) -> str:
    """The whole page as HTML; `defaults` are those of a job's fields, from which chosen ones are told apart."""
    cards = [
        loss_card(run),
        epoch_seconds_card(run),
        validation_card(run),
        stages_card(run),
        timeline_card(run),
        notes_card(run),
        settings_card(run, defaults),
        plan_card(run),
        *(cluster_cards(run) if "tasks" in run.result else []),
        memory_card(run),
        whole_graph_card(run) if run.result.keys() & WHOLE_GRAPH else "",
        explanations_card(run) if "explanations" in run.result else "",
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
    # A stage limits only where it worked almost all the time; passes that take turns never limit.
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
    # A stage that has worked at all is not shown as 0 %.
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
