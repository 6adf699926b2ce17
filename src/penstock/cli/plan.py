"""`penstock plan`: which task runs where, how flows share links, and what that will take."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.job_flags import takes_job_flags
from penstock.cli.output import ForceOption, JsonOption, SeedOption, check_new_file, print_json, short
from penstock.cli.sweep import PLANNED_COLUMNS, ChartOption, SweepOption, check_chart, refuse_with_sweep, show_sweep
from penstock.errors import PenstockError
from penstock.quantities import counted, percent, signed_percent
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.plan.document import Change, Plan

_LEAST = 0.005
"""A change of less than this share of an iteration is none: it would be printed as 0 %."""


@takes_job_flags
def plan_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    cluster: Annotated[
        str | None, typer.Option(help="The cluster file: machines, what they have, their links.  [default: 2x1]")
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="What an iteration costs (penstock profile); measured now if none.")
    ] = None,
    execution: Annotated[bool, typer.Option(help="Plan the CPU and GPU of one machine instead.")] = False,
    machine: Annotated[
        str | None,
        typer.Option(
            help="Compare how machines execute the job, such as this,h200,l4 or all; files of `penstock profile"
            " --operators -o` are machines too. With --cluster: what its machines are like."
        ),
    ] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="With --execution: memory of the GPU, such as 24GB.  [default: the machine's]")
    ] = None,
    placement: Annotated[str, typer.Option(help="ifs, distdgl, spread, greedy, etp or search; all are compared.")] = "",
    flows: Annotated[str, typer.Option(help="oes, fair, fifo, iteration-first, …; the best that can run.")] = "",
    budget: Annotated[float, typer.Option(min=0, help="Seconds to search at most; 0: by steps alone.")] = 0.0,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a search.")] = 10_000,
    simulations: Annotated[
        int, typer.Option(min=0, help="Placements that a search may simulate; 0: by the size of the cluster.")
    ] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The plan to write.")] = Path("plan.json"),
    timeline: Annotated[
        list[Path] | None, typer.Option(help="Write the plan's run as a page (.html) or a trace (.json); repeatable.")
    ] = None,
    sweep: SweepOption = None,
    chart: ChartOption = None,
    plan_seed: SeedOption = 0,
    force: ForceOption = False,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Decide where every task runs and how flows share links; predict the time; write it down.

    Example: penstock plan job.yaml --cluster cluster.yaml --profile profile.json -o plan.json

    Example: penstock plan job.yaml --cluster cluster.yaml --profile profile.json --sweep nic_gbps=1,10,25

    Example: penstock plan job.yaml --execution

    Example: penstock plan job.yaml --machine this,h200,a100,l4
    """
    from penstock.cli.plan_execution import refuse_with_execution, show_execution_plan
    from penstock.cli.plan_variants import check_timelines, draw_plan, plan_sweep
    from penstock.cluster.cluster_file import read_cluster
    from penstock.train.job import make_job, read_job

    if execution or (machine is not None and cluster is None):
        refuse_with_execution(
            cluster=cluster,
            placement=placement,
            flows=flows,
            budget=budget,
            timeline=timeline,
            sweep=sweep,
            chart=chart,
            force=force,
        )
        if profile is not None:
            raise PenstockError(
                "--profile is what a job's iterations cost on a cluster: name the profile of a machine's operators with"
                f" --machine {profile} instead.",
                code="unsupported-combination",
            )
        chosen = make_job(fields, "The command") if job is None else read_job(job, fields)
        show_execution_plan(chosen, "this" if machine is None else machine, device_memory, as_json)
        return
    if device_memory is not None:
        raise PenstockError("--device-memory is for --execution: leave it out.", code="unsupported-combination")
    check_chart(chart, sweep)
    cluster = "2x1" if cluster is None else cluster
    if sweep:
        refuse_with_sweep(timeline=timeline)
    else:
        check_new_file(out, force)
        check_timelines(timeline or [])
    chosen = make_job(fields, "The command") if job is None else read_job(job, fields)
    with shown_progress(as_json, f"Planning for the cluster {cluster}.") as progress:
        with importing(progress, "torch"):
            from penstock.cluster.planning import plan_run
            from penstock.cost.machine_model import known_machine
            from penstock.plan.document import write_plan
            from penstock.plan.placement import Budget
        how = placement or None, flows or None, Budget(steps, budget or None, simulations or None), plan_seed
        like = None if machine is None else known_machine(machine)
        if sweep:
            rows = plan_sweep(chosen, read_cluster(cluster), profile, sweep, *how, progress, like)
        else:
            plan = plan_run(chosen, read_cluster(cluster), profile, *how, progress, like)
    if sweep:
        show_sweep(rows, PLANNED_COLUMNS, "plan", as_json, chart)
        return
    write_plan(plan, out)
    for path in timeline or []:
        draw_plan(plan, out.stem, path)
    if as_json:
        print_json({"path": str(out), "notes": progress.notes, **_fields(plan)})
        return
    _print(plan, out)
    for path in timeline or []:
        print(f"Written to {path}")


def _fields(plan: "Plan") -> dict[str, Any]:
    return {
        "placement": plan.placement,
        "flows": plan.flows,
        "predicted": plan.predicted.model_dump(
            include={"iteration_s", "epoch_s", "lower_bound_s", "placement_bound_s"}
        ),
        "compared": [each.model_dump() for each in plan.compared],
        "bottleneck": plan.bottleneck,
        "changes": [each.model_dump() for each in plan.changes],
        "advice": plan.advice,
        "search": plan.search.model_dump(),
        "scaled_from": plan.scaled_from,
    }


def _print_changes(changes: "list[Change]") -> None:
    """What could be bought or set, a line each; all that changes nothing in one line."""
    idle = [change.what for change in changes if abs(change.gain) < _LEAST]
    for change in (each for each in changes if abs(each.gain) >= _LEAST):
        sent = "" if change.feature_bytes is None else f", {short(change.feature_bytes)} of features over links"
        print(f"  {change.what}: {change.iteration_s * 1e3:.4g} ms an iteration ({signed_percent(-change.gain)}){sent}")
    if idle:
        other = "Nothing" if len(idle) == len(changes) else "Nothing else"
        print(f"  {other} of what was tried changes the time: {', '.join(idle)}.")


def _print(plan: "Plan", out: Path) -> None:
    # Where nobody looks, no width limits the table.
    console = Console(width=None if sys.stdout.isatty() else 140)
    table = Table("placement", "flows", "ms", "epoch s", "slowest link", "its bytes", "least ms", "gap", box=None)
    for each in plan.compared:
        chosen = (each.placement, each.flows) == (plan.placement, plan.flows)
        table.add_row(
            each.placement,
            each.flows,
            f"{each.iteration_s * 1e3:.4g}",
            f"{each.epoch_s:.4g}",
            each.slowest_link,
            short(each.slowest_link_bytes),
            f"{each.lower_bound_s * 1e3:.4g}",
            percent(each.gap),
            style="bold" if chosen else None,
        )
    console.print(table)
    where = Table("machine", "tasks", "cores", "memory GB", "GPUs", box=None)
    for machine in dict.fromkeys(task.machine for task in plan.tasks):
        here = [task for task in plan.tasks if task.machine == machine]
        sums = [sum(getattr(task, name) for task in here) for name in ("cores", "memory_gb", "gpus")]
        where.add_row(machine, " ".join(task.id for task in here), *(f"{each:.3g}" for each in sums))
    console.print(where)
    search, predicted = plan.search, plan.predicted
    if predicted.lower_bound_s:
        above = predicted.iteration_s / predicted.lower_bound_s - 1
        print(
            f"No placement takes less than {predicted.lower_bound_s * 1e3:.4g} ms for each iteration; this plan takes"
            f" {predicted.iteration_s * 1e3:.4g} ms, {above:.0%} more."
        )
    print(f"{plan.bottleneck}")
    _print_changes(plan.changes)
    if plan.advice:
        print(plan.advice)
    print(
        f"{counted(search.steps, 'steps')}, {counted(search.simulated, 'placements')} simulated"
        f" (at most {search.simulations:,} for each search, beside those that it starts from),"
        f" {search.seconds:.1f} s on {counted(search.threads, 'threads')}"
    )
    print(
        f"Searches simulated {search.searched_iterations} iterations of each placement, the comparison"
        f" {search.judged_iterations}."
    )
    if search.reads_in_turns > 1:
        print(
            f"In a simulated iteration a batch reads from one in {search.reads_in_turns} of the far parts,"
            f" {search.reads_in_turns} times as much from each."
        )
    print(f"Plan: {out} (carry it out with: penstock train --plan {out})")
