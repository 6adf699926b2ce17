"""`penstock simulate`: what a workload would take on a network, under one rule of sharing links or all of them."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Column, Table

from penstock.cli.coflow_table import check_table, write_table
from penstock.cli.output import JsonOption, print_json
from penstock.cli.simulate_trace import print_trace, refuse_options, trace_fields
from penstock.report.gantt import Shown, check_form, path_by_kind, path_sentence, write_timeline
from penstock.report.words import percent, seconds
from penstock.simulate import POLICIES, RatePolicy, Timeline, critical_path, lower_bound, policy_named
from penstock.simulate.coflows import coflow_rows, coflow_times
from penstock.simulate.document import WorkloadDocument, read_workload
from penstock.simulate.llm.document import ExchangeDocument
from penstock.simulate.pace import bubble_fraction, exposed_seconds, step_seconds
from penstock.simulate.rates import COFLOW_POLICIES, FLOW_POLICIES
from penstock.simulate.rates.families import PRIORITY
from penstock.simulate.scenario import Scenario, build_scenario
from penstock.simulate.traces import TRACE_POLICIES

_BUSIEST = 3
_FOR_ANY = {name: COFLOW_POLICIES[name] for name in ("hermod", "slack")}
"""Orders of coflows that say something where there is no language model."""


def simulate_command(
    workload: Annotated[Path, typer.Argument(metavar="WORKLOAD", help="A workload file (YAML).")],
    policy: Annotated[
        str | None,
        typer.Option(
            help=f"How flows share links: {', '.join(POLICIES)}; of a trace {', '.join(TRACE_POLICIES)}."
            " If none: slack for an llm, sebf for a trace, else oes."
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run all fitting policies and print a table.")] = False,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Carry priorities out with so many queues; if none, with one a rank.")
    ] = None,
    timeline: Annotated[
        list[Path] | None, typer.Option(help="Write a page (.html) or a Perfetto trace (.json); may be repeated.")
    ] = None,
    out_coflows: Annotated[
        Path | None, typer.Option(help="Write the completion time of every coflow to this table (.csv).")
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
    if out_coflows is not None:
        check_table(out_coflows)
    document = read_workload(workload)
    if document.trace is not None:
        refuse_options(iterations=iterations, queues=queues, timeline=timeline)
        fields = trace_fields(document.trace, workload.parent, policy, compare)
        if out_coflows is not None:
            write_table(fields["coflow_times"], out_coflows)
        print_json(fields) if as_json else print_trace(fields, out_coflows)
        return
    if policy is not None:
        policy_named(policy)
    policy = policy or ("oes" if document.llm is None else "slack")
    fitting = FLOW_POLICIES | _FOR_ANY if document.llm is None else COFLOW_POLICIES
    scenario = build_scenario(document, iterations)
    found = scenario.simulate(policy, segments=bool(written), queues=queues)
    bound = lower_bound(found.case)
    by = "makespan_s" if document.llm is None else "step_s"
    compared = _compared(scenario, bound, fitting, queues, by) if compare else []
    for path in written:
        write_timeline(Shown(workload.stem, policy, found, scenario.placement, bound), path)
    if out_coflows is not None:
        write_table(coflow_rows(found), out_coflows)
    steps = _steps(found, scenario) | _against_fair_exchange(document, iterations, policy, queues)
    if as_json:
        print_json(_fields(found, policy, bound) | steps | ({"compared": compared} if compare else {}))
        return
    _print(found, policy, bound)
    _print_steps(steps)
    if compare:
        _print_table(compared, policy)
    for path in [*written, *([] if out_coflows is None else [out_coflows])]:
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
                "gap": _gap(found.makespan, bound),
                "slowest_link": found.network.link_names[slowest],
                "utilisation": float(found.link_use[slowest]),
            }
        )
    rows.sort(key=lambda row: row[by])
    best = rows[0][by]
    return [{**row, "ratio": row[by] / best if best else 1.0} for row in rows]


def _steps(found: Timeline, scenario: Scenario) -> dict[str, Any]:
    """What a step takes, and what coflows do."""
    return {
        "step_s": step_seconds(found.case, found.ends),
        "bubble_fraction": bubble_fraction(found, scenario.placement) if scenario.language_model else None,
        "exposed_communication_s": exposed_seconds(found, scenario.silent()),
        "coflows": asdict(coflow_times(found)),
    }


def _against_fair_exchange(
    document: WorkloadDocument, iterations: int | None, policy: str, queues: int | None
) -> dict[str, Any]:
    """What a step would take if all-to-alls were sent all at once, where they are sent as matchings."""
    if document.llm is None or document.llm.all_to_all.schedule == "fair":
        return {"fair_all_to_all_step_s": None}
    fields = document.llm.all_to_all.model_dump(exclude={"schedule", "detail"})
    fair = document.llm.model_copy(update={"all_to_all": ExchangeDocument(schedule="fair", **fields)})
    found = build_scenario(document.model_copy(update={"llm": fair}), iterations).simulate(policy, queues=queues)
    return {"fair_all_to_all_step_s": step_seconds(found.case, found.ends)}


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


def _print_steps(steps: dict[str, Any]) -> None:
    exposed = f"{seconds(steps['exposed_communication_s'])} of it is communication that nothing hides"
    print(f"A step takes {seconds(steps['step_s'])}; {exposed}")
    if steps["bubble_fraction"] is not None:
        print(f"Devices compute {percent(1 / (1 + steps['bubble_fraction']))} of the time")
    fair = steps["fair_all_to_all_step_s"]
    if fair is not None and steps["step_s"] > fair:
        longer = percent(steps["step_s"] / fair - 1)
        print(f"Note: these matchings make a step {longer} longer than `schedule: fair` would ({seconds(fair)}):"
              " their phases' overhead costs more than they save")  # fmt: skip
    coflows = steps["coflows"]
    if coflows["count"]:
        mean, late = seconds(coflows["mean_cct_s"]), seconds(coflows["p95_cct_s"])
        print(f"{coflows['count']:,} coflows take {mean} on average; 95 of 100 at most {late}")


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
