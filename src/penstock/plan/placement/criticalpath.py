"""The longest path through all iterations of a placed workload, with the weights of eq. 26.

A task weighs its seconds; a flow between machines its bytes over the rate that it would get if all flows of one
iteration were active at once: the least, over the links it crosses, of the link's rate by the number of flows on it. No
run under `oes` takes longer (Theorem 3).
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.plan.placement.problem import PlacementProblem
from penstock.plan.placement.tables import Tables, Walk


class Waits(NamedTuple):
    """What every item waits for, in an order that keeps the dependencies, and room for the ends of items."""

    order: Array  # int32 [items]
    starts: Array  # int32 [items + 1]
    before: Array  # int32
    lags: Array  # int32
    row_of_lag: Array  # int64 [longest lag + 1]: where in `ends` the items of so many iterations ago begin
    ends: Array  # float64: of the last iterations, in turn, and a row of zeros
    pair_seconds: Array  # float64 [M * M]: seconds a byte takes between two machines
    pace: Array  # float64 [items]: seconds an item takes for each of its seconds or bytes


def waits_of(problem: PlacementProblem) -> Waits:
    """The dependencies of a problem's workload by the item that waits."""
    load = problem.workload
    order = np.argsort(load.after, kind="stable")
    starts = np.zeros(load.items + 1, np.int32)
    np.cumsum(np.bincount(load.after, minlength=load.items), out=starts[1:])
    longest = int(load.lags.max(initial=0))
    return Waits(
        load.order.astype(np.int32),
        starts,
        load.before[order].astype(np.int32),
        load.lags[order].astype(np.int32),
        np.zeros(longest + 1, np.int64),
        np.zeros((longest + 2) * load.items),
        np.zeros(problem.machines**2),
        np.zeros(load.items),
    )


@njit(nogil=True, cache=True)
def critical_path(tables: Tables, walk: Walk, waits: Waits, seconds: Array, sizes: Array) -> float:
    """Seconds of the longest path; `seconds` is [iterations, tasks], `sizes` (bytes) [iterations, flows]."""
    _rate_pairs(tables, walk, waits.pair_seconds)
    _weigh(walk.tasks, tables.sources, tables.targets, tables.slowness, waits.pair_seconds, waits.pace)
    longest = 0.0
    for iteration in range(seconds.shape[0]):
        _turn_rows(iteration, waits.order.shape[0], waits.row_of_lag)
        reached = _pass_through(
            waits.order,
            waits.starts,
            waits.before,
            waits.lags,
            waits.row_of_lag,
            waits.pace,
            seconds[iteration],
            sizes[iteration],
            waits.ends,
        )
        longest = max(longest, reached)
    return longest


# Plain arrays from here on: members of a tuple that are read in a loop have their references counted every time.
@njit(nogil=True, cache=True)
def _pass_through(
    order: Array,
    starts: Array,
    before: Array,
    lags: Array,
    row_of_lag: Array,
    pace: Array,
    seconds: Array,
    sizes: Array,
    ends: Array,
) -> float:
    """Ends of all items of one iteration; the latest of them."""
    tasks, row = seconds.shape[0], row_of_lag[0]
    longest = 0.0
    for item in order:
        start = 0.0
        for at in range(starts[item], starts[item + 1]):
            end = ends[row_of_lag[lags[at]] + before[at]]
            if end > start:
                start = end
        amount = seconds[item] if item < tasks else sizes[item - tasks]
        start += amount * pace[item]
        ends[row + item] = start
        if start > longest:
            longest = start
    return longest


@njit(nogil=True, cache=True)
def _turn_rows(iteration: int, items: int, row_of_lag: Array) -> None:
    """Where the ends of earlier iterations stand; those before the first are the zeros of the last row."""
    rows = row_of_lag.shape[0]
    for lag in range(rows):
        row_of_lag[lag] = items * ((iteration - lag) % rows if lag <= iteration else rows)


@njit(nogil=True, cache=True)
def _weigh(
    machine_of: Array, sources: Array, targets: Array, slowness: Array, pair_seconds: Array, pace: Array
) -> None:
    """Seconds that every item takes for each of its seconds or bytes."""
    tasks, machines = machine_of.shape[0], slowness.shape[0]
    for task in range(tasks):
        pace[task] = slowness[machine_of[task]]
    for flow in range(sources.shape[0]):
        pace[tasks + flow] = pair_seconds[machine_of[sources[flow]] * machines + machine_of[targets[flow]]]


@njit(nogil=True, cache=True)
def _rate_pairs(tables: Tables, walk: Walk, pair_seconds: Array) -> None:
    for pair in range(pair_seconds.shape[0]):
        slowest = 0.0
        for at in range(tables.path_starts[pair], tables.path_starts[pair + 1]):
            link = tables.path_links[at]
            slowest = max(slowest, walk.link_flows[link] / tables.link_rates[link])
        pair_seconds[pair] = slowest
