"""Schedules of groups of batches against first in, first out: random groups, each on a CPU, a bus and a GPU.

A batch of the random groups has three ways to compute its first layer: everything on the GPU after its features have
crossed the bus; multiplied by the weights on the CPU first, so that narrower rows cross; or aggregated on the CPU
first. A second layer and the backward pass follow on the GPU, and the weights' gradients cross back. Times are drawn
log-normally around a batch whose bus, CPU and GPU times are alike, so that each of them limits some groups. A line for
each scheduler gives its makespan relative to that of fifo (mean, median, 5th and 95th percentile), how often it was
longer, the share of the makespan that is proved (its own bound or CP-SAT's, the larger), and seconds for a group.
Run: python benchmarks/shops.py [--groups 500] [--batches 4 10] [--solver-seconds 0.5] [--minutes 8]; CP-SAT needs the
extra `shop`. A folder of .fjs or .txt files may be given instead of random groups, with a line for
each and processor seconds; or --profile, which `penstock profile
--operators` made on a machine with a GPU, and --graphs and --models, whose batches are then drawn (shop_batches.py).
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cost.model import CostModel
from penstock.cost.profile import read_profile
from penstock.errors import PenstockError
from penstock.graph.convert import load
from penstock.simulate.shop import Choice, Shop, make_schedule, read_fjs, shop_bound
from penstock.simulate.shop.shop import Route
from penstock.train.job import make_job
from shop_batches import LINKS, groups_of_batches

CPU, BUS, GPU = 0, 1, 2
_MACHINES = ("cpu", "bus", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=500)
    parser.add_argument("--batches", type=int, nargs=2, default=[4, 10], help="fewest and most in a group")
    parser.add_argument("--files", type=Path, help="a folder of .fjs files instead of random groups")
    parser.add_argument("--profile", type=Path, help="operators of a machine, for batches instead of random groups")
    parser.add_argument("--graphs", nargs="+", default=["synthetic-arxiv"])
    parser.add_argument("--models", nargs="+", default=["sage", "gcn"])
    parser.add_argument("--fanouts", type=int, nargs="+", default=[15, 10, 5])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--solver-seconds", type=float, default=0.5)
    parser.add_argument("--width", type=int, default=30, help="of bilevel's search")
    parser.add_argument("--minutes", type=float, default=8.0, help="no group is begun after this time")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    schedulers: dict[str, dict[str, Any]] = {
        "fifo": {},
        "local-search": {},
        "bilevel": {"width": args.width, "links": LINKS if args.profile else [BUS + 1]},
        "cp-sat": {"seconds": args.solver_seconds},
    }
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in schedulers}
    until = time.monotonic() + 60 * args.minutes
    for shop in files(args.files) if args.files else drawn_groups(args) if args.profile else random_groups(args):
        if time.monotonic() > until:
            break
        compare(shop, schedulers, rows, named=args.files is not None)
    for name, found in rows.items():
        if found:
            print(json.dumps(summary(name, found)), flush=True)


def compare(
    shop: Shop, schedulers: dict[str, dict[str, Any]], rows: dict[str, list[dict[str, float]]], named: bool
) -> None:
    """Add a row of each scheduler for one shop; with its name, print makespans, processor seconds and the bound."""
    least, found = shop_bound(shop), {}
    for name, options in schedulers.items():
        began = time.process_time()
        try:
            schedule = make_schedule(shop, name, options)
        except PenstockError as error:
            if error.code != "not-installed":
                raise
            continue
        found[name] = schedule.makespan, time.process_time() - began
        least = max(least, schedule.proved or 0.0)
    if named:
        print(json.dumps({"shop": shop.name, "bound": least, **found}), flush=True)
    for name, (makespan, seconds) in found.items():
        rows[name].append({"ratio": makespan / found["fifo"][0], "proved": least / makespan, "seconds": seconds})


def summary(name: str, rows: list[dict[str, float]]) -> dict[str, Any]:
    """One line for a scheduler."""
    ratios = [row["ratio"] for row in rows]
    low, high = np.percentile(ratios, [5, 95])
    return {
        "schedule": name,
        "groups": len(rows),
        "of_fifo": round(statistics.mean(ratios), 4),
        "median": round(statistics.median(ratios), 4),
        "percentiles_5_95": [round(float(low), 4), round(float(high), 4)],
        "longer_than_fifo": sum(ratio > 1 + 1e-9 for ratio in ratios),
        "proved": round(statistics.mean(row["proved"] for row in rows), 4),
        "proved_optimal": sum(row["proved"] > 1 - 1e-4 for row in rows),
        "ms_per_group": round(1e3 * statistics.mean(row["seconds"] for row in rows), 2),
    }


def files(folder: Path) -> Iterator[Shop]:
    """The shops in a folder."""
    return (read_fjs(path) for path in sorted((*folder.glob("*.fjs"), *folder.glob("*.txt"))))


def drawn_groups(args: argparse.Namespace) -> Iterator[Shop]:
    """Groups of batches of every graph and model, as many of each."""
    model, jobs = CostModel(read_profile(args.profile)), len(args.graphs) * len(args.models)
    for name in args.graphs:
        graph = load(name)
        for layer in args.models:
            fields = {"fanouts": args.fanouts, "batch_size": args.batch_size, "hidden": args.hidden, "device": "cuda"}
            job = make_job({"graph": name, "model": layer, "seed": args.seed, **fields})
            yield from groups_of_batches(model, job, graph, args.groups // jobs, tuple(args.batches), args.seed)


def random_groups(args: argparse.Namespace) -> Iterator[Shop]:
    """Groups of batches; times are whole microseconds."""
    rng = np.random.default_rng(args.seed)
    for number in range(args.groups):
        # How fast the bus is, beside the processors, is the same for all batches of a group.
        bus = float(rng.lognormal(0.0, 0.7))
        count = int(rng.integers(args.batches[0], args.batches[1] + 1))
        yield Shop(f"group {number}", _MACHINES, tuple(_batch(rng, bus) for _ in range(count)), 1e-6)


def _batch(rng: np.random.Generator, bus: float) -> tuple[Route, ...]:
    size = float(rng.lognormal(0.0, 0.5))
    rows, aggregation, product = (1000 * size * float(rng.lognormal(0.0, 0.3)) for _ in range(3))
    narrowing = float(rng.uniform(0.2, 1.0))

    def on(machine: int, microseconds: float) -> tuple[Choice, ...]:
        return (Choice(machine, float(max(1, round(microseconds)))),)

    rest = (on(GPU, 0.5 * aggregation), on(BUS, 30.0))
    return (
        (on(BUS, rows * bus), on(GPU, 0.3 * aggregation), on(GPU, 0.2 * product), *rest),
        (on(CPU, 1.5 * product), on(BUS, rows * bus * narrowing), on(GPU, 0.3 * aggregation * narrowing), *rest),
        (on(CPU, 2.0 * aggregation), on(BUS, rows * bus * 0.3), on(GPU, 0.2 * product), *rest),
    )


if __name__ == "__main__":
    main()
