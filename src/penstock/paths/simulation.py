"""Simulates an application's requests under a selector, and reports their times."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key, draw, unit
from penstock.graph.inline_kernels import borrowed, inner
from penstock.kernels import njit
from penstock.paths.decisions import InProgress, complete, decide, nothing_in_progress
from penstock.paths.documents import MetricsDocument, PathMetrics
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import COMMON, NETWORK, RouteArrays, RouteTable, borrowed_routes
from penstock.paths.rules import SelectorState, borrowed_state, new_state
from penstock.paths.selector_table import selector_named
from penstock.paths.selectors import SelectorInput
from penstock.progress import SILENT, Progress

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


@njit(nogil=True, cache=True, error_model="numpy")
def run_requests(
    rule: int,
    routes: RouteArrays,
    state: SelectorState,
    sequence: Sequence,
    table: InProgress,
    slow: Array,
    places: Array,
    key: np.uint64,
    scratch: RequestScratch,
    record: RequestRecord,
) -> None:
    """Simulate all requests of a sequence; `slow` has from, to and a factor on the services of each resource.

    `places` [resources + 1] numbers the places of all resources, one after the other.
    """
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


_WARM = 0.1
"""The share of requests at the beginning that figures leave out, as queues are still filling."""


@dataclass(frozen=True)
class Disturbance:
    """A node or link whose services take `factor` times as long from one moment to another (microseconds)."""

    resource: str
    start_us: float
    end_us: float
    factor: float


@dataclass(frozen=True)
class SimulatedRequests:
    """The outcome of the requests of one sequence."""

    selector: str
    table: RouteTable
    sequence: Sequence
    record: RequestRecord

    @property
    def latencies(self) -> Array:
        """Microseconds from request to answer, without the first tenth of the requests."""
        return (self.record.end - self.sequence.arrivals)[int(len(self.sequence.arrivals) * _WARM) :]

    def fields(self) -> dict[str, float | str | dict[str, float]]:
        """Figures under the names of the JSON interface."""
        took, span = self.latencies, float(self.record.end.max() - self.sequence.arrivals[0])
        counts = np.bincount(self.record.path, minlength=len(self.table.paths)) / len(self.record.path)
        names = [f"{self.table.types[self.table.type_of(path)]}/{name}" for path, name in enumerate(self.table.paths)]
        return {
            "selector": self.selector,
            "median_us": float(np.median(took)),
            "p99_us": float(np.quantile(took, 0.99)),
            "mean_us": float(took.mean()),
            "requests_per_s": len(self.record.end) / span * 1e6 if span > 0 else 0.0,
            "followed": float(self.record.forced.mean()),
            "shares": dict(zip(names, map(float, counts), strict=True)),
        }


def simulate_paths(
    table: RouteTable,
    sequence: Sequence,
    selector: str,
    seed: int = 0,
    horizon: int = 8,
    disturbances: tuple[Disturbance, ...] = (),
    weights: Array | None = None,
) -> SimulatedRequests:
    """Simulate every request of the sequence over the path that the selector chooses; deterministic for a seed.

    `weights` replaces the shares of a selector with a fixed division.
    """
    entry, argument = selector_named(selector)
    prepared = entry.prepare(SelectorInput(table, sequence, argument, horizon))
    count = len(sequence.arrivals)
    state = new_state(table.routes, count, document_key(seed, "paths choices"))
    state = state._replace(weights=prepared.weights if weights is None else weights, choices=prepared.choices)
    record = RequestRecord(
        np.full(count, -1, np.int32), np.zeros(count), np.zeros(count), np.zeros(count),
        np.zeros(len(table.resources)), np.zeros(count, np.bool_),
    )  # fmt: skip
    groups = nothing_in_progress(int(sequence.groups.max()) + 1)
    places = np.concatenate([[0], np.cumsum(table.routes.capacity)]).astype(np.int64)
    scratch = RequestScratch(
        np.empty(count + 1), np.empty(count + 1, np.int64), np.zeros(count, np.int64), np.zeros(places[-1])
    )
    run_requests(
        entry.rule, table.routes, state, sequence, groups, _slow(table, disturbances), places,
        document_key(seed, "paths jitter"), scratch, record,
    )  # fmt: skip
    return SimulatedRequests(selector, table, sequence, record)


def _slow(table: RouteTable, disturbances: tuple[Disturbance, ...]) -> Array:
    out = np.zeros((len(table.resources), 3))
    for each in disturbances:
        if each.resource not in table.resources:
            raise PenstockError(f"No node or link is called {each.resource!r}.", code="unknown-name")
        out[table.resources.index(each.resource)] = each.start_us, each.end_us, each.factor
    return out


# Profile the paths of an application on a hardware model: the time of a single request, and what a burst adds.

_LONE, _BURST = 512, 1024
"""Requests that are sent one after the other, and at once."""


def profile_paths(
    table: RouteTable, application: str, hardware: str, seed: int = 0, progress: Progress = SILENT
) -> MetricsDocument:
    """Metrics of every path, measured in the simulator, where nothing else uses its nodes and links."""
    requests: dict[str, dict[str, PathMetrics]] = {name: {} for name in table.types}
    with progress.step("Profiling", len(table.paths), "paths"):
        for path, name in enumerate(table.paths):
            requests[table.types[table.type_of(path)]][name] = _profile(table, path, seed)
            progress.advance(1)
    return MetricsDocument(application=application, hardware=hardware, requests=requests)


def with_metrics(table: RouteTable, metrics: MetricsDocument) -> RouteTable:
    """The table with the profiled times, for selectors, instead of those that follow from the files."""
    columns: dict[str, list[float]] = {name: [] for name in ("base", "end_to_end", "distinct", "toll", "toll_per_place")}
    for path, name in enumerate(table.paths):
        kind = table.types[table.type_of(path)]
        found = metrics.requests.get(kind, {}).get(name)
        if found is None:
            raise PenstockError(
                f"The metrics of {metrics.application} do not have the path {name!r} of {kind!r}: profile it again.",
                code="mismatched-inputs",
            )
        for column, values in columns.items():
            values.append(getattr(found, f"{column}_us"))
    arrays = {name: np.array(values) for name, values in columns.items()}
    return RouteTable(table.routes._replace(**arrays), table.types, table.paths, table.resources)


def _profile(table: RouteTable, path: int, seed: int) -> PathMetrics:
    apart = 100.0 * float(table.routes.end_to_end.max())
    lone = _run(table, path, np.arange(_LONE) * apart, seed)
    burst = _run(table, path, np.zeros(_BURST), seed)
    ends = burst.record.end
    return PathMetrics(
        base_us=float(lone.record.at_hosts.mean()),
        end_to_end_us=float((lone.record.end - lone.sequence.arrivals).mean()),
        distinct_us=float(lone.record.apart.mean()),
        toll_us=float(table.routes.toll[path]),
        toll_per_place_us=float(table.routes.toll_per_place[path]),
        interval_us=float(ends.max() - ends.min()) / (_BURST - 1),
    )


def _run(table: RouteTable, path: int, arrivals: np.ndarray, seed: int) -> SimulatedRequests:
    """Simulate requests on a single path."""
    count, kind = len(arrivals), table.type_of(path)
    sequence = Sequence(
        arrivals.astype(np.float64), np.full(count, kind, np.int32), np.arange(count, dtype=np.int64), np.empty((0, 0))
    )
    shares = np.zeros(len(table.paths))
    shares[path] = 1.0
    return simulate_paths(table, sequence, "static", seed, weights=shares)
