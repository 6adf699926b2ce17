"""Does a long run leak? Trains a small model for many epochs and looks at the process over and over.

Prints resident memory, threads, open files and the seconds of an epoch at twenty moments, and the growth between the
first tenth and the end. Run: python benchmarks/soak.py [--epochs 2000] [--json]
"""

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from penstock import EdgeSet, Graph, NodeSet
from penstock.api import train
from penstock.graph.csr import build_lists
from penstock.memory import resident_mb
from penstock.progress import Progress

_MOMENTS = 20
_MOST_GROWTH_MB = 20.0


class Watch(Progress):
    """Looks at the process when an epoch is over."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.rows: list[dict[str, Any]] = []
        self._every, self._epoch, self._began = max(1, epochs // _MOMENTS), 0, time.perf_counter()

    def status(self, line: str) -> None:
        """Called by the loop once an epoch."""
        self._epoch += 1
        if self._epoch % self._every:
            return
        now = time.perf_counter()
        self.rows.append(
            {
                "epoch": self._epoch,
                "rss_mb": round(resident_mb(), 1),
                "threads": threading.active_count(),
                "system_threads": _count("/proc/self/task"),
                "files": _count("/proc/self/fd"),
                "epoch_ms": round((now - self._began) / self._every * 1000, 1),
            }
        )
        self._began = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    watch = Watch(arguments.epochs)
    with tempfile.TemporaryDirectory() as folder:
        fields: dict[str, Any] = {"fanouts": [5, 5], "hidden": 32, "embedding": 16, "batch_size": 64, "norm": "batch"}
        train(
            small_graph(),
            run=str(Path(folder) / "run"),
            epochs=arguments.epochs,
            progress=watch,
            checkpoint_steps=50,
            sample_threads=2,
            **fields,
        )
    after = {"threads": threading.active_count(), "files": _count("/proc/self/fd")}
    growth = watch.rows[-1]["rss_mb"] - watch.rows[max(len(watch.rows) // 10 - 1, 0)]["rss_mb"]
    if arguments.json:
        print(json.dumps({"rows": watch.rows, "growth_mb": round(growth, 1), "after": after}))
    else:
        _print(watch.rows, growth, after)
    # In the last epochs, stages that have no more batches to prepare end before the others.
    steady = len({(row["threads"], row["system_threads"], row["files"]) for row in watch.rows[1:-1]}) <= 1
    sys.exit(growth > _MOST_GROWTH_MB or not steady)


def small_graph(count: int = 1000, classes: int = 5) -> Graph:
    """Communities without features: the vertices' embeddings are learned too."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, count)
    near = [rng.choice(np.flatnonzero(y == kind), 6) for kind in y]
    src, dst = np.concatenate(near), np.repeat(np.arange(count), 6)
    indptr, indices, _ = build_lists(np.append(src, dst), np.append(dst, src), count, count)
    parts = zip(("train", "val", "test"), np.split(rng.permutation(count), [count // 2, count * 3 // 4]), strict=True)
    nodes = NodeSet(count, {"y": y}, {name: np.sort(part) for name, part in parts})
    return Graph({"node": nodes}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "small")


def _count(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def _print(rows: list[dict[str, Any]], growth: float, after: dict[str, int]) -> None:
    table = Table("epoch", "resident MB", "threads", "of the system", "open files", "ms an epoch")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    print(f"resident memory grew by {growth:.1f} MB after the first tenth; afterwards {after}")


if __name__ == "__main__":
    main()
