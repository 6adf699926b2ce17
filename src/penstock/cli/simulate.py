"""`penstock simulate`: what a workload would take on a network, under one rule of sharing links or all of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from penstock.cli.output import JsonOption, print_json
from penstock.cli.simulate_trace import coflow_sentence, print_trace, refuse_options, trace_fields
from penstock.cli.simulated import TraceSubject, gap_of, steps_of, subject_of, swept_simulations
from penstock.cli.sweep import (
    SIMULATED_COLUMNS,
    ChartOption,
    SweepOption,
    check_chart,
    computed_rows,
    refuse_with_sweep,
    show_sweep,
)
from penstock.quantities import counted, percent
from penstock.report.gantt import Shown, check_form, path_by_kind, path_sentence, write_timeline
from penstock.report.words import seconds
from penstock.simulate import POLICIES, RatePolicy, Timeline, critical_path, lower_bound, policy_named
from penstock.simulate.coflows import coflow_times
from penstock.simulate.pace import step_seconds
from penstock.simulate.rates.families import PRIORITY
from penstock.simulate.scenario import Scenario
from penstock.simulate.traces import TRACE_POLICIES

_BUSIEST = 3


def simulate_command(
    workload: Annotated[
        Path, typer.Argument(metavar="WORKLOAD", help="A workload file (YAML), or a plan to replay (plan.json).")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"How flows share links: {', '.join(POLICIES)}; of a trace {', '.join(TRACE_POLICIES)}."
            " If none: hermod for an llm, sebf for a trace, else oes."
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run all fitting policies and print a table.")] = False,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Carry priorities out with so many queues; if none, with one a rank.")
    ] = None,
    timeline: Annotated[
        list[Path] | None, typer.Option(help="Write a page (.html) or a Perfetto trace (.json); may be repeated.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Instead of the file's number.")] = None,
    sweep: SweepOption = None,
    chart: ChartOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a workload takes on its machines and links, what no schedule can beat, and what sets the pace.

    Example: penstock simulate workload.yaml --policy oes --timeline timeline.html

    Example: penstock simulate plan.json --timeline timeline.html

    Example: penstock simulate workload.yaml --sweep nic_gbps=1,10,25
    """
    written = timeline or []
    # What can be refused at once is refused before anything is simulated.
    for path in written:
        check_form(path)
    if policy is not None and policy not in TRACE_POLICIES:
        policy_named(policy)
    check_chart(chart, sweep)
    if sweep:
        refuse_with_sweep(compare=compare, timeline=timeline)
        rows = computed_rows(swept_simulations(workload, sweep, policy, iterations, queues))
        show_sweep(rows, SIMULATED_COLUMNS, workload.stem, as_json, chart)
        return
    subject = subject_of(workload, policy, iterations)
    if isinstance(subject, TraceSubject):
        refuse_options(iterations=iterations, queues=queues, timeline=timeline)
        fields = trace_fields(subject.document, subject.folder, subject.policy, compare)
        print_json(fields) if as_json else print_trace(fields)
        return
    scenario, policy = subject.scenario, subject.policy
    found = scenario.simulate(policy, segments=bool(written), queues=queues)
    bound = lower_bound(found.case)
    compared = _compared(scenario, bound, subject.fitting, queues, subject.by) if compare else []
    for path in written:
        write_timeline(Shown(workload.stem, policy, found, scenario.placement, bound, scenario.language_model), path)
    steps = steps_of(found, scenario) | subject.fields
    if as_json:
        print_json(_fields(found, policy, bound) | steps | ({"compared": compared} if compare else {}))
        return
    _print(found, policy, bound)
    if subject.fields:
        print(f"An iteration of the plan takes {seconds(steps['iteration_s'])} in the long run")
    _print_steps(steps)
    if compare:
        _print_table(compared, policy)
    for path in written:
        print(f"Written to {path}")


def _compared(
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
    count = counted(found.iterations, "iterations")
    print(f"{policy}: {count} in {seconds(found.makespan)}{each}")
    print(f"No schedule takes less than {seconds(bound)}: a gap of {percent(gap_of(found.makespan, bound))}")
    order = [link for link in np.argsort(-found.link_use, kind="stable").tolist() if found.link_use[link] > 0]
    busiest = (f"{found.network.link_names[link]} {percent(found.link_use[link])}" for link in order[:_BUSIEST])
    print(f"Busiest links: {', '.join(busiest) or 'nothing crosses one'}")
    print(f"Critical path: {path_sentence(path_by_kind(critical_path(found)))}")
    print(f"Simulated {counted(found.events, 'events')} in {seconds(found.seconds)}")


def _print_steps(steps: dict[str, Any]) -> None:
    exposed = f"{seconds(steps['exposed_communication_s'])} of it is communication that nothing hides"
    print(f"A step takes {seconds(steps['step_s'])}; {exposed}")
    if steps["bubble_fraction"] is not None:
        print(f"Devices compute {percent(1 / (1 + steps['bubble_fraction']))} of the time")
    coflows = steps["coflows"]
    if coflows["count"]:
        print(coflow_sentence(coflows))


def _print_table(compared: list[dict[str, Any]], policy: str) -> None:
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
