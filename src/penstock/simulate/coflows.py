"""What coflows took in a simulation."""

from dataclasses import dataclass

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


def summary(seconds: Array) -> CoflowTimes:
    """Count, mean and 95th percentile."""
    if len(seconds) == 0:
        return CoflowTimes(0, 0.0, 0.0)
    return CoflowTimes(len(seconds), float(seconds.mean()), float(np.quantile(seconds, 0.95)))


def _completions(timeline: Timeline, sends: Array) -> Array:
    load = timeline.load
    starts, ends = timeline.starts[:, load.tasks :], timeline.ends[:, load.tasks :]
    count = int(load.coflows.max(initial=-1)) + 1
    number = (np.arange(len(starts))[:, None] * count + load.coflows)[sends]
    first, last = np.full(len(starts) * count, np.inf), np.full(len(starts) * count, -np.inf)
    np.minimum.at(first, number, starts[sends])
    np.maximum.at(last, number, ends[sends])
    return np.asarray((last - first)[np.isfinite(first)])
