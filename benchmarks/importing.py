"""How long does an import take, beside pyarrow just reading the same files?

    python benchmarks/importing.py --edges 25000000 --nodes 500000 --json-out importing.json
    python benchmarks/importing.py --edges 100000000 --nodes 10000000 --memory-gb 0.5 1 --rounds 1

The import runs through the command line in a process of its own, and so does the plain read, both several times. With
--memory-gb it also runs within each of those bounds, and the folders are compared byte for byte. Anonymous memory is
read from the system every 5 ms; mapped file pages are no part of it.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

FEATURES = 8

MAKE = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
folder, nodes, edges, features = Path(sys.argv[1]), *map(int, sys.argv[2:])
rng = np.random.default_rng(0)
names = pa.array([f"user_{i}" for i in rng.permutation(nodes)])
columns = {f"f{k}": rng.standard_normal(nodes).astype(np.float32) for k in range(features)}
pq.write_table(pa.table({"user_id": names, **columns}), folder / "users.parquet")
schema = pa.schema([("source", pa.string()), ("destination", pa.string())])
with pq.ParquetWriter(folder / "edges.parquet", schema) as writer:
    for start in range(0, edges, 1_000_000):
        rows = min(1_000_000, edges - start)
        ends = [names.take(pa.array(rng.integers(0, nodes, rows))) for _ in schema]
        writer.write_table(pa.table(ends, schema=schema))
"""

READ = """
import sys, time
import pyarrow.parquet as pq
start = time.perf_counter()
tables = [pq.read_table(path) for path in sys.argv[1:]]
print(time.perf_counter() - start)
"""

SPEC = f"""
name: importing
nodes:
  - {{type: user, files: users.parquet, id: user_id, features: [{", ".join(f"f{k}" for k in range(FEATURES))}]}}
edges:
  - {{type: [user, follows, user], files: edges.parquet, source: source, destination: destination}}
"""


def main() -> None:
    """Make the tables, time both ways of reading them, print and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=25_000_000)
    parser.add_argument("--nodes", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory-gb", type=float, nargs="*", default=[])
    parser.add_argument("--json-out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Made by another process: a child's peak memory counts what its parent held when it was started.
        sizes = [str(options.nodes), str(options.edges), str(FEATURES)]
        subprocess.run([sys.executable, "-c", MAKE, name, *sizes], check=True)
        (folder / "spec.yaml").write_text(SPEC)
        rounds = [{"read": _plain_read(folder), "import": _import(folder)} for _ in range(options.rounds)]
        bounded = {gb: _bounded(folder, gb, options.rounds) for gb in options.memory_gb}
    result = {
        "edges": options.edges,
        "nodes": options.nodes,
        "cores": len(os.sched_getaffinity(0)),
        "table_bytes": rounds[0]["read"]["bytes"],
        "read": _middle(rounds, "read"),
        "import": _middle(rounds, "import"),
        "bounded": bounded,
    }
    result["ratio"] = round(result["import"]["seconds"] / result["read"]["seconds"], 2)
    _print(result)
    if options.json_out:
        options.json_out.write_text(json.dumps(result, indent=1) + "\n")


def _plain_read(folder: Path) -> dict[str, float]:
    """pyarrow reading both tables whole."""
    files = [folder / "users.parquet", folder / "edges.parquet"]
    done, usage, _ = _run([sys.executable, "-c", READ, *map(str, files)])
    peak = usage.ru_maxrss / 1024
    return {
        "seconds": float(done),
        "peak_rss_mb": peak,
        "peak_anonymous_mb": usage.anonymous_mb,
        "cpu_seconds": usage.cpu_seconds,
        "bytes": sum(file.stat().st_size for file in files),
    }


def _bounded(folder: Path, memory_gb: float, rounds: int) -> dict[str, float]:
    """The same within a bound, after which the folder must be the same."""
    runs = [_import(folder, "bounded", "--memory-gb", str(memory_gb)) for _ in range(rounds)]
    if _digests(folder / "bounded") != _digests(folder / "out"):
        raise SystemExit(f"the import within {memory_gb} GB made another graph")
    return _middle([{"import": run} for run in runs], "import")


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in sorted(folder.rglob("*.*")):
        with path.open("rb") as file:
            found[str(path.relative_to(folder))] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _import(folder: Path, out: str = "out", *options: str) -> dict[str, float]:
    """`penstock data import`, as it says itself and by the clock."""
    program = "from penstock.cli import main; main()"
    words = ["data", "import", str(folder / "spec.yaml"), "--out", str(folder / out), "--force", "--json", *options]
    done, usage, wall = _run([sys.executable, "-c", program, *words])
    said = json.loads(done)
    return {
        "seconds": said["seconds"],
        "peak_rss_mb": said["peak_rss_mb"],
        "peak_anonymous_mb": usage.anonymous_mb,
        "cpu_seconds": usage.cpu_seconds,
        "wall_seconds": wall,
    }


def _run(command: list[str]) -> tuple[str, Any, float]:
    """What a process prints, the resources it used, and its wall time in seconds."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    over, peak = threading.Event(), [0.0]
    watch = threading.Thread(target=_watch, args=(process.pid, over, peak))
    watch.start()
    printed = process.stdout.read()
    over.set()
    watch.join()
    _, status, used = os.wait4(process.pid, 0)
    cpu = used.ru_utime + used.ru_stime
    usage = SimpleNamespace(ru_maxrss=used.ru_maxrss, anonymous_mb=peak[0], cpu_seconds=cpu)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:3])} ended with {process.returncode}")
    return printed, usage, time.perf_counter() - start


def _watch(process: int, over: threading.Event, peak: list[float]) -> None:
    """The most anonymous megabytes that a process has had, looked at every 5 ms."""
    while not over.wait(0.005):
        status = Path(f"/proc/{process}/status")
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("RssAnon:"):
                peak[0] = max(peak[0], int(line.split()[1]) / 1024)


def _middle(rounds: list[dict[str, dict[str, float]]], what: str) -> dict[str, float]:
    return {key: round(median(each[what][key] for each in rounds), 3) for key in rounds[0][what] if key != "bytes"}


def _print(result: dict[str, Any]) -> None:
    table = Table("", "seconds", "CPU seconds", "peak memory", "anonymous", box=None)
    rows = {"pyarrow read_table": result["read"], "penstock data import": result["import"]}
    rows |= {f"--memory-gb {gb:g}, the same bytes": found for gb, found in result["bounded"].items()}
    for label, found in rows.items():
        sizes = (f"{found[key]:,.0f} MB" for key in ("peak_rss_mb", "peak_anonymous_mb"))
        table.add_row(label, f"{found['seconds']:.2f}", f"{found['cpu_seconds']:.2f}", *sizes)
    console = Console()
    console.print(
        f"{result['edges']:,} edges with string ids, {result['nodes']:,} vertices with {FEATURES} features,"
        f" {result['table_bytes'] / 1e6:,.0f} MB of Parquet, {result['cores']} cores"
    )
    console.print(table)
    console.print(f"The import takes {result['ratio']} times as long as the plain read.")


if __name__ == "__main__":
    main()
