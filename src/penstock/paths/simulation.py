"""Simulate an application's requests under a selector, and say what they took."""

from dataclasses import dataclass

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import document_key
from penstock.paths.dependencies import nothing_in_progress
from penstock.paths.event_loop import Record, new_record, new_scratch, run_requests
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable
from penstock.paths.rules.selector_state import new_state
from penstock.paths.selectors import Case, selector_named

_WARM = 0.1
"""The share of requests at the beginning that figures leave out: queues are still filling."""


@dataclass(frozen=True)
class Disturbance:
    """A node or link whose services take `factor` times as long from one moment to another (microseconds)."""

    resource: str
    start_us: float
    end_us: float
    factor: float


@dataclass(frozen=True)
class Outcome:
    """What became of the requests of one sequence."""

    selector: str
    table: RouteTable
    sequence: Sequence
    record: Record

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
) -> Outcome:
    """Every request of the sequence over the path that the selector chooses; the same result for the same seed.

    `weights` replaces the shares of a selector with a fixed division.
    """
    entry, argument = selector_named(selector)
    prepared = entry.prepare(Case(table, sequence, argument, horizon))
    count = len(sequence.arrivals)
    state = new_state(table.routes, count, document_key(seed, "paths choices"))
    state = state._replace(weights=prepared.weights if weights is None else weights, choices=prepared.choices)
    record = new_record(count, len(table.resources))
    groups = nothing_in_progress(int(sequence.groups.max()) + 1)
    places = np.concatenate([[0], np.cumsum(table.routes.capacity)]).astype(np.int64)
    run_requests(
        entry.rule, table.routes, state, sequence, groups, _slow(table, disturbances), places,
        document_key(seed, "paths jitter"), new_scratch(count, int(places[-1])), record,
    )  # fmt: skip
    return Outcome(selector, table, sequence, record)


def _slow(table: RouteTable, disturbances: tuple[Disturbance, ...]) -> Array:
    out = np.zeros((len(table.resources), 3))
    for each in disturbances:
        if each.resource not in table.resources:
            raise PenstockError(f"No node or link is called {each.resource!r}.", code="unknown-name")
        out[table.resources.index(each.resource)] = each.start_us, each.end_us, each.factor
    return out
