"""`penstock simulate --queue`: a trace of jobs under the queue's policies, and one job after the other."""

import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from penstock.cli.output import print_json
from penstock.cli.sweep import check_page
from penstock.errors import PenstockError
from penstock.quantities import counted, percent
from penstock.report.words import seconds
from penstock.service.simulation import (
    METHODS,
    least_makespan,
    least_mean_completion,
    read_queue_trace,
    simulate_method,
)
from penstock.service.simulation.page import write_queue_page

_COLUMNS = ("makespan", "mean completion", "95 of 100 within", "mean queueing", "device used", "memory used", "peak")


def simulate_trace_of_jobs(path: Path, policy: str | None, chart: Path | None, as_json: bool) -> None:
    """Simulate the trace under one method or all, and say how they compare."""
    if chart is not None:
        check_page(chart)
    trace = read_queue_trace(path)
    outcomes = [simulate_method(trace, method) for method in ([policy] if policy else METHODS)]
    if not outcomes[0].jobs:
        job, reason = next(iter(outcomes[0].refused.items()))
        raise PenstockError(f"{path}: no job fits a device. {job}: {reason}", code="infeasible")
    bounds = {"makespan_s": least_makespan(trace), "mean_completion_s": least_mean_completion(trace)}
    rows = [each.fields() for each in outcomes]
    cells = [[row["method"], *_cells(row)] for row in rows]
    if chart is not None:
        write_queue_page(path.stem, trace, outcomes, ["", *_COLUMNS], cells, bounds, chart)
    if as_json:
        methods = [row | {"job_times": each.rows()} for row, each in zip(rows, outcomes, strict=True)]
        print_json({"least": bounds, "methods": methods, "chart": None if chart is None else str(chart)})
        return
    table = Table(Column("", no_wrap=True), *_COLUMNS, box=None)
    for each in cells:
        table.add_row(*each)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    least = seconds(bounds["makespan_s"]), seconds(bounds["mean_completion_s"])
    print(f"{counted(rows[0]['jobs'], 'jobs')}; no schedule takes less than {least[0]}, or {least[1]} on average")
    for job, reason in outcomes[0].refused.items():
        print(f"Refused: {job}. {reason}")
    if chart is not None:
        print(f"Chart: {chart}")


def _cells(row: dict[str, Any]) -> list[str]:
    times = [row[name] for name in ("makespan_s", "mean_completion_s", "p95_completion_s", "mean_queueing_s")]
    shares = [percent(row[name]) for name in ("utilisation", "memory_used")]
    peak = max(row["peak_memory_gb"].values(), default=0.0)
    return [*map(seconds, times), *shares, f"{peak:.3g} GB"]
