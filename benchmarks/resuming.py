"""Does a run that was killed with SIGKILL at a random step end with the same weights as one that was not?

Trains a small model once undisturbed; then, for every try, starts `penstock train`, kills it when it has recorded a
random step, goes on with `penstock train --resume` and compares the last checkpoints bit for bit (weights,
embeddings, optimiser, schedule, position). Run: python benchmarks/resuming.py [--tries 20] [--seed 0] [--json]
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock import EdgeSet, Graph, NodeSet
from penstock.graph.csr import build_lists
from penstock.train.checkpoints import read_best
from penstock.train.state_file import read_state

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
        rows = measure(Path(folder), arguments.tries, arguments.seed)
    equal = sum(row["equal"] for row in rows)
    if arguments.json:
        print(json.dumps({"tries": len(rows), "equal": equal, "rows": rows}))
    else:
        _print(rows, equal)
    sys.exit(equal != len(rows))


def measure(folder: Path, tries: int, seed: int) -> list[dict[str, Any]]:
    """One row a try: where it was killed, where it went on from, and whether it ended like the undisturbed run."""
    small_graph().save(folder / "graph")
    _command("train", *_job(folder, "whole"))
    whole = _newest(folder / "whole")
    steps = int(whole["standing"]["step"])
    draws = random.Random(seed)
    rows = []
    for number in range(tries):
        run = folder / f"run-{number}"
        at = _kill_at(folder, run, draws.randrange(1, steps * 3 // 4))
        newest = max((run / "checkpoints").glob("step-*.ckpt"))
        _command("train", "--resume", str(run), "--json")
        same = equal(whole, _newest(run)) and equal(_best(folder / "whole"), _best(run))
        rows.append({"try": number + 1, "steps": steps, "killed_after": at, "went_on_from": _step(newest)})
        rows[-1]["equal"] = same
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


def _kill_at(folder: Path, run: Path, step: int) -> int:
    """Kill a new run once it has recorded a step; the step it had reached by then."""
    process = subprocess.Popen(
        [*PENSTOCK, "train", *_job(folder, run.name)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while (reached := _recorded(run)) < step:
        if process.poll() is not None:
            raise SystemExit(f"The run ended before step {step}, with exit code {process.returncode}.")
        time.sleep(0.001)
    process.kill()
    if process.wait() != -signal.SIGKILL:
        raise SystemExit("The run ended before it could be killed.")
    return reached


def _recorded(run: Path) -> int:
    """The last step in a run's metrics; every step is written down as it happens."""
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
    return int(json.loads(whole[-1])["step"]) if whole else 0


def _job(folder: Path, run: str) -> list[str]:
    return ["--graph", str(folder / "graph"), "--run", str(folder / run), *FLAGS, "--json"]


def _command(*arguments: str) -> None:
    done = subprocess.run([*PENSTOCK, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"penstock {' '.join(arguments)} failed: {done.stderr}")


def _newest(run: Path) -> dict[str, Any]:
    return read_state(max((run / "checkpoints").glob("step-*.ckpt")))


def _best(run: Path) -> dict[str, Any]:
    return read_best(run / "checkpoints")


def _step(file: Path) -> int:
    return int(file.stem.removeprefix("step-"))


def _print(rows: list[dict[str, Any]], same: int) -> None:
    table = Table("try", "killed after step", "went on from", "of steps", "weights")
    for row in rows:
        verdict = "equal" if row["equal"] else "[red]different[/red]"
        table.add_row(*(str(row[name]) for name in ("try", "killed_after", "went_on_from", "steps")), verdict)
    Console().print(table)
    print(f"{same} of {len(rows)} equal")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
