"""`penstock simulate --queue` and `--shop`: schedules of queued jobs on devices, and of a flexible job shop."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from penstock.cli.output import print_json, print_rows
from penstock.cli.sweep import check_page
from penstock.errors import PenstockError
from penstock.formatting import counted, percent
from penstock.graph.documents import parse_yaml
from penstock.report.gantt import Shown, check_form, write_timeline
from penstock.report.words import seconds
from penstock.service.simulation import (
    METHODS,
    least_makespan,
    least_mean_completion,
    read_queue_trace,
    simulate_method,
)
from penstock.service.simulation_page import write_queue_page
from penstock.simulate.shop import Shop, make_schedule, read_fjs, shop_bound
from penstock.simulate.shop.schedule import ShopSchedule, timeline_of
from penstock.simulate.shop.schedulers import SCHEDULERS

# `penstock simulate --queue`: a trace of jobs under the queue's policies, and one job after the other.

_COLUMNS = ("makespan", "mean completion", "95 of 100 within", "mean queueing", "device used", "memory used", "peak")


def simulate_trace_of_jobs(path: Path, policy: str | None, chart: Path | None, as_json: bool) -> None:
    """Simulate the trace under one policy or all, and print how they compare."""
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
    print_rows([Column("", no_wrap=True), *_COLUMNS], cells)
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


# `penstock simulate --shop`: a flexible job shop under one schedule or all of them.

_DEFAULT = "local-search"
_MOST_STEPS = 40
"""Operations that are printed; --json has all of them."""


def simulate_shop(
    path: Path, name: str | None, options: str | None, compare: bool, timelines: Sequence[Path], as_json: bool
) -> None:
    """Schedule the shop in a file, and print the makespan, its lower bound, and the operations in order."""
    for each in timelines:
        check_form(each)
    shop, chosen = read_fjs(path), name or _DEFAULT
    bound = shop_bound(shop)
    found, row = _timed(shop, chosen, _parsed(options), bound)
    rows = [row] if not compare else [row, *_others(shop, chosen, bound)]
    for each in timelines:
        timeline, placement = timeline_of(shop, found)
        write_timeline(Shown(shop.name, chosen, timeline, placement, max(bound, found.proved or 0.0)), each)
    if as_json:
        print_json({**row, "jobs": len(shop.jobs), "machines": len(shop.machines), "operations": _operations(found)}
                   | ({"compared": rows} if compare else {}))  # fmt: skip
        return
    _print(shop, found, row)
    if compare:
        _print_compared(rows)
    for each in timelines:
        print(f"Written to {each}")


def _parsed(options: str | None) -> dict[str, Any]:
    if options is None:
        return {}
    try:
        parsed = parse_yaml(options)
    except Exception:
        parsed = None
    if not isinstance(parsed, dict):
        raise PenstockError(
            f"--schedule-options {options!r} is not a mapping, such as {{moves: 10000}}: write one.",
            code="invalid-value",
        )
    return parsed


def _timed(shop: Shop, name: str, options: dict[str, Any], bound: float) -> tuple[ShopSchedule, dict[str, Any]]:
    began = time.perf_counter()
    found = make_schedule(shop, name, options)
    seconds = time.perf_counter() - began
    least = max(bound, found.proved or 0.0)
    row = {
        "schedule": name,
        "makespan": found.makespan,
        "bound": least,
        "proved_share": least / found.makespan if found.makespan else 1.0,
        "seconds": round(seconds, 4),
    }
    return found, row


def _others(shop: Shop, chosen: str, bound: float) -> list[dict[str, Any]]:
    """The results of the other schedulers; one that cannot schedule this shop has the reason."""
    rows: list[dict[str, Any]] = []
    for name in SCHEDULERS:
        if name != chosen:
            try:
                rows.append(_timed(shop, name, {}, bound)[1])
            except PenstockError as error:
                rows.append({"schedule": name, "refused": str(error), "code": error.code})
    return rows


def _operations(found: ShopSchedule) -> list[dict[str, Any]]:
    return [
        {"job": s.job + 1, "operation": s.operation + 1, "machine": s.machine + 1, "start": s.start, "end": s.end}
        for s in found.steps
    ]


def _print(shop: Shop, found: ShopSchedule, row: dict[str, Any]) -> None:
    print(f"{counted(len(shop.jobs), 'jobs')} of {counted(shop.operations, 'operations')} in all on"
          f" {counted(len(shop.machines), 'machines')}")  # fmt: skip
    print(f"{row['schedule']}: makespan {row['makespan']:g}; no schedule takes less than {row['bound']:g}"
          f" ({percent(row['proved_share'])} of it); found in {row['seconds']:.2f} s")  # fmt: skip
    table = Table("start", "end", "machine", "job", "operation", box=None)
    for step in found.steps[:_MOST_STEPS]:
        numbers = f"{step.job + 1}", f"{step.operation + 1}"
        table.add_row(f"{step.start:g}", f"{step.end:g}", shop.machines[step.machine], *numbers)
    Console().print(table)
    if len(found.steps) > _MOST_STEPS:
        print(f"{counted(len(found.steps) - _MOST_STEPS, 'more operations')}: --json has all of them")


def _print_compared(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(Column("schedule", no_wrap=True), "makespan", "bound", "proved", "seconds")
    for row in rows:
        if "refused" in row:
            table.add_row(row["schedule"], "-", "-", "-", row["refused"])
        else:
            figures = f"{row['makespan']:g}", f"{row['bound']:g}", percent(row["proved_share"]), f"{row['seconds']:.2f}"
            table.add_row(row["schedule"], *figures)
    Console().print(table)
