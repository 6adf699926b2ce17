"""`penstock simulate`: what a workload would take on a network, under one rule of sharing links or all of them."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from penstock.cli.output import JsonOption, print_json
from penstock.report.gantt import Shown, check_form, path_by_kind, path_sentence, write_timeline
from penstock.report.words import percent, seconds
from penstock.simulate import POLICIES, Timeline, critical_path, lower_bound, policy_named
from penstock.simulate.document import read_workload
from penstock.simulate.scenario import Scenario, build_scenario

_BUSIEST = 3


def simulate_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="A workload file (YAML).")],
    policy: Annotated[str, typer.Option(help=f"How flows share links: {', '.join(POLICIES)}.")] = "oes",
    compare: Annotated[bool, typer.Option("--compare", help="Run all policies and print a table.")] = False,
    timeline: Annotated[
        list[Path] | None, typer.Option(help="Write a page (.html) or a Perfetto trace (.json); may be repeated.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Instead of the file's number.")] = None,
    as_json: JsonOption = False,
) -> None:
    """What a workload takes on its machines and links, what no schedule can beat, and what sets the pace.

    Example: penstock simulate workload.yaml --policy oes --timeline timeline.html
    """
    written = timeline or []
    # What can be refused at once is refused before anything is simulated.
    for path in written:
        check_form(path)
    policy_named(policy)
    scenario = build_scenario(read_workload(workload), iterations)
    found = scenario.simulate(policy, segments=bool(written))
    bound = lower_bound(found.case)
    compared = _compared(scenario, bound) if compare else []
    for path in written:
        write_timeline(Shown(workload.stem, policy, found, scenario.placement, bound), path)
    if as_json:
        print_json(_fields(found, policy, bound) | ({"compared": compared} if compare else {}))
        return
    _print(found, policy, bound)
    if compare:
        _print_table(compared, policy)
    for path in written:
        print(f"Written to {path}")


def _compared(scenario: Scenario, bound: float) -> list[dict[str, Any]]:
    """Every policy, fastest first."""
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        found = scenario.simulate(policy)
        slowest = int(np.argmax(found.link_use))
        rows.append(
            {
                "policy": policy,
                "makespan_s": found.makespan,
                "lower_bound_s": bound,
                "gap": _gap(found.makespan, bound),
                "slowest_link": found.network.link_names[slowest],
                "utilisation": float(found.link_use[slowest]),
            }
        )
    rows.sort(key=lambda row: row["makespan_s"])
    best = rows[0]["makespan_s"]
    return [{**row, "ratio": row["makespan_s"] / best if best else 1.0} for row in rows]


def _gap(makespan: float, bound: float) -> float:
    """How much longer than the bound, as a share of it; rounding below it is none."""
    return max(0.0, makespan / bound - 1) if bound else 0.0


def _fields(found: Timeline, policy: str, bound: float) -> dict[str, Any]:
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


def _print(found: Timeline, policy: str, bound: float) -> None:
    each = f" ({seconds(found.makespan / found.iterations)} each)" if found.iterations > 1 else ""
    count = f"{found.iterations:,} iteration{'s' if found.iterations > 1 else ''}"
    print(f"{policy}: {count} in {seconds(found.makespan)}{each}")
    print(f"No schedule takes less than {seconds(bound)}: a gap of {percent(_gap(found.makespan, bound))}")
    order = [link for link in np.argsort(-found.link_use, kind="stable").tolist() if found.link_use[link] > 0]
    busiest = (f"{found.network.link_names[link]} {percent(found.link_use[link])}" for link in order[:_BUSIEST])
    print(f"Busiest links: {', '.join(busiest) or 'nothing crosses one'}")
    print(f"Critical path: {path_sentence(path_by_kind(critical_path(found)))}")
    print(f"Simulated {found.events:,} events in {seconds(found.seconds)}")


def _print_table(compared: list[dict[str, Any]], policy: str) -> None:
    table = Table(Column("policy", no_wrap=True), "makespan", "to the best", "at least", "gap", "slowest link", "used")
    for row in compared:
        table.add_row(
            row["policy"],
            seconds(row["makespan_s"]),
            f"{row['ratio']:.3f}",
            seconds(row["lower_bound_s"]),
            percent(row["gap"]),
            row["slowest_link"],
            percent(row["utilisation"]),
            style="bold" if row["policy"] == policy else None,
        )
    Console().print(table)
