"""`penstock report`: look at a run."""

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import JsonOption, print_json
from penstock.errors import PenstockError


def report_command(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder: finished, failed or still going.")],
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report.html: curves, stages, timeline, memory and settings in one page that works offline.

    Example: penstock report runs/arxiv --open
    """
    from penstock.report import write_report
    from penstock.train.job import job_defaults

    page = write_report(run, job_defaults())
    if as_json:
        print_json({"path": str(page), "bytes": page.stat().st_size})
    else:
        print(f"Written to {page}")
    if open_it and not webbrowser.open(page.resolve().as_uri()):
        raise PenstockError(f"No browser could be started: open {page} yourself.", code="external-failure")
