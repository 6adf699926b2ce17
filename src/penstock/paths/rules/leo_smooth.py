"""`leo-smooth`, ours: k * toll + base, with k from the table of requests in progress and corrected by measurements.

Every node and link has the queue that requests have made so far, whichever path they took, so paths that share a link
share its queue; it drains with time. A queue counts twice: a request waits in it, and those that come while it drains
wait for the request. Counted once, as each request by itself would like it, fast paths are filled until they are as
slow as the others. Chunks of one transfer count it once: a transfer ends with the last of them.

What completions took beyond that is averaged with decaying weights: deviations within a band are ignored, and an old
measurement is forgotten, so that a path that was slow is tried again.
"""

import math

import numpy as np

from penstock.graph.inline_kernels import inner
from penstock.paths.route_table import COMMON, Routes
from penstock.paths.rules.selector_state import BEHIND, HALF_LIFE, NEWEST, TOLERANCE, SelectorState

_EXCESS, _MEASURED_AT = 0, 1
"""Columns of `paths`: microseconds beyond what was expected, averaged; when that was measured last."""

_RECOVERED = 0.5
"""Weight of a new measurement that is faster than the average of earlier ones."""


@inner
def choose(routes: Routes, state: SelectorState, kind: int, now: float) -> int:
    """The path of a request type on which a request is expected to cost least: itself, and those behind it."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = routes.end_to_end[path] + _excess(state, path, now)
        for visit in range(routes.first[path], routes.first[path + 1]):
            cost += (1.0 + state.settings[BEHIND]) * _wait(routes, state, visit, now)
        if cost < least:
            best, least = path, cost
    return best


@inner
def assign(routes: Routes, state: SelectorState, path: int, slot: int, now: float) -> None:
    """Enter a request into the queues of its path; `slot` is its place in the table of requests in progress."""
    apart, longest, slowest = routes.distinct[path], 0.0, -1
    for visit in range(routes.first[path], routes.first[path + 1]):
        if routes.flags[visit] & COMMON == 0:
            apart += _wait(routes, state, visit, now)
            if routes.service[visit] > longest:
                longest, slowest = routes.service[visit], visit
    # A path that was slower than profiled serves those behind more slowly too: it is tried again with few.
    slower = max(_excess(state, path, now), 0.0)
    for visit in range(routes.first[path], routes.first[path + 1]):
        resource = routes.resource[visit]
        work = (routes.service[visit] + (slower if visit == slowest else 0.0)) / routes.capacity[resource]
        state.free[resource] = max(state.free[resource], now) + work
    state.expected[slot] = apart


@inner
def observe(routes: Routes, state: SelectorState, path: int, slot: int, apart: float, now: float) -> None:
    """`apart`: microseconds that a completed request took on what its alternatives do not share."""
    deviation = apart - state.expected[slot]
    if abs(deviation) <= state.settings[TOLERANCE] * routes.distinct[path]:
        deviation = 0.0
    before = _excess(state, path, now)
    # A path that was slow and is fast again is trusted sooner than one that becomes slow is avoided.
    weight = state.settings[NEWEST] if deviation >= before or before <= 0.0 else _RECOVERED
    state.paths[path, _EXCESS] = before + weight * (deviation - before)
    state.paths[path, _MEASURED_AT] = now


@inner
def _wait(routes: Routes, state: SelectorState, visit: int, now: float) -> float:
    """What a request would wait at a visit's resource: its queue, less what other places serve at the same time."""
    resource = routes.resource[visit]
    beside = routes.service[visit] * (1.0 - 1.0 / routes.capacity[resource])
    return float(max(state.free[resource] - now - beside, 0.0))


@inner
def _excess(state: SelectorState, path: int, now: float) -> float:
    """The averaged excess, of which half is forgotten in every half-life."""
    excess = state.paths[path, _EXCESS]
    if excess == 0.0:
        return 0.0
    return float(excess * math.exp2((state.paths[path, _MEASURED_AT] - now) / state.settings[HALF_LIFE]))
