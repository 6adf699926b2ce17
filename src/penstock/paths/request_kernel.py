"""The kernel that sends requests over paths in time, and a search for the best choices with all requests at hand."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import below, document_key, draw, unit
from penstock.kernels import borrowed, inner, njit
from penstock.paths.decisions import InProgress, complete, decide, nothing_in_progress
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import COMMON, NETWORK, RouteArrays, RouteTable, borrowed_routes
from penstock.paths.rules import LEO_SMOOTH_RULE, RECORDED_RULE, SelectorState, borrowed_state, new_state

# A binary heap of events by time. Ties go to the smaller request number, so that nothing depends on history.


@inner
def push_event(times: Array, requests: Array, size: int, time: float, request: int) -> None:
    """Add an event to the heap of `size` events."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if times[parent] < time or (times[parent] == time and requests[parent] < request):
            break
        times[k], requests[k] = times[parent], requests[parent]
        k = parent
    times[k], requests[k] = time, request


@inner
def pop_event(times: Array, requests: Array, size: int) -> None:
    """Remove the first event, which the caller has read, from the heap of `size` events."""
    size -= 1
    time, request = times[size], requests[size]
    k = 0
    while 2 * k + 1 < size:
        least = 2 * k + 1
        other = least + 1
        if other < size and (
            times[other] < times[least] or (times[other] == times[least] and requests[other] < requests[least])
        ):
            least = other
        if time < times[least] or (time == times[least] and request < requests[least]):
            break
        times[k], requests[k] = times[least], requests[least]
        k = least
    times[k], requests[k] = time, request


# Requests over paths in time: a request is at one resource after the other, and every resource serves in order. An
# event is a request's arrival at its next resource, or its completion. As events are handled in order of time, a place
# of a resource is given to the first that comes, and only its next free time has to be known.

_MOST_VISITS = 1 << 20
"""More than any path has, so that random draws of two requests never coincide."""


class RequestRecord(NamedTuple):
    """The outcome of each request, and how long each resource was held."""

    path: Array  # int32 [requests]
    end: Array  # float64 [requests]: microseconds
    at_hosts: Array  # float64 [requests]: LEO's signal: end to end, without the network
    apart: Array  # float64 [requests]: on resources that the alternatives do not all go over
    busy: Array  # float64 [resources]: microseconds
    forced: Array  # bool [requests]: whether it followed a request in progress


class RequestScratch(NamedTuple):
    """Memory of a run. The caller must keep it: a kernel would free its own as soon as only
    borrowed arrays are left.
    """

    times: Array  # float64 [requests + 1]
    waiting: Array  # int64 [requests + 1]
    visits: Array  # int64 [requests]
    free: Array  # float64 [places]


class RequestRun(NamedTuple):
    """All that a run reads and writes."""

    routes: RouteArrays
    state: SelectorState
    sequence: Sequence
    table: InProgress
    slow: Array  # float64 [resources, 3]: from, to and a factor on services
    places: Array  # int64 [resources + 1]: numbers of the places of all resources, one after the other
    key: np.uint64  # of jitter
    scratch: RequestScratch
    record: RequestRecord


def new_run(table: RouteTable, sequence: Sequence, state: SelectorState, slow: Array, seed: int) -> RequestRun:
    """A run that has not begun; with the same seed jitter is the same, whatever is chosen."""
    count = len(sequence.arrivals)
    record = RequestRecord(
        np.full(count, -1, np.int32), np.zeros(count), np.zeros(count), np.zeros(count),
        np.zeros(len(table.resources)), np.zeros(count, np.bool_),
    )  # fmt: skip
    places = np.concatenate([[0], np.cumsum(table.routes.capacity)]).astype(np.int64)
    scratch = RequestScratch(
        np.empty(count + 1), np.empty(count + 1, np.int64), np.zeros(count, np.int64), np.zeros(places[-1])
    )
    groups = nothing_in_progress(int(sequence.groups.max()) + 1)
    key = document_key(seed, "paths jitter")
    return RequestRun(table.routes, state, sequence, groups, slow, places, key, scratch, record)


@njit(nogil=True, cache=True, error_model="numpy")
def run_requests(rule: int, run: RequestRun) -> None:
    """Simulate all requests of a sequence."""
    routes, state, sequence, table, slow, places, key, scratch, record = run
    routes, state = borrowed_routes(routes), borrowed_state(state)
    sequence = Sequence(
        borrowed(sequence.arrivals), borrowed(sequence.types), borrowed(sequence.groups), borrowed(sequence.noise)
    )
    table = InProgress(borrowed(table.requests), borrowed(table.writers), borrowed(table.label))
    record = RequestRecord(
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
            kind, group = sequence.types[request], sequence.groups[request]
            path, forced = decide(rule, routes, state, table, kind, group, request, request, now)
            record.path[request], record.forced[request] = path, forced
            visits[request] = routes.first[path]
        else:
            request, now = waiting[0], times[0]
            pop_event(times, waiting, size)
            size -= 1
            path = record.path[request]
        if visits[request] == routes.first[path + 1]:
            record.end[request] = now
            complete(
                rule, routes, state, table, sequence.types[request], sequence.groups[request], path, request,
                now - sequence.arrivals[request], record.at_hosts[request], record.apart[request], now,
            )  # fmt: skip
            continue
        leaves = _visit(routes, places, sequence, slow, key, request, visits[request], now, free, record)
        visits[request] += 1
        push_event(times, waiting, size, leaves, request)
        size += 1


@inner
def _visit(
    routes: RouteArrays,
    places: Array,
    sequence: Sequence,
    slow: Array,
    key: np.uint64,
    request: int,
    visit: int,
    now: float,
    free: Array,
    record: RequestRecord,
) -> float:
    """When a request that comes to a resource now is at the next one."""
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
    # Summed from differences: the clock's magnitude would lose the digits of a short service.
    took = start - now + service + routes.delay[visit]
    least, most = routes.jitter[visit, 0], routes.jitter[visit, 1]
    if most > 0.0:
        took += least + (most - least) * unit(draw(key, np.uint64(request * _MOST_VISITS + step)))
    if routes.flags[visit] & NETWORK == 0:
        record.at_hosts[request] += took
    if routes.flags[visit] & COMMON == 0:
        record.apart[request] += took
    return float(now + took)


# A search with all requests at hand, and their jitter: the choices of `leo-smooth`, improved by changing one at a time.
# Any change is simulated as a whole. It is kept if all requests together take at most a little longer than they did at
# best, which becomes nothing. Sequences with few choices are enumerated, which gives the least of all.

_MOST_CHOICES = 1 << 14
"""The most choices that are enumerated."""
_CHANGES = 60
"""Changes that are tried for each request of a longer sequence."""
_ALLOWED = 0.01
"""How much longer than the best choices may take at first, as a share."""


def clairvoyant_choices(table: RouteTable, sequence: Sequence, slow: Array, seed: int) -> Array:
    """A path for each request, with the least total time of all choices that were tried, or of all there are."""
    count = len(sequence.arrivals)
    key = document_key(seed, "paths clairvoyant")
    started = new_run(table, sequence, new_state(table.routes, count, key), slow, seed)
    run_requests(LEO_SMOOTH_RULE, started)
    ways = np.diff(table.routes.type_first)[sequence.types].astype(np.float64)
    changes = int(ways.prod()) if np.log2(ways).sum() <= np.log2(_MOST_CHOICES) else -_CHANGES * count
    state = started.state._replace(choices=started.record.path.copy())
    return _searched(new_run(table, sequence, state, slow, seed), changes, key)


@njit(nogil=True, cache=True, error_model="numpy")
def _searched(run: RequestRun, changes: int, key: np.uint64) -> Array:
    """The best choices that `-changes` changes come to; a positive number enumerates that many."""
    choices, first, types = run.state.choices, run.routes.type_first, run.sequence.types
    count, tries = len(choices), abs(changes)
    best, kept = np.inf, choices.copy()
    for number in range(-1, tries):
        changed, before, rest = -1, 0, number
        if number >= 0 and changes > 0:
            for request in range(count):
                ways = first[types[request] + 1] - first[types[request]]
                choices[request] = first[types[request]] + rest % ways
                rest //= ways
        elif number >= 0:
            drawn = draw(key, np.uint64(number))
            changed = below(drawn, count)
            kind, before = types[changed], choices[changed]
            ways = first[kind + 1] - first[kind]
            if ways == 1:
                continue
            other = first[kind] + below(draw(drawn, np.uint64(1)), ways - 1)
            choices[changed] = other if other < before else other + 1
        run.record.at_hosts[:], run.record.apart[:], run.scratch.free[:] = 0.0, 0.0, 0.0
        run_requests(RECORDED_RULE, run)
        took = (run.record.end - run.sequence.arrivals).sum()
        if took < best:
            best = took
            for request in range(count):
                kept[request] = choices[request]
        elif changed >= 0 and took > best * (1.0 + _ALLOWED * (1.0 - number / tries)):
            choices[changed] = before
    return kept
