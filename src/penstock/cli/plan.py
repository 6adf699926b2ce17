"""`penstock plan`: which task runs where, how flows share links, and what that will take."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from penstock.cli.job_flags import chosen_job, takes_job_flags
from penstock.cli.output import (
    ForceOption,
    JsonOption,
    SeedOption,
    check_new_file,
    print_json,
    refuse_options,
    short,
    wide_console,
)
from penstock.cli.sweep import NOT_WITH_SWEEP, PLANNED_COLUMNS, ChartOption, SweepOption, check_chart, show_sweep
from penstock.errors import PenstockError
from penstock.formatting import counted, parsed_bytes, percent, signed_percent
from penstock.plan.placement import PLACEMENTS
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.cost.model import Extrapolation, KnownMachine
    from penstock.plan.document import Change, Plan
    from penstock.plan.execution import Alternative
    from penstock.train.execution_plan import PlannedExecution
    from penstock.train.job import Job

    Planned = PlannedExecution | PenstockError


_LEAST = 0.005
"""A change by less than this share of an iteration counts as none: it would be printed as 0 %."""
_OF_CLUSTERS = "--{} is for plans of clusters: leave it out with --execution."


# The options of the command.

JobArgument = Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")]
ClusterOption = Annotated[
    str | None, typer.Option(help="The cluster file: machines, what they have, their links.  [default: 2x1]")
]
ProfileOption = Annotated[
    Path | None, typer.Option(help="What an iteration costs (penstock profile); measured now if none.")
]
ExecutionOption = Annotated[bool, typer.Option(help="Plan the CPU and GPU of one machine instead.")]
MachineOption = Annotated[
    str | None,
    typer.Option(
        help="Compare how machines execute the job, such as this,h200,l4 or all; files of `penstock profile"
        " --operators -o` are machines too. With --cluster: what its machines are like."
    ),
]
DeviceMemoryOption = Annotated[
    str | None, typer.Option(help="With --execution: memory of the GPU, such as 24GB.  [default: the machine's]")
]
PlacementOption = Annotated[str, typer.Option(help=f"{PLACEMENTS.words()}; all are compared.")]
FlowsOption = Annotated[str, typer.Option(help="oes, fair, fifo, iteration-first, …; the best that can run.")]
BudgetOption = Annotated[float, typer.Option(min=0, help="Seconds to search at most; 0: by steps alone.")]
StepsOption = Annotated[int, typer.Option(min=1, help="Steps of a search.")]
SimulationsOption = Annotated[
    int, typer.Option(min=0, help="Placements that a search may simulate; 0: by the size of the cluster.")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", "-o", help="The plan to write.  [default: plan.json; of one machine: none]")
]
TimelineOption = Annotated[
    list[Path] | None, typer.Option(help="Write the plan's run as a page (.html) or a trace (.json); repeatable.")
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Also with slow machines: m1=0.5 for one at half of its speed, any=0.5:0.1 for each with a probability"
        " of 0.1; repeatable."
    ),
]


@takes_job_flags
def plan_command(
    job: JobArgument = None,
    cluster: ClusterOption = None,
    profile: ProfileOption = None,
    execution: ExecutionOption = False,
    machine: MachineOption = None,
    device_memory: DeviceMemoryOption = None,
    placement: PlacementOption = "",
    flows: FlowsOption = "",
    budget: BudgetOption = 0.0,
    steps: StepsOption = 10_000,
    simulations: SimulationsOption = 0,
    out: OutOption = None,
    timeline: TimelineOption = None,
    slow: SlowOption = None,
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

    Example: penstock plan job.yaml --execution -o plan.json

    Example: penstock plan job.yaml --machine this,h200,a100,l4
    """
    if execution or (machine is not None and cluster is None):
        of_clusters: dict[str, Any] = {"cluster": cluster, "placement": placement, "flows": flows, "budget": budget}
        of_clusters |= {"timeline": timeline, "slow": slow, "sweep": sweep, "chart": chart}
        refuse_options(_OF_CLUSTERS, "unsupported-combination", **of_clusters)
        _refuse_profile(profile)
        show_execution_plan(chosen_job(job, fields), machine or "this", device_memory, out, force, as_json)
        return
    if device_memory is not None:
        raise PenstockError("--device-memory is for --execution: leave it out.", code="unsupported-combination")
    check_chart(chart, sweep)
    cluster, out = "2x1" if cluster is None else cluster, out or Path("plan.json")
    if sweep:
        refuse_options(NOT_WITH_SWEEP, timeline=timeline, slow=slow)
    else:
        _check_files(out, timeline or [], force)
    chosen = chosen_job(job, fields)
    with shown_progress(as_json, f"Planning for the cluster {cluster}.") as progress:
        with importing(progress, "torch"):
            from penstock.cli.plan_variants import plan_sweep
            from penstock.cluster.cluster_file import read_cluster
            from penstock.cluster.planning import plan_run
            from penstock.cost.model import known_machine
            from penstock.plan.placement import Budget
            from penstock.plan.planner import PlanChoices
            from penstock.plan.stragglers import parsed_slow
        search = Budget(steps, budget or None, simulations or None)
        choices = PlanChoices(placement or None, flows or None, search, plan_seed, tuple(map(parsed_slow, slow or ())))
        like = None if machine is None else known_machine(machine)
        if sweep:
            rows = plan_sweep(chosen, read_cluster(cluster), profile, sweep, choices, progress, like)
        else:
            plan = plan_run(chosen, read_cluster(cluster), profile, choices, progress, like)
    if sweep:
        show_sweep(rows, PLANNED_COLUMNS, "plan", as_json, chart)
    else:
        _write(plan, out, timeline or [], progress.notes, as_json)


def _refuse_profile(profile: Path | None) -> None:
    if profile is not None:
        raise PenstockError(
            "--profile is what a job's iterations cost on a cluster: name the profile of a machine's operators with"
            f" --machine {profile} instead.",
            code="unsupported-combination",
        )


def _check_files(out: Path, timelines: Sequence[Path], force: bool) -> None:
    """Refuse files that could not be written, before anything is planned."""
    from penstock.report.gantt import check_form

    check_new_file(out, force)
    for path in timelines:
        check_form(path)


def _write(plan: "Plan", out: Path, timelines: Sequence[Path], notes: list[str], as_json: bool) -> None:
    """Write the plan and its timelines, and print what was decided."""
    from penstock.cli.plan_variants import draw_plan
    from penstock.plan.document import write_plan

    write_plan(plan, out)
    for path in timelines:
        draw_plan(plan, out.stem, path)
    if as_json:
        print_json({"path": str(out), "notes": notes, **_fields(plan)})
        return
    _print_plan(plan, out)
    for path in timelines:
        print(f"Written to {path}")


def _fields(plan: "Plan") -> dict[str, Any]:
    whole = (
        "placement",
        "flows",
        "compared",
        "bottleneck",
        "changes",
        "slow",
        "network",
        "advice",
        "search",
        "scaled_from",
    )
    predicted = {"iteration_s", "epoch_s", "epoch_p95_s", "lower_bound_s", "placement_bound_s"}
    return plan.model_dump(include={**dict.fromkeys(whole, True), "predicted": predicted})


def _print_changes(changes: "list[Change]") -> None:
    """Print what each change to the cluster or job would gain, and in one line the changes that gain nothing."""
    idle = [change.what for change in changes if abs(change.gain) < _LEAST]
    for change in (each for each in changes if abs(each.gain) >= _LEAST):
        sent = "" if change.feature_bytes is None else f", {short(change.feature_bytes)} of features over links"
        print(f"  {change.what}: {change.iteration_s * 1e3:.4g} ms an iteration ({signed_percent(-change.gain)}){sent}")
    if idle:
        other = "Nothing" if len(idle) == len(changes) else "Nothing else"
        print(f"  {other} of what was tried changes the time: {', '.join(idle)}.")


def _print_plan(plan: "Plan", out: Path) -> None:
    console = wide_console(140)
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
    if predicted is not None and predicted.lower_bound_s:
        above = predicted.iteration_s / predicted.lower_bound_s - 1
        print(
            f"No placement takes less than {predicted.lower_bound_s * 1e3:.4g} ms for each iteration; this plan takes"
            f" {predicted.iteration_s * 1e3:.4g} ms, {above:.0%} more."
        )
    if predicted is not None and predicted.epoch_p95_s is not None:
        print(f"An epoch takes {predicted.epoch_s:.4g} s; 95 of 100 take less than {predicted.epoch_p95_s:.4g} s.")
    print(f"{plan.bottleneck}")
    _print_changes(plan.changes)
    for slow in [*plan.slow, *plan.network]:
        print(f"  {slow.what}: {slow.iteration_s * 1e3:.4g} ms an iteration ({signed_percent(-slow.gain)})")
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
    _print_written(out)


def _print_written(out: Path) -> None:
    print(f"Plan: {out} (carry it out with: penstock train --plan {out})")


# `penstock plan --execution`: how machines execute a job's batches, and what that is predicted to take.

_SHOWN = 12
"""Alternatives that are printed; --json has all of them."""
_MOSTLY = 0.5
"""A resource that is busy for a smaller share does not limit: the overhead between operators does."""
_SAID = 3
"""The most sizes outside of the measured range that are printed."""


def show_execution_plan(
    job: "Job", machines: str, device_memory: str | None, out: Path | None, force: bool, as_json: bool
) -> None:
    """Plan a job's execution and print it: all alternatives on one machine, or the best one on each of several.

    The plan of one machine is written to `out`, with `force` also over a file that is there.
    """
    if out is not None:
        check_new_file(out, force)
    size = None if device_memory is None else parsed_bytes(device_memory, "--device-memory")
    with shown_progress(as_json, "Planning the execution on one machine.") as progress:
        with importing(progress, "torch"):
            from penstock.cost.model import known_machines
            from penstock.plan.document import write_plan
            from penstock.train.execution_plan import plan_document, plan_executions
        known = known_machines(machines)
        if out is not None and len(known) > 1:
            raise PenstockError(
                "A plan is carried out on one machine: name one with --machine, or leave out -o to compare several.",
                code="conflicting-options",
            )
        if size is not None and not any(each.model.machine.gpu for each in known):
            raise PenstockError(
                "--device-memory is the memory of a GPU, and no machine of this plan has one: name a machine that has"
                " with --machine, such as h200.",
                code="unsupported-combination",
            )
        pairs = [(each.model, each.device_memory if size is None else size) for each in known]
        found = list(plan_executions(job, pairs))
    refused = [each for each in found if isinstance(each, PenstockError)]
    if len(refused) == len(found):
        raise refused[0]
    alone = found[0] if len(found) == 1 and not isinstance(found[0], PenstockError) else None
    if alone is not None and out is not None:
        write_plan(plan_document(job, alone, known[0].name), out)
    if as_json:
        several = [_machine_fields(*each) for each in zip(known, found, strict=True)]
        shown = {"machines": several} if alone is None else execution_fields(known[0], alone)
        written = {} if out is None else {"path": str(out)}
        print_json({"notes": progress.notes, **shown, **written})
    elif alone is None:
        _compare(known, found)
    else:
        _print_execution(known[0], alone)
        if out is not None:
            _print_written(out)


def execution_fields(known: "KnownMachine", found: "PlannedExecution") -> dict[str, Any]:
    """The plan of one machine as fields of the JSON interface."""
    return {
        **_machine_fields(known, found),
        "alternatives": [_row(each, found.kind.batches) for each in found.plan.alternatives],
        "not_predicted": found.plan.unknown,
        "seconds": found.seconds,
    }


def _machine_fields(known: "KnownMachine", found: "Planned") -> dict[str, Any]:
    """The plan of one of several machines as fields; a machine that cannot execute the job has the reason."""
    about = {
        "name": known.name,
        "machine": known.model.machine.model_dump(mode="json"),
        "estimated": known.estimated,
        "basis": known.basis,
        "ratios": known.ratios,
    }
    if isinstance(found, PenstockError):
        return {**about, "refused": str(found)}
    return {
        **about,
        "batches": found.kind.batches,
        "chosen": _row(found.plan.chosen, found.kind.batches),
        "device_memory": None if found.room is None else found.room._asdict(),
        "outside": [each._asdict() for each in found.outside],
    }


def _row(each: "Alternative", batches: int) -> dict[str, Any]:
    from penstock.train.execution_plan import fields_of
    from penstock.train.job import JobFields

    choice, predicted = each.choice, each.predicted
    return {
        "device": choice.device,
        "sampled_by": choice.sampled_by,
        "features": choice.features,
        "cache_rows": choice.cache_rows,
        "first_layer": choice.first_layer,
        "order": list(choice.order),
        "sample_threads": choice.sample_threads,
        "groups": choice.groups,
        "batch_s": predicted.seconds,
        "epoch_s": predicted.seconds * batches,
        "use": predicted.use,
        "limit": predicted.limit,
        "fields": {name: value for name, value in fields_of(choice).items() if name in JobFields.model_fields},
    }


def _compare(known: list["KnownMachine"], found: list["Planned"]) -> None:
    """One line for each machine."""
    columns = ("machine", "processor", "epoch s", "batch ms", "limit", "GPU memory", "best execution", "figures")
    table = Table(*columns, box=None)
    epochs = [each.epoch_s for each in found if not isinstance(each, PenstockError)]
    for machine, each in zip(known, found, strict=True):
        name, title = Path(machine.name).name, machine.model.machine.gpu or f"{machine.model.machine.cores} cores"
        basis = machine.basis.partition(":")[0] if machine.ratios is None else _ratios(machine.ratios)
        if isinstance(each, PenstockError):
            table.add_row(name, title, "", "", "", "", "not possible", basis)
            continue
        choice, predicted = each.plan.chosen.choice, each.plan.chosen.predicted
        share = predicted.use[predicted.limit]
        limit = f"{predicted.limit} {percent(share)}" if share >= _MOSTLY else "between operators"
        style = "bold" if each.epoch_s == min(epochs) else None
        batch = f"{predicted.seconds * 1e3:.3g}"
        table.add_row(name, title, f"{each.epoch_s:.3g}", batch, limit, _memory(each), choice.words, basis, style=style)
    wide_console(160).print(table)
    batches = next(each.kind.batches for each in found if not isinstance(each, PenstockError))
    print(f"An epoch has {counted(batches, 'batches')}.")
    if any(machine.ratios is not None for machine in known):
        print(
            "Estimated: the operators of h200 at these ratios of memory bandwidth, float32 rate and link to the host,"
            " with the same host. Expect them to tell 2x from 1.2x, and not more."
        )
    for machine in known:
        if machine.estimated and machine.ratios is None:
            print(f"{machine.name}: {machine.basis}.")
    said = dict[str, list[str]]()
    for machine, each in zip(known, found, strict=True):
        if isinstance(each, PenstockError):
            said.setdefault(str(each), []).append(machine.name)
        elif each.outside:
            said.setdefault(outside_sentence(each.outside), []).append(machine.name)
    for sentence, names in said.items():
        print(f"{', '.join(names)}: {sentence}")


def _ratios(ratios: dict[str, float]) -> str:
    return f"estimated ({', '.join(f'{ratio:.2g}' for ratio in ratios.values())})"


def _memory(found: "PlannedExecution") -> str:
    """The GPU memory that the job needs, and where features are kept if not on the GPU."""
    room = found.room
    if room is None:
        return "no GPU"
    if room.taken is None:
        return "does not fit"
    of = "" if room.memory is None else f" of {room.memory / 1e9:.3g}"
    where = "" if room.features == "device" else f", features {room.features}"
    return f"{room.taken / 1e9:.2g}{of} GB{where}"


def outside_sentence(outside: "tuple[Extrapolation, ...]") -> str:
    """One sentence on the sizes of a plan that are outside of the measured range."""
    short = [each for each in outside if each.operator == "batch"]
    if short:
        return (
            f"A batch of {short[0].value * 1e3:.2g} ms is shorter than all that were measured"
            f" ({short[0].smallest * 1e3:.2g} ms and more): Python and launching decide there, so the prediction is"
            " less certain."
        )
    said = [
        f"{each.operator} with {each.size} {_number(each.value)} (measured: {_number(each.smallest)} to"
        f" {_number(each.largest)})"
        for each in outside[:_SAID]
    ]
    more = f" and {counted(len(outside) - _SAID, 'other sizes')}" if len(outside) > _SAID else ""
    return f"Outside of what was measured, so less certain: {', '.join(said)}{more}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _print_execution(known: "KnownMachine", found: "PlannedExecution") -> None:
    columns = "computed by", "drawn by", "features", "first layer", "order", "groups", "ms", "epoch s", "limit", "busy"
    table, plan = Table(*columns, box=None), found.plan
    for place, each in enumerate(plan.alternatives[:_SHOWN]):
        choice, predicted = each.choice, each.predicted
        drawn = f"{choice.sample_threads} threads" if not choice.drawn_on_gpu and choice.groups == 1 else ""
        cached = f", {choice.cache_rows:,} cached" if choice.cache_rows else ""
        table.add_row(
            choice.device,
            f"{choice.sampled_by} {drawn}".strip(),
            f"{choice.features}{cached}",
            choice.first_layer,
            " ".join(choice.order),
            str(choice.groups),
            f"{predicted.seconds * 1e3:.4g}",
            f"{predicted.seconds * found.kind.batches:.4g}",
            predicted.limit,
            percent(predicted.use[predicted.limit]),
            style="bold" if place == 0 else None,
        )
    wide_console(140).print(table)
    if len(plan.alternatives) > _SHOWN:
        print(f"{len(plan.alternatives) - _SHOWN} slower alternatives are in --json.")
    for sentence in plan.unknown:
        print(f"Not predicted: {sentence}")
    fields = _row(plan.chosen, found.kind.batches)["fields"]
    print(f"Chosen: {', '.join(f'{name}: {_said(value)}' for name, value in fields.items())}")
    limit, share = plan.chosen.predicted.limit, plan.chosen.predicted.use[plan.chosen.predicted.limit]
    machine = found.machine
    print(f"The limit is {limit}, busy {percent(share)} of the time.")
    if found.room is not None:
        print(f"GPU memory: {_memory(found)}")
    if found.outside:
        print(outside_sentence(found.outside))
    print(f"Predicted for {machine.words} ({known.basis}), in {found.seconds:.1f} s")


def _said(value: Any) -> str:
    """A value as a job file writes it."""
    return f"[{', '.join(value)}]" if isinstance(value, list) else str(value).replace("'", "")
