"""Longest chains of what waits for what: before each item (its head) and from its start to the end (its tail)."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.amounts import Amounts
from penstock.simulate.routes import carried_by
from penstock.simulate.state import Routes, Shape


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
