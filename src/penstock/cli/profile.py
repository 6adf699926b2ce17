"""`penstock profile` and `penstock bench`: what a job and this machine's operators cost, and how fast it trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.job_flags import chosen_job, takes_job_flags
from penstock.cli.output import ForceOption, JsonOption, UncheckedOption, check_new_file, print_json, short
from penstock.errors import PenstockError
from penstock.formatting import counted, percent
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.cost.profile import OperatorCost, Profile, TransferCost
    from penstock.graph import Graph


# `penstock profile`: what a job's iterations cost, or this machine's operators, as a document.


@takes_job_flags
def profile_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    cluster: Annotated[
        str, typer.Option(help="The cluster it is for (parts and workers), or 2x2; all run on this host.")
    ] = "2x1",
    iterations: Annotated[int, typer.Option(min=1, max=1000, help="Iterations to measure.")] = 50,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The document to write.  [default: profile.json]")
    ] = None,
    operators: Annotated[
        bool, typer.Option(help="Measure this machine's operators instead of a job; --graph refines them.")
    ] = False,
    refit: Annotated[bool, typer.Option(help="With --operators: measure again, whatever is known.")] = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Measure what an iteration costs: seconds of every operator, bytes of every transfer, memory.

    Example: penstock profile job.yaml --cluster cluster.yaml -o profile.json
    """
    if operators:
        _profile_operators(job, fields, out, refit, force, as_json)
        return
    if refit:
        raise PenstockError("--refit is for --operators: leave it out.", code="unsupported-combination")
    out = Path("profile.json") if out is None else out
    from penstock.cluster.cluster_file import read_cluster

    check_new_file(out, force)
    chosen = chosen_job(job, fields)
    machines = read_cluster(cluster)
    with shown_progress(as_json, f"Profiling for the cluster {cluster}.") as progress:
        with importing(progress, "torch"):
            from penstock.cluster.profiling import profile_job
            from penstock.cost.profile import write_profile
        profile = profile_job(chosen, machines, iterations, progress)
    write_profile(profile, out)
    if as_json:
        print_json({"path": str(out), "notes": progress.notes, **_fields(profile)})
    else:
        _print(profile, out)


def _profile_operators(
    job: Path | None, fields: dict[str, Any], out: Path | None, refit: bool, force: bool, as_json: bool
) -> None:
    """Measure and fit this machine's operators, or show the measurements that exist."""
    others = [name for name in fields if name != "graph"]
    if job is not None or others:
        what = "a job" if job is not None else f"--{others[0].replace('_', '-')}"
        raise PenstockError(
            f"--operators measures the machine, not a job: leave out {what}.", code="unsupported-combination"
        )
    if out is not None:
        check_new_file(out, force)
    with shown_progress(as_json, "Profiling the operators of this machine.") as progress:
        with importing(progress, "torch"):
            from penstock.cost.model import cached_path
            from penstock.cost.operator_profile import machine_profile
            from penstock.cost.profile import this_machine, write_profile
            from penstock.graph.convert import load
            from penstock.train.execution_plan import fit_batches
        graph = load(fields["graph"]) if "graph" in fields else None
        profile = machine_profile(refit, graph, progress, fit_batches)
    path = cached_path(this_machine()) if out is None else out
    if out is not None:
        write_profile(profile, out)
    if as_json:
        print_json({"path": str(path), "notes": progress.notes, **_operator_fields(profile)})
    else:
        _print_operators(profile, path)


def _operator_fields(profile: "Profile") -> dict[str, Any]:
    fields = profile.model_dump(mode="json", include={"machine", "seconds", "skipped", "others", "warnings"})
    return {**fields, "operators": [fit.model_dump(mode="json") for fit in profile.fits]}


def _print_operators(profile: "Profile", path: Path) -> None:
    assert profile.machine is not None
    print(
        f"{profile.machine.processor}, {counted(profile.machine.cores, 'cores')}; GPU: {profile.machine.gpu or 'none'}"
    )
    table = Table("operator", "device", "fitted", "held out", "mean error", "95 % below", box=None)
    for fit in profile.fits:
        errors = percent(fit.mean_error), percent(fit.p95_error)
        table.add_row(fit.name, fit.device, str(fit.fitted), str(fit.held_out), *errors)
    Console().print(table)
    for line in profile.skipped:
        print(f"Skipped: {line}.")
    for line in profile.warnings:
        print(f"Warning: {line}.")
    print(f"Measured and fitted in {profile.seconds:.0f} s")
    print(f"Profile: {path}")


def _fields(profile: "Profile") -> dict[str, Any]:
    return {
        **profile.model_dump(include={"mode", "iterations", "batches", "parts", "workers"}),
        "seconds": {cost.name: cost.seconds.mean for cost in _main(profile)},
        "devices": {cost.name: cost.device for cost in _main(profile)},
        "memory_gb": {held.process: held.gb for held in profile.memory if held.device == "cpu"},
        "bytes": {each.name: _totals(each) if each.target == "worker" else each.total for each in profile.transfers},
        "rate": profile.rate,
    }


def _main(profile: "Profile") -> list["OperatorCost"]:
    """The costs of every operator for the job's own batches."""
    return [profile.operator(*pair) for pair in dict.fromkeys((each.name, each.device) for each in profile.operators)]


def _totals(transfer: "TransferCost") -> list[float]:
    """The bytes that each target receives."""
    return [sum(column) for column in zip(*transfer.bytes, strict=True)]


def _print(profile: "Profile", out: Path) -> None:
    print(
        f"{counted(profile.iterations, 'iterations')} of {counted(profile.workers, 'workers')} over"
        f" {counted(profile.parts, 'parts')}; {counted(profile.batches, 'iterations')} for each epoch"
    )
    table = Table("operator", "device", "ms for each iteration", "10-90 %", "cores", box=None)
    for cost in _main(profile):
        shape = cost.seconds.shape
        span = [shape[int(place * (len(shape) - 1))] * cost.seconds.mean * 1e3 for place in (0.1, 0.9)]
        spread = f"{span[0]:.3g}-{span[1]:.3g}" if len(shape) > 1 else ""
        table.add_row(cost.name, cost.device, f"{cost.seconds.mean * 1e3:.3g}", spread, f"{cost.cores:g}")
    flows = Table("transfer", "bytes for each target and iteration", "of them from its nearest source", box=None)
    for each in profile.transfers:
        totals = _totals(each)
        nearest = sum(map(max, zip(*each.bytes, strict=True))) / max(sum(totals), 1.0)
        flows.add_row(each.name, short(sum(totals) / len(totals)), percent(nearest) if len(each.bytes) > 1 else "")
    memory = Table("process", "memory GB", box=None)
    for held in profile.memory:
        memory.add_row(held.process if held.device == "cpu" else f"{held.process} ({held.device})", f"{held.gb:.2f}")
    for shown in (table, flows, memory):
        Console().print(shown)
    print(f"Profile: {out}")


# `penstock bench`: how fast this machine samples batches and trains on them.

bench = typer.Typer(no_args_is_help=True, help="Measure sampling and training on this machine.")

GraphOption = Annotated[str, typer.Option("--graph", help="A graph folder, or anything `ps.load` recognises.")]
FanoutsOption = Annotated[str, typer.Option("--fanouts", help="Neighbours a vertex and hop, from the seeds.")]
BatchOption = Annotated[int, typer.Option("--batch-size", min=1, help="Seeds a batch.")]
BatchesOption = Annotated[int, typer.Option("--batches", min=1, help="Batches to measure.")]


@bench.command("sampling")
def sampling_command(
    graph: GraphOption = "synthetic-arxiv",
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchOption = 1024,
    batches: BatchesOption = 40,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Batches drawn a second, alone and with features, on one thread and on all.

    Example: penstock bench sampling --graph data/arxiv
    """
    from penstock.cost.throughput import measure_sampling, seed_batches
    from penstock.processes import default_threads

    opened = _opened(graph, unchecked)
    chosen = seed_batches(opened, batch_size, batches)
    rows = [
        measure_sampling(opened, chosen, _numbers(fanouts), threads, gather)
        for gather in (False, True)
        for threads in dict.fromkeys((1, default_threads()))
    ]
    _show([dict(row) for row in rows], as_json)


@bench.command("training")
def training_command(
    graph: GraphOption = "synthetic-arxiv",
    fanouts: FanoutsOption = "15,10,5",
    batch_size: BatchOption = 1024,
    batches: BatchesOption = 12,
    hidden: Annotated[int, typer.Option(min=1, help="Width between GraphSAGE's layers.")] = 256,
    unchecked: UncheckedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Seconds a GraphSAGE step, and an epoch of the whole pipeline beside what its parts take alone.

    Example: penstock bench training --graph data/arxiv --hidden 64
    """
    from penstock.cost.throughput import loaded, measure_epoch, measure_steps, sage_step, seed_batches

    opened, numbers = _opened(graph, unchecked), _numbers(fanouts)
    chosen = seed_batches(opened, batch_size, batches)
    ready = [loaded(opened, number, seeds, numbers) for number, seeds in enumerate(chosen[:6])]
    rows = measure_steps({"step": sage_step(opened, hidden, len(numbers))}, ready)
    rows.append(measure_epoch(opened, chosen, numbers, hidden))
    _show([dict(row) for row in rows], as_json)


def _opened(name: str, unchecked: bool) -> "Graph":
    from penstock.graph.convert import load
    from penstock.graph.integrity import check_graph

    graph = load(name, unchecked=unchecked)
    graph.require_one_relation("This benchmark", "give another graph")
    if not {"x", "y"} <= set(next(iter(graph.nodes.values())).fields):
        raise PenstockError(
            f"{name} cannot be used for this benchmark: use a graph with features x and labels y.",
            code="unsupported-combination",
        )
    check_graph(graph)
    return graph


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise PenstockError(
            f"--fanouts {text!r} is not a list of numbers: write it as 15,10,5.", code="invalid-value"
        ) from None


def _show(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json({"rows": rows})
        return
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else f"{value}" for value in row.values()))
    Console().print(table)
