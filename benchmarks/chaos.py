"""Does a run on a cluster end as if nothing had happened, whatever happens?

Trains a small job undisturbed on three clusters; then, `--kills` times, again on one of them while a random task is
killed (-9) at a random moment, and once for every other trouble: the controller killed and the run resumed; a task
stopped for longer than connections live, and for longer than the controller's patience; a host that is slow; links cut
and restored (with root, between network namespaces); a disk that is full at a checkpoint (with root); a peer that sends
garbage to every open port, and one that has the wrong keys. The last checkpoint and the best model must be those of the
undisturbed run, bit for bit, and no process, shared memory or socket may be left.
Run: python benchmarks/chaos.py [--kills 50] [--seed 0] [--only kill pause ...] [--learned] [--json]
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from clusters import arguments_for, cluster_file, communities, result_of, same_end, trained
from penstock.partition import Cut, cut
from resuming import small_graph
from troubles import MISSED, TROUBLES, Stage, Trouble

LIMIT = 600.0
"""Seconds after which a run counts as hanging."""
JOB = {
    "fanouts": "5,5",
    "hidden": 32,
    "batch-size": 40,
    "epochs": 14,
    "dropout": 0.3,
    "evaluate-every": 2,
    "schedule": "ExponentialLR",
    "schedule-options": "{gamma: 0.97}",
    "checkpoint-steps": 9,
    "checkpoint-minutes": 0,
    "threads": 1,
}
PAIR = [{"name": "m0"}, {"name": "m1"}]
CLUSTERS: dict[str, dict[str, Any]] = {
    "summing": {"machines": PAIR},
    "served": {"machines": PAIR, "samplers": 1, "reduce": "servers", "servers": 2},
    "unequal": {
        "machines": [{"name": "m0", "speed": 2.0}, {"name": "m1", "workers": 2}],
        "wire": {"security": "token"},
    },
}
IMPATIENT = {"failure": {"patience": 60.0}, "wire": {"heartbeat": 2.0}}
"""So that troubles need not last for minutes."""


def main() -> None:
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        field = Field(Path(folder), arguments.learned)
        rows = field.measure(arguments.kills, arguments.seed, arguments.only)
    good = sum(row["good"] for row in rows)
    if arguments.json:
        print(json.dumps({"job": JOB, "runs": len(rows), "good": good, "rows": rows}))
    else:
        _print(rows)
    sys.exit(good != len(rows))


class Field:
    """A graph, clusters, and the undisturbed runs on them."""

    def __init__(self, folder: Path, learned: bool) -> None:
        self.folder, graph = folder, small_graph() if learned else communities()
        graph.save(folder / "graph")
        cut(graph, Cut(2, 1, "metis"), folder / "parts")
        self.whole: dict[str, tuple[Path, float]] = {}

    def measure(self, kills: int, seed: int, only: list[str]) -> list[dict[str, Any]]:
        """One row a run."""
        draws, rows = random.Random(seed), []
        chosen = [("kill", TROUBLES["kill"])] * kills + [each for each in TROUBLES.items() if each[0] != "kill"]
        for number, (name, trouble) in enumerate(chosen):
            if only and name not in only:
                continue
            while (row := self.disturbed(number, name, trouble, draws))["what"] == MISSED:
                shutil.rmtree(self.folder / f"run-{number}")
            rows.append(row)
            print(f"{len(rows)}: {rows[-1]}", file=sys.stderr, flush=True)
        return rows

    def disturbed(self, number: int, name: str, trouble: Trouble, draws: random.Random) -> dict[str, Any]:
        """A run with one trouble, and what came of it."""
        cluster = draws.choice(sorted(CLUSTERS))
        whole, seconds = self.undisturbed(cluster)
        run, memory = self.folder / f"run-{number}", _shared_memory()
        row: dict[str, Any] = {"trouble": name, "cluster": cluster}
        arguments = arguments_for(self.folder / "graph", run, self.file(cluster, IMPATIENT), JOB)
        began = time.monotonic()
        row["what"] = trouble(Stage(run, arguments, seconds, draws, LIMIT))
        row["seconds"] = round(time.monotonic() - began, 1)
        row["recoveries"] = [(each["task"], each["cause"]) for each in _recoveries(run)]
        row["equal"] = _tried(lambda: same_end(run, whole))
        row["left"] = sorted(_shared_memory() - memory) + _listening_tasks(run)
        row["good"] = row["equal"] is True and not row["left"] and not str(row["what"]).startswith("FAILED")
        return row

    def undisturbed(self, cluster: str) -> tuple[Path, float]:
        """A run that nothing happens to, and how long it took."""
        if cluster not in self.whole:
            began = time.monotonic()
            run = trained(self.folder / "graph", self.folder / cluster, self.file(cluster, IMPATIENT), JOB, LIMIT)
            self.whole[cluster] = run, time.monotonic() - began
        return self.whole[cluster]

    def file(self, cluster: str, more: dict[str, Any]) -> str:
        """A cluster's file."""
        fields = {**more, **CLUSTERS[cluster], "partition": str(self.folder / "parts")}
        fields["wire"] = {**more.get("wire", {}), **CLUSTERS[cluster].get("wire", {})}
        return cluster_file(self.folder / f"{cluster}.yaml", **fields)


def _tried(ask: Callable[[], bool]) -> bool | str:
    """An answer, or why there is none."""
    try:
        return ask()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _recoveries(run: Path) -> list[dict[str, Any]]:
    with suppress(OSError, ValueError, KeyError):
        found: list[dict[str, Any]] = result_of(run)["recoveries"]
        return found
    return []


def _shared_memory() -> set[str]:
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def _listening_tasks(run: Path) -> list[str]:
    """Tasks of a run that are still there, and with them their sockets."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if "penstock.cluster.tasks" not in " ".join(process.info["cmdline"] or []):
            continue
        with suppress(OSError, psutil.Error):
            if str(Path(f"/proc/{process.pid}/fd/1").readlink()).startswith(str(run)):
                found.append(f"process {process.pid}")
    return found


def _print(rows: list[dict[str, Any]]) -> None:
    table = Table("trouble", "cluster", "what happened", "seconds", "replaced", "same bits", "left")
    for row in rows:
        replaced = ", ".join(f"{task} ({cause})" for task, cause in row["recoveries"])
        bits = "yes" if row["equal"] is True else f"NO {row['equal']}"
        table.add_row(
            row["trouble"], row["cluster"], row["what"], str(row["seconds"]), replaced, bits, ", ".join(row["left"])
        )
    Console().print(table)
    print(f"{sum(row['good'] for row in rows)} of {len(rows)} runs ended as if nothing had happened.")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50, help="runs in which a task is killed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], choices=sorted(TROUBLES), help="only these troubles")
    parser.add_argument("--learned", action="store_true", help="a graph without features: embeddings are learned")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    main()
