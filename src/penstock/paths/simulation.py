"""Simulates an application's requests under a selector, and reports their times."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key
from penstock.paths.documents import MetricsDocument, PathMetrics
from penstock.paths.request_kernel import RequestRecord, new_run, run_requests
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable
from penstock.paths.rules import new_state
from penstock.paths.selector_table import selector_named
from penstock.paths.selectors import SelectorInput
from penstock.progress import SILENT, Progress

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
    slow = _slow(table, disturbances)
    prepared = entry.prepare(SelectorInput(table, sequence, argument, horizon, slow, seed))
    state = new_state(table.routes, len(sequence.arrivals), document_key(seed, "paths choices"))
    state = state._replace(weights=prepared.weights if weights is None else weights, choices=prepared.choices)
    run = new_run(table, sequence, state, slow, seed)
    run_requests(entry.rule, run)
    return SimulatedRequests(selector, table, sequence, run.record)


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
    columns: dict[str, list[float]] = {
        name: [] for name in ("base", "end_to_end", "distinct", "toll", "toll_per_place")
    }
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
