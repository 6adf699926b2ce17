"""Longest chains of what waits for what: before and behind each item, and the critical path that set the pace.

An item's head is the longest chain before it, its tail the longest from its start to the end. On the critical path
everything starts the moment the last thing it waits for ends, so it has no gaps, and its steps add up to the makespan.
A flow on it may have taken longer than it would have alone: that is its wait, named by the busiest link it crosses.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.amounts import Amounts
from penstock.simulate.dependency_order import successors
from penstock.simulate.routes import carried_by
from penstock.simulate.state import Routes, Shape
from penstock.simulate.timeline import Timeline


def durations_alone(routes: Routes, amounts: Amounts, slowness: Array) -> Array:
    """Seconds of every item if it had its links to itself, float64 [iterations, items]."""
    return _durations(routes.flow_path, routes.paths["full"], amounts.seconds, slowness, amounts.sizes)


def durations_crowded(routes: Routes, amounts: Amounts, slowness: Array) -> Array:
    """Seconds of every item if all flows of an iteration shared their links all the time: the paper's weights.

    A flow takes bytes / min over its links of (capacity / flows of one iteration on it). Under `oes` no flow that
    follows itself takes longer, so the longest chain of these is an upper bound of the makespan.
    """
    shares = routes.links["capacity"] / np.maximum(1, carried_by(routes, np.ones(len(routes.flow_path))))
    slowest = np.full(len(routes.paths), np.inf)
    np.minimum.at(slowest, routes.crossing_paths, shares[routes.path_links])
    return _durations(routes.flow_path, slowest, amounts.seconds, slowness, amounts.sizes)


def heads(shape: Shape, order: Array, durations: Array) -> Array:
    """The earliest each item can start, in seconds; `order` is the workload's."""
    return _heads(shape.starts, shape.followers, shape.lags, order, durations)


def tails(shape: Shape, order: Array, durations: Array) -> Array:
    """Seconds from each item's start to the end of all that follows it, itself included."""
    return _tails(shape.starts, shape.followers, shape.lags, order, durations)


@njit(nogil=True, cache=True)
def _durations(flow_path: Array, rate: Array, seconds: Array, slowness: Array, sizes: Array) -> Array:
    iterations, tasks = seconds.shape
    out = np.empty((iterations, tasks + sizes.shape[1]))
    for n in range(iterations):
        for task in range(tasks):
            out[n, task] = seconds[n, task] * slowness[task]
        for flow in range(sizes.shape[1]):
            path = flow_path[flow]
            out[n, tasks + flow] = sizes[n, flow] / rate[path] if path >= 0 else 0.0
    return out


@njit(nogil=True, cache=True)
def _heads(starts: Array, followers: Array, lags: Array, order: Array, durations: Array) -> Array:
    iterations, items = durations.shape
    out = np.zeros((iterations, items))
    for n in range(iterations):
        for k in range(items):
            item = order[k]
            end = out[n, item] + durations[n, item]
            for edge in range(starts[item], starts[item + 1]):
                later = n + lags[edge]
                if later < iterations:
                    out[later, followers[edge]] = max(out[later, followers[edge]], end)
    return out


@njit(nogil=True, cache=True)
def _tails(starts: Array, followers: Array, lags: Array, order: Array, durations: Array) -> Array:
    iterations, items = durations.shape
    out = np.empty((iterations, items))
    for n in range(iterations - 1, -1, -1):
        for k in range(items - 1, -1, -1):
            item = order[k]
            longest = 0.0
            for edge in range(starts[item], starts[item + 1]):
                later = n + lags[edge]
                if later < iterations:
                    longest = max(longest, out[later, followers[edge]])
            out[n, item] = longest + durations[n, item]
    return out


class CriticalStep(NamedTuple):
    """One item on the critical path."""

    name: str
    kind: str
    iteration: int
    start: float  # seconds
    end: float  # seconds
    waited: float  # seconds longer than with its links to itself
    waited_for: str  # the busiest link it crossed; empty where it did not wait


def critical_path(timeline: Timeline) -> list[CriticalStep]:
    """The steps from the first start to the last end, in time's order; items without duration are left out."""
    load, case = timeline.load, timeline.case
    alone = durations_alone(case.routes, case.amounts, case.slowness)
    first, befores, lags = successors(load.items, load.after, load.before, load.lags)
    kinds = [*load.task_kinds, *load.flow_kinds]
    steps: list[CriticalStep] = []
    n, item = np.unravel_index(int(np.argmax(timeline.ends)), timeline.ends.shape)
    while True:
        start, end = float(timeline.starts[n, item]), float(timeline.ends[n, item])
        if end > start:
            # Rounding of the times themselves is no wait.
            waited = end - start - float(alone[n, item])
            waited = waited if waited > 1e-9 * end else 0.0
            link = _busiest_link(timeline, int(item) - load.tasks) if waited else ""
            steps.append(CriticalStep(load.item_name(int(item)), kinds[item], int(n), start, end, waited, link))
        waited_for = np.arange(first[item], first[item + 1])
        waited_for = waited_for[lags[waited_for] <= n]
        if len(waited_for) == 0 or start <= 0:
            return steps[::-1]
        last = waited_for[int(np.argmax(timeline.ends[n - lags[waited_for], befores[waited_for]]))]
        n, item = n - lags[last], befores[last]


def _busiest_link(timeline: Timeline, flow: int) -> str:
    routes = timeline.case.routes
    path = routes.paths[routes.flow_path[flow]]
    crossed: Array = routes.path_links[path["first"] : path["last"]]
    return timeline.network.link_names[int(crossed[np.argmax(timeline.link_use[crossed])])]
