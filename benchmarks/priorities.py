"""What do priorities bring where links are slow?

Hosts in a box (hosts.py) run the real system on synthetic-products: a store, a worker and its sampler a host, and
parameter servers. Batches are asked for ahead, so that features of later batches compete with what the step under way
waits for. The ways take turns:

  fair      egress: fair, as is usual
  turns     egress: turns: what an earlier batch needs leaves a process first
  coflow    egress: coflow: gradients and weights first, then batches in their order
  classes   coflow, and DSCP classes that hosts and switch serve in strict order, as `penstock net apply` sets them
  two       the same with one class for lists and features

A process orders what it sends; tasks of one host, and hosts that send to the same one, are ordered by nobody but the
network: hence the last ways. All ways keep little in kernel buffers (--window, --buffer), which no order reaches.

Epoch seconds are the mean of all epochs but the first, and of those the median over the rounds; `links MB` is what left
all hosts in an epoch, with the kernel's headers; `batch s` and `gradients s` are mean times from the first request of a
batch's pulls, or of a step's sum, to the last answer. All hosts share this machine's processors: `processors` is the
share of them that was busy, and where it is near 1, processors set the pace and not links.
Run, as root: python benchmarks/priorities.py [--rates 100,100,100,100] [--rounds 3] [--out priorities.json] [--json]
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from hosts import DEVICE, Host, hosts, shown_on_hosts, started_on
from penstock.cluster.run import start_cluster_run
from penstock.cluster.shaping import carry_out, classes_of, clear_commands, default_groups, set_commands
from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.hardware.cluster import ClusterDocument
from penstock.partition import Cut, cut
from penstock.train.job import make_job
from products_graph import products

WAYS: dict[str, dict[str, Any]] = {
    "fair": {"egress": "fair"},
    "turns": {"egress": "turns"},
    "coflow": {"egress": "coflow"},
    "classes": {"egress": "coflow", "dscp_classes": [46, 34, 10]},
    "two": {"egress": "coflow", "dscp_classes": [46, 10]},
}


def main() -> int:
    return shown_on_hosts("priorities", _options(), measure)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each way."""
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in options.ways}
    with tempfile.TemporaryDirectory() as scratch, products(options.nodes, None) as graph:
        folder = Path(scratch)
        cut(graph, Cut(len(options.rates), 1, options.method), folder / "parts")
        for number in range(options.rounds):
            for way in options.ways:
                found[way].append(run_way(way, graph, folder, folder / f"{way}-{number}", options))
                print(f"{way}: {found[way][-1]}", file=sys.stderr)
    rows = [{"way": way, **_middle(found[way]), "rounds": len(found[way])} for way in options.ways]
    return [{**row, "of_first": row["epoch_s"] / rows[0]["epoch_s"]} for row in rows]


def run_way(way: str, graph: Graph, folder: Path, run: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A run on hosts of its own, and what it took."""
    with hosts(options.rates) as bed:
        machines = {f"host{number}": host for number, host in enumerate(bed)}
        fields = _cluster(machines, folder / "parts", way, options)
        if fields["wire"].get("dscp_classes"):
            _give_classes(ClusterDocument.model_validate(fields), machines)
        file = run.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(fields))
        before, began, busy = [host.carried() for host in bed], time.perf_counter(), psutil.cpu_times()
        with started_on(machines):
            result = start_cluster_run(make_job(_job(graph, run, options)), str(file)).facts["result"]
        seconds, after = time.perf_counter() - began, psutil.cpu_times()
        sent = sum(now[0] - then[0] for now, then in zip([host.carried() for host in bed], before, strict=True))
    times = {line["kind"]: line["mean_cct_s"] for line in result["coflows"]}
    worked = sum(getattr(after, name) - getattr(busy, name) for name in ("user", "system", "softirq"))
    return {
        "epoch_s": statistics.mean(result["epoch_seconds"][1:]),
        "links_mb": sent / options.epochs / 1e6,
        "batch_s": times["batch"],
        "gradients_s": times["gradients"],
        "processors": worked / seconds / (psutil.cpu_count() or 1),
        "loss": result["train_loss"],
    }


def _give_classes(cluster: ClusterDocument, machines: dict[str, Host]) -> None:
    """Both ends of every link: what a host sends, and what the switch sends to it."""
    for machine in cluster.machines:
        host = machines[machine.name]
        classes = classes_of(default_groups(cluster), machine, ())
        for place, device in ((host, DEVICE), (replace(host, namespace=host.switch), host.port)):
            with place.entered():
                carry_out(device, [*clear_commands(device), *set_commands(classes, device)])


def _middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Of every figure the median; the loss is the same whatever leaves first."""
    losses = {each.pop("loss") for each in found}
    if len(losses) != 1:
        raise PenstockError(
            f"Runs of one way ended with different losses ({losses}): something is wrong.", code="unexpected-failure"
        )
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _cluster(machines: dict[str, Host], parts: Path, way: str, options: argparse.Namespace) -> dict[str, Any]:
    held = {"window_bytes": options.window, "send_buffer_bytes": options.buffer}
    return {
        "machines": [
            {"name": name, "address": host.address, "workers": 1, "nic_gbps": host.rate_mbit / 1000}
            for name, host in machines.items()
        ],
        "partition": str(parts),
        "samplers": options.samplers,
        "reduce": "servers",
        "servers": options.servers,
        "wire": {"security": "token", **held, **WAYS[way]},
    }


def _job(graph: Graph, run: Path, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "graph": str(graph.path),
        "run": str(run),
        "model": "sage",
        "hidden": options.hidden,
        "fanouts": options.fanouts,
        "batch_size": options.batch_size,
        "epochs": options.epochs,
        "threads": 1,
        "evaluate_every": -1,
        "checkpoint_minutes": 0,
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=_rates, default=[100.0] * 4, help="Mbit/s of every host's link")
    parser.add_argument("--ways", type=lambda text: text.split(","), default=list(WAYS))
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--method", default="random", help="how the graph is cut; random has the most to send")
    parser.add_argument("--samplers", type=int, default=1, help="a worker")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--window", type=int, default=1 << 18, help="bytes with ZeroMQ at once")
    parser.add_argument("--buffer", type=int, default=1 << 17, help="bytes of a connection with the kernel")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _rates(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
