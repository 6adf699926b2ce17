"""What do replicas of features bring when their owner's link becomes slow?

Hosts in a box (hosts.py) run the real system on synthetic-products: the first holds a part and has no worker, the two
others hold a part and a worker each. In the middle of a run the first host's link drops to a tenth, both ways, for some
epochs. Compared are a run that nothing happens to, the same disturbed, the same with the hottest rows of the first part
on the second host, and with all of its rows there. `epoch_s` is the median of the epochs in which the link was slow (of
the same ones in the undisturbed run), the first of them left out; `of_undisturbed` compares them. `predicted_s` is what
the workload builder and simulator of `penstock plan` say for tasks that stand where they do here, from one profile
measured without limits. `equal` says whether every loss is that of the undisturbed run to the bit.

`processors` is the share of this machine's processors that was busy while a case ran, starting included, and `load` its
load average afterwards.

An epoch must have several times as many batches as workers pull ahead: what is pulled while the link is slow would else
be computed in another epoch. All hosts share this machine's processors: bytes are what they are anywhere, seconds are
not. Links are slow enough that they set the pace.
Run, as root: python benchmarks/replica_paths.py [--rate 60] [--hot 0.1] [--out replicas.json] [--json]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from hosts import Host, hosts, limit_again, shown_on_hosts, started_on
from penstock.cluster.profiling import profile_job
from penstock.cluster.run import start_cluster_run
from penstock.cost.profile import Profile
from penstock.hardware.cluster import ClusterDocument
from penstock.hardware.machines import machines_of
from penstock.partition import Cut, cut
from penstock.plan.comparison import Comparison
from penstock.plan.placement import PlacedUnits
from penstock.plan.workloads import WORKLOADS, PlannedRun
from penstock.progress import SILENT, Progress
from penstock.train.dataset.prepared_graph import open_data
from penstock.train.job import Job, make_job
from penstock.train.run_files.run_folder import METRICS
from products_graph import products
from replay import PAYLOAD

DROP, BEFORE = 10.0, 2
"""How many times slower the link becomes, and epochs before that."""
NAMES = ("m0", "m1", "m2")
QUEUE = 32 << 10
"""Bytes of a link's queue: 4 ms at 60 Mbit/s. Plans take links for fair, so that short messages wait for little."""


class Disturbance(Progress):
    """Slows a host's link down after some epochs, for so many of them."""

    def __init__(self, host: Host, epochs: int) -> None:
        super().__init__()
        self._host, self._ended, self._epochs = host, 0, epochs

    def status(self, line: str) -> None:
        """An epoch has ended, unless the line is about the middle of one."""
        if ", batch " in line:
            return
        self._ended += 1
        if self._ended == BEFORE:
            limit_again(self._host, self._host.rate_mbit / DROP)
        elif self._ended == BEFORE + self._epochs:
            limit_again(self._host, self._host.rate_mbit)


def main() -> int:
    return shown_on_hosts("replica_paths", _options(), measure)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each case."""
    hot = [{"part": 0, "machine": "m1", "rows": options.hot}]
    cases: dict[str, tuple[bool, list[dict[str, Any]]]] = {
        "undisturbed": (False, []),
        "no replicas": (True, []),
        f"hottest {options.hot:.0%}": (True, hot),
        "all rows": (True, [{"part": 0, "machine": "m1"}]),
    }
    rows: list[dict[str, Any]] = []
    losses: list[list[float]] = []
    with tempfile.TemporaryDirectory() as scratch, products(options.nodes, None) as graph:
        folder = Path(scratch)
        cut(graph, Cut(len(NAMES), 1, "random"), folder / "parts")
        with hosts([options.rate] * len(NAMES), QUEUE) as bed:
            machines = dict(zip(NAMES, bed, strict=True))
            fields = _cluster(machines, folder / "parts")
            job = _job(str(graph.path), options)
            profile = profile_job(job, ClusterDocument.model_validate(fields), options.iterations, SILENT)
            for name, (disturbed, replicas) in cases.items():
                run = folder / name.replace(" ", "-")
                file = folder / f"{run.name}.yaml"
                file.write_text(yaml.safe_dump({**fields, "replicas": replicas}))
                progress = Disturbance(bed[0], options.epochs) if disturbed else Progress()
                before, used, began = [host.carried()[0] for host in bed], psutil.cpu_times(), time.perf_counter()
                with started_on(machines):
                    made = job.model_copy(update={"run": str(run)})
                    result = start_cluster_run(made, str(file), progress=progress).facts["result"]
                limit_again(bed[0], bed[0].rate_mbit)
                busy = _busy(used, time.perf_counter() - began)
                sent = [host.carried()[0] - was for host, was in zip(bed, before, strict=True)]
                losses.append(_losses(run))
                predicted = _predicted({**fields, "replicas": replicas}, job, profile, DROP if disturbed else 1.0)
                row = _row(name, result, sent, predicted, losses[-1] == losses[0], options.epochs)
                rows.append({**row, "processors": round(busy, 2), "load": os.getloadavg()[0]})
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for row in rows:
        row["of_undisturbed"] = round(row["epoch_s"] / rows[0]["epoch_s"], 3)
    return rows


def _busy(before: Any, seconds: float) -> float:
    """The share of this machine's processors that was busy."""
    after = psutil.cpu_times()
    used = sum(getattr(after, name) - getattr(before, name) for name in ("user", "system", "softirq", "nice"))
    return float(used / seconds / (psutil.cpu_count() or 1))


def _row(
    name: str, result: dict[str, Any], sent: list[int], predicted: float, equal: bool, epochs: int
) -> dict[str, Any]:
    slow = result["epoch_seconds"][BEFORE + 1 : BEFORE + epochs]
    seconds = statistics.median(slow)
    paths = [task.get("feature_paths", {}) for task in result["tasks"] if task["kind"] == "worker"]
    along = {path: sum(each.get(path, {}).get("rows", 0) for each in paths) for path in ("owner", "replica", "here")}
    return {
        "case": name,
        "epoch_s": round(seconds, 3),
        "predicted_s": round(predicted, 3),
        "error": round(predicted / seconds - 1, 3),
        "received_mb": round(result["bytes_received"] / 1e6, 2),
        "m0_sent_mb": round(sent[0] / 1e6, 2),
        "m1_sent_mb": round(sent[1] / 1e6, 2),
        "rows": " ".join(f"{path} {count:,}" for path, count in along.items()) if any(paths) else "owner alone",
        "equal": equal,
        "epochs_s": [round(each, 2) for each in result["epoch_seconds"]],
    }


def _predicted(fields: dict[str, Any], job: Job, profile: Profile, drop: float) -> float:
    """Epoch seconds of the run as it is placed here, with the first machine's link so many times slower."""
    cluster = ClusterDocument.model_validate(fields)
    slow = cluster.machines[0].model_copy(update={"nic_gbps": (cluster.machines[0].nic_gbps or 0) / drop})
    cluster = cluster.model_copy(update={"machines": [slow, *cluster.machines[1:]]})
    planned = PlannedRun(cluster, job, profile, open_graph=lambda: open_data(job))
    entry = WORKLOADS[profile.mode]
    run = Comparison(entry.build(profile, entry.set_up(planned)), machines_of(cluster, profile.rate))
    where = {**{f"store-{name}": n for n, name in enumerate(NAMES)}, "worker-0": 1, "worker-1": 2}
    machine_of = np.array([where[run.load.task_names[beside]] for beside in run.load.beside], np.int32)
    return run.trial(PlacedUnits("given", machine_of, 0.0, 0, 0, 0.0), "fair").iteration_s * profile.batches


def _losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] in ("step", "epoch")]


def _job(graph: str, options: argparse.Namespace) -> Job:
    return make_job(
        {
            "graph": graph,
            "model": "sage",
            "hidden": 32,
            "fanouts": options.fanouts,
            "batch_size": options.batch_size,
            "epochs": BEFORE + options.epochs + 1,
            "threads": 1,
            "device": "cpu",
            "evaluate_every": -1,
            "checkpoint_minutes": 0,
        }
    )


def _cluster(machines: dict[str, Host], parts: Path) -> dict[str, Any]:
    return {
        "machines": [
            {"name": name, "address": host.address, "workers": int(n > 0), "nic_gbps": host.rate_mbit / 1000 * PAYLOAD}
            for n, (name, host) in enumerate(machines.items())
        ],
        "partition": str(parts),
        "wire": {"security": "token"},
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=60.0, help="Mbit/s of every host's link")
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--epochs", type=int, default=3, help="with a slow link")
    parser.add_argument("--hot", type=float, default=0.1, help="share of the first part's rows in the small replica")
    parser.add_argument("--iterations", type=int, default=15, help="measured for the profile")
    parser.add_argument("--out", type=Path, help="write everything to this file")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
