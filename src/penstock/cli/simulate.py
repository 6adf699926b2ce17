"""`penstock simulate`: how long a workload takes on a network, under one rate policy or all of them."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.output import JsonOption, print_json, refuse_options
from penstock.cli.sweep import (
    NOT_WITH_SWEEP,
    SIMULATED_COLUMNS,
    SweepOption,
    check_chart,
    computed_rows,
    show_sweep,
)
from penstock.errors import PenstockError
from penstock.simulate.rates import COFLOW_POLICIES, FLOW_POLICIES, POLICIES
from penstock.simulate.shop.schedulers import SCHEDULERS
from penstock.simulate.traces import TRACE_POLICIES

if TYPE_CHECKING:
    from penstock.cli.simulate_network import Subject, TraceSubject

_NOT_FOR = "--{{}} does not apply to {}: leave it out."
_POLICY_HELP = (
    f"How flows share links: {', '.join(FLOW_POLICIES)}; of coflows {', '.join(COFLOW_POLICIES)}; of a trace"
    f" {', '.join(TRACE_POLICIES)}. If none: slack for an llm, sebf for a trace, else oes."
)


WorkloadArgument = Annotated[
    Path,
    typer.Argument(
        metavar="WORKLOAD",
        help="A workload file (YAML), a plan to replay (plan.json), with --queue a trace of jobs (YAML), or with"
        " --shop a flexible job shop (.fjs).",
    ),
]
QueuesOption = Annotated[
    int | None,
    typer.Option(min=1, help="Carry priorities out with this many queues; by default one for each rank."),
]
TimelineOption = Annotated[
    list[Path] | None, typer.Option(help="Write a page (.html) or a Perfetto trace (.json); may be repeated.")
]
CoflowsOption = Annotated[
    Path | None, typer.Option(help="Write the completion time of every coflow to this table (.csv).")
]
QueueOption = Annotated[
    bool,
    typer.Option("--queue", help="Compare the queue's policies on a trace of jobs; --policy takes one of them."),
]
ShopOption = Annotated[bool, typer.Option("--shop", help="Schedule the jobs of a flexible job shop (.fjs).")]
ScheduleOption = Annotated[
    str | None, typer.Option(help=f"With --shop: {SCHEDULERS.words()}; by default local-search.")
]
ScheduleOptions = Annotated[
    str | None, typer.Option(help="With --shop: fields of the schedule, such as {seed: 4} (docs/simulating.md).")
]
ResultsChartOption = Annotated[
    Path | None, typer.Option(help="With --sweep or --queue: draw the results as a page (.html).")
]


def simulate_command(
    workload: WorkloadArgument,
    policy: Annotated[str | None, typer.Option(help=_POLICY_HELP)] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Run all fitting policies and print a table.")] = False,
    queues: QueuesOption = None,
    timeline: TimelineOption = None,
    out_coflows: CoflowsOption = None,
    iterations: Annotated[int | None, typer.Option(min=1, help="Instead of the file's number.")] = None,
    queue: QueueOption = False,
    shop: ShopOption = False,
    schedule: ScheduleOption = None,
    schedule_options: ScheduleOptions = None,
    sweep: SweepOption = None,
    chart: ResultsChartOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a workload takes on its machines and links, what no schedule can beat, and what sets the pace.

    Example: penstock simulate workload.yaml --policy oes --timeline timeline.html

    Example: penstock simulate plan.json --timeline timeline.html

    Example: penstock simulate workload.yaml --sweep nic_gbps=1,10,25

    Example: penstock simulate --queue trace.yaml --chart queue.html

    Example: penstock simulate --shop group.fjs --schedule local-search --timeline schedule.html
    """
    if shop:
        from penstock.cli.simulate_jobs import simulate_shop

        others: dict[str, Any] = {"policy": policy, "queues": queues, "out_coflows": out_coflows, "queue": queue}
        others |= {"iterations": iterations, "sweep": sweep, "chart": chart}
        refuse_options(_NOT_FOR.format("--shop"), **others)
        simulate_shop(workload, schedule, schedule_options, compare, timeline or [], as_json)
        return
    if schedule is not None or schedule_options is not None:
        raise PenstockError(
            "--schedule and --schedule-options are for job shops: add --shop, or leave them out.",
            code="conflicting-options",
        )
    if queue:
        from penstock.cli.simulate_jobs import simulate_trace_of_jobs

        others = {"compare": compare, "queues": queues, "out_coflows": out_coflows, "timeline": timeline}
        others |= {"iterations": iterations, "sweep": sweep}
        refuse_options(_NOT_FOR.format("--queue"), **others)
        simulate_trace_of_jobs(workload, policy, chart, as_json)
        return
    _check_options(policy, timeline or [], out_coflows)
    check_chart(chart, sweep)
    if sweep:
        from penstock.cli.simulate_network import swept_simulations

        refuse_options(NOT_WITH_SWEEP, compare=compare, timeline=timeline, out_coflows=out_coflows)
        rows = computed_rows(swept_simulations(workload, sweep, policy, iterations, queues))
        show_sweep(rows, SIMULATED_COLUMNS, workload.stem, as_json, chart)
        return
    from penstock.cli.simulate_network import TraceSubject, subject_of

    subject = subject_of(workload, policy, iterations)
    if isinstance(subject, TraceSubject):
        refuse_options(_NOT_FOR.format("a trace of coflows"), iterations=iterations, queues=queues, timeline=timeline)
        _simulate_trace(subject, compare, out_coflows, as_json)
    else:
        _simulate_scenario(subject, workload.stem, compare, queues, timeline or [], out_coflows, as_json)


def _check_options(policy: str | None, timelines: Sequence[Path], out_coflows: Path | None) -> None:
    """Refuse invalid options before anything is simulated."""
    from penstock.report.gantt import check_form

    for path in timelines:
        check_form(path)
    if out_coflows is not None:
        check_table(out_coflows)
    if policy is not None and policy not in TRACE_POLICIES:
        POLICIES[policy]


def _simulate_trace(subject: "TraceSubject", compare: bool, out_coflows: Path | None, as_json: bool) -> None:
    from penstock.cli.simulate_network import print_trace, trace_fields

    fields = trace_fields(subject.document, subject.folder, subject.policy, compare)
    if out_coflows is not None:
        write_table(fields["coflow_times"], out_coflows)
    print_json(fields) if as_json else print_trace(fields, out_coflows)


def _simulate_scenario(
    subject: "Subject",
    name: str,
    compare: bool,
    queues: int | None,
    timelines: Sequence[Path],
    out_coflows: Path | None,
    as_json: bool,
) -> None:
    from penstock.cli.simulate_network import (
        compared_policies,
        fair_exchange_step,
        network_fields,
        print_network,
        print_policies,
        print_simulation,
        print_steps,
        simulation_fields,
        steps_of,
    )
    from penstock.report.gantt import Shown, pace_sentence, write_timeline
    from penstock.simulate import lower_bound
    from penstock.simulate.timeline import coflow_rows

    scenario, policy = subject.scenario, subject.policy
    found = scenario.simulate(policy, segments=bool(timelines), queues=queues)
    bound = lower_bound(found.case)
    compared = compared_policies(scenario, bound, subject.fitting, queues, subject.by) if compare else []
    for path in timelines:
        about = Shown(name, policy, found, scenario.placement, bound, scenario.language_model, subject.pace)
        write_timeline(about, path)
    if out_coflows is not None:
        write_table(coflow_rows(found), out_coflows)
    fair = {"fair_all_to_all_step_s": fair_exchange_step(subject, queues)}
    steps = steps_of(found, scenario) | fair | subject.fields
    network = network_fields(subject, found, queues)
    if as_json:
        fields = simulation_fields(found, policy, bound) | steps | network
        print_json(fields | ({"compared": compared} if compare else {}))
        return
    print_simulation(found, policy, bound)
    print_network(network, found.makespan)
    if subject.pace is not None:
        print(f"In the long run, {pace_sentence(subject.pace)}")
    print_steps(steps)
    if compare:
        print_policies(compared, policy)
    for path in [*timelines, *([] if out_coflows is None else [out_coflows])]:
        print(f"Written to {path}")


def check_table(path: Path) -> None:
    """Refuse a table whose name does not end in .csv or whose folder does not exist."""
    if path.suffix != ".csv":
        raise PenstockError(
            f"--out-coflows {path}: the table is written as CSV; give a name that ends in .csv.", code="invalid-value"
        )
    if not path.parent.is_dir():
        raise PenstockError(
            f"--out-coflows {path}: there is no folder {path.parent}; make it first.", code="file-not-found"
        )


def write_table(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a CSV table with a line for each row, under the names of its fields."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)
