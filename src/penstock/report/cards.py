"""The cards of a run: with curves, loss, seconds and memory by epoch or over time, and validation metrics; with tables,
settings, plan, graph, machine and notes.
"""

import json
from bisect import bisect_left
from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from penstock.formatting import counted, signed_percent
from penstock.hardware.cluster import ClusterDocument, Machine
from penstock.report.charts import (
    Axis,
    Mark,
    Point,
    Series,
    column_chart,
    epoch_axis,
    exact,
    fitted,
    line_chart,
    logarithmic,
    spans_decades,
    time_unit,
)
from penstock.report.markup import breakable, card, cut, key, pairs, table
from penstock.report.run_folder import (
    RunRecord,
    amount,
    graph_name,
    listed,
    mapping,
    number,
    numbers,
    of_triples,
    whole,
)
from penstock.report.words import byte_size, is_percentage, mebibytes, metric_name, metric_value, seconds
from penstock.sampling.sampler_table import SAMPLERS, sampler_facts

# The cards with curves by epoch or over time: loss, seconds for each epoch, memory.

_MOST_COLUMNS = 60
_FEW_EPOCHS = 5


def loss_card(run: RunRecord) -> str:
    """The training loss by epoch, with the losses between epochs faint behind it."""
    points: list[Point] = [
        (float(each.epoch), each.loss) for each in run.log.epochs if each.diverged or each.loss is not None
    ]
    steps = _steps_in_epochs(run)
    by_step = not any(value is not None for _, value in points) and bool(run.log.steps)
    if by_step:
        points, steps = [(float(step), loss) for step, loss in run.log.steps], []
    values = [value for _, value in [*points, *steps] if value is not None]
    foot = _divergence(run)
    if not values:
        return card("Loss", '<p class="none">No finite loss was recorded.</p>', foot=foot) if points else ""
    log = spans_decades(values)
    y = logarithmic(values) if log else fitted(values)
    x = epoch_axis([at for at, _ in [*points, *steps]])
    series = Series("", points, "c1", {at: f"{value:.5g}" for at, value in points if value is not None})
    name = "step" if by_step else "epoch"
    drawn = line_chart("Training loss", [series], x, y, behind=steps, x_name=name)
    about = f"training, by {name}{', logarithmic' if log else ''}{'; faint: single batches' if steps else ''}"
    return card("Loss", drawn, about, foot=foot)


def epoch_seconds_card(run: RunRecord) -> str:
    """How long each epoch took: columns while they can be told apart, a curve beyond."""
    points = [(float(each.epoch), each.seconds) for each in run.log.epochs if each.seconds is not None]
    values = [value for _, value in points]
    if not values:
        return ""
    size, unit = time_unit(max(values))
    texts = {at: seconds(value) for at, value in points}
    series = Series("", [(at, value / size) for at, value in points], "c1", texts)
    y = fitted([value / size for value in values], from_zero=True)
    ends = points[0][0], points[-1][0]
    if ends[1] - ends[0] < _MOST_COLUMNS:
        inner = epoch_axis([at for at, _ in points])
        x = Axis(ends[0] - 0.6, ends[1] + 0.6, inner.ticks)
        drawn = column_chart("Seconds for each epoch", series, x, y)
    else:
        drawn = line_chart("Seconds for each epoch", [series], exact(*ends, whole=True), y, area=True)
    return card("Time for each epoch", drawn, unit, foot=escape(_epoch_times(values)))


def memory_card(run: RunRecord) -> str:
    """Resident memory over time, from the trace or, without one, from the epochs."""
    samples = run.trace.memory
    by_epoch = [(each.time, each.rss_mb) for each in run.log.epochs if each.time is not None and each.rss_mb]
    traced = samples[-1][0] if samples else 0.0
    if (len(by_epoch) > 1 and traced < 0.8 * by_epoch[-1][0]) or len(samples) < 2:
        # No trace, or one that stops long before the run does.
        samples = by_epoch
    if not samples:
        return ""
    gib = max(rss for _, rss in samples) >= 1024
    size, unit = time_unit(max(at for at, _ in samples))
    points: list[Point] = [(at / size, rss / 1024 if gib else rss) for at, rss in samples]
    texts = {at / size: f"{mebibytes(rss)} after {seconds(at)}" for at, rss in samples}
    x, y = exact(points[0][0], points[-1][0]), fitted([value for _, value in points if value], from_zero=True)
    drawn = line_chart("Memory", [Series("", points, "c1", texts)], x, y, x_name="", area=True)
    return card("Memory", drawn, f"{'GiB' if gib else 'MiB'} resident, over {unit}", foot=escape(_room(run)))


def _epoch_times(values: list[float]) -> str:
    """A sentence on the epochs' times; it names the median where there are enough epochs for one."""
    if len(values) < 2:
        return ""
    if len(values) < _FEW_EPOCHS:
        return f"The shortest epoch took {seconds(min(values))}, the longest {seconds(max(values))}."
    return f"The median epoch took {seconds(median(values))}, the longest {seconds(max(values))}."


def _room(run: RunRecord) -> str:
    machine = run.machine.get("memory_mb")
    peak = f"Peak {mebibytes(run.peak_rss_mb)}" if run.peak_rss_mb else ""
    if peak and isinstance(machine, int | float) and machine > 0:
        peak += f" of the machine's {mebibytes(machine)}"
    held = run.graph.get("bytes")
    if peak and isinstance(held, int | float) and held > 0:
        peak += f"; the graph is {byte_size(held)}"
    return f"{peak}." if peak else ""


def _steps_in_epochs(run: RunRecord) -> list[Point]:
    """The losses of single batches, each at its fraction of the epoch."""
    ends = [(each.step, each.epoch) for each in run.log.epochs if each.step is not None]
    if not ends or ends != sorted(ends):
        return []
    known = [0, *(step for step, _ in ends)]
    epochs = [ends[0][1] - 1, *(epoch for _, epoch in ends)]
    places: list[Point] = []
    for step, loss in sorted(run.log.steps, key=lambda each: each[0]):
        after = min(max(bisect_left(known, step), 1), len(known) - 1)
        width = known[after] - known[after - 1]
        if width > 0:
            share = (step - known[after - 1]) / width
            places.append((epochs[after - 1] + share * (epochs[after] - epochs[after - 1]), loss))
    return places


def _divergence(run: RunRecord) -> str:
    first = next((each.epoch for each in run.log.epochs if each.diverged), None)
    return "" if first is None else f'<b class="bad">The loss was not a finite number at epoch {first:,}.</b>'


# The card of validation metrics: one chart for each, and a table of the best model's values.

_MOST_CHARTS, _FEW_CHARTS = 4, 2
"""The most charts in all, and the most that are stacked in one column."""


class _Curve(NamedTuple):
    """Metrics whose values agree in every epoch, as accuracy and micro F1 do where every vertex has one class."""

    metrics: list[str]
    points: list[tuple[float, float]]
    look: str

    @property
    def name(self) -> str:
        return " and ".join(metric_name(each) for each in self.metrics) + (" (equal)" if len(self.metrics) > 1 else "")


def validation_card(run: RunRecord) -> str:
    """Every validation metric by epoch in a chart of its own; the best epoch is marked in the one that decides."""
    curves = _curves(run)[:_MOST_CHARTS]
    results = _results(run, curves)
    if not curves:
        return card("Results", results) if results else ""
    charts = [_chart(run, curve) for curve in curves]
    if len(charts) <= _FEW_CHARTS:
        return card("Validation", "".join(charts) + results, "by epoch")
    body = "".join(f"<div>{chart}</div>" for chart in charts)
    return card("Validation", f'<div class="charts">{body}</div>{results}', "by epoch", wide=True)


def _curves(run: RunRecord) -> list[_Curve]:
    """The curves, the deciding metric's first; metrics with the same values share a curve."""
    names = list(dict.fromkeys(name for each in run.log.epochs for name in each.val))
    names.sort(key=lambda name: name != run.metric)
    found: list[_Curve] = []
    for name in names:
        # Where only every few epochs are validated, the curve connects them: epochs without a value are no breaks.
        points = [(float(each.epoch), each.val[name]) for each in run.log.epochs if name in each.val]
        same = next((curve for curve in found if _alike(curve.points, points)), None)
        if same is not None and is_percentage(same.metrics[0]) == is_percentage(name):
            same.metrics.append(name)
        else:
            found.append(_Curve([name], points, f"c{2 + len(found) % _MOST_CHARTS}"))
    return found


def _alike(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> bool:
    """Whether two curves would look the same on the page."""
    return len(some) == len(others) and all(
        at == other_at and abs(value - other) <= 1e-9 * max(abs(value), abs(other))
        for (at, value), (other_at, other) in zip(some, others, strict=True)
    )


def _chart(run: RunRecord, curve: _Curve) -> str:
    metric, decides = curve.metrics[0], run.metric in curve.metrics
    scale = 100.0 if is_percentage(metric) else 1.0
    series = [_series(metric_name(metric), metric, curve.points, scale, curve.look)]
    tested = [(float(each.epoch), each.test[metric]) for each in run.log.epochs if metric in each.test]
    if tested:
        series.append(_series(f"test {metric_name(metric)}", metric, tested, scale, "c1"))
    values = [value for each in series for _, value in each.points if value is not None]
    mark = _mark(run, metric, scale) if decides else None
    if mark is not None:
        # Leaves room for the mark's text beyond the best value.
        room = (max(values) - min(values)) * 0.08
        values.append(max(values) + room if run.higher_is_better else min(values) - room)
    x = epoch_axis(float(each.epoch) for each in run.log.epochs)
    drawn = line_chart(f"Validation {curve.name}", series, x, fitted(values), mark=mark)
    unit = "%" if scale == 100 else ""
    tested_key = key("on the test split", "c1") if tested else ""
    title = f'<h3>{key(curve.name, curve.look)}<span class="about">{unit}</span>{tested_key}</h3>'
    return title + drawn


def _series(name: str, metric: str, points: list[tuple[float, float]], scale: float, look: str) -> Series:
    texts = {at: metric_value(metric, value) for at, value in points}
    return Series(name, [(at, value * scale) for at, value in points], look, texts)


def _mark(run: RunRecord, metric: str, scale: float) -> Mark | None:
    best = run.best
    if best is None or metric not in best.val:
        return None
    words = f"{metric_value(metric, best.val[metric])} at epoch {best.epoch:,}"
    return Mark(float(best.epoch), best.val[metric] * scale, words, above=run.higher_is_better)


def _results(run: RunRecord, curves: list[_Curve]) -> str:
    """Every metric of the best model, with the colours of those that are drawn."""
    val, test = numbers(run.result.get("val")), numbers(run.result.get("test"))
    if not val and not test:
        return ""
    looks = {name: curve.look for curve in curves for name in curve.metrics}
    rows = []
    for name in sorted(dict.fromkeys([*looks, *val, *test]), key=lambda name: name != run.metric):
        cells = "".join(f"<td>{metric_value(name, each[name]) if name in each else ''}</td>" for each in (val, test))
        rows.append(f"<tr><td>{key(metric_name(name), looks.get(name, 'undrawn'))}</td>{cells}</tr>")
    return (
        "<table><thead><tr><th>best model</th><th>validation</th><th>test</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


# Knowledge graphs have hundreds of edge types; the largest are shown.
_MOST_ROWS = 20
_MOST_NOTES = 100
_MOST_NAMED = 8
_NONE = "none"
_LONGEST = 400


def settings_card(run: RunRecord, defaults: Mapping[str, Any] | None) -> str:
    """The job's fields: first those that were chosen, then those left at their defaults."""
    if not run.job:
        return ""
    if defaults is None:
        return card("Settings", pairs((key, _text(value)) for key, value in run.job.items()), wide=True)
    usual = {key: _plain(value) for key, value in defaults.items()}
    other = {key: value for key, value in run.job.items() if key not in usual or _plain(value) != usual[key]}
    # A model without layers reads only the seeds, whatever `fanouts` says.
    sampler = run.job.get("sampler")
    implied = ("sampler", "fanouts") if sampler in SAMPLERS and sampler_facts(str(sampler)).seeds_only else ()
    decided = {key: value for key, value in other.items() if key in run.decided or key in implied}
    chosen = {key: value for key, value in other.items() if key not in decided and not _is_measured(value)}
    left = [(key, _text(value)) for key, value in run.job.items() if key not in chosen and key not in decided]
    rows = "".join(_setting(key, value, usual) for key, value in chosen.items())
    body = f'<dl class="pairs chosen">{rows}</dl>' if rows else '<p class="none">Every setting is the default.</p>'
    if run.cluster:
        body += f"<h3>Cluster</h3>{pairs(_cluster_settings(run))}"
    if decided:
        names = [(key, _text(value)) for key, value in decided.items()]
        body += f"<h3>Left open, and decided by the run</h3>{pairs(names)}"
    if left:
        body += f"<details><summary>{_left_alone(len(left))}</summary>{pairs(left)}</details>"
    return card("Settings", body, "chosen for this run", wide=True)


def _cluster_settings(run: RunRecord) -> list[tuple[str, str]]:
    """The machines with their workers, how gradients are summed, and what else differs from a cluster's defaults."""
    machines = [mapping(each) for each in listed(run.cluster.get("machines"))]
    names = [str(each.get("name", "")) for each in machines]
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    rows = [("machines", f"{len(names):,}: {', '.join(names[:_MOST_NAMED])}{more}")]
    for field in ("workers", "gpus"):
        counts = [whole(each.get(field)) or 0 for each in machines]
        if any(counts):
            each = f"{counts[0]:,} on each machine" if len(set(counts)) == 1 else ", ".join(map(str, counts))
            rows.append((field, cut(each, _LONGEST)))
    usual = ClusterDocument(machines=[Machine(name="m0")]).model_dump(mode="json")
    always = ("launcher", "reduce")
    for field, value in run.cluster.items():
        if field in usual and field not in ("machines", "partition") and (field in always or value != usual[field]):
            rows.append((field, _changed(value, usual[field])))
    partition = str(run.cluster.get("partition") or "")
    own = Path(partition).name == "parts" and Path(partition).parent.name == run.name
    return [
        *rows,
        ("parts", f"cut for this run by {run.cluster.get('method', 'metis')}" if own else partition or "none"),
    ]


def _changed(value: Any, usual: Any) -> str:
    """A setting of a cluster as text; of one with fields, only those that differ from the default."""
    if isinstance(value, dict) and isinstance(usual, dict):
        return ", ".join(f"{key} {_text(each)}" for key, each in value.items() if each != usual.get(key))
    return _text(value)


def graph_card(run: RunRecord) -> str:
    """Node and edge types, feature widths, classes and size."""
    nodes, edges = numbers(run.graph.get("nodes")), numbers(run.graph.get("edges"))
    widths, count = mapping(run.graph.get("features")), whole(run.graph.get("classes"))
    size = number(run.graph.get("bytes"))
    if not (nodes or edges or size):
        return ""
    body = ""
    if nodes:
        own = [str(name) for name in listed(run.graph.get("learned"))]
        rows = [
            [name, f"{count:,.0f}", _width(widths.get(name)) + " learned" * (name in own)]
            for name, count in _largest(nodes)
        ]
        # Vertices without stored features have embeddings that are learned.
        what = "vectors" if nodes.keys() <= set(own) else "features"
        body += table(["entities" if of_triples(run) else "vertices", "count", what], rows, len(nodes))
    if edges:
        rows = [[_edge_name(name), f"{count:,.0f}"] for name, count in _largest(edges)]
        body += table(["relations" if of_triples(run) else "edges", "count"], rows, len(edges))
    facts = [f"{byte_size(size)} in memory"] if size else []
    facts += [counted(count, "classes")] if count and "class" in run.task else []
    return card("Graph", body, escape(graph_name(run)), foot=escape(" · ".join(facts)))


def machine_card(run: RunRecord) -> str:
    """Processor, cores, memory and versions."""
    if not run.machine:
        return ""
    memory = number(run.machine.get("memory_mb"))
    shown = {key: value for key, value in run.machine.items() if value is not None}
    rows = [(key, _text(value)) for key, value in shown.items() if key != "memory_mb" or memory is None]
    if memory is not None:
        rows.insert(min(2, len(rows)), ("memory", mebibytes(memory)))
    return card("Machine", pairs(rows), wide=True)


def device_card(run: RunRecord) -> str:
    """What a GPU's memory held during training, its throughput, and its peak memory beside the prediction."""
    peak, predicted = number(run.result.get("device_peak_mb")), number(run.result.get("device_predicted_mb"))
    if peak is None:
        return ""
    placement = mapping(run.result.get("placement"))
    placed = (name for name in ("topology", "features") if name in placement)
    rows: list[tuple[str, str]] = [(name, _text(placement[name])) for name in placed]
    cached, hits = whole(placement.get("cache_rows")), number(placement.get("hit_rate"))
    if cached:
        rows.append(("rows cached", f"{cached:,}" + (f", {hits * 100:.0f} % of reads" if hits is not None else "")))
    if (rate := number(run.result.get("batches_per_second"))) is not None:
        rows.append(("batches a second", f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"))
    rows.append(("memory at most", mebibytes(peak)))
    if predicted:
        rows.append(("as predicted", f"{mebibytes(predicted)} ({signed_percent(predicted / peak - 1, 1)})"))
    said = " ".join(str(sentence) for sentence in listed(placement.get("why")))
    body = pairs(rows) + _paths(mapping(run.result.get("feature_paths")))
    return card("Device", body, escape(_text(run.result.get("device"))), foot=escape(cut(said, 3 * _LONGEST)))


def _paths(used: Mapping[str, Any]) -> str:
    """The share of features that was read along each path to the device."""
    shown = []
    for path, use in list(used.items())[:_MOST_ROWS]:
        rows, size, took = (amount(mapping(use).get(name)) for name in ("rows", "bytes", "seconds"))
        shown.append([_text(path), f"{rows:,.0f}", byte_size(size), seconds(took)])
    return table(["features from", "rows", "bytes", "in"], shown, len(used)) if shown else ""


def plan_card(run: RunRecord) -> str:
    """What a plan predicted and decided, beside what was measured and done; empty for a run without a plan."""
    said = mapping(run.result.get("predicted"))
    decisions = {name: mapping(each) for name, each in mapping(run.result.get("decisions")).items()}
    rows = _predicted_rows(run, said)
    if not rows and not decisions:
        return ""
    # On one machine nothing flows.
    flows = f", flows {_text(said['flows'])}" if "flows" in said else ""
    about = f"placement {_text(said.get('placement'))}{flows}"
    head = ["decision", "planned", "carried out", "why"]
    done = [
        [name, *(_text(each.get(key)) for key in ("planned", "carried_out", "why"))] for name, each in decisions.items()
    ]
    body = (pairs(rows) if rows else "") + (table(head, done, len(done)) if done else "")
    return card("Plan", body, escape(about), wide=bool(done))


def _predicted_rows(run: RunRecord, said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The predicted seconds beside those that a run took; empty where they are not known."""
    predicted = number(said.get("epoch_s"))
    # The first epoch compiles kernels and fills the pipeline.
    epochs = sorted(each for each in map(number, listed(run.result.get("epoch_seconds"))) if each is not None)
    if predicted is None or not epochs:
        return []
    real = epochs[len(epochs) // 2]
    off = f" ({signed_percent(real / predicted - 1, 1)})" if predicted else ""
    rows = [
        ("an epoch, as planned", seconds(predicted)),
        ("an epoch, as it was (median)", seconds(real) + off),
        ("an iteration, as planned", seconds(amount(said.get("iteration_s")))),
    ]
    if (whole := number(said.get("run_s"))) is not None:
        rows.append(("the run, as planned", seconds(whole)))
    if least := amount(said.get("lower_bound_s")):
        rows.append(("the least in the long run", seconds(least)))
    return rows


def settled_card(run: RunRecord) -> str:
    """The settings that the run decided itself: every candidate with its predicted and measured batch time."""
    rows, short = list[list[str]](), list[str]()
    for name, found in mapping(run.result.get("settled")).items():
        facts = mapping(found)
        for each in map(mapping, listed(facts.get("finalists"))):
            times = [_milliseconds(each.get(key)) for key in ("predicted_s", "timed_s")]
            taken = "chosen" if each.get("value") == facts.get("chosen") else ""
            rows.append([str(name), _text(each.get("value")), *times, taken])
        if facts.get("reason"):
            short.append(f"{name} is {_text(facts.get('chosen'))} by {_text(facts.get('decided_by'))}.")
            short.append(str(facts["reason"]))
    if not rows:
        return ""
    head = ["field", "value", "predicted", "timed", ""]
    return card("Finalists", table(head, rows, len(rows)), "a batch under each", foot=escape(" ".join(short)))


def _milliseconds(value: Any) -> str:
    found = number(value)
    return "" if found is None else f"{1e3 * found:.3g} ms"


def notes_card(run: RunRecord) -> str:
    """The notes of the run and of the reading of its folder."""
    said = [(time, text) for time, text in run.log.notes if text]
    left = len(said) - _MOST_NOTES
    lines = [f"<li>{_clock(time)}{escape(cut(text, _LONGEST))}</li>" for time, text in said[:_MOST_NOTES]]
    lines += (
        [f"<li>{counted(left, 'more notes')} {'is' if left == 1 else 'are'} in metrics.jsonl.</li>"] if left > 0 else []
    )
    lines += [f"<li>{escape(problem)}</li>" for problem in run.problems]
    return card("Notes", f'<ul class="notes">{"".join(lines)}</ul>', wide=True) if lines else ""


def _setting(key: str, value: Any, usual: Mapping[str, str]) -> str:
    known = key in usual and usual[key] != _NONE
    was = f"<small>default {breakable(cut(usual[key], _LONGEST))}</small>" if known else ""
    return f"<div><dt>{breakable(key)}</dt><dd>{breakable(_text(value))} {was}</dd></div>"


def _is_measured(value: Any) -> bool:
    """Whether a setting is a table of measurements, which no user chose."""
    return isinstance(value, dict) and bool(value) and all(isinstance(each, dict) for each in value.values())


def _left_alone(count: int) -> str:
    return f"{counted(count, 'settings')} left at {'its default' if count == 1 else 'their defaults'}"


def _largest(counts: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(counts.items(), key=lambda item: -item[1])[:_MOST_ROWS]


def _edge_name(key: str) -> str:
    """`paper__cites__paper` with arrows; names that hold the separator themselves stay as they are."""
    parts = key.split("__")
    return " → ".join(parts) if len(parts) == 3 else key


def _width(value: Any) -> str:
    width = whole(value)
    return "none" if not width else f"{width:,}"


def _clock(time: float | None) -> str:
    return "" if time is None else f"<time>{seconds(time)}</time>"


def _text(value: Any) -> str:
    return cut(_plain(value), _LONGEST)


def _plain(value: Any) -> str:
    """A value as it is written in a job file: the same text for a tuple and a list, a path and its name."""
    if value is None:
        return _NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_plain(each) for each in value) or "none"
    if isinstance(value, dict):
        return json.dumps(value, default=str)
    return f"{value:g}" if isinstance(value, float) else str(value)
