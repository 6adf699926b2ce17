"""Does a plan hold what it promises, and is it better than its rivals?

Hosts in a box (hosts.py), two with slow links and two with fast ones, run the real system on synthetic-products: 6
workers with 2 samplers each and a parameter server, placed by `distdgl` (FIFO flows, as that system sends), by `etp`
(fair flows) and by our plan (the best of what it compares). Every plan is made from one profile, measured before on
this machine without limits. Epoch seconds are the mean of all epochs but the first three, in which kernels are compiled
and the pipeline is filled ahead; the plans take turns.

All hosts share this machine's processors: links are slow enough that they set the pace, or predictions, which know of
no shared processors, would be of something else. `processors` is the share of them that was busy.
Run, as root: python benchmarks/planned.py [--rates 20,20,80,80] [--epochs 12] [--json]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from hosts import Host, hosts, shown_on_hosts, started_on
from penstock.api import train
from penstock.cluster.planning import plan_run
from penstock.cluster.profiling import profile_job
from penstock.cost.profile import write_profile
from penstock.hardware.cluster import ClusterDocument
from penstock.partition import Cut, cut
from penstock.plan.document import Plan, write_plan
from penstock.plan.placement import Budget
from penstock.plan.planner import PlanChoices
from penstock.progress import SILENT
from penstock.train.job import Job, make_job
from products_graph import products

WAYS: dict[str, tuple[str | None, str | None]] = {
    "distdgl": ("distdgl", "fifo"),
    "distdgl, fair flows": ("distdgl", "fair"),
    "etp": ("etp", "oes"),
    "ours": ("search", None),
}
"""Placement and flows; None: the best."""
SKIPPED = 3
"""Epochs before those that count."""


def main() -> int:
    return shown_on_hosts("planned", _options(), measure)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each way."""
    with tempfile.TemporaryDirectory() as scratch, products(options.nodes, None) as graph:
        folder = Path(scratch)
        parts = folder / "parts"
        cut(graph, Cut(len(options.rates), 2, options.method), parts)
        with hosts(options.rates) as bed:
            machines = {f"host{number}": host for number, host in enumerate(bed)}
            cluster, job = _cluster(machines, parts, options), _job(str(graph.path), options)
            write_profile(profile_job(job, cluster, options.iterations, SILENT), folder / "profile.json")
            plans = {
                way: plan_run(
                    job, cluster, folder / "profile.json", PlanChoices(*chosen, Budget(options.steps)), SILENT
                )
                for way, chosen in WAYS.items()
            }
            found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
            for turn in range(options.repeats):
                for way, plan in plans.items():
                    run = folder / f"{way.replace(' ', '-')}-{turn}"
                    found[way].append(_carried_out(plan, run, machines))
    rows = [_row(way, plans[way], found[way]) for way in WAYS]
    base = rows[0]["epoch_s"]
    return [{**row, "of_distdgl": row["epoch_s"] / base} for row in rows]


def _carried_out(plan: Plan, run: Path, machines: dict[str, Host]) -> dict[str, Any]:
    file = run.with_suffix(".json")
    write_plan(plan, file)
    before, began = psutil.cpu_times(), time.perf_counter()
    with started_on(machines):
        result = train(plan=file, run=str(run)).result
    after, seconds = psutil.cpu_times(), time.perf_counter() - began
    busy = sum(getattr(after, name) - getattr(before, name) for name in ("user", "system", "softirq"))
    epochs = result["epoch_seconds"][SKIPPED:]
    return {"epoch_s": statistics.mean(epochs), "processors": busy / seconds / (psutil.cpu_count() or 1)}


def _row(way: str, plan: Plan, found: list[dict[str, Any]]) -> dict[str, Any]:
    real = statistics.median(each["epoch_s"] for each in found)
    return {
        "way": way,
        "flows": plan.flows,
        "predicted_s": plan.predicted.epoch_s,
        "epoch_s": real,
        "error": plan.predicted.epoch_s / real - 1,
        "lower_bound_s": plan.predicted.lower_bound_s / plan.predicted.iteration_s * plan.predicted.epoch_s,
        "processors": statistics.median(each["processors"] for each in found),
        "bottleneck": plan.bottleneck,
    }


def _cluster(machines: dict[str, Host], parts: Path, options: argparse.Namespace) -> ClusterDocument:
    workers = [options.workers // len(machines) + (n < options.workers % len(machines)) for n in range(len(machines))]
    return ClusterDocument.model_validate(
        {
            "machines": [
                {
                    "name": name,
                    "address": host.address,
                    "workers": workers[number],
                    "nic_gbps": host.rate_mbit / 1000,
                    "cores": options.cores,
                }
                for number, (name, host) in enumerate(machines.items())
            ],
            "partition": str(parts),
            "samplers": options.samplers,
            "reduce": "servers",
            "wire": {"security": "token", "window_bytes": 1 << 18},
        }
    )


def _job(graph: str, options: argparse.Namespace) -> Job:
    return make_job(
        {
            "graph": graph,
            "model": "sage",
            "hidden": options.hidden,
            "fanouts": options.fanouts,
            "batch_size": options.batch_size,
            "epochs": options.epochs,
            "threads": 1,
            "evaluate_every": -1,
            "checkpoint_minutes": 0,
        }
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=_rates, default=[20, 20, 80, 80], help="Mbit/s of every host's link")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--method", default="metis", help="how the graph is cut")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--samplers", type=int, default=2, help="a worker")
    parser.add_argument("--cores", type=int, default=10, help="of every host, as the plan is told")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=30, help="that are profiled")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
