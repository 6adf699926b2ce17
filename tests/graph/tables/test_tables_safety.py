"""Interruption leaves nothing, and memory follows the graph, not the tables."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tables_workbench import FOLLOWS, USERS, Workbench

from penstock.graph import Graph
from penstock.graph.tables import export_tables, import_tables
from penstock.progress import Progress

STANDARD = [{"column": "v", "standardise": True}]


class Interrupting(Progress):
    """Ctrl-C at the n-th sign of life."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def start(self, what: str, total: int, unit: str) -> None:
        self.advance(0)

    def advance(self, amount: int) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt


def _people(bench: Workbench) -> Path:
    bench.table("users.parquet", {"id": ["a", "b"], "v": [1.0, 2.0]})
    bench.table("follows.parquet", {"a": ["a", "b"], "b": ["b", "q"], "v": [1.0, 2.0]})
    edges = {**FOLLOWS, "features": STANDARD, "dangling": "create", "reverse": True}
    return bench.spec([{**USERS, "features": STANDARD}], [edges])


def test_interrupted_anywhere(bench: Workbench) -> None:
    spec = _people(bench)
    before = sorted(bench.folder.rglob("*"))
    for calls in range(1, 100):
        try:
            import_tables(spec, bench.out, progress=Interrupting(calls))
        except KeyboardInterrupt:
            assert sorted(bench.folder.rglob("*")) == before
        else:
            break
    assert calls > 10
    assert not list(bench.folder.glob(".*"))
    assert not (bench.out / "spool").exists()


def test_interrupted_replacement_keeps_the_old_folder(bench: Workbench) -> None:
    spec = _people(bench)
    import_tables(spec, bench.out)
    stamp = (bench.out / "graph.json").stat().st_mtime_ns
    with pytest.raises(KeyboardInterrupt):
        import_tables(spec, bench.out, force=True, progress=Interrupting(8))
    assert (bench.out / "graph.json").stat().st_mtime_ns == stamp
    assert Graph.open(bench.out).num_edges == 4
    assert not list(bench.folder.glob(".*"))


def test_interrupted_export(bench: Workbench) -> None:
    graph = import_tables(_people(bench), bench.out)
    for calls in (1, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            export_tables(graph, bench.folder / "tables", progress=Interrupting(calls))
        assert not (bench.folder / "tables").exists() and not list(bench.folder.glob(".*"))


# Not ru_maxrss, which a child inherits from the process that started it.
PROGRAM = """
import re, sys
from pathlib import Path
from penstock.graph.tables import import_tables
import_tables(sys.argv[1], sys.argv[2])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def _peak_mb(spec: Path, out: Path) -> float:
    done = subprocess.run([sys.executable, "-c", PROGRAM, spec, out], check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_is_that_of_the_graph(bench: Workbench) -> None:
    """300 MB of edges in memory if read whole, 6 MB of graph."""
    names = pa.array([f"{i:0100d}" for i in range(1000)])
    bench.table("users.parquet", {"id": names})
    bench.table("follows.parquet", {"a": names[:1], "b": names[:1]})
    idle = _peak_mb(bench.spec([USERS], [FOLLOWS]), bench.folder / "small")
    rng = np.random.default_rng(0)
    rows = {end: names.take(pa.array(rng.integers(0, 1000, 1_500_000))) for end in ("a", "b")}
    pq.write_table(pa.table(rows), bench.folder / "follows.parquet", use_dictionary=False, compression="zstd")
    busy = _peak_mb(bench.spec([USERS], [FOLLOWS]), bench.folder / "large")
    assert Graph.open(bench.folder / "large").num_edges == 1_500_000
    assert busy - idle < 200, (idle, busy)
