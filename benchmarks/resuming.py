"""Does a run that was disturbed at a random step end with the same weights as one that was not?

Trains a small model once undisturbed; then, for every try, starts `penstock train`, disturbs it when it has recorded a
random step, goes on with `penstock train --resume` and compares the last checkpoints bit for bit (weights,
embeddings, optimiser, schedule, position). Kinds take turns: SIGKILL (`kill`), after which the newest checkpoint may be
damaged in an array's header (`header`), cut short (`cut`) or a named pipe (`pipe`); SIGTERM (`term`), Ctrl-C
(`interrupt`), and a disk that is full at a checkpoint (`full-disk`, with root). No traceback may be printed, and no
unfinished file left.
Run: python benchmarks/resuming.py [--tries 20] [--kinds kill ...] [--seed 0] [--json]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.train.run_files.checkpoints import read_best, read_state

PENSTOCK = [sys.executable, "-c", "from penstock.cli import main; main()"]
STEPS = 5
"""Steps between checkpoints: a kill falls between two of them."""
JOB = {
    "fanouts": "5,5",
    "hidden": 32,
    "embedding": 16,
    "batch-size": 32,
    "epochs": 60,
    "norm": "batch",
    "schedule": "ExponentialLR",
    "schedule-options": "{gamma: 0.99}",
    "evaluate-every": 5,
    "checkpoint-steps": STEPS,
    "checkpoint-minutes": 0,
    "threads": 1,
    "sample-threads": 2,
}
FLAGS = [part for name, value in JOB.items() for part in (f"--{name}", str(value))]


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), arguments.tries, arguments.seed, arguments.kinds)
    equal = sum(row["equal"] for row in rows)
    if arguments.json:
        print(json.dumps({"tries": len(rows), "equal": equal, "rows": rows}))
    else:
        _print(rows, equal)
    sys.exit(equal != len(rows))


def measure(folder: Path, tries: int, seed: int, kinds: list[str]) -> list[dict[str, Any]]:
    """One row a try: where it was disturbed, where it went on from, and whether it ended like the undisturbed run."""
    small_graph().save(folder / "graph")
    _command("train", *_job(folder, folder / "whole"))
    whole = _newest(folder / "whole")
    steps = int(whole["standing"]["step"])
    draws = random.Random(seed)
    rows = []
    for number in range(tries):
        kind = kinds[number % len(kinds)]
        with _place(folder, kind) as place:
            run = place / f"run-{number}"
            # At least two checkpoints, so that there is one before the newest.
            at = _disturb(folder, run, kind, draws.randrange(3 * STEPS, steps * 3 // 4))
            newest = max((run / "checkpoints").glob("step-*.ckpt"))
            if kind in DAMAGES:
                DAMAGES[kind](newest)
            said = _command("train", "--resume", str(run))
            same = equal(whole, _newest(run)) and equal(_best(folder / "whole"), _best(run))
            left = [path.name for path in run.rglob("*.writing-*")]
            rows.append({"try": number + 1, "kind": kind, "steps": steps, "disturbed_after": at})
            rows[-1] |= {"went_on_from": _resumed_at(run), "newest": _step(newest), "said": said, "left": left}
            rows[-1]["equal"] = same and not left and (kind not in DAMAGES or "instead" in said)
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def small_graph(count: int = 400, classes: int = 5) -> Graph:
    """Communities without features: the vertices' embeddings are learned too."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, count)
    near = [rng.choice(np.flatnonzero(y == kind), 6) for kind in y]
    src, dst = np.concatenate(near), np.repeat(np.arange(count), 6)
    indptr, indices, _ = build_lists(np.append(src, dst), np.append(dst, src), count, count)
    order = rng.permutation(count)
    parts = zip(("train", "val", "test"), np.split(order, [count // 2, count * 3 // 4]), strict=True)
    nodes = NodeSet(count, {"y": y}, {name: np.sort(part) for name, part in parts})
    return Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "small")


def equal(a: Any, b: Any) -> bool:
    """Whether two states are the same bit for bit; seconds are left out."""
    if isinstance(a, dict):
        timed = {"elapsed", "epoch_seconds"}
        return set(a) == set(b) and all(key in timed or equal(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "shape"):
        return a.dtype == b.dtype and np.asarray(a).tobytes() == np.asarray(b).tobytes()
    return bool(a == b or (a != a and b != b))


def _disturb(folder: Path, run: Path, kind: str, step: int) -> int:
    """Disturb a new run once it has recorded a step; the step it had reached by then."""
    process = subprocess.Popen(
        [*PENSTOCK, "train", *_job(folder, run)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while (reached := _recorded(run)) < step:
        if process.poll() is not None:
            raise SystemExit(f"The run ended before step {step}, with exit code {process.returncode}.")
        time.sleep(0.001)
    filler = run.parent / "filler"
    if kind == "full-disk":
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(1 << 12)):
                pass
    else:
        process.send_signal({"term": signal.SIGTERM, "interrupt": signal.SIGINT}.get(kind, signal.SIGKILL))
    _, complaint = process.communicate(timeout=300)
    filler.unlink(missing_ok=True)
    expected = {"term": 130, "interrupt": 130, "full-disk": 2}.get(kind, -signal.SIGKILL)
    if process.returncode != expected or "Traceback" in complaint:
        raise SystemExit(f"{kind}: the run ended with {process.returncode}, not {expected}: {complaint}")
    return reached


@contextmanager
def _place(folder: Path, kind: str) -> Iterator[Path]:
    """Where a run lies: on a small disk of its own where that is to be filled."""
    if kind != "full-disk":
        yield folder
        return
    disk = folder / "disk"
    disk.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)], check=True)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _damage_header(file: Path) -> None:
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        arrays = [info for info in archive.infolist() if info.filename.endswith(".npy")]
    largest = max(arrays, key=lambda info: info.file_size)
    content[content.index(b"}", largest.header_offset)] = ord(" ")
    file.write_bytes(content)


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def _make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


DAMAGES = {"header": _damage_header, "cut": _cut, "pipe": _make_pipe}
"""What happens to the newest checkpoint of a run that was killed."""
KINDS = ["kill", "term", "interrupt", "full-disk", *DAMAGES]


def _recorded(run: Path) -> int:
    """The last step in a run's metrics; every step is written down as it happens."""
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return int(json.loads(whole[-1])["step"]) if whole else 0


def _job(folder: Path, run: Path) -> list[str]:
    return ["--graph", str(folder / "graph"), "--run", str(run), *FLAGS, "--json"]


def _command(*arguments: str) -> str:
    """What a command that ends well says on stderr."""
    done = subprocess.run([*PENSTOCK, *arguments], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode or "Traceback" in done.stderr:
        raise SystemExit(f"penstock {' '.join(arguments)} failed: {done.stderr}")
    return done.stderr


def _resumed_at(run: Path) -> int:
    """The step that a run went on from."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return max(record["step"] for record in records if record["kind"] == "resumed")


def _newest(run: Path) -> dict[str, Any]:
    return read_state(max((run / "checkpoints").glob("step-*.ckpt")))


def _best(run: Path) -> dict[str, Any]:
    return read_best(run / "checkpoints")


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def _print(rows: list[dict[str, Any]], same: int) -> None:
    names = ("try", "kind", "disturbed_after", "newest", "went_on_from", "steps")
    table = Table(*(name.replace("_", " ") for name in names), "weights")
    for row in rows:
        table.add_row(*(str(row[name]) for name in names), "equal" if row["equal"] else "[red]different[/red]")
    Console().print(table)
    print(f"{same} of {len(rows)} equal")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
