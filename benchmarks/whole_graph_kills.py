"""Does training on the whole graph end with the same bits when a worker is killed (-9), whatever it was doing?

Two workers train undisturbed, and then again while one of them kills itself (SIGKILL) in a phase of a step: after the
second bin of the forward pass, when the first rows of the other worker have come, after the second bin of the backward
pass, right before and right after gradients are summed, and while the first worker is writing a checkpoint. Each phase
is tried in several epochs on both workers (`whole_graph_victim.py`). The last checkpoint, the best model and all losses
must be those of the undisturbed run, bit for bit, after one recovery.
Run: python benchmarks/whole_graph_kills.py [--phases forward sum] [--epochs 2 5] [--json]
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from clusters import cluster_file, communities, losses, same_end
from penstock.cluster.launch.local import LocalProcess
from penstock.cluster.run import start_cluster_run
from penstock.partition import Cut, cut
from penstock.train.job import make_job
from whole_graph_victim import VARIABLE

PHASES = ("forward", "exchange", "backward", "sum", "summed", "checkpoint")
VICTIM = Path(__file__).with_name("whole_graph_victim.py")
JOB = {
    "sampler": "whole",
    "model": "gcn",
    "layers": 3,
    "hidden": 136,
    "bins": 3,
    "norm": "batch",
    "dropout": 0.3,
    "epochs": 8,
    "evaluate_every": 4,
    "checkpoint_steps": 1,
    "checkpoint_minutes": 0,
    "threads": 1,
}
"""So wide that the gradients of the second layer are summed while the first one is computed."""


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        graph = communities()
        graph.save(folder / "graph")
        cut(graph, Cut(2, 1, "metis"), folder / "parts")
        cluster = cluster_file(
            folder / "cluster.yaml", machines=[{"name": "a"}, {"name": "b"}], partition=str(folder / "parts")
        )
        expected = _trained(folder, cluster, "undisturbed").path
        rows = [
            _killed(folder, cluster, Path(expected), rank, epoch, phase)
            for phase in arguments.phases
            for epoch in arguments.epochs
            for rank in (0, 1)
        ]
    good = sum(row["same"] for row in rows)
    print(json.dumps({"job": JOB, "kills": len(rows), "same": good, "rows": rows}) if arguments.json else "")
    print(f"{good} of {len(rows)} runs with a killed worker ended with equal bits.", file=sys.stderr)
    sys.exit(good != len(rows))


def _trained(folder: Path, cluster: str, name: str) -> Any:
    job = make_job({"graph": str(folder / "graph"), "run": str(folder / name), **JOB})
    return start_cluster_run(job, cluster)


def _killed(folder: Path, cluster: str, expected: Path, rank: int, epoch: int, phase: str) -> dict[str, Any]:
    name = f"{phase}-{epoch}-{rank}"
    about = {"rank": rank, "epoch": epoch, "phase": phase, "file": str(folder / f"{name}.killed")}
    arguments = (str(VICTIM),)
    with patch.object(LocalProcess, "arguments", arguments), patch.dict(os.environ, {VARIABLE: json.dumps(about)}):
        run = _trained(folder, cluster, name)
    recoveries = [each["task"] for each in run.facts["result"]["recoveries"]]
    same = same_end(run.path, expected) and losses(run.path) == losses(expected)
    row = {"phase": phase, "epoch": epoch, "worker": rank, "recoveries": recoveries}
    row["same"] = same and recoveries == [f"worker-{rank}"]
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--epochs", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
