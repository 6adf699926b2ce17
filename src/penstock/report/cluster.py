"""The cards of a run on several machines, and of one that trained on the whole graph."""

from html import escape
from typing import Any

from penstock.formatting import counted, percent
from penstock.report.markup import card, cut, pairs, table
from penstock.report.run_folder import RunRecord, amount, listed, mapping, number, whole
from penstock.report.words import byte_size, mebibytes, seconds

_MOST_FLOWS = 12
_MOST_TASKS = 64
_LONGEST = 60
_ROUNDING, _SMALL = 0.0005, 0.0995
"""Shares below which a difference counts as none, and below which it is written with a decimal."""
_USES = {
    "rows": "features for batches",
    "lists": "neighbour lists for batches",
    "blocks": "batches from sampler tasks",
    "preparation": "lists before the first batch",
    "explanations": "for explanations",
}
"""How the page names the bytes of a run's batches, by use."""


def cluster_cards(run: RunRecord) -> list[str]:
    """The cards about a cluster; none for a run on one machine."""
    tasks = [mapping(task) for task in listed(run.result.get("tasks"))]
    return [_tasks_card(run, tasks), _traffic_card(run)] if tasks else []


def _tasks_card(run: RunRecord, tasks: list[dict[str, Any]]) -> str:
    rows = [
        [
            _text(task.get("id")),
            _text(task.get("machine")),
            f"{whole(task.get('restarts')) or 0:,}",
            _memory(number(task.get("peak_rss_mb"))),
        ]
        for task in tasks[:_MOST_TASKS]
    ]
    lost = [mapping(each) for each in listed(run.result.get("recoveries"))]
    machines = len({_text(task.get("machine")) for task in tasks})
    about = f"{counted(len(tasks), 'tasks')} on {counted(machines, 'machines')}, {_times(len(lost))}"
    foot = " ".join(_recovery(each) for each in lost[:_MOST_FLOWS])
    body = table(["task", "machine", "restarts", "memory at most"], rows, len(tasks))
    return card("Tasks", body, escape(about), foot=escape(foot))


def _traffic_card(run: RunRecord) -> str:
    received, least = number(run.result.get("bytes_received")), number(run.result.get("bytes_minimum"))
    rows = []
    if received is not None:
        rows.append(("rows received in all", byte_size(received)))
    if received is not None and least:
        rows.append(("each row once for each batch", f"{byte_size(least)}: {_over(received, least)}"))
    uses = mapping(run.result.get("batch_bytes"))
    rows += [(shown, byte_size(size)) for use, shown in _USES.items() if (size := number(uses.get(use)))]
    flows = {name: [amount(each) for each in listed(size)] for name, size in mapping(run.result.get("flows")).items()}
    flows = {name: sizes for name, sizes in flows.items() if any(sizes)}
    largest = sorted(flows.items(), key=lambda item: -sum(item[1]))[:_MOST_FLOWS]
    shown = [[cut(name, _LONGEST), *(byte_size(each) for each in sizes[:2])] for name, sizes in largest]
    body = pairs(rows) + (table(["flow", "sent", "received"], shown, len(flows)) if shown else "")
    body += _paths(run) + _caches(run) + _coflows(run)
    return card("Traffic", body) if rows or shown else ""


def _over(received: float, least: float) -> str:
    """How much more was received than each distinct row once for each batch; a cache of rows can make it less."""
    over = received / least - 1
    if abs(over) < _ROUNDING:
        return "no row came twice"
    share = f"{abs(over) * 100:.1f} %" if abs(over) < _SMALL else percent(abs(over))
    return f"{share} {'more' if over > 0 else 'less'} was received"


def _paths(run: RunRecord) -> str:
    """The bytes of features that each worker read along each path, as HTML."""
    shown = []
    for task in [mapping(task) for task in listed(run.result.get("tasks"))][:_MOST_TASKS]:
        for path, use in mapping(task.get("feature_paths")).items():
            rows, size = amount(mapping(use).get("rows")), amount(mapping(use).get("bytes"))
            took = seconds(amount(mapping(use).get("seconds")))
            shown.append([_text(task.get("id")), _text(path), f"{rows:,.0f}", byte_size(size), took])
    return table(["features of", "from", "rows", "bytes", "in requests of"], shown, len(shown)) if shown else ""


def _caches(run: RunRecord) -> str:
    """What each worker's cache of remote rows saved."""
    tasks = [mapping(task) for task in listed(run.result.get("tasks"))]
    found = {_text(task.get("id")): mapping(task.get("remote_cache")) for task in tasks if task.get("remote_cache")}
    shown = []
    for name, cache in list(found.items())[:_MOST_TASKS]:
        hits, misses = amount(cache.get("hits")), amount(cache.get("misses"))
        share = percent(hits / (hits + misses)) if hits + misses else "no reads"
        saved = byte_size(amount(cache.get("bytes_saved")))
        shown.append([name, f"{hits:,.0f}", f"{misses:,.0f}", share, saved])
    return table(["cached remote rows", "hits", "misses", "share", "not sent"], shown, len(found)) if shown else ""


def _coflows(run: RunRecord) -> str:
    """The coflows by kind, and the time of each from its first request to its last answer, as HTML."""
    found = [mapping(each) for each in listed(run.result.get("coflows"))]
    shown = [
        [
            _text(each.get("kind")),
            f"{whole(each.get('count')) or 0:,}",
            byte_size(amount(each.get("bytes"))),
            seconds(amount(each.get("mean_cct_s"))),
            seconds(amount(each.get("p95_cct_s"))),
        ]
        for each in found[:_MOST_FLOWS]
    ]
    return table(["coflows", "how many", "bytes", "mean", "95 of 100 within"], shown, len(found)) if shown else ""


def _recovery(lost: dict[str, Any]) -> str:
    away = number(lost.get("seconds"))
    back = f", back after {seconds(away)}" if away is not None else ""
    return f"{_text(lost.get('task'))}: {_text(lost.get('cause'))} at {seconds(amount(lost.get('at')))}{back}."


def _memory(peak: float | None) -> str:
    """A task's peak memory as text; empty for a task that ended before it was measured."""
    return mebibytes(peak) if peak else "not measured"


def _times(lost: int) -> str:
    return "none lost" if not lost else f"{lost:,} lost and brought back"


def _text(value: Any) -> str:
    return cut("" if value is None else str(value), _LONGEST)


# The card of a run that trained on the whole graph: how its steps were divided, and how workers exchanged rows.

_SCOPES = {"reached": "vertices that the loss reaches", "all": "all vertices"}
WHOLE_GRAPH = {"bins", "scope", "keep", "recomputed", "supervised_edges", "exchange", "exposed_communication_s"}
"""Facts that only such a run has."""
_KEPT = {"recompute": "not kept, computed again"}


def whole_graph_card(run: RunRecord) -> str:
    """Bins by layer, what is kept for the backward pass, which edges were supervised, and how rows travelled."""
    result, rows = run.result, list[tuple[str, str]]()
    if bins := listed(result.get("bins")):
        rows.append(("bins by layer", ", ".join(str(whole(each) or 0) for each in bins)))
    if (scope := result.get("scope")) is not None:
        rows.append(("scope", _SCOPES.get(str(scope), str(scope))))
    if (keep := result.get("keep")) is not None:
        rows.append(
            ("layers' outputs", _KEPT.get(str(keep), f"kept in {keep} memory" if keep != "disk" else "on disk"))
        )
    if isinstance(again := result.get("recomputed"), bool):
        rows.append(("bins computed again", "yes, in the backward pass" if again else "no"))
    supervised, messages = whole(result.get("supervised_edges")), whole(result.get("message_edges"))
    if supervised is not None and messages is not None:
        rows += [("edges predicted", f"{supervised:,}"), ("edges that carry messages", f"{messages:,}")]
    rows += _exchanged(run)
    about = f"{counted(_steps(run), 'steps')} an epoch" if rows and _steps(run) > 1 else ""
    return card("Whole graph", pairs(rows), escape(about)) if rows else ""


def _exchanged(run: RunRecord) -> list[tuple[str, str]]:
    result, rows = run.result, list[tuple[str, str]]()
    if (how := result.get("exchange")) is not None:
        rows.append(("exchange", str(how)))
    if (exposed := number(result.get("exposed_communication_s"))) is not None:
        most = number(result.get("largest_exposed_communication_s"))
        own, longest = seconds(exposed), seconds(max(most or 0.0, exposed))
        if most is None:
            said = own
        elif own == longest:
            said = f"{own} on the first worker, and on no other more"
        else:
            said = f"{own} on the first worker, {longest} on the one that waited most"
        rows.append(("communication not hidden", said))
    return rows


def _steps(run: RunRecord) -> int:
    return whole(run.job.get("steps_per_epoch")) or 1
