"""Profile the paths of an application on a hardware model: what a lone request takes, and what a burst adds."""

import numpy as np

from penstock.errors import PenstockError
from penstock.paths.metrics_file import MetricsDocument, PathMetrics
from penstock.paths.request_sequence import Sequence
from penstock.paths.route_table import RouteTable
from penstock.paths.simulation import Outcome, simulate_paths
from penstock.progress import SILENT, Progress

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
    """The table, of which selectors see the profiled times instead of those that follow from the files."""
    columns: dict[str, list[float]] = {"base": [], "end_to_end": [], "distinct": [], "toll": []}
    for path, name in enumerate(table.paths):
        kind = table.types[table.type_of(path)]
        found = metrics.requests.get(kind, {}).get(name)
        if found is None:
            raise PenstockError(
                f"The metrics of {metrics.application} do not have the path {name!r} of {kind!r}: profile it again.",
                code="mismatched-inputs",
            )
        for column, value in zip(
            columns.values(), (found.base_us, found.end_to_end_us, found.distinct_us, found.toll_us), strict=True
        ):
            column.append(value)
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
        interval_us=float(ends.max() - ends.min()) / (_BURST - 1),
    )


def _run(table: RouteTable, path: int, arrivals: np.ndarray, seed: int) -> Outcome:
    """Requests on one path alone."""
    count, kind = len(arrivals), table.type_of(path)
    sequence = Sequence(
        arrivals.astype(np.float64), np.full(count, kind, np.int32), np.arange(count, dtype=np.int64), np.empty((0, 0))
    )
    shares = np.zeros(len(table.paths))
    shares[path] = 1.0
    return simulate_paths(table, sequence, "static", seed, weights=shares)
