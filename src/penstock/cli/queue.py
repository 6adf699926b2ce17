"""`penstock serve`, `submit`, `queue`, `logs`, `cancel`, `retry` and `wait`: many jobs that share devices."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from penstock.cli.job_flags import refuse_value_of_switch, takes_job_flags
from penstock.cli.output import JsonOption, answer, print_json, wide_console
from penstock.errors import PenstockError
from penstock.formatting import counted
from penstock.processes import polite_interrupt
from penstock.service import POLICIES, SHARING

FolderOption = Annotated[
    Path | None, typer.Option("--folder", help="The service's folder; PENSTOCK_QUEUE or your own by default.")
]
JobNumber = Annotated[int, typer.Argument(metavar="ID", help="The number of a job.")]
_WIDEST = 10_000
"""The width of a line, in characters, where output is not a terminal."""
JobNumbers = Annotated[list[int], typer.Argument(metavar="ID...", help="Numbers of jobs.")]


@takes_job_flags
def submit_command(
    given: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB.yaml] [FIELD=A,B,...]...",
            help="A job file (YAML), whose fields flags replace, and what --sweep did not take.",
        ),
    ] = None,
    sweep: Annotated[
        list[str] | None, typer.Option("--sweep", metavar="FIELD=A,B,...", help="A job for each combination of values.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Jobs with a higher number go first.")] = 0,
    name: Annotated[
        str, typer.Option(help="What the job is called in lists; its graph, its model and its flags by default.")
    ] = "",
    folder: FolderOption = None,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Queue a job with the service, or a job for each combination of some fields' values.

    Every field of a job is a flag, as for `penstock train`.

    Example: penstock submit job.yaml --seed 1 --name "second seed"

    Example: penstock submit job.yaml --epochs 50 --sweep lr=0.01,0.003 hidden=64,128
    """
    from penstock.service.client import Queue
    from penstock.train.job import make_job, read_job_fields

    files = [each for each in given or [] if "=" not in each]
    more = [each for each in given or [] if "=" in each]
    if len(files) > 1 or not (files or fields) or (more and not sweep):
        raise PenstockError(
            "Name one job file or give its fields as flags, and what is swept behind --sweep, as in `penstock submit"
            " job.yaml --epochs 50 --sweep lr=0.01,0.003`.",
            code="usage",
        )
    refuse_value_of_switch(*files)
    job, where = (read_job_fields(Path(files[0])), files[0]) if files else (None, "The command")
    # Errors of the job are reported here, as `penstock train` reports them, whether or not a service runs.
    values = {}
    if sweep:
        from penstock.graph.document_sweep import parse_sweeps
        from penstock.service.operations import swept

        sweeps = parse_sweeps([*sweep, *more])
        for _, variant in swept({**(job or {}), **fields}, sweeps):
            make_job(variant, where)
        values = {each.field: list(each.values) for each in sweeps}
    else:
        make_job({**(job or {}), **fields}, where)
    queue = Queue(folder)
    numbers = queue.submit(job, sweep=values, priority=priority, name=name, **fields)
    if as_json:
        print_json({"jobs": numbers})
    else:
        print(f"Queued {counted(len(numbers), 'jobs')}: {' '.join(map(str, numbers))}")
        # The last job of a sweep is asked for, not each of thousands.
        ends = queue.expected_ends(numbers[-1:])
        expected = f"is expected to end at {_clock(ends[numbers[-1]])}" if ends else "has no expected end yet"
        print(f"Job {numbers[-1]} {expected}: `penstock queue` shows it.")


def _clock(moment: float) -> str:
    """A wall-clock time of the next hours, with its day if that is not today."""
    local = time.localtime(moment)
    return time.strftime("%H:%M:%S" if local[:3] == time.localtime()[:3] else "%Y-%m-%d %H:%M", local)


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
    states = ("cancelled" if job["state"] == "cancelled" else "being cancelled" for job in jobs)
    lines = (f"Job {number} is {state}." for number, state in zip(numbers, states, strict=True))
    answer(as_json, jobs[0] if len(jobs) == 1 else {"jobs": jobs}, *lines)


def retry_command(numbers: JobNumbers, folder: FolderOption = None, as_json: JsonOption = False) -> None:
    """Try jobs again that failed or were cancelled: each goes on from its newest checkpoint, where it has one.

    Example: penstock retry 17 18
    """
    from penstock.service.client import Queue

    queue = Queue(folder)
    jobs = [queue.retry(number) for number in numbers]
    answer(as_json, {"jobs": jobs}, f"Queued {counted(len(jobs), 'jobs')} again: {' '.join(map(str, numbers))}")


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
    """Print a line for each job; columns that are empty for all jobs are left out."""
    if not jobs:
        return
    # The value of each column that counts as empty.
    silent = {"id": "", "job": "", "state": "", "validation": "-", "test": "-", "device": "-", "tries": "1"}
    silent |= {"seconds": "", "ends": "-", "reason": ""}
    table = Table(box=None)
    shown = []
    for title, column in zip(silent, zip(*map(_row, jobs), strict=True), strict=True):
        if set(column) != {silent[title]}:
            # Numbers are never truncated.
            table.add_column(title, no_wrap=title not in ("job", "reason"), overflow="fold")
            shown.append(map(escape, column))
    for row in zip(*shown, strict=True):
        table.add_row(*row)
    wide_console(_WIDEST).print(table, highlight=False)


def _row(job: dict[str, Any]) -> tuple[str, ...]:
    metric = job["metric"]
    val = f"{metric['val']:.4f} {metric['name']}{' (best)' if job['best'] else ''}" if "val" in metric else "-"
    test = f"{metric['test']:.4f}" if "test" in metric else "-"
    ends = "-" if job.get("expected_end") is None else _clock(job["expected_end"])
    where = job["device"] or "-", str(max(1, job["tries"])), f"{job['seconds']:.1f}", ends, job["reason"]
    return str(job["id"]), job["name"], job["state"], val, test, *where


# `penstock serve`: the service that keeps the queue and trains its jobs.


def serve_command(
    folder: FolderOption = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: a free one.")] = 0,
    policy: Annotated[str, typer.Option(help=f"Which job is next: {POLICIES.words()}.")] = "fit",
    concurrent: Annotated[
        str, typer.Option(metavar="N", help="Jobs at once on a device; auto: as memory and throughput allow.")
    ] = "auto",
    overdue_minutes: Annotated[
        float, typer.Option(min=0, help="A job that has waited for so long goes before all others.")
    ] = 30,
    ray: Annotated[
        str | None, typer.Option(help="Hand jobs to the Ray cluster at this address (auto: this host's).")
    ] = None,
    sharing: Annotated[
        str,
        typer.Option(help=f"How jobs share a device: {', '.join(SHARING)}, or auto (MPS where it can be had)."),
    ] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of a job that does not say how many; 0: half of the cores.")
    ] = 0,
    allow: Annotated[
        list[Path] | None, typer.Option(help="A folder or address whose graphs jobs may name; may be repeated.")
    ] = None,
    allow_modules: Annotated[
        bool, typer.Option("--allow-modules", help="Run code that jobs bring (module): trust whoever has the token.")
    ] = False,
    drain: Annotated[
        bool, typer.Option("--drain", help="Tell the running service to take no more jobs and to end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Keep a queue of jobs and train them on this machine's devices, several at once where they fit together.

    Example: penstock serve --allow data

    Example: penstock serve --drain
    """
    if drain:
        _drain(folder, as_json)
        return
    from penstock.service.folder import default_folder
    from penstock.service.service import ServiceOptions, serve

    options = ServiceOptions(
        folder=default_folder() if folder is None else folder,
        host=host,
        port=port,
        policy=policy,
        concurrent=_count(concurrent),
        age_s=60 * overdue_minutes,
        allow=tuple(allow or ()),
        allow_modules=allow_modules,
        ray=ray,
        sharing=sharing,
        threads=threads,
    )
    with polite_interrupt() as stopped:
        serve(options, _say, stopped)
    if as_json:
        print_json({"folder": str(options.folder)})


def _drain(folder: Path | None, as_json: bool) -> None:
    from penstock.service.client import Queue

    running = Queue(folder).drain()
    said = f"The service takes no more jobs and ends when {counted(running, 'jobs')} that run have ended."
    answer(as_json, {"running": running}, said)


def _count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdigit() or int(text) < 1:
        raise PenstockError(f"--concurrent {text} is neither auto nor a number from 1 on.", code="invalid-value")
    return int(text)


def _say(line: str) -> None:
    # Output that goes to a full disk must not end the service.
    with suppress(OSError):
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)
