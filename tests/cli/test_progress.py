"""Progress as it is shown: counts agree with their nouns, and work that was stopped is not shown as complete."""

import io

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bars

from penstock.terminal_progress import _BarProgress, _LineProgress


def lines_of(capsys, total, done, unit="batches"):
    progress = _LineProgress()
    with progress.step("training", total, unit):
        progress.advance(done)
    return capsys.readouterr().err


def test_a_finished_line_counts_what_was_done(capsys):
    assert lines_of(capsys, 1, 1).startswith("training: 1 batch, ")
    assert lines_of(capsys, 20, 20).startswith("training: 20 batches, ")
    assert lines_of(capsys, 0, 1, "vertices").startswith("training: 1 vertex, ")


def test_a_stopped_line_says_out_of_how_many(capsys):
    assert lines_of(capsys, 5160, 18).startswith("training: 18 of 5,160 batches, ")


def bar_after(total, done):
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%")
    bars = Bars(*columns, console=Console(file=io.StringIO(), force_terminal=True, width=100))
    progress = _BarProgress(bars)
    with bars, progress.step("training", total, "batches"):
        progress.advance(done)
    return bars.tasks[-1]


def test_a_stopped_bar_is_not_at_its_end():
    task = bar_after(200, 50)
    assert (task.percentage, task.finished, task.description) == (25.0, False, "training (stopped)")


def test_a_bar_of_finished_work_is_at_its_end():
    assert bar_after(200, 200).percentage == 100.0
    # Nobody knew how much there was.
    assert bar_after(0, 7).percentage == 100.0
