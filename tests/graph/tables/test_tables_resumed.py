"""Imports within a memory bound that were stopped: the same command goes on, and the graph is the same to the byte."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench
from typer.testing import CliRunner

from forks import run_forked
from penstock.cli.data import data
from penstock.errors import PenstockError
from penstock.graph.data import SPLITS
from penstock.graph.journal import FolderJournal, Sources
from penstock.graph.tables import bucket_files, edges, import_tables, importer, reader
from penstock.graph.tables.spec import EdgeSpec
from penstock.progress import Progress
from refusals import refused

VERTICES, EDGES = 200, 800
TOTAL = 12_000
"""The bytes of the bound: less than ids and lists take."""
PLAIN = {
    **USERS,
    "features": [{"column": "v", "standardise": True}, {"column": "c", "categorical": "codes"}],
    "label": {"column": "c", "kind": "class"},
    "split": {"ratios": [0.6, 0.2, 0.2], "seed": 3},
}
TAG = {"type": "tag"}
HAS = {"type": ["user", "has", "tag"], "files": "has", "source": "a", "destination": "b"}
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


class StoppedError(Exception):
    """An import ends here, as if it were killed: nothing is tidied."""


class Notes(Progress):
    """Keeps what the user is told."""

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


@pytest.fixture
def spec(bench: Workbench, made) -> Path:
    return made(bench, "several types")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(bench, name)` puts tables and a spec into a folder."""
    known = dict[tuple[str, bool], Path]()

    def copied(bench: Workbench, name: str, integers: bool = False) -> Path:
        if (name, integers) not in known:
            first = Workbench(tmp_path_factory.mktemp("made"))
            known[name, integers] = _spec(first, name, integers).parent
        shutil.copytree(known[name, integers], bench.folder, dirs_exist_ok=True)
        return bench.folder / "spec.yaml"

    return copied


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    monkeypatch.setattr(importer, "MemoryBound", lambda gb: SmallBound(int(gb * 1e9)))
    monkeypatch.setattr(edges, "_NOTED_ROWS", 400)
    monkeypatch.setattr(reader, "_BATCH_ROWS", 300)


def _spec(bench: Workbench, name: str, integers: bool = False) -> Path:
    rng = np.random.default_rng(1)
    ids = rng.permutation(VERTICES) * 7 if integers else [f"user {i}" for i in rng.permutation(VERTICES)]
    more = range(9000, 9030) if integers else [f"new user {i}" for i in range(30)]
    known, named = np.array(ids), np.concatenate([ids, more])
    words = rng.choice(["tea", "coffee", "water"], VERTICES)
    lists = [[words[i], words[-i]] for i in range(VERTICES)]
    bench.table("users.parquet", {"id": known, "v": rng.random(VERTICES), "c": words, "l": lists})
    ends = {"a": rng.choice(named, EDGES), "b": rng.choice(named, EDGES)}
    ends["b"][:250] = named[5]
    fields = {"w": rng.random(EDGES), "t": rng.integers(0, 99, EDGES), "r": rng.choice(["x", "y", "z"], EDGES)}
    fields["s"] = rng.choice(SPLITS, EDGES, p=[0.8, 0.1, 0.1])
    bench.table("follows.parquet", {**ends, **fields})
    tags = rng.choice([f"tag {i}" for i in range(150)], EDGES)
    has = pa.table({"a": rng.choice(named, EDGES), "b": tags, "w": rng.random(EDGES)})
    (bench.folder / "has").mkdir()
    pq.write_table(has[:500], bench.folder / "has" / "1.parquet", row_group_size=330)
    bench.table("has/2.parquet", {"a": named[:0], "b": tags[:0], "w": np.empty(0)})
    pq.write_table(has[500:], bench.folder / "has" / "3.parquet")
    return bench.spec(*SPECS[name])


def _run(spec: Path, out: Path, total: int = TOTAL) -> list[str]:
    """Import within so many bytes; what the user is told."""
    notes = Notes()
    import_tables(spec, out, progress=notes, memory_gb=total / 1e9)
    return notes.notes


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


_expected_of: dict[str, dict[str, str]] = {}
_steps_of: dict[str, list[str]] = {}
"""What imports made and noted that were not stopped, by the digests of their tables and specs."""


def _key(spec: Path) -> str:
    """Equal tables and specs have equal keys."""
    tables = [path for path in sorted(spec.parent.rglob("*")) if path.suffix in (".parquet", ".yaml")]
    return "".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in tables)


def _expected(bench: Workbench, spec: Path) -> dict[str, str]:
    """The files of an import that was not stopped."""
    if (key := _key(spec)) not in _expected_of:
        import_tables(spec, bench.folder / "whole")
        _expected_of[key] = _digests(bench.folder / "whole")
        shutil.rmtree(bench.folder / "whole")
    return _expected_of[key]


def _left(bench: Workbench) -> Path:
    return bench.folder / ".out.unfinished"


def _stop(monkeypatch, notes: int, before: bool = True) -> None:
    """Imports end at their n-th note from now on: before it is written, or right behind it."""
    written, count = FolderJournal._write, [0]

    def write(journal: FolderJournal, note) -> None:
        count[0] += 1
        if count[0] == notes and before:
            raise StoppedError
        written(journal, note)
        if count[0] == notes:
            raise StoppedError

    monkeypatch.setattr(FolderJournal, "_write", write)


def _stopped_after(bench: Workbench, spec: Path, notes: int, total: int = TOTAL) -> None:
    """An import that was stopped after so many notes."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        _stop(patch, notes, before=False)
        _run(spec, bench.out, total)
    assert _left(bench).is_dir() and not bench.out.exists()


def _steps(bench: Workbench, spec: Path) -> list[str]:
    """What an import that is not stopped notes."""
    if (key := _key(spec)) in _steps_of:
        return _steps_of[key]
    written, steps = FolderJournal._write, []

    def write(journal: FolderJournal, note) -> None:
        steps.append(note["step"])
        written(journal, note)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FolderJournal, "_write", write)
        _run(spec, bench.folder / "counted")
    assert len(set(steps)) == len(steps)
    return _steps_of.setdefault(key, steps)


@pytest.mark.parametrize(
    ("name", "before"), [*((name, True) for name in SPECS), ("several types", False)], ids=[*SPECS, "behind notes"]
)
def test_stopped_again_and_again(bench: Workbench, made, monkeypatch, name: str, before: bool) -> None:
    """At every note, each time going on from the one before."""
    spec = made(bench, name, integers=before)
    expected, notes = _expected(bench, spec), len(_steps(bench, spec))
    for run in range(notes):
        with monkeypatch.context() as patch, pytest.raises(StoppedError):
            _stop(patch, 2 if before and run else 1, before)
            _run(spec, bench.out)
        assert not bench.out.exists()
    said = _run(spec, bench.out)
    assert _digests(bench.out) == expected
    assert len(said) == 1 and "goes on after step" in said[0]
    assert not list(bench.folder.glob(".*"))


def test_what_is_noted(bench: Workbench, spec: Path) -> None:
    """Within the bound of these tests ids go to disk and lists are divided: otherwise they would show little."""
    steps = _steps(bench, spec)
    for some in (
        "user: ids",
        "tag to disk",
        "numbers of a",
        ": sorted, piece 2",
        "vertices",
        "user__likes__user: lists",
    ):
        assert any(some in step for step in steps), (some, steps)


def _pieces(bench: Workbench) -> list[Path]:
    """The files that are gone on with, without empty ones."""
    needed = set[str]()
    for line in (_left(bench) / "journal").read_text().splitlines()[1:]:
        note = json.loads(line.partition(" ")[2])
        needed -= {name for name in needed for path in note["gone"] if name == path or name.startswith(f"{path}/")}
        needed |= note["files"].keys()
    return sorted(path for name in needed if (path := _left(bench) / name).stat().st_size > 128)


def test_damaged_pieces_are_made_again(bench: Workbench, spec: Path) -> None:
    expected, notes = _expected(bench, spec), len(_steps(bench, spec))
    for place, after in enumerate(range(2, notes, notes // 6)):
        harm = ("changed", "cut", "gone")[place % 3]
        _stopped_after(bench, spec, after)
        pieces = _pieces(bench)
        piece = pieces[place * 7 % len(pieces)]
        content = bytearray(piece.read_bytes())
        content[128 + (len(content) - 128) // 2] ^= 1
        if harm == "gone":
            piece.unlink()
        else:
            piece.write_bytes(content if harm == "changed" else content[: len(content) // 2])
        said = _run(spec, bench.out)
        assert _digests(bench.out) == expected, piece
        assert len(said) == 1 and "missing or damaged" in said[0]
        shutil.rmtree(bench.out)


def test_damage_behind_what_was_noted_does_no_harm(bench: Workbench, spec: Path) -> None:
    """Files of steps that were not finished are longer than was noted."""
    expected = _expected(bench, spec)
    _stopped_after(bench, spec, 12)
    for piece in _pieces(bench):
        with piece.open("ab") as file:
            file.write(b"more")
    (_left(bench) / "new" / "stray.npy").write_bytes(b"")
    (_left(bench) / "spool" / "link").symlink_to(bench.folder)
    (said,) = _run(spec, bench.out)
    assert "missing" not in said and _digests(bench.out) == expected


def test_a_journal_that_was_cut(bench: Workbench, spec: Path) -> None:
    expected = _expected(bench, spec)
    _stopped_after(bench, spec, 9)
    whole = bench.folder / "kept"
    shutil.copytree(_left(bench), whole)
    content = (whole / "journal").read_bytes()
    lines = content.splitlines(keepends=True)
    for cut in (0, 1, len(lines[0]) - 1, len(lines[0]) + 5, len(content) // 2, len(content) - 1):
        shutil.rmtree(_left(bench), ignore_errors=True)
        shutil.copytree(whole, _left(bench))
        (_left(bench) / "journal").write_bytes(content[:cut])
        (said,) = _run(spec, bench.out)
        anew = cut < len(lines[0])
        assert ("begins anew, because its journal is missing or damaged" in said) == anew
        assert ("goes on after" in said) == (len(lines[0]) + len(lines[1]) <= cut) == ("begins anew" not in said)
        assert _digests(bench.out) == expected, cut
        shutil.rmtree(bench.out)


def test_a_note_that_was_changed_ends_the_journal(bench: Workbench, spec: Path) -> None:
    expected = _expected(bench, spec)
    _stopped_after(bench, spec, 4)
    journal = _left(bench) / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:3], lines[3].replace(b"step", b"stop"), *lines[4:]]))
    (said,) = _run(spec, bench.out)
    assert "goes on after" in said and _digests(bench.out) == expected


def test_changed_tables_begin_anew(bench: Workbench, spec: Path) -> None:
    _stopped_after(bench, spec, 9)
    table = bench.folder / "has" / "2.parquet"
    os.utime(table, ns=(0, 0))
    (said,) = _run(spec, bench.out)
    assert said.endswith(f"begins anew, because {table} has changed.")
    assert _digests(bench.out) == _expected(bench, spec)


def test_a_changed_spec_begins_anew(bench: Workbench, spec: Path) -> None:
    _stopped_after(bench, spec, 9)
    spec = bench.spec(*SPECS["only edges"])
    (said,) = _run(spec, bench.out)
    assert said.endswith("begins anew, because the spec has changed.")
    assert _digests(bench.out) == _expected(bench, spec)


def test_another_version_begins_anew(bench: Workbench, spec: Path, monkeypatch) -> None:
    _stopped_after(bench, spec, 9)
    monkeypatch.setattr(importer, "Sources", lambda *of, **more: Sources(*of, **more, format=2))
    (said,) = _run(spec, bench.out)
    assert said.endswith("begins anew, because the version of Penstock has changed.")


@pytest.mark.parametrize("total", [4_000, 1 << 30])
def test_another_bound_goes_on(bench: Workbench, spec: Path, total: int) -> None:
    """Pieces do not depend on the bound: ids in memory go to disk where it is smaller now, others stay there."""
    expected = _expected(bench, spec)
    for notes in np.linspace(1, len(_steps(bench, spec)) - 1, 3).astype(int):
        _stopped_after(bench, spec, notes)
        (said,) = _run(spec, bench.out, total)
        assert "goes on" in said and _digests(bench.out) == expected, notes
        shutil.rmtree(bench.out)
    for notes in (2, 4):
        _stopped_after(bench, spec, notes, total=1 << 30)
        _run(spec, bench.out, total)
        assert _digests(bench.out) == expected, notes
        shutil.rmtree(bench.out)


def test_an_import_without_a_bound_begins_anew(bench: Workbench, spec: Path) -> None:
    _stopped_after(bench, spec, 9)
    notes = Notes()
    import_tables(spec, bench.out, progress=notes)
    assert notes.notes[0].endswith("begins anew, because only an import with --memory-gb can go on.")
    assert not _left(bench).exists() and _digests(bench.out) == _expected(bench, spec)


def test_wrong_tables_leave_nothing(bench: Workbench, spec: Path) -> None:
    wrong = bench.spec([USERS, TAG], [FOLLOWS])
    with refused("id-out-of-range name vertices that no node table has"):
        _run(wrong, bench.out)
    assert not _left(bench).exists() and not bench.out.exists()


def test_passing_errors_keep_what_is_done(bench: Workbench, spec: Path, monkeypatch) -> None:
    expected = _expected(bench, spec)
    errors = [PenstockError("cut", code="external-failure"), KeyboardInterrupt(), OSError(28, "No space left")]
    for place, error in enumerate(errors):
        written, count = FolderJournal._write, [0]

        def write(journal, note, error=error, written=written, count=count) -> None:
            count[0] += 1
            if count[0] == 4:
                raise error
            written(journal, note)

        with monkeypatch.context() as patch, pytest.raises((PenstockError, KeyboardInterrupt)) as caught:
            patch.setattr(FolderJournal, "_write", write)
            _run(spec, bench.out)
        assert _left(bench).exists()
        assert ("cut", "the same command goes on", "the same command then goes on")[place] in str(caught.value)
    (said,) = _run(spec, bench.out)
    assert "goes on after step" in said and _digests(bench.out) == expected


def test_what_is_there_is_replaced_at_the_end_only(bench: Workbench, spec: Path) -> None:
    expected = _expected(bench, spec)
    bench.out.mkdir()
    (bench.out / "file").write_text("mine")
    with refused("file-exists exists already"):
        _run(spec, bench.out)
    assert not _left(bench).exists()
    shutil.rmtree(bench.out)
    import_tables(spec, bench.out)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(StoppedError):
        _stop(patch, 6)
        import_tables(spec, bench.out, force=True, memory_gb=TOTAL / 1e9)
    assert _digests(bench.out) == expected
    with refused("file-exists exists already"):
        _run(spec, bench.out)
    import_tables(spec, bench.out, force=True, memory_gb=TOTAL / 1e9)
    assert _digests(bench.out) == expected and not _left(bench).exists()


def test_two_imports_at_once(bench: Workbench, spec: Path, monkeypatch) -> None:
    """The second one is refused, with a bound and without."""
    written, refusals = FolderJournal._write, []

    def write(journal: FolderJournal, note) -> None:
        written(journal, note)
        if not refusals:
            for memory_gb in (9e-6, None):
                with pytest.raises(PenstockError, match="is being written by another process") as caught:
                    import_tables(spec, bench.out, memory_gb=memory_gb)
                refusals.append(caught.value.code)

    monkeypatch.setattr(FolderJournal, "_write", write)
    _run(spec, bench.out)
    assert refusals == ["in-use", "in-use"] and _digests(bench.out) == _expected(bench, spec)


def test_the_work_folder_must_be_ones_own(bench: Workbench, spec: Path) -> None:
    elsewhere = bench.folder / "elsewhere"
    elsewhere.mkdir()
    _left(bench).symlink_to(elsewhere)
    with refused("write-failed symbolic link"):
        _run(spec, bench.out)
    assert not any(elsewhere.iterdir())


@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl", "tsv.gz"])
def test_a_table_is_read_on_from_any_position(bench: Workbench, monkeypatch, extension: str) -> None:
    """Files before it are not opened, and no row comes twice."""
    rows, starts = np.arange(2000), [0, 900, 910]
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], 2000], strict=True)):
        bench.table(f"follows/{number}.{extension}", {"a": rows[start:stop], "b": rows[start:stop] % 7})
    if extension == "parquet":
        pq.write_table(pa.table({"a": rows[910:], "b": rows[910:] % 7}), bench.folder / "follows/2.parquet", 350)
    spec = EdgeSpec.model_validate({**FOLLOWS, "files": "follows"})

    def table() -> reader.Table:
        return reader.Table(spec, bench.folder, "the edges", {"a": "integer id", "b": "number"})

    for number, row in ((0, 0), (0, 1), (0, 300), (0, 450), (0, 900), (1, 0), (2, 0), (2, 349), (2, 700), (2, 1090)):
        chunks = list(table().chunks({"a", "b"}, (number, row)))
        found = [value for chunk in chunks for value in chunk.column("a").to_pylist()]
        assert found == rows[starts[number] + row :].tolist()
        for chunk in chunks:
            assert chunk.column("a")[0].as_py() == chunk.start + starts[int(Path(chunk.file.path).name[0])]


# The same by a signal that no process survives.

PROGRAM = """
import os, signal, sys
from penstock.graph.tables import import_tables, importer
from penstock.graph.journal import FolderJournal
sys.path[:0] = {folders!r}
from test_tables_resumed import SmallBound

written, left = FolderJournal._write, [11]

def write(journal, note):
    written(journal, note)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

FolderJournal._write = write
importer.MemoryBound = lambda gb: SmallBound(int(gb * 1e9))
import_tables({spec!r}, {out!r}, memory_gb={memory_gb})
"""


def test_killed(bench: Workbench, spec: Path) -> None:
    expected = _expected(bench, spec)
    here = Path(__file__).parent
    folders = [str(here), str(here.parents[1])]
    program = PROGRAM.format(folders=folders, spec=str(spec), out=str(bench.out), memory_gb=TOTAL / 1e9)
    done = run_forked(["python", program])
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert _left(bench).is_dir() and not bench.out.exists()
    (said,) = _run(spec, bench.out)
    assert "goes on after step" in said and _digests(bench.out) == expected
    assert not _left(bench).exists()


def test_the_command_says_where_it_goes_on(bench: Workbench, spec: Path) -> None:
    words = ["import", str(spec), "--out", str(bench.out), "--memory-gb", str(TOTAL / 1e9)]
    _stopped_after(bench, spec, 9)
    said = CliRunner().invoke(data, words, catch_exceptions=False)
    assert "goes on after step" in said.stderr
    shutil.rmtree(bench.out)
    _stopped_after(bench, spec, 9)
    found = json.loads(CliRunner().invoke(data, [*words, "--json"], catch_exceptions=False).stdout)
    assert found["resumed"]["step"] >= 2 and found["resumed"]["of"] == 9
    assert found["resumed"]["after"] in said.stderr and len(found["notes"]) == 1
    found = json.loads(CliRunner().invoke(data, [*words, "--force", "--json"], catch_exceptions=False).stdout)
    assert "resumed" not in found and "notes" not in found
