"""Imports in bounded memory: the same bytes whatever the bound, and no more memory than it says."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench
from typer.testing import CliRunner

from penstock.cli.data import data
from penstock.errors import PenstockError
from penstock.graph.data import SPLITS, DrawnSplit, splits_by_ratio
from penstock.graph.tables import bucket_files, import_tables, importer, plan_import
from penstock.graph.tables.disk_index import DiskIndex
from refusals import refused

VERTICES, EDGES = 1000, 8000
DROPPED = {**FOLLOWS, "dangling": "drop"}
CREATED = {**FOLLOWS, "dangling": "create"}
HAS = {"type": ["user", "has", "tag"], "files": "has.parquet", "source": "a", "destination": "b"}
OF = {"type": ["tag", "of", "user"], "files": "has.parquet", "source": "b", "destination": "a"}
PLAIN = {**USERS, "features": ["v"], "split": {"column": "f"}}
DRAWN = {**USERS, "features": ["v"], "split": {"ratios": [0.6, 0.2, 0.2], "seed": 3}}
TAG = {"type": "tag"}

SPECS = {
    "created": ([PLAIN], [{**CREATED, "weight": "w", "time": "t", "reverse": True}]),
    "undirected": ([PLAIN], [{**DROPPED, "undirected": True, "weight": "w"}]),
    "held out": ([PLAIN], [{**DROPPED, "deduplicate": True, "time": "t", "reverse": True, "split": {"column": "s"}}]),
    "deduplicated": ([PLAIN], [{**CREATED, "deduplicate": True}]),
    "only edges": ([{"type": "user"}], [FOLLOWS]),
    "two tables": ([DRAWN, TAG], [CREATED, {**HAS, "dangling": "drop", "reverse": True}]),
    "one end creates": ([PLAIN, TAG], [{**HAS, "dangling": "drop"}, DROPPED]),
    "both create": ([PLAIN, TAG], [{**OF, "dangling": "create"}, DROPPED]),
    "relations": ([PLAIN], [{**DROPPED, "relation": "r", "reverse": True, "split": {"column": "s"}}]),
}
KINDS = ("strings", "integers", "counting")


class SmallBound(bucket_files.MemoryBound):
    """A bound that a few thousand edges exceed many times over."""

    def __init__(self, total: int) -> None:
        self.total, self._held = total, {}

    @property
    def block_bytes(self) -> int:
        return max(1 << 14, self.total // 12)


@pytest.fixture
def bounded(monkeypatch):
    """`bounded(spec, out, total)` imports within so many bytes."""

    def run(spec: Path, out: Path, total: int):
        monkeypatch.setattr(importer, "MemoryBound", lambda _: SmallBound(total))
        return import_tables(spec, out, memory_gb=1.0)

    return run


def _names(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the table, and with some that it does not have."""
    if kind == "strings":
        known, more = [f"user {i}" for i in rng.permutation(VERTICES)], [f"new user {i}" for i in range(200)]
    elif kind == "integers":
        known, more = (rng.permutation(VERTICES) * 7 - 3).tolist(), range(100_000, 100_200)
    else:
        known, more = range(VERTICES), range(100_000, 100_200)
    return np.array(known), np.concatenate([known, more])


def _tables(bench: Workbench, kind: str) -> None:
    rng = np.random.default_rng(1)
    known, named = _names(kind, rng)
    splits = rng.choice([*SPLITS, ""], VERTICES)
    bench.table("users.parquet", {"id": known, "v": rng.random(VERTICES), "f": splits})
    sources, destinations = rng.choice(named, EDGES), rng.choice(named, EDGES)
    # One destination has more edges than fit, and most of them come from one source.
    destinations[:2500], sources[:1500] = named[5], named[7]
    fields = {"w": rng.random(EDGES), "t": rng.integers(0, 99, EDGES), "r": rng.choice(["x", "y", "z"], EDGES)}
    fields["s"] = rng.choice(SPLITS, EDGES, p=[0.8, 0.1, 0.1])
    bench.table("follows.parquet", {"a": sources, "b": destinations, **fields})
    tags = rng.choice([f"tag {i}" for i in range(500)], EDGES)
    bench.table("has.parquet", {"a": rng.choice(named, EDGES), "b": tags})


def _digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_is_the_same_whatever_the_bound(bench: Workbench, bounded, monkeypatch, kind, name) -> None:
    _tables(bench, kind)
    spec = bench.spec(*SPECS[name])
    import_tables(spec, bench.out)
    expected = _digests(bench.out)
    moved = []
    take = DiskIndex.take
    monkeypatch.setattr(DiskIndex, "take", lambda self, index: (moved.append(index.kind), take(self, index)))
    bounded(spec, bench.folder / "bounded", 30_000)
    assert _digests(bench.folder / "bounded") == expected
    # Ids that count take no memory, so they stay there unless others are created.
    assert moved or kind == "counting"
    assert not (bench.folder / "bounded" / "spool").exists()


def test_bounds_of_every_size(bench: Workbench, bounded) -> None:
    """From one that everything fits in to one that a table exceeds a hundred times."""
    _tables(bench, "strings")
    spec = bench.spec(*SPECS["created"])
    import_tables(spec, bench.out)
    expected = _digests(bench.out)
    for total in (1 << 30, 1_000_000, 300_000, 100_000, 20_000):
        bounded(spec, bench.folder / "bounded", total)
        assert _digests(bench.folder / "bounded") == expected, total
        shutil.rmtree(bench.folder / "bounded")


@pytest.mark.parametrize("total", [1 << 30, 20_000])
@pytest.mark.parametrize("kind", ["strings", "integers"])
def test_an_id_that_occurs_twice(bench: Workbench, bounded, kind, total) -> None:
    names = _names(kind, np.random.default_rng(1))[0]
    bench.table("1.parquet", {"id": names})
    bench.table("2.parquet", {"id": np.concatenate([names[:1] if kind == "integers" else ["x"], names[40:42]])})
    with pytest.raises(PenstockError) as caught:
        bounded(bench.spec([{**USERS, "files": ["1.parquet", "2.parquet"]}]), bench.out, total)
    row, earlier = (1, 1) if kind == "integers" else (2, 41)
    value = names[earlier - 1].item()
    assert f"2.parquet, row {row}, column 'id': id {value!r} occurs already in " in str(caught.value)
    assert f"1.parquet, row {earlier}: ids must be unique" in str(caught.value)


def test_dangling_edges_are_named(bench: Workbench, bounded) -> None:
    _tables(bench, "strings")
    spec = bench.spec([PLAIN], [FOLLOWS])
    said = bench.sentence_of(spec)
    with pytest.raises(PenstockError) as caught:
        bounded(spec, bench.out, 20_000)
    assert str(caught.value) == said and "name vertices that no node table has" in said


def test_too_little_memory_is_a_sentence(bench: Workbench, monkeypatch) -> None:
    _tables(bench, "counting")
    monkeypatch.setattr(bucket_files, "anonymous_mb", lambda: 100.0)
    with pytest.raises(PenstockError, match=r"--memory-gb 0.01 is too little for an import: give 0\.5 or more\."):
        import_tables(bench.spec([PLAIN]), bench.out, memory_gb=0.01)


def test_splits_are_drawn_block_by_block(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    monkeypatch.setattr("penstock.graph.data._DRAWN_ROWS", 7)
    for bins in (4, 1 << 20):
        monkeypatch.setattr("penstock.graph.data._DRAWN_BINS", bins)
        for count in (0, 1, 2, 20, 100):
            for ratios in ((0.6, 0.2, 0.2), (1, 0, 0), (0, 0, 0), (0.5, 0.1, 0.1), (0, 1, 0)):
                for eligible in (None, rng.integers(0, 2, count).astype(np.int8)):
                    rows = np.arange(count) if eligible is None else np.flatnonzero(eligible)
                    drawn = DrawnSplit(count, eligible, ratios, 5)
                    codes = np.concatenate(
                        [drawn.codes(start, min(start + 9, count)) for start in range(0, 120, 9) if start < count]
                        or [[]]
                    )
                    for code, (_, share) in enumerate(splits_by_ratio(rows, ratios, 5).items()):
                        assert np.array_equal(np.flatnonzero(codes == code), share)


# What an import will take.


@pytest.mark.parametrize("extension", ["parquet", "csv", "jsonl", "tsv.gz"])
def test_rows_are_counted_or_estimated(bench: Workbench, extension: str) -> None:
    rng = np.random.default_rng(0)
    for number, rows in enumerate((5000, 20_000, 7000)):
        ends = {end: rng.integers(1000, 3000, rows) for end in ("a", "b")}
        bench.table(f"follows/{number}.{extension}", ends)
    spec = bench.spec([{"type": "user"}], [{**FOLLOWS, "files": "follows"}])
    before = sorted(bench.folder.rglob("*"))
    plan = plan_import(spec, bench.out)
    assert sorted(bench.folder.rglob("*")) == before
    (table,) = plan.tables
    assert (table.table, table.files) == ("user__follows__user", 3)
    assert table.bytes == sum(path.stat().st_size for path in (bench.folder / "follows").iterdir())
    assert table.rows == 32_000 if extension == "parquet" else abs(table.rows - 32_000) < 1600
    assert plan.edges == {"user__follows__user": table.rows} and abs(plan.vertices["user"] - 2000) < 100


@pytest.mark.parametrize("name", SPECS)
def test_the_size_of_the_graph_is_predicted(bench: Workbench, name: str) -> None:
    """Neither held-out, dropped and repeated edges nor created vertices are known before."""
    _tables(bench, "strings")
    spec = bench.spec(*SPECS[name])
    plan = plan_import(spec, bench.out)
    graph = import_tables(spec, bench.out)
    size = sum(path.stat().st_size for path in bench.out.rglob("*") if path.is_file())
    assert 0.6 * size < plan.graph_bytes < 1.8 * size
    assert plan.graph_bytes < plan.disk_bytes < 4 * plan.graph_bytes and plan.free_disk_bytes > 0
    assert list(plan.vertices) == list(graph.nodes) and plan.seconds > 0


def test_memory_is_predicted_and_ids_go_to_disk(bench: Workbench, monkeypatch) -> None:
    _tables(bench, "strings")
    monkeypatch.setattr(importer, "anonymous_mb", lambda: 60.0)
    spec = bench.spec(*SPECS["two tables"])
    free = plan_import(spec, bench.out)
    monkeypatch.setattr(importer, "MemoryBound", lambda _: SmallBound(30_000))
    bounded = plan_import(spec, bench.out, 1.0)
    assert free.ids_on_disk == [] and bounded.ids_on_disk == ["user", "tag"]
    assert bounded.memory_bytes < free.memory_bytes and bounded.disk_bytes > free.disk_bytes
    assert bounded.graph_bytes == free.graph_bytes and bounded.seconds >= free.seconds
    _tables(bench, "counting")
    assert plan_import(bench.spec([PLAIN], [DROPPED]), bench.out, 1.0).ids_on_disk == []


def test_the_plan_of_the_command(bench: Workbench) -> None:
    _tables(bench, "strings")
    spec = bench.spec(*SPECS["created"])
    words = ["import", str(spec), "--out", str(bench.out), "--plan"]
    said = CliRunner().invoke(data, words, catch_exceptions=False)
    assert "user__follows__user: about 8,000 rows in 1 file" in said.stdout and "of disk" in said.stdout
    found = json.loads(CliRunner().invoke(data, [*words, "--json"], catch_exceptions=False).stdout)
    assert found["edges"] == {"user__follows__user": 8000} and found["tables"][0]["rows"] == VERTICES
    assert not bench.out.exists()
    with refused("conflicting-options --plan"):
        CliRunner().invoke(data, ["import", "some.npz", *words[2:]], catch_exceptions=False)
    with refused("conflicting-options --memory-gb"):
        command = ["import", "some.npz", "--out", str(bench.out), "--memory-gb", "1"]
        CliRunner().invoke(data, command, catch_exceptions=False)


# Mapped pages of files are the system's to keep or to drop; what counts is anonymous memory, which the process holds.
PROGRAM = """
import sys, threading
from penstock.graph.tables import import_tables
from penstock.memory import anonymous_mb
over, peak = threading.Event(), [0.0]

def watch():
    while not over.wait(0.002):
        peak[0] = max(peak[0], anonymous_mb())

threading.Thread(target=watch).start()
try:
    import_tables(sys.argv[1], sys.argv[2], memory_gb=float(sys.argv[3]))
finally:
    over.set()
print(peak[0])
"""


def _peak_mb(spec: Path, out: Path, memory_gb: float) -> float:
    words = [sys.executable, "-c", PROGRAM, spec, out, str(memory_gb)]
    return float(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="anonymous memory is read from /proc")
def test_anonymous_memory_stays_within_the_bound(bench: Workbench) -> None:
    """More than a million ids of 40 bytes and four million edges with a field, within 0.45 GB and without a bound."""
    rng = np.random.default_rng(0)
    names = pc.utf8_lpad(pa.array(rng.permutation(1_200_000)).cast(pa.string()), 40, "0")
    plain = {"use_dictionary": False, "compression": "none"}
    pq.write_table(pa.table({"id": names}), bench.folder / "users.parquet", **plain)
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("t", pa.int64())])
    with pq.ParquetWriter(bench.folder / "follows.parquet", schema, **plain) as writer:
        for _ in range(8):
            ends = [names.take(pa.array(rng.integers(0, len(names), 500_000))) for _ in range(2)]
            writer.write_table(pa.table([*ends, pa.array(rng.integers(0, 99, 500_000))], schema=schema))
    spec = bench.spec([USERS], [{**FOLLOWS, "time": "t"}])
    within = _peak_mb(spec, bench.out, 0.45)
    import_tables(spec, bench.folder / "unbounded")
    assert _digests(bench.out) == _digests(bench.folder / "unbounded")
    assert within * (1 << 20) < 0.45e9
