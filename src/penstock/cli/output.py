"""What commands print: one JSON object, or text for people; errors as one sentence."""

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from penstock.errors import Code, PenstockError
from penstock.memory import HOST_PEAK, rusage_mb

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the output folder if it exists.")]
TrustOption = Annotated[
    bool,
    typer.Option("--trust-module", help="Run the code (module) that a run folder or plan names: only if you know it."),
]


def as_named(path: Path) -> str:
    """A path as a user names it: with both slashes of an address, of which pathlib keeps one."""
    if ":/" not in str(path):
        return str(path)
    from penstock.graph.object_folders import address_of

    return address_of(path)


def local_run(run: Path) -> Path:
    """The folder of this machine for a run that a command names: the copy of one on an object store."""
    if ":/" not in str(run):
        return run
    from penstock.graph.object_folders import local_copy

    return local_copy(run)


RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run folder, or the address of one.", callback=local_run)
]
UncheckedOption = Annotated[
    bool,
    typer.Option("--unchecked", help="Do not check the graph's arrays before they are used; a wrong number may crash."),
]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Threads to use; all cores by default.")]
SeedOption = Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="The same seed gives the same result.")]


def keep_stdout_for_answers() -> None:
    """Give Python's stdout a file descriptor of its own: native libraries that print would corrupt a command's JSON."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    sys.stdout = os.fdopen(answers, "w", encoding=sys.stdout.encoding, errors="replace")


def check_new_file(path: Path, force: bool) -> None:
    """Refuse an output file that cannot be written, before the work begins."""
    if as_named(path) != str(path):
        raise PenstockError(
            f"{as_named(path)} is an address, and this is written to a file of this machine: name one.",
            code="invalid-value",
        )
    if not path.parent.is_dir():
        raise PenstockError(
            f"There is no folder {path.parent} for {path.name}: make it, or name another.", code="file-not-found"
        )
    if path.is_dir() or (path.exists() and not force):
        raise PenstockError(f"{path} exists: name another file, or add --force.", code="file-exists")


def refuse_options(sentence: str, code: Code = "conflicting-options", **given: Any) -> None:
    """Refuse options that are set; the sentence has {} where an option's name goes."""
    for name, value in given.items():
        if value:
            raise PenstockError(sentence.format(name.replace("_", "-")), code=code)


def print_rows(titles: Iterable[str | Column], rows: Iterable[Iterable[str]], width: int | None = 160) -> None:
    """Print a table without lines; where output is not a terminal, `width` limits it instead, if given."""
    table = Table(*titles, box=None)
    for row in rows:
        table.add_row(*row)
    wide_console(width).print(table)


def wide_console(width: int | None) -> Console:
    """A console; where output is not a terminal, of the width that a table needs."""
    return Console(width=None if sys.stdout.isatty() else width)


def unwrapped(titles: Iterable[str]) -> list[Column]:
    """Columns whose cells stay on one line."""
    return [Column(title, no_wrap=True) for title in titles]


def print_json(fields: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(fields))


def answer(as_json: bool, fields: dict[str, Any], *lines: str) -> None:
    """Print the fields as one JSON object, or else the lines."""
    print_json(fields) if as_json else print(*lines, sep="\n")


def print_error(sentence: str, code: Code) -> None:
    """Print one sentence on stderr, or with --json an object with the sentence and the code."""
    sentence = " ".join(sentence.split())
    if "--json" in sys.argv:
        print(json.dumps({"error": sentence, "code": code}), file=sys.stderr)
    else:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]Error:[/bold red] {_plain(sentence)}")


def short(count: float) -> str:
    """A count in at most five characters: 950, 12.3k, 4.56M."""
    for unit in ("", "k", "M"):
        if count < 1000:
            return f"{count:.3g}{unit}"
        count /= 1000
    return f"{count:.3g}G"


@dataclass
class MeasuredCommand:
    """Wall seconds and peak memory of a command."""

    seconds: float = 0.0
    peak_rss_mb: float = 0.0

    def fields(self) -> dict[str, float]:
        """The measurements under the names of the JSON interface."""
        return {"seconds": round(self.seconds, 3), "peak_rss_mb": round(self.peak_rss_mb, 1)}


@contextmanager
def measured() -> Iterator[MeasuredCommand]:
    """Time a block and read the peak resident memory, this process's or a child's, at its end."""
    result, peak = MeasuredCommand(), HOST_PEAK.measure()
    start = time.perf_counter()
    yield result
    result.seconds = time.perf_counter() - start
    result.peak_rss_mb = max(peak.read(), rusage_mb(resource.RUSAGE_CHILDREN))


def _plain(text: str) -> str:
    return text.replace("[", "\\[")
