"""`penstock serve`, `submit`, `queue`, `logs`, `cancel`, `retry` and `wait`: many jobs that share devices."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import JsonOption, print_json
from penstock.errors import PenstockError
from penstock.quantities import counted

FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="The service's folder; PENSTOCK_QUEUE or your own by default.")
]
JobNumber = Annotated[int, typer.Argument(metavar="ID", help="The number of a job.")]
JobNumbers = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of jobs.")]


def submit_command(
    given: Annotated[
        list[str],
        typer.Argument(metavar="JOB.yaml [FIELD=A,B,...]...", help="A job file, and what --sweep did not take."),
    ],
    sweep: Annotated[
        list[str] | None, typer.Option("--sweep", metavar="FIELD=A,B,...", help="A job for each combination of values.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher number go first.")] = 0,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Queue a job with the service, or a job for each combination of some fields' values.

    Example: penstock submit job.yaml --sweep lr=0.01,0.003 hidden=64,128
    """
    from penstock.graph.document_sweep import parse_sweeps
    from penstock.service.client import Queue

    files = [each for each in given if "=" not in each]
    more = [each for each in given if "=" in each]
    if len(files) != 1 or (more and not sweep):
        raise PenstockError(
            "Name one job file, and fields behind --sweep, as in `penstock submit job.yaml --sweep lr=0.01,0.003`.",
            code="usage",
        )
    sweeps = parse_sweeps([*(sweep or []), *more])
    values = {each.field: list(each.values) for each in sweeps}
    numbers = Queue(folder).submit(files[0], sweep=values, priority=priority)
    if as_json:
        print_json({"jobs": numbers})
    else:
        print(f"Queued {counted(len(numbers), 'jobs')}: {' '.join(map(str, numbers))}")


def queue_command(
    states: Annotated[
        list[str] | None, typer.Option("--state", help="Only jobs in this state; may be repeated.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Jobs to list, newest first.")] = 50,
    before: Annotated[int | None, typer.Option(help="Continue a list: only jobs with smaller numbers.")] = None,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs of the service, and what runs on its devices.

    Example: penstock queue --state running --state waiting
    """
    from penstock.service.client import Queue

    queue = Queue(folder)
    found, devices = queue.listed(*(states or []), limit=limit, before=before), queue.devices()
    if as_json:
        print_json({**found, **devices})
        return
    _print_jobs(found["jobs"])
    print(", ".join(f"{count} {state}" for state, count in found["counts"].items()) or "No job was queued yet.")
    for device in devices["devices"]:
        print(f"{device['name']}: {counted(len(device['running']), 'jobs')} ({device['title']})")


def logs_command(
    number: JobNumber,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    folder: FolderOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what a job has printed.

    Example: penstock logs -f 17
    """
    from penstock.service.client import Queue

    pieces = Queue(folder).logs(number, follow)
    if as_json:
        print_json({"id": number, "text": "".join(pieces)})
        return
    for piece in pieces:
        print(piece, end="", flush=True)


def cancel_command(numbers: JobNumbers, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Cancel jobs: one that waits leaves the queue, one that runs finishes its step and writes a checkpoint.

    Example: penstock cancel 17 18
    """
    from penstock.service.client import Queue

    queue = Queue(folder)
    jobs = [queue.cancel(number) for number in numbers]
    if as_json:
        print_json(jobs[0] if len(jobs) == 1 else {"jobs": jobs})
        return
    for number, job in zip(numbers, jobs, strict=True):
        print(f"Job {number} is {'being cancelled' if job['state'] != 'cancelled' else 'cancelled'}.")


def retry_command(numbers: JobNumbers, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Try jobs again that failed or were cancelled: each goes on from its newest checkpoint, where it has one.

    Example: penstock retry 17 18
    """
    from penstock.service.client import Queue

    queue = Queue(folder)
    jobs = [queue.retry(number) for number in numbers]
    if as_json:
        print_json({"jobs": jobs})
    else:
        print(f"Queued {counted(len(jobs), 'jobs')} again: {' '.join(map(str, numbers))}")


def wait_command(numbers: JobNumbers, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Wait until jobs have ended; the exit code is 2 if one of them failed or was cancelled.

    Example: penstock wait 17 18 19
    """
    from penstock.service.client import Queue

    jobs = Queue(folder).wait(*numbers)
    if as_json:
        print_json({"jobs": jobs})
    else:
        _print_jobs(jobs)
    if any(job["state"] != "ended" for job in jobs):
        raise typer.Exit(2)


def _print_jobs(jobs: list[dict[str, Any]]) -> None:
    if not jobs:
        return
    table = Table("id", "job", "state", "device", "tries", "seconds", "reason", box=None)
    for job in jobs:
        row = (job["id"], job["name"], job["state"], job["device"] or "-", job["tries"], f"{job['seconds']:.1f}")
        table.add_row(*map(str, row), job["reason"])
    Console(soft_wrap=True).print(table)
