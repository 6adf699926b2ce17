"""Cuts of graph folders that were stopped: the same command goes on, and the parts are the same to the byte."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from forks import forked_command, run_forked
from penstock import Graph
from penstock.errors import PenstockError
from penstock.graph.journal import FolderJournal
from penstock.partition import Cut, assignment, cut
from penstock.partition.writer import PartWriter
from penstock.progress import Progress
from refusals import refused
from training_graphs import community_graph, typed_graph

HOW = Cut(3, trainers=2, method="chunk")
NOTES = 6
"""Of such a cut: the assignment, trainers, original numbers and each part."""


class StoppedError(Exception):
    """A cut ends here, as if it were killed: nothing is tidied."""


class Notes(Progress):
    """Keeps what the user is told."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.fixture
def graph(tmp_path) -> Graph:
    """Papers with ids, authors, splits and fields."""
    made = typed_graph()
    nodes = next(iter(made.nodes.values()))
    nodes.ids = np.arange(nodes.count) * 3
    return made.save(tmp_path / "graph")


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def expected(graph: Graph, how: Cut = HOW) -> dict[str, str]:
    """The files of a cut that was not stopped."""
    folder = graph.path.parent / "whole"
    cut(graph, how, folder, force=True)
    return digests(folder)


def told(graph: Graph, out: Path, how: Cut = HOW) -> list[str]:
    """Cut; what the user is told of a cut that was stopped."""
    notes = Notes()
    cut(graph, how, out, progress=notes)
    return [sentence for sentence in notes.notes if "stopped" in sentence]


def stopped_after(notes: int, graph: Graph, out: Path, before: bool = False, error=StoppedError) -> str:
    """A cut that ends right behind its n-th note from now on, or before it is written; what its error says."""
    written, count = FolderJournal._write, [0]

    def write(journal: FolderJournal, note) -> None:
        count[0] += 1
        if count[0] == notes and before:
            raise error
        written(journal, note)
        if count[0] == notes:
            raise error

    with pytest.MonkeyPatch.context() as patch, pytest.raises(error) as raised:
        patch.setattr(FolderJournal, "_write", write)
        cut(graph, HOW, out)
    assert left(out).is_dir() and not out.exists()
    return str(raised.value)


def left(out: Path) -> Path:
    return out.with_name(f".{out.name}.unfinished")


@pytest.mark.parametrize("before", [False, True])
def test_stopped_again_and_again(graph, out, before):
    """At every note, each time going on from the one before."""
    for run in range(NOTES):
        stopped_after(2 if before and run else 1, graph, out, before)
    (said,) = told(graph, out)
    step = "step 5 of 6: part 1" if before else "step 6 of 6: part 2"
    assert said == f"{out}: the cut that was stopped goes on after {step}."
    assert digests(out) == expected(graph) and not left(out).exists()


def test_what_was_done_is_not_done_again(graph, out, monkeypatch):
    stopped_after(4, graph, out)
    written, parts = PartWriter.write, []

    def write(writer, part, folder):
        parts.append(part)
        return written(writer, part, folder)

    whole = expected(graph)
    monkeypatch.setattr(PartWriter, "write", write)
    monkeypatch.setattr(assignment, "assign", lambda *given: pytest.fail("was assigned again"))
    monkeypatch.setattr(assignment, "assign_trainers", lambda *given: pytest.fail("trainers were found again"))
    told(graph, out)
    assert parts == [1, 2] and digests(out) == whole


def test_the_method_that_auto_took_is_kept(graph, out, monkeypatch):
    """Another machine, or another hour, might take another."""
    how = Cut(3, trainers=2, method="auto")
    monkeypatch.setattr(assignment, "chosen", lambda *given: ("random", "Random is enough."))
    whole = expected(graph, how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_cut_resumed.HOW", how)
        stopped_after(3, graph, out)
    monkeypatch.setattr(assignment, "chosen", lambda *given: pytest.fail("was chosen again"))
    told(graph, out, how)
    assert digests(out) == whole


@pytest.mark.parametrize("harm", ["changed", "cut", "gone"])
@pytest.mark.parametrize(("file", "after"), [("assignment.npy", None), ("new/original.npy", 2), ("new/part0", 3)])
def test_damaged_files_are_made_again(graph, out, harm, file, after):
    stopped_after(5, graph, out)
    place = left(out) / file
    piece = max(place.rglob("field.*.npy"), key=lambda path: path.stat().st_size) if place.is_dir() else place
    content = bytearray(piece.read_bytes())
    content[-1] ^= 1
    if harm == "gone":
        piece.unlink()
    else:
        piece.write_bytes(content if harm == "changed" else content[:-1])
    (said,) = told(graph, out)
    if after is None:
        assert said.endswith("begins anew, because files of it are missing or damaged.")
    else:
        assert f"goes on after step {after} of 6" in said and "(files of it are missing or damaged)" in said
    assert digests(out) == expected(graph)


def test_a_changed_graph_begins_anew(graph, out):
    stopped_after(4, graph, out)
    file = next(iter(sorted(graph.path.rglob("indices.npy"))))
    os.utime(file, ns=(0, 0))
    (said,) = told(graph, out)
    assert said == f"{out}: the cut that was stopped begins anew, because {file} has changed."
    assert digests(out) == expected(graph)


@pytest.mark.parametrize(
    "other", [Cut(2, 2, "chunk"), Cut(3, 1, "chunk"), Cut(3, 2, "random"), Cut(3, 2, "chunk", seed=1)]
)
def test_other_options_begin_anew(graph, out, other):
    stopped_after(4, graph, out)
    (said,) = told(graph, out, other)
    assert said == f"{out}: the cut that was stopped begins anew, because the options have changed."
    assert digests(out) == expected(graph, other)


def test_a_graph_that_is_not_its_folders_keeps_nothing(graph, out, monkeypatch):
    """One in memory, or with labels changed in memory: nobody could tell later that it is the same."""
    stopped_after(4, graph, out)
    nodes = next(iter(graph.nodes.values()))
    nodes.fields["y"] = np.array(nodes.fields["y"])
    (said,) = told(graph, out)
    assert said.endswith("begins anew, because only a cut of a graph folder can go on.")
    shutil.rmtree(out)
    monkeypatch.setattr(PartWriter, "write", lambda *given: (_ for _ in ()).throw(StoppedError))
    with pytest.raises(StoppedError):
        cut(graph, HOW, out)
    assert not out.exists() and not left(out).exists()


def test_an_interrupt_keeps_what_is_done_and_says_so(graph, out):
    said = stopped_after(4, graph, out, error=KeyboardInterrupt)
    assert said == "Interrupted: what is done is kept, and the same command goes on."
    assert "step 4 of 6: part 0" in told(graph, out)[0]


def test_wrong_options_leave_nothing(graph, out):
    with refused("value-out-of-range 100000 trainers"):
        cut(graph, Cut(2, trainers=100_000), out)
    assert not out.exists() and not left(out).exists()


PROGRAM = """
import os, signal, sys
from penstock import Graph
from penstock.cli import main
from penstock.graph.journal import FolderJournal

written, left = FolderJournal._write, [{notes}]

def write(journal, note):
    written(journal, note)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

FolderJournal._write = write
sys.argv = {words!r}
main()
"""


@pytest.mark.parametrize("notes", [1, 4])
def test_killed(tmp_path, notes):
    """By a signal that no process survives: the command goes on, and says so."""
    community_graph(400).save(tmp_path / "graph")
    options = ["--parts", "3", "--trainers", "2", "--method", "stream"]
    words = ["partition", str(tmp_path / "graph"), *options, "--out"]
    whole = forked_command(*words, str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "out"
    done = run_forked(["python", PROGRAM.format(notes=notes, words=["penstock", *words, str(out)])])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert left(out).is_dir() and not out.exists()
    again = forked_command(*words, str(out), "--json")
    assert again.returncode == 0, again.stderr
    (said,) = [note for note in json.loads(again.stdout)["notes"] if "stopped" in note]
    assert f"goes on after step {notes} of 6" in said
    assert digests(out) == digests(tmp_path / "whole") and not left(out).exists()


def test_a_lost_cluster_keeps_what_is_done_and_a_killed_task_leaves_nothing(graph, out):
    """Attempts lie beside the parts; those of a process that another has taken over from add nothing."""

    def lost(function, tasks):
        yield function(tasks[0])
        left = Path(tasks[1].folder).with_name(f"{tasks[1].name}.killed")
        shutil.copytree(Path(tasks[0].folder) / tasks[0].name, left)
        stale.append(tasks[1])
        raise PenstockError("The Ray cluster has lost a task.", code="peer-lost")

    def also_by_the_old(function, tasks):
        with refused("external-failure another command"):
            function(stale[0])
        return map(function, tasks)

    stale, whole = [], expected(graph)
    with refused("peer-lost"):
        cut(graph, HOW, out, mapped=lost)
    notes = Notes()
    cut(graph, HOW, out, mapped=also_by_the_old, progress=notes)
    assert digests(out) == whole and any("goes on after" in sentence for sentence in notes.notes)


def test_parts_that_tasks_have_written_are_not_written_again(graph, out):
    """Whoever goes on: other tasks, or this machine."""

    def two(function, tasks):
        yield from map(function, tasks[:2])
        raise StoppedError

    def others(function, tasks):
        parts.extend(task.part for task in tasks)
        return map(function, tasks)

    parts, whole = [], expected(graph)
    for again in (others, None):
        with pytest.raises(StoppedError):
            cut(graph, HOW, out, mapped=two)
        cut(graph, HOW, out, mapped=again)
        assert digests(out) == whole
        shutil.rmtree(out)
    assert parts == [2]
