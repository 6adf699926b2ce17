"""The kernels that decide which path a request takes: one rule after the other, over one state layout.

Numba does not cache kernels that take functions, so a rule is given by its number.
"""

import math
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw
from penstock.kernels import borrowed, inner
from penstock.paths.route_table import COMMON, RouteArrays, RouteTable

# The state of a selector: one layout for all of them, so that one kernel serves all.


class SelectorState(NamedTuple):
    """Arrays that a selector's functions read and write. Columns are documented where they are used."""

    paths: Array  # float64 [paths, 4]
    free: Array  # float64 [resources]: when its queue will be empty, in microseconds
    expected: Array  # float64 [requests that may be in progress]: what a request in progress was expected to take
    weights: Array  # float64 [paths]: shares of a fixed division
    choices: Array  # int32 [requests]: a path for each request, decided before
    key: Array  # uint64 [1]: of random choices
    settings: Array  # float64 [4]: tolerance, weight of a new measurement, microseconds in which one is half forgotten,
    # and of a queue's length what a request delays those behind it by, all together


TOLERANCE, NEWEST, HALF_LIFE, BEHIND = 0, 1, 2, 3
"""Indices of `settings`."""
_ALL_BEHIND = 1.0
"""Work of s in a queue of w delays each request that arrives while w drains by s; at a resource that is fully used
these are w / s.
"""


def new_state(routes: RouteArrays, requests: int, key: np.uint64) -> SelectorState:
    """A state in which nothing has been measured; up to `requests` requests may be in progress at once."""
    paths = len(routes.base)
    settings = np.array([0.05, 0.125, 20.0 * float(routes.end_to_end.max()), _ALL_BEHIND])
    return SelectorState(
        np.zeros((paths, 4)),
        np.zeros(len(routes.capacity)),
        np.zeros(requests),
        np.zeros(paths),
        np.zeros(0, np.int32),
        np.array([key], np.uint64),
        settings,
    )


@inner
def borrowed_state(state: SelectorState) -> SelectorState:
    """The same arrays without an owner, for kernels (see `penstock.kernels`)."""
    return SelectorState(
        borrowed(state.paths), borrowed(state.free), borrowed(state.expected), borrowed(state.weights),
        borrowed(state.choices), borrowed(state.key), borrowed(state.settings),
    )  # fmt: skip


# `static`, `node:NAME` and `random`: choices that no measurement changes.

_CREDIT = 0
"""Column of `paths`: the part of its share that a path has not had yet."""


@inner
def choose_by_share(routes: RouteArrays, state: SelectorState, kind: int) -> int:
    """The path that is furthest behind its share of the type's requests."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    best = first
    for path in range(first, end):
        state.paths[path, _CREDIT] += state.weights[path]
        if state.paths[path, _CREDIT] > state.paths[best, _CREDIT]:
            best = path
    state.paths[best, _CREDIT] -= 1.0
    return int(best)


@inner
def choose_at_random(routes: RouteArrays, state: SelectorState, kind: int, request: int) -> int:
    """Any path of the type, by a hash of the request's number."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    return int(first + below(draw(state.key[0], np.uint64(request)), end - first))


def quickest_shares(table: RouteTable) -> Array:
    """All requests of a type on the path with the least base time."""
    shares = np.zeros(len(table.paths))
    for kind in range(len(table.types)):
        paths = table.paths_of(kind)
        shares[min(paths, key=lambda path: table.routes.base[path])] = 1.0
    return shares


def node_shares(table: RouteTable, node: str) -> Array:
    """All requests on the quickest path over a node; types without such a path take their quickest one."""
    if not any(node in table.visited(path) for path in range(len(table.paths))):
        nodes = dict.fromkeys(name for path in range(len(table.paths)) for name in table.visited(path))
        raise PenstockError(f"No path goes over {node!r}{nearest(node, nodes)}", code="unknown-name")
    shares = np.zeros(len(table.paths))
    for kind in range(len(table.types)):
        paths = list(table.paths_of(kind))
        through = [path for path in paths if node in table.visited(path)] or paths
        shares[min(through, key=lambda path: table.routes.base[path])] = 1.0
    return shares


# `greedy-end-to-end` and `greedy-intra`: the path whose last completed request took least.

_LAST, _KNOWN = 0, 1
"""Columns of `paths`: the time of the last completed request, and whether there was one."""


@inner
def greedy_choose(routes: RouteArrays, state: SelectorState, kind: int, profiled: np.ndarray) -> int:
    """The path of a request type with the least time; before the first completion `profiled` is used."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = state.paths[path, _LAST] if state.paths[path, _KNOWN] > 0.0 else profiled[path]
        if cost < least:
            best, least = path, cost
    return best


@inner
def greedy_observe(state: SelectorState, path: int, took: float) -> None:
    """Record the time of a completed request."""
    state.paths[path, _LAST], state.paths[path, _KNOWN] = took, 1.0


# `ipipe`: a request type moves to another path when a request took longer than the base time, and back.

_PLACE = 0
"""Column of `paths`, in the row of a type's first path: the type's position in the order of base times."""


@inner
def ipipe_choose(routes: RouteArrays, state: SelectorState, kind: int) -> int:
    """The path at the type's position in the order of base times."""
    return _path_at(routes, kind, int(state.paths[routes.type_first[kind], _PLACE]))


@inner
def ipipe_observe(routes: RouteArrays, state: SelectorState, kind: int, path: int, end_to_end: float) -> None:
    """Only requests of the current path count: a slow one moves the type on, and from the last position to the first.

    One that was not slow moves it back. So a type whose first path is quick stays there.
    """
    first, count = routes.type_first[kind], routes.type_first[kind + 1] - routes.type_first[kind]
    place = int(state.paths[first, _PLACE])
    if path != _path_at(routes, kind, place):
        return
    if end_to_end > routes.end_to_end[path]:
        state.paths[first, _PLACE] = (place + 1) % count
    else:
        state.paths[first, _PLACE] = max(place - 1, 0)


@inner
def _path_at(routes: RouteArrays, kind: int, place: int) -> int:
    """The path of a type before which `place` others have a smaller base time."""
    first, end = routes.type_first[kind], routes.type_first[kind + 1]
    for path in range(first, end):
        before = 0
        for other in range(first, end):
            quicker = routes.end_to_end[other] < routes.end_to_end[path]
            if quicker or (routes.end_to_end[other] == routes.end_to_end[path] and other < path):
                before += 1
        if before == place:
            return int(path)
    return int(first)


# `leo`, LEO's rule: the path with the least k * toll + base, where k counts slow completions in a row and the
# (communication) toll is the compute times and bytes / bandwidth of its path, as the paper prints it. `leo-per-place`
# is the same with what a request adds to queues: service divided by the places of its node.

_K = 0
"""Column of `paths`: completions slower than the base time since the last that was not."""
_ROUNDING = 1e-9
"""A relative tolerance: sums of the same times in another order differ by less."""


@inner
def leo_choose(routes: RouteArrays, state: SelectorState, kind: int, toll: Array) -> int:
    """The path of a request type with the least cost; the first of several."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = state.paths[path, _K] * toll[path] + routes.base[path]
        if cost < least:
            best, least = path, cost
    return best


@inner
def leo_observe(routes: RouteArrays, state: SelectorState, path: int, at_hosts: float) -> None:
    """Count a completion slower than the base time; any other resets the count."""
    if at_hosts > routes.base[path] * (1.0 + _ROUNDING):
        state.paths[path, _K] += 1.0
    else:
        state.paths[path, _K] = 0.0


# `leo-smooth`, ours: k * toll + base, with k from the table of requests in progress and corrected by measurements.
# Every node and link has the queue that requests have made so far, whichever path they took, so paths that share a link
# share its queue; it drains with time. A queue counts twice: a request waits in it, and those that come while it drains
# wait for the request. Counted once, as is best for each request by itself, fast paths are filled until they are as
# slow as the others. Chunks of one transfer count it once: a transfer ends with the last of them. What completions took
# beyond that is averaged with decaying weights: deviations within a band are ignored, and an old measurement is
# forgotten, so that a path that was slow is tried again.

_EXCESS, _MEASURED_AT = 0, 1
"""Columns of `paths`: the averaged excess over the expected time in microseconds; when it was last measured."""

_RECOVERED = 0.5
"""Weight of a new measurement that is faster than the average of earlier ones."""


@inner
def leo_smooth_choose(routes: RouteArrays, state: SelectorState, kind: int, now: float) -> int:
    """The path of a request type with the least expected cost: of the request itself, and of those behind it."""
    best, least = -1, np.inf
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        cost = routes.end_to_end[path] + _excess(state, path, now)
        for visit in range(routes.first[path], routes.first[path + 1]):
            cost += (1.0 + state.settings[BEHIND]) * _wait(routes, state, visit, now)
        if cost < least:
            best, least = path, cost
    return best


@inner
def leo_smooth_assign(routes: RouteArrays, state: SelectorState, path: int, slot: int, now: float) -> None:
    """Enter a request into the queues of its path; `slot` is its slot in the table of requests in progress."""
    apart, longest, slowest = routes.distinct[path], 0.0, -1
    for visit in range(routes.first[path], routes.first[path + 1]):
        if routes.flags[visit] & COMMON == 0:
            apart += _wait(routes, state, visit, now)
            if routes.service[visit] > longest:
                longest, slowest = routes.service[visit], visit
    # A path slower than profiled also serves those behind more slowly: it is tried again with few requests.
    slower = max(_excess(state, path, now), 0.0)
    for visit in range(routes.first[path], routes.first[path + 1]):
        resource = routes.resource[visit]
        work = (routes.service[visit] + (slower if visit == slowest else 0.0)) / routes.capacity[resource]
        state.free[resource] = max(state.free[resource], now) + work
    state.expected[slot] = apart


@inner
def leo_smooth_observe(
    routes: RouteArrays, state: SelectorState, path: int, slot: int, apart: float, now: float
) -> None:
    """`apart`: microseconds that a completed request took on what its alternatives do not share."""
    deviation = apart - state.expected[slot]
    if abs(deviation) <= state.settings[TOLERANCE] * routes.distinct[path]:
        deviation = 0.0
    before = _excess(state, path, now)
    # A slow path that is fast again is trusted sooner than a path that becomes slow is avoided.
    weight = state.settings[NEWEST] if deviation >= before or before <= 0.0 else _RECOVERED
    state.paths[path, _EXCESS] = before + weight * (deviation - before)
    state.paths[path, _MEASURED_AT] = now


@inner
def _wait(routes: RouteArrays, state: SelectorState, visit: int, now: float) -> float:
    """The wait of a request at a visit's resource: its queue, less what other places serve at the same time."""
    resource = routes.resource[visit]
    beside = routes.service[visit] * (1.0 - 1.0 / routes.capacity[resource])
    return float(max(state.free[resource] - now - beside, 0.0))


@inner
def _excess(state: SelectorState, path: int, now: float) -> float:
    """The averaged excess, decayed by its half-life."""
    excess = state.paths[path, _EXCESS]
    if excess == 0.0:
        return 0.0
    return float(excess * math.exp2((state.paths[path, _MEASURED_AT] - now) / state.settings[HALF_LIFE]))


# The functions of a selector, dispatched to its rule: choose a path, observe its time.

(
    LEO_RULE,
    LEO_PER_PLACE_RULE,
    LEO_SMOOTH_RULE,
    GREEDY_END_TO_END_RULE,
    GREEDY_INTRA_RULE,
    IPIPE_RULE,
    RANDOM_RULE,
    SHARES_RULE,
    RECORDED_RULE,
) = range(9)
"""Numbers of the rules."""


@inner
def choose(rule: int, routes: RouteArrays, state: SelectorState, kind: int, request: int, now: float) -> int:
    """The path for a request of type `kind`, the `request`-th of all, at `now` (microseconds)."""
    if rule == LEO_RULE:
        return leo_choose(routes, state, kind, routes.toll)
    if rule == LEO_PER_PLACE_RULE:
        return leo_choose(routes, state, kind, routes.toll_per_place)
    if rule == LEO_SMOOTH_RULE:
        return leo_smooth_choose(routes, state, kind, now)
    if rule == GREEDY_END_TO_END_RULE:
        return greedy_choose(routes, state, kind, routes.end_to_end)
    if rule == GREEDY_INTRA_RULE:
        return greedy_choose(routes, state, kind, routes.base)
    if rule == IPIPE_RULE:
        return ipipe_choose(routes, state, kind)
    if rule == RANDOM_RULE:
        return choose_at_random(routes, state, kind, request)
    if rule == SHARES_RULE:
        return choose_by_share(routes, state, kind)
    return int(state.choices[request])


@inner
def observe(
    rule: int,
    routes: RouteArrays,
    state: SelectorState,
    kind: int,
    path: int,
    slot: int,
    end_to_end: float,
    at_hosts: float,
    apart: float,
    now: float,
) -> None:
    """Record a completed request: its time in all, at both hosts, and on what its alternatives do not share."""
    if rule in (LEO_RULE, LEO_PER_PLACE_RULE):
        leo_observe(routes, state, path, at_hosts)
    elif rule == LEO_SMOOTH_RULE:
        leo_smooth_observe(routes, state, path, slot, apart, now)
    elif rule == GREEDY_END_TO_END_RULE:
        greedy_observe(state, path, end_to_end)
    elif rule == GREEDY_INTRA_RULE:
        greedy_observe(state, path, at_hosts)
    elif rule == IPIPE_RULE:
        ipipe_observe(routes, state, kind, path, end_to_end)


@inner
def path_like(routes: RouteArrays, kind: int, label: int) -> int:
    """The path of a request type with a label, or -1."""
    for path in range(routes.type_first[kind], routes.type_first[kind + 1]):
        if routes.label[path] == label:
            return path
    return -1
