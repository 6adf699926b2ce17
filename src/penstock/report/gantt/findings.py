"""What a simulation's time was spent on: the critical path by kind, and the use of every link."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.formatting import percent
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.report.words import milliseconds
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
        np.ascontiguousarray(timeline.ends[:, load.tasks :]),
        timeline.owner,
        timeline.weight,
        changes["serial"].copy(),
        changes["when"].copy(),
        changes["speed"].copy(),
        routes.flow_path,
        routes.paths["first"].copy(),
        routes.paths["last"].copy(),
        routes.path_links,
        slots / timeline.makespan,
        out,
    )
    return out * (slots / timeline.makespan) / timeline.network.capacities[:, None]


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
                        _spread(out[path_links[k]], since, until, speeds[at] * share, scale)
                at += 1


@njit(nogil=True, cache=True)
def _spread(row: Array, since: float, until: float, rate: float, scale: float) -> None:
    """Add a stretch's bytes to the slots it touches."""
    last = row.shape[0] - 1
    for slot in range(min(last, int(since * scale)), min(last, int(until * scale)) + 1):
        lower, upper = max(since, slot / scale), min(until, (slot + 1) / scale)
        if upper > lower:
            row[slot] += rate * (upper - lower)
