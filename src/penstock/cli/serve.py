"""`penstock serve`: the service that keeps the queue and trains its jobs."""

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import JsonOption, print_json
from penstock.cli.queue import FolderOption
from penstock.errors import PenstockError
from penstock.interruption import polite_interrupt
from penstock.quantities import counted


def serve_command(
    folder: FolderOption = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0: a free one.")] = 0,
    policy: Annotated[str, typer.Option(help="Which job is next: fit, base, lmcf or bmc.")] = "fit",
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
        typer.Option(help="How jobs share a device: mps, time-slices, streams, or auto (MPS where it can be had)."),
    ] = "auto",
    threads: Annotated[
        int, typer.Option(min=0, help="Threads of a job that does not say how many; 0: half of the cores.")
    ] = 0,
    allow: Annotated[
        list[Path] | None, typer.Option(help="A folder whose graphs jobs may name; may be repeated.")
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
    if as_json:
        print_json({"running": running})
    else:
        print(f"The service takes no more jobs and ends when {counted(running, 'jobs')} that run have ended.")


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
