"""Requests over paths in time: a request is at one resource after the other, and every resource serves in order.

An event is a request's arrival at its next resource, or its completion. As events are handled in order of time, a
place of a resource is given to whoever comes first, and its next free time is all that has to be known of it.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.graph.inline_kernels import borrowed, inner
from penstock.kernels import njit
from penstock.paths.decisions import complete, decide
from penstock.paths.dependencies import InProgress
from penstock.paths.event_heap import pop_event, push_event
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import COMMON, NETWORK, Routes, borrowed_routes
from penstock.paths.rules.selector_state import SelectorState, borrowed_state

_MOST_VISITS = 1 << 20
"""More than any path has: draws of two requests never meet."""


class Record(NamedTuple):
    """What became of each request, and how long each resource was held."""

    path: Array  # int32 [requests]
    end: Array  # float64 [requests]: microseconds
    at_hosts: Array  # float64 [requests]: the source's signal: end to end, without the network
    apart: Array  # float64 [requests]: on resources that the alternatives do not all go over
    busy: Array  # float64 [resources]: microseconds
    forced: Array  # bool [requests]: whether it followed a request in progress


class Scratch(NamedTuple):
    """Memory of a run. Its caller holds it: a kernel would free its own as soon as only borrowed arrays are left."""

    times: Array  # float64 [requests + 1]
    waiting: Array  # int64 [requests + 1]
    visits: Array  # int64 [requests]
    free: Array  # float64 [places]


def new_scratch(requests: int, places: int) -> Scratch:
    """Memory for so many requests, and resources with so many places together."""
    return Scratch(
        np.empty(requests + 1), np.empty(requests + 1, np.int64), np.zeros(requests, np.int64), np.zeros(places)
    )


def new_record(requests: int, resources: int) -> Record:
    """An empty record."""
    return Record(
        np.full(requests, -1, np.int32),
        np.zeros(requests),
        np.zeros(requests),
        np.zeros(requests),
        np.zeros(resources),
        np.zeros(requests, np.bool_),
    )


@njit(nogil=True, cache=True, error_model="numpy")
def run_requests(
    rule: int,
    routes: Routes,
    state: SelectorState,
    sequence: Sequence,
    table: InProgress,
    slow: Array,
    places: Array,
    key: np.uint64,
    scratch: Scratch,
    record: Record,
) -> None:
    """Simulate all requests of a sequence; `slow` has from, to and a factor on the services of each resource.

    `places` [resources + 1] numbers the places of all resources, one after the other.
    """
    routes, state = borrowed_routes(routes), borrowed_state(state)
    sequence = Sequence(
        borrowed(sequence.arrivals), borrowed(sequence.types), borrowed(sequence.groups), borrowed(sequence.noise)
    )
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    record = Record(
        borrowed(record.path), borrowed(record.end), borrowed(record.at_hosts), borrowed(record.apart),
        borrowed(record.busy), borrowed(record.forced),
    )  # fmt: skip
    slow, places = borrowed(slow), borrowed(places)
    count = sequence.arrivals.shape[0]
    times, waiting = borrowed(scratch.times), borrowed(scratch.waiting)
    visits, free = borrowed(scratch.visits), borrowed(scratch.free)
    size, coming = 0, 0
    while coming < count or size > 0:
        if coming < count and (size == 0 or sequence.arrivals[coming] <= times[0]):
            request, now = coming, sequence.arrivals[coming]
            coming += 1
            path = _take_path(rule, routes, state, sequence, table, request, now, record)
            visits[request] = routes.first[path]
        else:
            request, now = waiting[0], times[0]
            pop_event(times, waiting, size)
            size -= 1
            path = record.path[request]
        if visits[request] == routes.first[path + 1]:
            _complete(rule, routes, state, sequence, table, request, now, record)
            continue
        leaves = _visit(routes, places, sequence, slow, key, request, visits[request], now, free, record)
        visits[request] += 1
        push_event(times, waiting, size, leaves, request)
        size += 1


@inner
def _take_path(
    rule: int,
    routes: Routes,
    state: SelectorState,
    sequence: Sequence,
    table: InProgress,
    request: int,
    now: float,
    record: Record,
) -> int:
    kind, group = sequence.types[request], sequence.groups[request]
    path, forced = decide(rule, routes, state, table, kind, group, request, request, now)
    record.path[request], record.forced[request] = path, forced
    return path


@inner
def _visit(
    routes: Routes,
    places: Array,
    sequence: Sequence,
    slow: Array,
    key: np.uint64,
    request: int,
    visit: int,
    now: float,
    free: Array,
    record: Record,
) -> float:
    """When a request that came to a resource now is at the next one."""
    resource = routes.resource[visit]
    place = places[resource]
    for other in range(place + 1, places[resource + 1]):
        if free[other] < free[place]:
            place = other
    start = max(now, free[place])
    step = visit - routes.first[record.path[request]]
    service = routes.service[visit]
    if sequence.noise.shape[0] > 0:
        service *= 1.0 + sequence.noise[request, step]
    if slow[resource, 0] <= start < slow[resource, 1]:
        service *= slow[resource, 2]
    free[place] = start + service
    record.busy[resource] += service
    # Added up from differences: the clock's own digits would drown those of a short service.
    took = start - now + service + routes.delay[visit]
    least, most = routes.jitter[visit, 0], routes.jitter[visit, 1]
    if most > 0.0:
        took += least + (most - least) * unit(draw(key, np.uint64(request * _MOST_VISITS + step)))
    if routes.flags[visit] & NETWORK == 0:
        record.at_hosts[request] += took
    if routes.flags[visit] & COMMON == 0:
        record.apart[request] += took
    return float(now + took)


@inner
def _complete(
    rule: int,
    routes: Routes,
    state: SelectorState,
    sequence: Sequence,
    table: InProgress,
    request: int,
    now: float,
    record: Record,
) -> None:
    kind = sequence.types[request]
    record.end[request] = now
    complete(
        rule, routes, state, table, kind, sequence.groups[request], record.path[request], request,
        now - sequence.arrivals[request], record.at_hosts[request], record.apart[request], now,
    )  # fmt: skip
