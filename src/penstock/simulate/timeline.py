"""What happened when: starts and ends of every item, how busy links and machines were, and what a step took."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.network import Network
from penstock.simulate.rate_policy import Case
from penstock.simulate.routes import carried_by
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

    @property
    def iterations(self) -> int:
        """Number of iterations."""
        return len(self.starts)

    @cached_property
    def iteration_ends(self) -> Array:
        """Seconds at which each iteration's last item ended."""
        return np.asarray(self.ends.max(axis=1))

    @cached_property
    def link_bytes(self) -> Array:
        """The bytes that every link carried."""
        return carried_by(self.case.routes, self.case.amounts.sizes.sum(axis=0))

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

    def segments(self, flow: int, iteration: int) -> list[Segment]:
        """The rates of a flow over time; needs a simulation with `segments`."""
        item = self.load.tasks + flow
        start, end = float(self.starts[iteration, item]), float(self.ends[iteration, item])
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
    """Seconds from one iteration's last task to the next's, over all but the first, which nothing went before.

    Of language models only forward and backward passes count: nobody waits for what follows the last of them.
    """
    chosen = np.flatnonzero([kind in COMPUTING for kind in case.task_kinds])
    tasks = chosen if len(chosen) else np.arange(case.shape.tasks)
    last = ends[:, tasks].max(axis=1)
    return float((last[-1] - last[0]) / (len(last) - 1) if len(last) > 1 else last[0])


def bubble_fraction(timeline: Timeline, placement: Array) -> float | None:
    """What devices idle in a step, over what they compute in it, on average; None where nothing is a device."""
    case = timeline.case
    chosen = np.flatnonzero([kind in COMPUTING for kind in case.task_kinds])
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
