"""What happened when: starts and ends of every item, how busy links and machines were, and what a step took."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.machines import Network
from penstock.simulate.state import Case, carried_by
from penstock.simulate.workload import Workload


class Segment(NamedTuple):
    """A flow's rate over some time."""

    start: float  # seconds
    end: float
    rate: float  # bytes/s


@dataclass(frozen=True, eq=False)
class Timeline:
    """The result of a simulation: when every task and flow ran."""

    load: Workload
    network: Network
    case: Case
    weight: Array  # the policy's weights: a flow's rate is its group's speed times this
    starts: Array  # float64 [iterations, items]: seconds
    ends: Array  # float64 [iterations, items]
    makespan: float  # seconds
    events: int  # ends of tasks and flows that took time
    seconds: float  # what the simulation took
    owner: Array  # int64 [iterations * flows]: the group whose speed a flow has; empty without segments
    changes: Array  # CHANGE: when which group's speed changed
    late: Array  # float64 [iterations, flows]: seconds that flows took beyond their share of links; or empty

    @property
    def iterations(self) -> int:
        """The number of simulated iterations: rows of `starts` and `ends`."""
        return len(self.starts)

    @cached_property
    def iteration_ends(self) -> Array:
        """Seconds at which each iteration's last item ended."""
        return np.asarray(self.ends.max(axis=1))

    @cached_property
    def link_bytes(self) -> Array:
        """The bytes that every link carried."""
        return carried_by(self.case.routes, self.case.amounts.sizes.sum(axis=0)) / self.network.pieces

    @property
    def link_use(self) -> Array:
        """Share of every link's capacity that was used from the first start to the last end."""
        return np.asarray(self.link_bytes / (self.network.capacities * max(self.makespan, 1e-300)))

    def machine_busy(self, placement: Array) -> Array:
        """Share of the time in which at least one task ran, for every machine."""
        machines = self.load.settled(placement, len(self.network.machines))
        out = np.zeros(len(self.network.machines))
        for machine in range(len(out)):
            tasks = np.flatnonzero(machines == machine)
            out[machine] = _covered(self.starts[:, tasks].ravel(), self.ends[:, tasks].ravel())
        return out / max(self.makespan, 1e-300)

    @cached_property
    def sent(self) -> Array:
        """When each flow had left its links, float64 [iterations, flows]: its end, less what it took beyond them."""
        ends: Array = self.ends[:, self.load.tasks :]
        return ends - self.late if self.late.size else ends

    def segments(self, flow: int, iteration: int) -> list[Segment]:
        """The rates of a flow over time; needs a simulation with `segments`."""
        item = self.load.tasks + flow
        start, end = float(self.starts[iteration, item]), float(self.sent[iteration, flow])
        serial = self.owner[iteration * self.load.flows + flow]
        weight = self.weight[min(iteration, len(self.weight) - 1), min(flow, self.weight.shape[1] - 1)]
        first, last = np.searchsorted(self._by_serial["serial"], [serial, serial + 1])
        mine = self._by_serial[first:last]
        # The speed at the start was set at the start or before it.
        begin = max(0, int(np.searchsorted(mine["when"], start, "right")) - 1)
        stop = int(np.searchsorted(mine["when"], end, "left"))
        times = [*np.maximum(mine["when"][begin:stop], start).tolist(), end]
        rates = mine["speed"][begin:stop] * weight
        found = zip(times[:-1], times[1:], rates.tolist(), strict=True)
        return [Segment(*each) for each in found if each[1] > each[0]]

    @cached_property
    def _by_serial(self) -> Array:
        # Within one instant the last change counts; the sort is stable and a zero-length segment is dropped.
        return self.changes[np.argsort(self.changes["serial"], kind="stable")]


def _covered(starts: Array, ends: Array) -> float:
    """Length of the union of intervals."""
    if len(starts) == 0:
        return 0.0
    order = np.argsort(starts)
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    return float(reach[-1] - starts[0] - np.maximum(0, starts[1:] - reach[:-1]).sum())


COMPUTING = ("forward", "backward")
"""Kinds of tasks that keep a device of a language model busy."""


def step_seconds(case: Case, ends: Array) -> float:
    """Seconds from one iteration's last task to the next's, without the first iteration, which has no predecessor.

    For language models only forward and backward passes count: nothing waits for what follows the last of them.
    """
    chosen = _computing(case)
    last = ends[:, chosen if len(chosen) else np.arange(case.shape.tasks)].max(axis=1)
    return float((last[-1] - last[0]) / (len(last) - 1) if len(last) > 1 else last[0])


def _computing(case: Case) -> Array:
    return np.flatnonzero([kind in COMPUTING for kind in case.task_kinds])


def bubble_fraction(timeline: Timeline, placement: Array) -> float | None:
    """What devices idle in a step, over what they compute in it, on average; None where nothing is a device."""
    case = timeline.case
    chosen = _computing(case)
    if len(chosen) == 0:
        return None
    step = step_seconds(case, timeline.ends)
    seconds = (case.amounts.seconds[-1] * case.slowness)[chosen]
    busy = np.bincount(np.asarray(placement)[chosen], weights=seconds)
    busy = busy[busy > 0]
    return float(np.mean((step - busy) / busy))


def exposed_seconds(timeline: Timeline, silent: Timeline) -> float:
    """Seconds of a step that communication adds to it; `silent` is the same without any."""
    return max(0.0, step_seconds(timeline.case, timeline.ends) - step_seconds(silent.case, silent.ends))


# What coflows took in a simulation.


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
    first, last, _ = _spans(timeline, sends)
    return summary((last - first)[np.isfinite(first)])


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
