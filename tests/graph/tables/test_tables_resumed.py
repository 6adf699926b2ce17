"""Imports within a memory bound that were stopped: the same command goes on, and the graph is the same to the byte."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench
from typer.testing import CliRunner

from penstock.cli.data import data
from penstock.errors import PenstockError
from penstock.graph.data import SPLITS
from penstock.graph.tables import bucket_files, import_tables, importer
from penstock.graph.tables.journal import Journal
from penstock.progress import Progress
from refusals import refused

VERTICES, EDGES = 200, 1500
PLAIN = {
    **USERS,
    "features": [{"column": "v", "standardise": True}, {"column": "c", "categorical": "codes"}],
    "label": {"column": "c", "kind": "class"},
    "split": {"ratios": [0.6, 0.2, 0.2], "seed": 3},
}
TAG = {"type": "tag"}
HAS = {"type": ["user", "has", "tag"], "files": "has.parquet", "source": "a", "destination": "b"}
TYPED = {
    **FOLLOWS,
    "dangling": "create",
    "reverse": True,
    "time": "t",
    "features": [{"column": "r", "categorical": "one-hot"}],
}
LIKES = {**FOLLOWS, "type": ["user", "likes", "user"], "dangling": "drop", "undirected": True, "weight": "w"}
RELATIONS = {**FOLLOWS, "dangling": "drop", "relation": "r", "reverse": True, "split": {"column": "s"}}
SPECS = {
    "several types": ([PLAIN, TAG], [TYPED, {**HAS, "dangling": "drop"}, LIKES]),
    "relations": ([{**USERS, "label": {"column": "l", "kind": "multi-label"}}], [RELATIONS]),
    "only edges": ([{"type": "user"}, TAG], [{**FOLLOWS, "deduplicate": True}, HAS]),
}


class SmallBound(bucket_files.MemoryBound):
    """A bound that some hundred edges exceed."""

    def __init__(self, total: int) -> None:
        self.total, self._held = total, {}

    @property
    def block_bytes(self) -> int:
        return 1 << 12


class Stopped(Exception):
    """An import ends here, as if it were killed: nothing is tidied."""


class Notes(Progress):
    """Keeps what the user is told."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.fixture
def spec(bench: Workbench, request) -> Path:
    return _spec(bench, getattr(request, "param", "several types"))


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(importer, "MemoryBound", lambda gb: SmallBound(int(gb * 1e9)))


def _spec(bench: Workbench, name: str, integers: bool = False) -> Path:
    rng = np.random.default_rng(1)
    ids = rng.permutation(VERTICES) * 7 if integers else [f"user {i}" for i in rng.permutation(VERTICES)]
    more = range(9000, 9030) if integers else [f"new user {i}" for i in range(30)]
    known, named = np.array(ids), np.concatenate([ids, more])
    words = rng.choice(["tea", "coffee", "water"], VERTICES)
    lists = [[words[i], words[-i]] for i in range(VERTICES)]
    bench.table("users.parquet", {"id": known, "v": rng.random(VERTICES), "c": words, "l": lists})
    ends = {"a": rng.choice(named, EDGES), "b": rng.choice(named, EDGES)}
    ends["b"][:400] = named[5]
    fields = {"w": rng.random(EDGES), "t": rng.integers(0, 99, EDGES), "r": rng.choice(["x", "y", "z"], EDGES)}
    fields["s"] = rng.choice(SPLITS, EDGES, p=[0.8, 0.1, 0.1])
    bench.table("follows.parquet", {**ends, **fields})
    tags = rng.choice([f"tag {i}" for i in range(100)], EDGES)
    bench.table("has.parquet", {"a": rng.choice(named, EDGES), "b": tags, "w": rng.random(EDGES)})
    return bench.spec(*SPECS[name])


def _run(spec: Path, out: Path, total: int = 9_000) -> list[str]:
    """Import within so many bytes; what the user is told."""
    notes = Notes()
    import_tables(spec, out, progress=notes, memory_gb=total / 1e9)
    return notes.notes


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _expected(bench: Workbench, spec: Path) -> dict[str, str]:
    """The files of an import that was not stopped."""
    import_tables(spec, bench.folder / "whole")
    return _digests(bench.folder / "whole")


def _left(bench: Workbench) -> Path:
    return bench.folder / ".out.unfinished"


def _stop(monkeypatch, notes: int, before: bool = True) -> None:
    """Imports end at their n-th note from now on: before it is written, or right behind it."""
    written, count = Journal._write, [0]

    def write(journal: Journal, note) -> None:
        count[0] += 1
        if count[0] == notes and before:
            raise Stopped
        written(journal, note)
        if count[0] == notes:
            raise Stopped

    monkeypatch.setattr(Journal, "_write", write)


def _stopped_after(bench: Workbench, spec: Path, notes: int, total: int = 9_000) -> None:
    """An import that was stopped after so many notes."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped):
        _stop(patch, notes, before=False)
        _run(spec, bench.out, total)
    assert _left(bench).is_dir() and not bench.out.exists()


def _count(bench: Workbench, spec: Path) -> int:
    """The notes of an import that is not stopped."""
    with pytest.MonkeyPatch.context() as patch:
        steps = []
        written = Journal._write
        patch.setattr(Journal, "_write", lambda journal, note: (steps.append(note["step"]), written(journal, note)))
        _run(spec, bench.folder / "counted")
    assert len(set(steps)) == len(steps)
    return len(steps)


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
@pytest.mark.parametrize("name", SPECS)
def test_stopped_again_and_again(bench: Workbench, monkeypatch, name: str, before: bool) -> None:
    """At every note, each time going on from the one before."""
    spec = _spec(bench, name, integers=before)
    expected, notes = _expected(bench, spec), _count(bench, spec)
    for run in range(notes):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            _stop(patch, 2 if before and run else 1, before)
            _run(spec, bench.out)
        assert not bench.out.exists()
    said = _run(spec, bench.out)
    assert _digests(bench.out) == expected
    assert len(said) == 1 and "goes on after step" in said[0]
    assert not list(bench.folder.glob(".*"))
