"""Progress for people: bars on a terminal, a line every few seconds elsewhere. Always on stderr."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from penstock.formatting import counted
from penstock.progress import Progress, shown_by

_LINE_SECONDS = 5.0
_STATUS_SECONDS = 1.0


@contextmanager
def shown_progress(quiet: bool, opening: str = "") -> Iterator[Progress]:
    """The progress that a command shows, after the line `opening`, which is printed at once; silent with --json."""
    if opening and not quiet:
        print(opening, file=sys.stderr, flush=True)
    with _chosen(quiet) as progress, shown_by(progress):
        yield progress


@contextmanager
def _chosen(quiet: bool) -> Iterator[Progress]:
    if quiet:
        yield _NoteKeeper()
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield _BarProgress(bars)
    else:
        yield _LineProgress()


@contextmanager
def importing(progress: Progress, what: str) -> Iterator[None]:
    """Shows imports that take seconds as a step of the work; nothing where they have been made before."""
    if what.lower() in sys.modules:
        yield
        return
    with progress.step(f"Importing {what}"):
        yield


class _NoteKeeper(Progress):
    """Shows nothing, but keeps the notes for the JSON object."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


class _BarProgress(Progress):
    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self._bars = bars
        self._task = bars.add_task("", visible=False)

    def start(self, what: str, total: int, unit: str) -> None:
        self._task = self._bars.add_task(what, total=total or None, unit=unit)

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def finish(self) -> None:
        task = self._bars.tasks[self._task]
        if task.total and 0 < task.completed < task.total:
            # Interrupted, or stopped early: the bar stays visible with what was done.
            self._bars.update(self._task, description=f"{task.description} (stopped)")
            self._bars.stop_task(self._task)
        else:
            self._bars.update(self._task, total=task.completed or 1, completed=task.completed or 1)

    def status(self, line: str) -> None:
        self._bars.update(self._task, description=line)

    def note(self, sentence: str) -> None:
        self._bars.console.print(f"[yellow]{sentence}[/yellow]")


class _LineProgress(Progress):
    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._told = -_STATUS_SECONDS
        self.start("", 0, "")

    def start(self, what: str, total: int, unit: str) -> None:
        self._what, self._total, self._unit, self._done = what, total, unit, 0
        self._began = self._printed = time.monotonic()

    def advance(self, amount: int) -> None:
        with self._lock:
            self._done += amount
            now = time.monotonic()
            if now - self._printed < _LINE_SECONDS:
                return
            self._printed = now
        print(f"{self._what}: {self._amount()}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        took = time.monotonic() - self._began
        amount = f"{self._amount(self._done < self._total)}, " if self._done and self._unit else ""
        print(f"{self._what}: {amount}{took:.1f} s", file=sys.stderr, flush=True)

    def _amount(self, of_all: bool = True) -> str:
        if self._total and of_all:
            return f"{self._done:,} of {counted(self._total, self._unit)}"
        return counted(self._done, self._unit)

    def status(self, line: str) -> None:
        now = time.monotonic()
        if now - self._told >= _STATUS_SECONDS:
            self._told = self._printed = now
            print(line, file=sys.stderr, flush=True)

    def note(self, sentence: str) -> None:
        print(sentence, file=sys.stderr, flush=True)


def _bars() -> Bars:
    return Bars(
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )
