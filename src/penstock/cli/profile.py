"""`penstock profile`: what a job's iterations cost, as a document."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.job_flags import takes_job_flags
from penstock.cli.output import ForceOption, JsonOption, check_new_file, print_json, short
from penstock.cli.progress import importing, shown_progress
from penstock.quantities import counted, percent

if TYPE_CHECKING:
    from penstock.cost.profile import Profile


@takes_job_flags
def profile_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    cluster: Annotated[
        str, typer.Option(help="The cluster it is for (parts and workers), or 2x2; all run on this host.")
    ] = "2x1",
    iterations: Annotated[int, typer.Option(min=1, max=1000, help="Iterations to measure.")] = 50,
    out: Annotated[Path, typer.Option("--out", "-o", help="The document to write.")] = Path("profile.json"),
    force: ForceOption = False,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Measure what an iteration costs: seconds by kind of task, bytes by flow, memory.

    Example: penstock profile job.yaml --cluster cluster.yaml -o profile.json
    """
    from penstock.cluster.cluster_file import read_cluster
    from penstock.train.job import make_job, read_job

    check_new_file(out, force)
    chosen = make_job(fields, "The command") if job is None else read_job(job, fields)
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


def _fields(profile: "Profile") -> dict[str, Any]:
    flows = {name: [sum(row[w] for row in rows) for w in range(profile.workers)] for name, rows in _rows(profile)}
    return {
        "iterations": profile.iterations,
        "batches": profile.batches,
        "parts": profile.parts,
        "workers": profile.workers,
        "seconds": {kind: cost.seconds.mean for kind, cost in profile.tasks.items()},
        "memory_gb": {kind: cost.memory_gb for kind, cost in profile.tasks.items()},
        "bytes": {**flows, "blocks": profile.blocks, "gradients": profile.gradients},
        "rate": profile.rate,
    }


def _rows(profile: "Profile") -> list[tuple[str, list[list[float]]]]:
    return [("lists", profile.lists), ("features", profile.features)]


def _print(profile: "Profile", out: Path) -> None:
    print(
        f"{counted(profile.iterations, 'iterations')} of {counted(profile.workers, 'workers')} over"
        f" {counted(profile.parts, 'parts')}; {counted(profile.batches, 'iterations')} for each epoch"
    )
    table = Table("task", "ms an iteration", "10-90 %", "cores", "memory GB", box=None)
    for kind, cost in profile.tasks.items():
        shape = cost.seconds.shape
        span = [shape[int(place * (len(shape) - 1))] * cost.seconds.mean * 1e3 for place in (0.1, 0.9)]
        spread = f"{span[0]:.3g}-{span[1]:.3g}" if len(shape) > 1 else ""
        memory = f"{cost.memory_gb:.2f}" if cost.memory_gb else ""
        table.add_row(kind, f"{cost.seconds.mean * 1e3:.3g}", spread, f"{cost.cores:g}", memory)
    flows = Table("flow", "bytes a worker and iteration", "of them from its nearest part", box=None)
    for name, rows in _rows(profile):
        totals = [sum(row[w] for row in rows) for w in range(profile.workers)]
        nearest = sum(max(row[w] for row in rows) for w in range(profile.workers)) / max(sum(totals), 1.0)
        flows.add_row(name, short(sum(totals) / len(totals)), percent(nearest))
    flows.add_row("blocks", short(sum(profile.blocks) / len(profile.blocks)), "")
    flows.add_row("gradients", short(profile.gradients), "")
    for each in (table, flows):
        Console().print(each)
    print(f"Profile: {out}")
