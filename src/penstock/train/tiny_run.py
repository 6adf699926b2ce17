"""A program that trains a tiny graph and prints the peak bytes of its process, and how many of them were pages of
files.
"""

import tempfile
from pathlib import Path

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.memory import file_mb, peak_mb
from penstock.train.job import make_job
from penstock.train.run import start_run


def main() -> None:
    """Train two epochs on a ring of 64 vertices."""
    count = 64
    indptr, indices = np.arange(0, 2 * count + 1, 2), np.arange(2 * count, dtype=np.int32) // 2
    fields: dict[str, Array] = {"x": np.ones((count, 4), np.float32), "y": np.arange(count) % 2}
    splits = {"train": np.arange(32), "val": np.arange(32, 64)}
    graph = Graph({"node": NodeSet(count, fields, splits)}, {("node", "to", "node"): EdgeSet(indptr, indices)}, "ring")
    with tempfile.TemporaryDirectory() as folder:
        job = {"epochs": 2, "fanouts": [2, 2], "hidden": 8, "device": "cpu", "run": str(Path(folder) / "run")}
        start_run(make_job(job), graph)
    print(round(peak_mb() * (1 << 20)), round(file_mb() * (1 << 20)))


if __name__ == "__main__":
    main()
