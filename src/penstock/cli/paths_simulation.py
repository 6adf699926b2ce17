"""The simulations of `penstock paths`: a row for every load and selector, and the bounds at every load."""

from typing import Any

from penstock.paths import (
    ApplicationDocument,
    RouteTable,
    draw_sequence,
    fluid_bound,
    highest_rate,
    simulate_paths,
    workload_shares,
)
from penstock.progress import Progress


def simulated_rows(
    application: ApplicationDocument,
    table: RouteTable,
    workload: str,
    selectors: list[str],
    loads: list[float],
    requests: int,
    horizon: int,
    seed: int,
    progress: Progress,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of every selector at every load, and the bounds of each load (None above the highest rate)."""
    _, mix = workload_shares(application, workload)
    top = highest_rate(table, mix)
    rows: list[dict[str, Any]] = []
    bounds: list[dict[str, Any]] = []
    with progress.step("Simulating", len(loads) * len(selectors), "simulations"):
        for load in loads:
            bound = fluid_bound(table, mix, load * top)
            bounds.append({"load": load, "rate": load * top, "mean_us": None if bound is None else bound.mean_us})
            sequence = draw_sequence(application, workload, load * top, requests, seed)
            for name in selectors:
                outcome = simulate_paths(table, sequence, name, seed, horizon)
                rows.append({"load": load, "rate": load * top, **outcome.fields()})
                progress.advance(1)
    return rows, bounds
