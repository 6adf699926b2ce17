"""The anonymous memory of a worker of a cut graph as its vertices grow, while its edges, splits and batches do not.

A partition of two parts is made, not cut: each part has half of the vertices, every second one in the original order,
and its last 20,000 have 60,000 edges in lists of their own. What is zero in its files takes no room on the disk. A
worker's real session has part 0 mapped and part 1 at another task, draws and labels batches, and reads the whole
neighbourhoods of the validation split; in case `inference` also those of its own part, chunk by chunk. The measure is
the most that `RssAnon` of the worker's process was, looked at every 5 ms, and what it was at the end. With `--train` it
is the highest of the workers of a whole `penstock train` with exact inference, of two machines that are this one.

Run: python benchmarks/worker_memory.py [--vertices 10000000 100000000] [--cases neighbour times links]
     [--batches 20] [--train] [--folder FOLDER] [--json results.json]
"""

import argparse
import gc
import hashlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.partition import open_partition

LINKED, EDGES, CLASSES, PAIRS = 20_000, 60_000, 4, 500
"""Vertices of each part that have lists, edges in them, different labels, and pairs that each split holds out."""
HELD_OUT = ("val", "test")
KIND = ("node", "to", "node")
TRIPLES = {"task": "knowledge-graph-completion"}
CASES: dict[str, dict[str, Any]] = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "times": {"time": "node:y"},
    "links": {"task": "link-prediction", "held_out": [0.05, 0.1], "rank_against": 100},
    "triples": TRIPLES,
    "inference": {},
}
_BLOCK = 1 << 22


def sparse_array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A new `.npy` file of zeros, for writing; what stays zero takes no blocks of the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return np.lib.format.open_memmap(path, "w+", dtype, shape)


def make_partition(folder: Path, count: int) -> None:
    """The made partition of `count` vertices (see the beginning of this file)."""
    half, rng = count // 2, np.random.default_rng(0)
    original = sparse_array(folder / "original.npy", np.int64, (count,))
    for part in range(2):
        for start in range(0, half, _BLOCK):
            rows = np.arange(start, min(start + _BLOCK, half))
            original[part * half + rows] = 2 * rows + part
        _make_part(folder / f"part{part}", part, half, rng)
    document = {
        "format": "penstock-partition", "version": 1, "graph": f"made of {count}", "method": "made",
        "parts": 2, "trainers": 1, "seed": 0, "balance": ["vertices"], "tolerance": 1.05,
        "node_types": {"node": {"count": count, "original_offset": 0, "ranges": [[0, half], [half, 2 * half]]}},
        "edge_ranges": {"__".join(KIND): [0, EDGES, 2 * EDGES]}, "metrics": {}, "trainer_balance": {},
    }  # fmt: skip
    (folder / "partition.json").write_text(json.dumps(document))


def _make_part(folder: Path, part: int, half: int, rng: np.random.Generator) -> None:
    nodes, edges = folder / "nodes" / "node", folder / "edges" / "__".join(KIND)
    last = half - LINKED
    sparse_array(nodes / "field.x.npy", np.float32, (half, 2))[last:] = rng.random((LINKED, 2), np.float32)
    sparse_array(nodes / "field.y.npy", np.int64, (half,))[last:] = rng.integers(0, CLASSES, LINKED)
    ends = rng.integers(0, LINKED, (2, EDGES)) + last
    lists: list[list[int]] = [[] for _ in range(LINKED)]
    for row, source in zip(ends[0] - last, ends[1] + half * rng.integers(0, 2, EDGES), strict=True):
        lists[row].append(int(source))
    # Lists ascend by original number: that of a vertex is twice its row, and one more in part 1.
    ordered = [sorted(each, key=lambda vertex: (vertex % half, vertex)) for each in lists]
    indptr = sparse_array(edges / "indptr.npy", np.int64, (half + 1,))
    indptr[last + 1 :] = np.cumsum([len(each) for each in ordered])
    kind = np.int32 if 2 * half <= np.iinfo(np.int32).max else np.int64
    np.save(edges / "indices.npy", np.concatenate([np.array(each, kind) for each in ordered]))
    rows = {"train": slice(0, None, 4), "val": slice(1, None, 8), "test": slice(2, None, 8)}
    splits = {name: np.arange(last, half)[some] for name, some in rows.items()}
    for name, some in splits.items():
        np.save(nodes / f"split.{name}.npy", some)
    np.save(nodes / "halo.npy", np.empty(0, np.int64))
    for name in HELD_OUT:
        pairs = rng.integers(half - LINKED, half, (PAIRS, 2))
        pairs[:, 1] += part * half
        np.save(edges / f"held_out.{name}.npy", pairs)
        np.save(edges / f"place.{name}.npy", np.arange(PAIRS) + part * PAIRS)
    fields = {"x": {"dtype": "float32", "shape": [half, 2]}, "y": {"dtype": "int64", "shape": [half]}}
    described = {"count": half, "first": part * half, "total": 2 * half, "fields": fields}
    described["splits"] = {name: len(some) for name, some in splits.items()}
    relation = {
        "source": "node", "relation": "to", "destination": "node", "count": EDGES,
        "index_dtype": np.dtype(kind).name, "fields": {}, "held_out": {},
    }  # fmt: skip
    document = {
        "format": "penstock-graph", "version": 1, "name": f"part {part}", "origin": {"part": part},
        "node_types": {"node": described}, "edge_types": {"__".join(KIND): relation},
    }  # fmt: skip
    (folder / "graph.json").write_text(json.dumps(document))


def hold_out(folder: Path, said: bool) -> None:
    """Say in the parts' documents that pairs are held out, or that none are."""
    for part in range(2):
        path = folder / f"part{part}" / "graph.json"
        document = json.loads(path.read_text())
        document["edge_types"]["__".join(KIND)]["held_out"] = dict.fromkeys(HELD_OUT, PAIRS) if said else {}
        path.write_text(json.dumps(document))


@contextmanager
def watched_memory() -> Iterator[list[float]]:
    """The most anonymous megabytes that this process has meanwhile, looked at every 5 ms, and those at the end."""
    found, stopped = [0.0, 0.0], threading.Event()

    def look() -> None:
        while not stopped.wait(0.005):
            found[0] = max(found[0], anonymous_mb())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stopped.set()
        thread.join()
        gc.collect()
        found[1] = anonymous_mb()
        found[0] = max(found)


def anonymous_mb(process: str = "self") -> float:
    """Megabytes of a process that are no pages of files."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1e3
    raise OSError("This system does not say what of a process's memory is anonymous.")


def measure(folder: Path, case: str, batches: int) -> dict[str, Any]:
    """What a worker takes in one case, how long it takes to be ready, and a digest of its batches."""
    sys.path[:0] = [str(Path(__file__).parent.parent / "tests")]
    import torch

    from cluster_runs import running_worker  # a module of the tests
    from penstock.cluster.worker.cut_graph import Parts
    from penstock.cluster.worker.layerwise import PartedPlan
    from penstock.cluster.worker.session import make_parted_session
    from penstock.pipeline.schedule import Schedule
    from penstock.train.job import make_job

    torch.set_num_threads(1)
    hold_out(folder, case == "triples")
    partition = open_partition(folder)
    partition.original()
    options = {"batch_size": 1000, "hidden": 16, "fanouts": [10, 5], "threads": 1, **CASES[case]}
    job, digest = make_job({"graph": str(folder), **options}), hashlib.sha256()
    found: dict[str, Any] = {"case": case, "vertices": partition.book.count(), "idle_mb": anonymous_mb()}
    with tempfile.TemporaryDirectory() as run, running_worker(partition, job, Path(run) / "run") as member:
        with watched_memory() as memory:
            start = time.perf_counter()
            parts = Parts(member)
            session, group = make_parted_session(parts, job)
            found["ready_s"] = time.perf_counter() - start
            schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed)
            start = time.perf_counter()
            for planned, _ in zip(schedule.from_position(), range(batches), strict=False):
                batch = session.task.sample(group.share(planned))
                session.task.label(batch)
                for arrays in (batch.seeds, batch.vertices):
                    digest.update(b"".join(np.asarray(some, np.int64).tobytes() for some in arrays.values()))
                for block in batch.blocks:
                    digest.update(block.indices.tobytes())
            found["batch_ms"] = 1e3 * (time.perf_counter() - start) / batches
            plan = PartedPlan(session, parts, SimpleNamespace(rank=0, world=1, barrier=lambda name: None), "memory")
            for _ in plan.neighbourhoods("node", np.sort(_some_vertices(session, partition.book.count()))):
                pass
            if case == "inference":
                plan.start({"node": np.arange(0)}, 2, 2)
                for _ in plan.chunks(0):
                    pass
        found |= {"peak_mb": memory[0], "end_mb": memory[1], "batches": digest.hexdigest()[:16]}
    return found


def _some_vertices(session: Any, count: int) -> Any:
    """The validation split, or as many vertices."""
    splits = session.graph.nodes["node"].splits
    return splits["val"] if "val" in splits else np.arange(count - 1000, count)


def train(folder: Path, case: str) -> dict[str, Any]:
    """The most that each kind of task takes in a whole run on two machines, and the run's losses and metrics."""
    hold_out(folder, case == "triples")
    with tempfile.TemporaryDirectory() as run:
        cluster, job = Path(run) / "cluster.json", Path(run) / "job.json"
        machines = [{"name": f"m{number}", "workers": 1} for number in range(2)]
        cluster.write_text(json.dumps({"partition": str(folder), "machines": machines}))
        options = {"batch_size": 1000, "hidden": 16, "fanouts": [10, 5], "epochs": 2, "threads": 1, **CASES[case]}
        job.write_text(json.dumps({"graph": str(folder), "run": str(Path(run) / "run"), **options}))
        words = [sys.executable, "-m", "penstock", "train", str(job), "--cluster", str(cluster), "--json"]
        start = time.perf_counter()
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command:
            peaks = _peaks_of_tasks(command, Path(run))
            said = json.loads(command.stdout.read() if command.stdout else "")
        seconds, lines = time.perf_counter() - start, (Path(run) / "run" / "metrics.jsonl").read_text().splitlines()
    found = [{key: value for key, value in json.loads(line).items() if key in ("loss", "val")} for line in lines]
    digest = hashlib.sha256(json.dumps([found, said.get("best"), said.get("test")]).encode()).hexdigest()[:16]
    found_by_kind = {f"{kind}_mb": peak for kind, peak in peaks.items()}
    return {
        "case": case,
        "vertices": open_partition(folder).book.count(),
        "s": seconds,
        **found_by_kind,
        "losses": digest,
    }


def _peaks_of_tasks(command: "subprocess.Popen[str]", run: Path) -> dict[str, float]:
    """The highest anonymous megabytes by kind of task until a command ends; a task writes to the log of its name."""
    peaks: dict[str, float] = {}
    while command.poll() is None:
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                log = (process / "fd" / "1").readlink() if process.name.isdigit() else Path()
                if run in log.parents and log.suffix == ".log":
                    kind = log.stem.split("-")[0]
                    peaks[kind] = max(peaks.get(kind, 0.0), anonymous_mb(process.name))
        time.sleep(0.05)
    return peaks


def _measured_apart(folder: Path, case: str, batches: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    words = [sys.executable, __file__, "--measure", case, "--folder", str(folder), "--batches", str(batches)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--vertices", nargs="+", type=int, default=[10**7, 10**8])
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--batches", type=int, default=20)
    options.add_argument("--train", action="store_true")
    options.add_argument("--folder", type=Path)
    options.add_argument("--json", type=Path)
    options.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.measure:
        print(json.dumps(measure(given.folder, given.measure, given.batches)))
        return
    results = []
    for count in given.vertices:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            make_partition(Path(folder), count)
            for case in given.cases:
                place = Path(folder)
                found = train(place, case) if given.train else _measured_apart(place, case, given.batches)
                results.append(found)
                print(" ".join(f"{name} {_shown(value)}" for name, value in found.items()), flush=True)
    if given.json:
        given.json.write_text(json.dumps(results, indent=1))


def _shown(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
