"""Training on features larger than memory: mapped, and read past the page cache with and without cached rows.

A graph whose vertices are drawn by a power law is made in FOLDER, with a features file of some gigabytes. Then the same
job trains some epochs under each way and each limit, in a control group of its own whose memory, page cache included,
is limited to a share of the features' size (Linux, as root). `advised` is mapped with the advice that reads are random,
which turns the system's reading ahead off. Caches are dropped before each. Beside each reading past the cache, fio
reads random places of the same file by requests of the same mean size, as many at a time.

Run: python benchmarks/disk_features.py FOLDER [--gigabytes 8] [--columns 256] [--epochs 2] [--json]
"""

import argparse
import json
import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CLASSES, TRAINED = 16, 32768
JOB = {"model": "sage", "hidden": 64, "fanouts": [10, 5], "batch_size": 512, "device": "cpu", "threads": 2, "lr": 0.001}
WAYS: dict[str, dict[str, Any]] = {
    "mapped": {"features": "host"},
    "advised": {"features": "host"},
    "packed": {"features": "disk", "cache_rows": 0},
    "cached": {"features": "disk"},
}
LIMITS = (2, 4, 8)
"""Of the features' size the limit is a half, a quarter, and an eighth."""
_BLOCK, _DEPTH, _FIO_SECONDS = 1 << 22, 32, 5


def make_graph(folder: Path, gigabytes: float, columns: int) -> None:
    """Write a graph whose vertices are neighbours, and seeds' neighbours, by a power law."""
    from penstock import EdgeSet, Graph, NodeSet

    count, rng = int(gigabytes * 1e9 / 4 / columns), np.random.default_rng(0)
    lengths = np.minimum(rng.pareto(1.5, count) * 2 + 2, 1000).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    names = rng.permutation(count).astype(np.int32)
    indices = np.empty(indptr[-1], np.int32)
    for start in range(0, len(indices), _BLOCK):
        some = indices[start : start + _BLOCK]
        some[:] = names[(count * rng.random(len(some)) ** 4).astype(np.int64)]
    # Every row is other numbers of one block, so that the file is made without being held in memory.
    block = rng.standard_normal(count + columns).astype(np.float32)
    x = np.lib.stride_tricks.as_strided(block, (count, columns), (4, 4), writeable=False)
    train, val, test = np.split(rng.permutation(count)[: TRAINED + 20], [TRAINED, TRAINED + 10])
    splits = {"train": train, "val": val, "test": test}
    y = rng.integers(0, CLASSES, count)
    nodes = NodeSet(count, {"x": x, "y": y}, splits)
    Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "power-law").save(folder)


def train(graph: str, way: str, epochs: int, seconds: float) -> dict[str, Any]:
    """Seconds and bytes read of an epoch, and all losses. The first epoch, which compiles and fills the cache, does not
    count, or a third of the `seconds`, which a run ends with at the latest.
    """
    from penstock.graph.folder import Graph
    from penstock.pipeline.schedule import START, Schedule
    from penstock.store.disk_rows import DiskRows
    from penstock.train.build import make_session
    from penstock.train.job import job_of
    from penstock.train.run_context import run_context

    loaded = Graph.open(graph)
    if way == "memory":
        (nodes,) = loaded.nodes.values()
        nodes.fields["x"] = np.array(nodes.fields["x"])
    if way == "advised":
        loaded.nodes["node"].fields["x"].base._mmap.madvise(mmap.MADV_RANDOM)
    job = job_of({"graph": graph, **JOB, **({"placement": WAYS[way]} if way in WAYS else {})})
    with run_context(job):
        session = make_session(job, loaded)
        (source,) = session.inputs.sources.values()
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, epochs + 1)
        begun, losses, first = time.perf_counter(), list[float](), None
        with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
            for done in steps:
                losses += [step.loss for step in done]
                now = time.perf_counter()
                if first is None and (len(losses) >= schedule.batches or now - begun > seconds / 3):
                    first = len(losses), now, bytes_read()
                if first is not None and now - begun > seconds and len(losses) > first[0]:
                    break
    assert first is not None
    share = (len(losses) - first[0]) / schedule.batches
    found = {
        "epochs": share,
        "seconds": (now - first[1]) / share,
        "gigabytes": (bytes_read() - first[2]) / share / 1e9,
        "losses": np.array(losses).tobytes().hex(),
        "threads": session.job.reading_threads,
    }
    if isinstance(source, DiskRows):
        found |= {"hit_rate": source.hit_rate(), "request": source.bytes_read / max(1, source.requests),
                  "cache": source.memory_bytes / 1e9, "reading": source.bytes_read / source.read_seconds}  # fmt: skip
    return found


def bytes_read() -> int:
    """Bytes that this process has had read from a disk, page faults included."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def limited(graph: Path, way: str, limit: int | None, options: argparse.Namespace) -> dict[str, Any] | str:
    """A run of `train` in a control group; the error's last line where it fails."""
    group = Path("/sys/fs/cgroup/memory") / f"disk-features-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit or -1))
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        command = [sys.executable, __file__, str(graph), "--train", way]
        command += ["--epochs", str(options.epochs), "--seconds", str(options.seconds)]
        enter = lambda: (group / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=enter)
        if done.returncode:
            return done.stderr.strip().rpartition("\n")[2] or f"ended with status {done.returncode}"
        return json.loads(done.stdout.splitlines()[-1])
    finally:
        group.rmdir()


def fio(file: Path, size: float) -> float | None:
    """Bytes a second of random direct reads of about a size; None where fio is not installed."""
    if shutil.which("fio") is None:
        return None
    block = max(1, round(size / 4096)) * 4096
    command = ["fio", "--name=read", f"--filename={file}", "--rw=randread", f"--bs={block}", "--direct=1",
               "--ioengine=libaio", f"--iodepth={_DEPTH}", f"--runtime={_FIO_SECONDS}", "--time_based",
               "--readonly", "--output-format=json"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gigabytes", type=float, default=8)
    parser.add_argument("--columns", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2, help="epochs that are timed, after one that is not")
    parser.add_argument("--seconds", type=float, default=120, help="no run trains for longer than about this")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--limits", default=",".join(map(str, LIMITS)))
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--keep", action="store_true", help="leave the graph in FOLDER for another time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(str(options.folder), options.train, options.epochs, options.seconds)))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    graph = options.folder / "graph"
    if not graph.exists():
        make_graph(graph, options.gigabytes, options.columns)
    (features,) = graph.rglob("field.x.npy")
    size = features.stat().st_size
    rows = [("memory", None)]
    rows += [(way, int(limit)) for limit in options.limits.split(",") for way in options.ways.split(",")]
    table = []
    for way, share in rows:
        found = limited(graph, way, share and size // share, options)
        row: dict[str, Any] = {"way": way, "limit": f"1/{share}" if share else "none"}
        if isinstance(found, str):
            row["failed"] = found
        else:
            row |= found
            if "request" in found:
                row["fio"] = fio(features, found["request"])
        table.append(row)
        if not options.json:
            print(text_of(row, table[0]), flush=True)
    if options.json:
        print(json.dumps(table, indent=1))
    if not options.keep:
        shutil.rmtree(graph)


def text_of(row: dict[str, Any], first: dict[str, Any]) -> str:
    """A row of the table as a line."""
    begin = f"{row['way']:7} limit {row['limit']:5}"
    if "failed" in row:
        return f"{begin} {row['failed']}"
    same = "equal losses" if first.get("losses", "").startswith(row["losses"]) else "OTHER LOSSES"
    line = f"{begin} {row['seconds']:8.2f} s/epoch {row['gigabytes']:7.2f} GB/epoch, {row['threads']} threads, {same}"
    line += f", {row['epochs']:.2f} epochs"
    if "request" in row:
        line += f", hits {row['hit_rate']:.0%}, cache {row['cache']:.2f} GB, {row['request'] / 1024:.1f} KiB a request"
        line += f", {row['reading'] / 1e6:.0f} MB/s while reading"
        line += f", fio {row['fio'] / 1e6:.0f} MB/s" if row["fio"] else ""
    return line


if __name__ == "__main__":
    main()
