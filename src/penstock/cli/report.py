"""`penstock report` and `penstock compare`: look at a run, and at plans, runs and simulations side by side."""

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from penstock.cli.output import JsonOption, RunArgument, answer, local_run, print_json, wide_console
from penstock.errors import PenstockError
from penstock.formatting import signed_percent

# `penstock report`: look at a run.


def report_command(
    run: RunArgument,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's report.html: curves, stages, timeline, memory and settings in one page that works offline.

    Example: penstock report runs/arxiv --open
    """
    from penstock.report import write_report
    from penstock.train.job import job_defaults

    page = write_report(run, job_defaults())
    answer(as_json, {"path": str(page), "bytes": page.stat().st_size}, f"Written to {page}")
    if open_it and not webbrowser.open(page.resolve().as_uri()):
        raise PenstockError(f"No browser could be started: open {page} yourself.", code="external-failure")


# `penstock compare`: plans, runs and simulations side by side.


def compare_command(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="A B...", help="Plans, run folders, or what a command printed with --json."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Set plans, runs and simulations side by side: every quantity that all of them have, against the first.

    Example: penstock compare plan-10g.json plan-25g.json

    Example: penstock compare plan.json runs/planned
    """
    from penstock.report.comparison import compare, different_settings, read_subject

    if len(files) < 2:
        raise PenstockError(
            f"Only {files[0]} is given: name two or more files or run folders to compare.", code="option-missing"
        )
    subjects = [read_subject(local_run(path)) for path in files]
    rows, jobs = compare(subjects), [each.settings for each in subjects]
    settings = different_settings(jobs) if all(jobs) else {}
    if as_json:
        named = [{"name": each.name, "kind": each.kind} for each in subjects]
        print_json({"compared": named, "settings": settings, "quantities": [vars(row) for row in rows]})
        return
    alike = len({each.kind for each in subjects}) == 1
    heads = [each.name if alike else f"{each.name}\n({each.kind})" for each in subjects]
    table = Table(Column("", no_wrap=True), *(Column(head, justify="right") for head in heads), box=None)
    for _ in subjects[1:]:
        table.add_column("difference" if len(subjects) == 2 else "", justify="right")
    for name, values in settings.items():
        table.add_row(name, *map(_setting, values))
    for row in rows:
        written = [_written(row.name, value) for value in row.values]
        table.add_row(row.name, *written, *map(_ratio, row.ratios[1:], row.differences[1:]))
    wide_console(160).print(table)


def _setting(value: Any) -> str:
    """A field's value as a flag takes it."""
    return ",".join(map(str, value)) if isinstance(value, list) else "-" if value is None else str(value)


def _written(name: str, value: float) -> str:
    """A value in the unit that its name's ending denotes."""
    from penstock.report.words import mebibytes, seconds, short

    if name.endswith("_s") or name == "seconds":
        return seconds(value)
    if name.endswith("_mb"):
        return mebibytes(value)
    if "bytes" in name:
        return mebibytes(value / (1 << 20))
    return f"{value * 100:.1f} %" if name.endswith("utilisation") else short(value) if value >= 1000 else f"{value:.4g}"


def _ratio(ratio: float | None, difference: float) -> str:
    return signed_percent(ratio - 1, 1) if ratio is not None else f"{difference:+.4g}" if difference else "0"
