"""What coflows took in a simulation."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.graph.arrays import Array
from penstock.simulate.timeline import Timeline


@dataclass(frozen=True)
class CoflowTimes:
    """Of all coflows that sent anything between machines, in all iterations; seconds from a coflow's first start to
    its last end."""

    count: int
    mean_cct_s: float
    p95_cct_s: float


def coflow_times(timeline: Timeline, kind: str | None = None) -> CoflowTimes:
    """The times of all coflows, or of those with flows of a kind."""
    load, routes = timeline.load, timeline.case.routes
    sends = (routes.flow_path >= 0) & (timeline.case.amounts.sizes > 0)
    if kind is not None:
        sends &= np.array([each == kind for each in load.flow_kinds], bool)
    return summary(_completions(timeline, sends))


def coflow_rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Every coflow that sent anything between machines, by iteration and number, with its seconds and bytes."""
    load, sizes = timeline.load, timeline.case.amounts.sizes
    sends = (timeline.case.routes.flow_path >= 0) & (sizes > 0)
    first, last, sent = _spans(timeline, sends)
    kind_of: dict[int, str] = {}
    for coflow, kind in zip(load.coflows.tolist(), load.flow_kinds, strict=True):
        kind_of.setdefault(coflow, kind)
    count = int(load.coflows.max(initial=-1)) + 1
    return [
        {
            "iteration": number // count,
            "coflow": number % count,
            "kind": kind_of[number % count],
            "bytes": float(sent[number]),
            "start_s": float(first[number]),
            "end_s": float(last[number]),
            "cct_s": float(last[number] - first[number]),
        }
        for number in np.flatnonzero(np.isfinite(first)).tolist()
    ]


def summary(seconds: Array) -> CoflowTimes:
    """Count, mean and 95th percentile."""
    if len(seconds) == 0:
        return CoflowTimes(0, 0.0, 0.0)
    return CoflowTimes(len(seconds), float(seconds.mean()), float(np.quantile(seconds, 0.95)))


def _completions(timeline: Timeline, sends: Array) -> Array:
    first, last, _ = _spans(timeline, sends)
    return np.asarray((last - first)[np.isfinite(first)])


def _spans(timeline: Timeline, sends: Array) -> tuple[Array, Array, Array]:
    """First start, last end and bytes of coflow c in iteration n, at place n * coflows + c; inf, -inf and 0 of none."""
    load = timeline.load
    starts, ends = timeline.starts[:, load.tasks :], timeline.ends[:, load.tasks :]
    count = int(load.coflows.max(initial=-1)) + 1
    number = (np.arange(len(starts))[:, None] * count + load.coflows)[sends]
    first, last = np.full(len(starts) * count, np.inf), np.full(len(starts) * count, -np.inf)
    np.minimum.at(first, number, starts[sends])
    np.maximum.at(last, number, ends[sends])
    sent = np.bincount(number, weights=timeline.case.amounts.sizes[sends], minlength=len(first))
    return first, last, sent
