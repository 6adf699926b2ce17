"""Numbers and findings as text."""

from datetime import datetime

from penstock.formatting import percent
from penstock.pipeline.options import PASSES
from penstock.report.run_folder import StageRecord

_DOING = {
    "seeds": "Choosing seeds",
    "sample": "Sampling",
    "gather": "Gathering features",
    "transfer": "Moving batches to the device",
    "compute": "Compute",
    "forward": "The forward pass",
    "exchange": "The exchange of rows",
    "backward": "The backward pass",
    "update": "The update of the weights",
}
_ADVICE = {
    "seeds": "Larger batches mean fewer to choose.",
    "sample": "More sampling threads, or smaller fan-outs, would make it faster.",
    "gather": "More gathering threads, narrower features, or a graph that fits in memory would make it faster.",
    "transfer": "Narrower features, or a sampler that fetches fewer vertices, would make it faster.",
    "compute": "Batches are ready before they are needed: only a smaller model or a faster processor would help.",
    "forward": "Only a smaller model or a faster processor would make it much faster.",
    "exchange": "A better cut of the graph, or faster links between the machines, would make it faster.",
    "backward": "Only a smaller model or a faster processor would make it much faster; where bins are computed again,"
    " so would more memory.",
}
FULL = 0.6
"""The share of the training time below which the busiest stage does not account for the run's time."""
_CLOSE = 0.85
"""A stage that works for this share of the limiting stage's time would limit next."""
_PERCENT = ("accuracy", "f1", "hits")


def seconds(value: float) -> str:
    """A duration as text: 840 ms, 3.2 s, 4 min 12 s, 2 h 03 min."""
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def milliseconds(value: float) -> str:
    """An iteration's time in the form of plans: 7.518 ms."""
    return f"{value * 1e3:.4g} ms"


def mebibytes(value: float) -> str:
    """Memory given in MiB, in the unit that shows it: 12 B, 3.5 KiB, 687 MiB, 2.28 GiB."""
    if value >= 1024:
        return f"{value / 1024:,.2f} GiB"
    for unit, size in (("MiB", value), ("KiB", value * 1024)):
        if size >= 0.9995:
            return f"{size:.0f} {unit}" if size >= 100 else f"{size:.3g} {unit}"
    return f"{value * (1 << 20):.0f} B"


def byte_size(size: float) -> str:
    """Memory given in bytes, in the unit that shows it."""
    return mebibytes(size / (1 << 20))


def short(count: float) -> str:
    """A count in a few characters: 950, 12.3 k, 4.56 M."""
    for unit in ("", " k", " M"):
        if abs(count) < 999.5:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:,.3g} G" if count < 1000 else f"{count:,.0f} G"


def is_percentage(metric: str) -> bool:
    """Whether this metric is usually given as a percentage."""
    return any(part in metric.lower() for part in _PERCENT)


def metric_value(metric: str, value: float) -> str:
    """A metric's value as text, as a percentage where that is usual."""
    return f"{value * 100:.2f} %" if is_percentage(metric) else f"{value:.4g}"


def metric_name(metric: str) -> str:
    """`roc-auc` as `ROC-AUC`, `macro-f1` as `macro F1`; names of unknown metrics without hyphens."""
    known = {"roc-auc": "ROC-AUC", "mrr": "MRR", "mae": "MAE", "rmse": "RMSE"}
    return known.get(metric, metric.replace("-", " ").replace("_", " ").replace("f1", "F1"))


def moment(written: str) -> str:
    """An ISO time as `20 July 2026, 14:03`; anything else as it stands."""
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        return written
    return f"{when.day} {when:%B %Y, %H:%M}"


def limit_sentence(limiting: StageRecord, stages: list[StageRecord]) -> str:
    """One sentence: which stage limits the run, which stages waited for it, and which would limit next."""
    if limiting.name in PASSES:
        used = sorted((each for each in stages if each.busy_s > 0), key=lambda each: -each.busy_s)
        parts = [f"{_doing(each)} {percent(each.share)}" for each in used]
        return f"A step does one pass after the other: {_joined(parts)} of its time."
    doing, at_work = _DOING.get(limiting.name, limiting.name), f"{percent(limiting.share)} of the training time"
    if limiting.share < FULL:
        return f"No stage was at work throughout: {_doing(limiting)} was at work longest, {at_work}."
    others = [each for each in stages if each.name != limiting.name and each.busy_s + each.wait_s > 0]
    close = [f"{_doing(each)} ({percent(each.share)})" for each in others if each.share >= _CLOSE * limiting.share]
    waiting = [_doing(each) for each in others if each.share < 0.5]
    who = "the other stages" if len(waiting) == len(others) > 2 else _joined(waiting)
    tail = f"; {_joined(close)} would be next" if close else f"; {who} mostly waited" if waiting else ""
    return f"{doing} limits this run: it was at work {at_work}{tail}."


def advice(limiting: StageRecord) -> str:
    """A sentence on what would make the run faster; empty where that is not known."""
    return _ADVICE.get(limiting.name, "") if limiting.share >= FULL or limiting.name in PASSES else ""


def _doing(stage: StageRecord) -> str:
    return _DOING.get(stage.name, stage.name).lower()


def _joined(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
