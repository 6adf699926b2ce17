"""What does each step of the ladder gain on machines that are not alike?

Hosts in a box (hosts.py), some with slower links, run the real system on synthetic-products: a store and workers a
host, gradients by all-reduce. The ladder, each rung with all before it: random partition -> METIS -> two levels (the
workers of a host have ranges of its part too) -> asynchronous (pipeline depths as they are by default, instead of 1) ->
non-stop (batches of the next epoch are made while this one's end is computed).

Epoch seconds are the median of all epochs but the first. The pipeline does not stop between epochs on any rung: what
stopping would cost, making a first batch ready while nobody computes, is taken from the trace and added to all rungs
below the last. `free s` is the same epoch over links without limits, `links s` how long the busiest link must be busy
for an epoch's bytes. The one beside the other would take the longer of both, one after the other their sum; `hidden` is
where between them the epoch is, and no figure at all where it is below 0 % or above 100 %: the two runs then met
different machines. (The stages' own times do not tell: who has its batch in time waits for the others' in the sum of
gradients.) `features` counts what other hosts' features took on the wire, with requests and headers, `over minimum`
compares that with the distinct rows a worker's batches have there; `links MB` is everything that left all hosts, with
the kernel's headers and gradients.

All hosts share this machine's processors: bytes are what they are anywhere, seconds are not. What traffic costs, and
how much of it hides behind computing, can be seen, best at rates where both take about as long; how computing gains
from more machines cannot, and a step that spends processor time to hide waiting gains little where no processor is
free.
Run, as root: python benchmarks/testbed.py [--rates 250,250,1000,1000] [--out testbed.json] [--json]
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from hosts import Host, check_allowed, hosts, started_on
from penstock.cluster.run import start_cluster_run
from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.partition import Cut, cut
from penstock.train.job import job_of
from penstock.train.run_files.run_folder import EVENTS, METRICS
from products_graph import products

ONE_AHEAD = {"seeds_depth": 1, "sample_depth": 1, "gather_depth": 1, "transfer_depth": 1}

NOTHING_ELSE = {"evaluate_every": -1, "checkpoint_minutes": 0}
"""But training: no validation, no checkpoints on the way."""


@dataclass(frozen=True)
class Rung:
    """A step of the ladder."""

    name: str
    method: str
    two_levels: bool
    ahead: bool


RUNGS = [
    Rung("random partition", "random", False, False),
    Rung("METIS", "metis", False, False),
    Rung("two levels", "metis", True, False),
    Rung("asynchronous", "metis", True, True),
]
NON_STOP = "non-stop"
WITHOUT_LIMIT = 10_000.0
"""Mbit/s that no run here comes near."""


def main() -> int:
    options = _options()
    try:
        check_allowed()
        rows = measure(options)
    except PenstockError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    answer = {"benchmark": "testbed", "options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}
    if options.out is not None:
        options.out.write_text(json.dumps(answer, indent=1) + "\n")
    if options.json:
        print(json.dumps(answer))
    else:
        _print(rows, options.epochs)
    return 0


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row a rung."""
    rows: list[dict[str, Any]] = []
    free = [WITHOUT_LIMIT] * len(options.rates)
    with tempfile.TemporaryDirectory() as scratch, products(options.nodes, None) as graph:
        folder = Path(scratch)
        with hosts(options.rates) as bed, hosts(free) as free_bed:
            for rung in RUNGS:
                parts = _parts(graph, rung, options, folder)
                # One after the other, so that both meet the same machine.
                freely = run_rung(rung, parts, graph, free_bed, options, folder / "free")
                row = run_rung(rung, parts, graph, bed, options, folder / "limited")
                row["free_seconds"] = freely["epoch_seconds"]
                row["hidden"] = _hidden(row["epoch_seconds"], row["free_seconds"], row["link_seconds"])
                row["ladder_seconds"] = round(row["epoch_seconds"] + row["fill_seconds"], 4)
                rows.append(row)
    # The last rung is the run of the one before it, whose epochs were not stopped between.
    rows.append({**rows[-1], "rung": NON_STOP, "ladder_seconds": rows[-1]["epoch_seconds"]})
    for row, before in zip(rows, [rows[0], *rows], strict=False):
        row["gain"] = round(before["ladder_seconds"] / row["ladder_seconds"], 3)
        row["gain_in_all"] = round(rows[0]["ladder_seconds"] / row["ladder_seconds"], 3)
    return rows


def _hidden(epoch: float, free: float, links: float) -> float:
    """Of what computing and links could do at the same time, the share that they did.

    Not cut off at 0 and 1: what lies outside says that the two runs did not meet the same machine.
    """
    return round((free + links - epoch) / min(free, links), 4)


def run_rung(
    rung: Rung, parts: Path, graph: Graph, bed: list[Host], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """A run on the hosts, and what it took."""
    folder.mkdir(exist_ok=True)
    run = folder / rung.name.replace(" ", "-")
    fields = {
        "graph": str(graph.path),
        "run": str(run),
        "model": "sage",
        "hidden": options.hidden,
        "fanouts": options.fanouts,
        "batch_size": options.batch_size,
        "epochs": options.epochs,
        "threads": 1,
        **NOTHING_ELSE,
        **({} if rung.ahead else ONE_AHEAD),
    }
    machines = {f"host{number}": host for number, host in enumerate(bed)}
    file = folder / f"{run.name}.yaml"
    file.write_text(yaml.safe_dump(_cluster(machines, parts, options)))
    before = [host.carried() for host in bed]
    with started_on(machines):
        result = start_cluster_run(job_of(fields), str(file)).facts["result"]
    links = [
        {"rate_mbit": host.rate_mbit, "sent_bytes": now[0] - then[0], "received_bytes": now[1] - then[1]}
        for host, now, then in zip(bed, [host.carried() for host in bed], before, strict=True)
    ]
    return {
        "rung": rung.name,
        **_figures(run, result, options.epochs),
        "link_seconds": round(max(_seconds(link) for link in links) / options.epochs, 4),
        "links": links,
        "flows": result["flows"],
    }


def _seconds(link: dict[str, float]) -> float:
    """The least that a link's bytes take; it carries both ways at once."""
    return max(link["sent_bytes"], link["received_bytes"]) * 8 / (link["rate_mbit"] * 1e6)


def _cluster(machines: dict[str, Host], parts: Path, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "machines": [
            {"name": name, "address": host.address, "workers": options.workers, "nic_gbps": host.rate_mbit / 1000}
            for name, host in machines.items()
        ],
        "partition": str(parts),
        "wire": {"security": options.security},
    }


def _parts(graph: Graph, rung: Rung, options: argparse.Namespace, folder: Path) -> Path:
    trainers = options.workers if rung.two_levels else 1
    path = folder / f"{rung.method}-{trainers}"
    if not path.exists():
        cut(graph, Cut(len(options.rates), trainers, rung.method), path)
    return path


def _figures(run: Path, result: dict[str, Any], epochs: int) -> dict[str, Any]:
    lines = [json.loads(line) for line in (run / METRICS).read_text().splitlines()]
    ended = [line for line in lines if line["kind"] == "epoch"][1:]
    features = sum(sum(sizes) for name, sizes in result["flows"].items() if name.endswith("/features"))
    return {
        "epoch_seconds": round(statistics.median(line["seconds"] for line in ended), 4),
        "fill_seconds": round(statistics.median(_fills(run / EVENTS)), 4),
        "stages": {
            name: {key: round(sum(line["stages"][name][key] for line in ended) / len(ended), 4) for key in times}
            for name, times in ended[0]["stages"].items()
        },
        "feature_bytes": features // epochs,
        "minimum_bytes": result["bytes_minimum"] // epochs,
        "over_minimum": round(features / max(1, result["bytes_minimum"]) - 1, 5),
        "train_loss": result["train_loss"],
    }


def _fills(events: Path) -> list[float]:
    """Seconds that every epoch's first batch took before it could be computed, but for the first epoch's."""
    taken: dict[int, float] = {}
    for line in events.read_text().splitlines()[1:]:
        event = json.loads(line.rstrip(","))
        where = event.get("args", {})
        if event["name"] in ("seeds", "sample", "gather", "transfer") and event["ph"] == "X" and where["batch"] == 0:
            taken[where["epoch"]] = taken.get(where["epoch"], 0.0) + event["dur"] / 1e6
    return [seconds for epoch, seconds in taken.items() if epoch > 0]


def _print(rows: list[dict[str, Any]], epochs: int) -> None:
    columns = (
        "rung",
        "epoch s",
        "gain",
        "in all",
        "free s",
        "links s",
        "hidden",
        "features MB",
        "over minimum",
        "links MB",
    )
    table = Table(*columns, title="testbed: an epoch", title_justify="left")
    for row in rows:
        sent = sum(link["sent_bytes"] for link in row["links"]) / epochs
        table.add_row(
            *(row["rung"], f"{row['ladder_seconds']:.3f}", f"{row['gain']:.2f}", f"{row['gain_in_all']:.2f}"),
            *(
                f"{row['free_seconds']:.3f}",
                f"{row['link_seconds']:.3f}",
                f"{row['hidden']:.0%}",
                f"{row['feature_bytes'] / 1e6:.1f}",
            ),
            *(f"{row['over_minimum']:.2%}", f"{sent / 1e6:.1f}"),
        )
    Console(width=140).print(table)
    _print_flows(rows[-1])


def _print_flows(row: dict[str, Any]) -> None:
    table = Table("flows", "asked MB", "answered MB", title=f"{row['rung']}: the whole run", title_justify="left")
    kinds: dict[str, list[int]] = {}
    for name, sizes in row["flows"].items():
        total = kinds.setdefault(name.partition("/")[2] or "others", [0, 0])
        total[0], total[1] = total[0] + sizes[0], total[1] + sizes[1]
    for name, (sent, received) in sorted(kinds.items(), key=lambda each: -sum(each[1])):
        table.add_row(name, f"{sent / 1e6:.2f}", f"{received / 1e6:.2f}")
    Console(width=140).print(table)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=_rates, default=[250, 250, 1000, 1000], help="Mbit/s of every host's link")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--workers", type=int, default=2, help="a host")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--fanouts", default="15,10")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--security", choices=["tls", "token"], default="token")
    parser.add_argument("--out", type=Path, help="write everything, with every flow and link, to this file")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _rates(text: str) -> list[float]:
    """The slowest first: the run's records are those of the first host's first worker."""
    return sorted(float(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
