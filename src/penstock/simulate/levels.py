"""Longest chains of dependencies: the critical path of a run, and bounds that no schedule can beat."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.state import Case, carried_by, terms_of
from penstock.simulate.symmetry import MANY, quotient_of
from penstock.simulate.timeline import Timeline
from penstock.simulate.workload import successors

# Longest chains of dependencies: before and after each item, and the critical path. An item's head is the longest chain
# before it, its tail the longest from its start to the end. On the critical path everything starts the moment the last
# thing it waits for ends, so it has no gaps, and its steps add up to the makespan. A flow on it may have taken longer
# than it would have alone: that is its wait, named by the busiest link it crosses.


def durations_alone(case: Case) -> Array:
    """Seconds of every item if it had its links to itself, float64 [iterations, items]."""
    full = np.ascontiguousarray(case.routes.paths["full"])
    return _durations(case.routes.flow_path, full, *_amounts_of(case))


def durations_crowded(case: Case) -> Array:
    """Seconds of every item if all flows of an iteration shared their links all the time: DGTP's weights.

    A flow takes bytes / min over its links of (capacity / flows of one iteration on it). Under `oes` no flow that
    follows itself takes longer, so the longest chain of these is an upper bound of the makespan.
    """
    routes = case.routes
    shares = routes.links["capacity"] / np.maximum(1, carried_by(routes, np.ones(len(routes.flow_path))))
    slowest = np.full(len(routes.paths), np.inf)
    np.minimum.at(slowest, routes.crossing_paths, shares[routes.path_links])
    return _durations(routes.flow_path, slowest, *_amounts_of(case))


def heads(case: Case, durations: Array) -> Array:
    """The earliest each item can start, in seconds."""
    return _heads(case.shape.starts, case.shape.followers, case.shape.lags, case.order, durations)


def tails(case: Case, durations: Array) -> Array:
    """Seconds from each item's start to the end of all that follows it, itself included."""
    return _tails(case.shape.starts, case.shape.followers, case.shape.lags, case.order, durations)


def _amounts_of(case: Case) -> tuple[Array, Array, Array]:
    return case.amounts.seconds, case.slowness, case.amounts.sizes


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
    """The steps from the first start to the last end, in time order; items without duration are left out."""
    load, case = timeline.load, timeline.case
    alone = durations_alone(case)
    first, befores, lags = successors(load.items, load.after, load.before, load.lags)
    kinds = load.item_kinds
    steps: list[CriticalStep] = []
    n, item = np.unravel_index(int(np.argmax(timeline.ends)), timeline.ends.shape)
    while True:
        start, end = float(timeline.starts[n, item]), float(timeline.ends[n, item])
        if end > start:
            # Rounding of the times themselves does not count as a wait.
            waited = end - start - float(alone[n, item])
            if timeline.late.size and item >= load.tasks:
                waited -= float(timeline.late[n, item - load.tasks])
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
    crossed = routes.links_on(routes.paths[routes.flow_path[flow]])
    return timeline.network.link_names[int(crossed[np.argmax(timeline.link_use[crossed])])]


# What no schedule can beat, and what `oes` cannot exceed.
#
# Lower bound: the larger of two. (1) The longest chain of items that wait for each other, each as long as it takes
# alone: a chain runs one after the other whatever the rates. (2) For every link and every set of flows that cross it:
# none of them starts before the earliest of their heads, the link needs their bytes over its capacity, and after the
# last of them the shortest of what follows still has to run. The sets looked at are the flows of the iterations from n
# on, and those up to n, for every n.


class Pace(NamedTuple):
    """Seconds per iteration in the long run, and a lower bound for any schedule of the placed workload."""

    iteration_s: float
    bound_s: float

    @property
    def gap(self) -> float:
        """How much longer than the bound an iteration takes, relative to it."""
        return gap_of(self.iteration_s, self.bound_s)


def gap_of(seconds: float, bound: float) -> float:
    """How much longer than the bound, relative to it; 0 where rounding makes it negative."""
    return max(0.0, seconds / bound - 1) if bound else 0.0


def lower_bound(case: Case, many: int = MANY) -> float:
    """A lower bound on the seconds of every schedule of the placed workload.

    From `many` items in all iterations on, one representative of equal items is used.
    """
    if case.amounts.seconds.size + case.amounts.sizes.size >= many:
        quotient = quotient_of(case, terms_of(case))
        case = case if quotient is None else quotient.case
    durations = durations_alone(case)
    before, rest = heads(case, durations), tails(case, durations)
    longest = float(rest.max())
    routes, tasks = case.routes, case.shape.tasks
    after = rest - durations
    crowded = _link_bound(
        routes.flow_path, routes.flow_copies, routes.paths, routes.path_links, routes.path_copies,
        routes.links["capacity"].copy(), case.amounts.sizes, before, after, tasks,
    )  # fmt: skip
    return max(longest, float(crowded))


def chain_alone(case: Case) -> float:
    """The longest chain of items, each as long as it takes alone (seconds)."""
    return float(tails(case, durations_alone(case)).max())


def chain_crowded(case: Case) -> float:
    """DGTP's critical path: an upper bound of `oes` where every flow follows itself (seconds)."""
    return float(tails(case, durations_crowded(case)).max())


def largest_degree(case: Case) -> int:
    """The most flows of one iteration that cross one link: it bounds the factor between `oes` and the optimum."""
    return max(1, int(carried_by(case.routes, np.ones(case.shape.flows)).max(initial=1)))


@njit(nogil=True, cache=True)
def _link_bound(
    flow_path: Array,
    flow_copies: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    capacities: Array,
    sizes: Array,
    before: Array,
    after: Array,
    tasks: int,
) -> float:
    """The best over all links of the sets {iterations up to n} and {iterations from n}; items are tasks, then flows."""
    iterations, links, best = sizes.shape[0], capacities.shape[0], 0.0
    for forwards in (True, False):
        head, tail, work = np.full(links, np.inf), np.full(links, np.inf), np.zeros(links)
        for k in range(iterations):
            n = k if forwards else iterations - 1 - k
            for flow in range(sizes.shape[1]):
                path = flow_path[flow]
                if path < 0 or sizes[n, flow] <= 0:
                    continue
                for at in range(paths[path].first, paths[path].last):
                    link = path_links[at]
                    head[link] = min(head[link], before[n, tasks + flow])
                    tail[link] = min(tail[link], after[n, tasks + flow])
                    work[link] += sizes[n, flow] / capacities[link] * (flow_copies[flow] * path_copies[at])
            for link in range(links):
                if work[link] > 0:
                    best = max(best, head[link] + work[link] + tail[link])
    return best
