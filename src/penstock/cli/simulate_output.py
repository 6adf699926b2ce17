"""What `penstock simulate` prints: fields for JSON, sentences and tables for people."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from penstock.cli.simulate_trace import coflow_sentence
from penstock.quantities import counted, percent
from penstock.report.gantt import path_by_kind, path_sentence
from penstock.report.words import seconds
from penstock.simulate import RatePolicy, Timeline, critical_path, gap_of
from penstock.simulate.coflows import coflow_times
from penstock.simulate.scenario import Scenario
from penstock.simulate.sharing.families import PRIORITY
from penstock.simulate.timeline import step_seconds

_BUSIEST = 3
"""Links that are named."""


def compared_policies(
    scenario: Scenario, bound: float, policies: Mapping[str, RatePolicy], queues: int | None, by: str
) -> list[dict[str, Any]]:
    """Every policy, the one with the least of `by` first."""
    rows: list[dict[str, Any]] = []
    for policy, rule in policies.items():
        found = scenario.simulate(policy, queues=queues if rule.family == PRIORITY else None)
        slowest = int(np.argmax(found.link_use))
        rows.append(
            {
                "policy": policy,
                "makespan_s": found.makespan,
                "step_s": step_seconds(found.case, found.ends),
                "mean_cct_s": coflow_times(found).mean_cct_s,
                "lower_bound_s": bound,
                "gap": gap_of(found.makespan, bound),
                "slowest_link": found.network.link_names[slowest],
                "utilisation": float(found.link_use[slowest]),
            }
        )
    rows.sort(key=lambda row: row[by])
    best = rows[0][by]
    return [{**row, "ratio": row[by] / best if best else 1.0} for row in rows]


def simulation_fields(found: Timeline, policy: str, bound: float) -> dict[str, Any]:
    use = zip(found.network.link_names, found.link_use.tolist(), strict=True)
    return {
        "policy": policy,
        "iterations": found.iterations,
        "makespan_s": found.makespan,
        "lower_bound_s": bound,
        "events": found.events,
        "seconds": found.seconds,
        "links": {name: {"utilisation": share} for name, share in use},
        "critical_path": [step._asdict() for step in critical_path(found)],
    }


def print_simulation(found: Timeline, policy: str, bound: float) -> None:
    each = f" ({seconds(found.makespan / found.iterations)} each)" if found.iterations > 1 else ""
    count = counted(found.iterations, "iterations")
    print(f"{policy}: {count} in {seconds(found.makespan)}{each}")
    print(f"No schedule takes less than {seconds(bound)}: a gap of {percent(gap_of(found.makespan, bound))}")
    order = [link for link in np.argsort(-found.link_use, kind="stable").tolist() if found.link_use[link] > 0]
    busiest = (f"{found.network.link_names[link]} {percent(found.link_use[link])}" for link in order[:_BUSIEST])
    print(f"Busiest links: {', '.join(busiest) or 'nothing crosses one'}")
    print(f"Critical path: {path_sentence(path_by_kind(critical_path(found)))}")
    print(f"Simulated {counted(found.events, 'events')} in {seconds(found.seconds)}")


def print_steps(steps: dict[str, Any]) -> None:
    exposed = f"{seconds(steps['exposed_communication_s'])} of it is communication that nothing hides"
    print(f"A step takes {seconds(steps['step_s'])}; {exposed}")
    if steps["bubble_fraction"] is not None:
        print(f"Devices compute {percent(1 / (1 + steps['bubble_fraction']))} of the time")
    fair = steps["fair_all_to_all_step_s"]
    if fair is not None and steps["step_s"] > fair:
        longer = percent(steps["step_s"] / fair - 1)
        print(
            f"Note: these matchings make a step {longer} longer than `schedule: fair` would ({seconds(fair)}):"
            " their phases' overhead costs more than they save"
        )
    coflows = steps["coflows"]
    if coflows["count"]:
        print(coflow_sentence(coflows))


def print_policies(compared: list[dict[str, Any]], policy: str) -> None:
    columns = ("step", "to the best", "makespan", "gap", "mean coflow", "slowest link", "used")
    table = Table(Column("policy", no_wrap=True), *columns)
    for row in compared:
        table.add_row(
            row["policy"],
            seconds(row["step_s"]),
            f"{row['ratio']:.3f}",
            seconds(row["makespan_s"]),
            percent(row["gap"]),
            seconds(row["mean_cct_s"]),
            row["slowest_link"],
            percent(row["utilisation"]),
            style="bold" if row["policy"] == policy else None,
        )
    Console().print(table)
