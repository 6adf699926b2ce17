"""What do placement and flow policies bring on unequal clusters, and how far from the bound does our plan stay?

The two simulated settings of the DGTP paper on random clusters: products (8 machines, 16 workers with 2 samplers) and
papers (16 machines, 20 workers with 4), a parameter server, machines of 32-128 GB, 4-16 cores, 1-4 GPUs and 10, 20 or
50 Gb/s; `--oversubscription 4` puts them in racks of four. Plans are made on 20 drawn iterations and judged on others.
Volumes are those of `Volumes` or of a JSON file. `--setting jobs`: two jobs of half the products setting each, placed
together against one after the other.
Run: python benchmarks/placement.py [--setting papers] [--clusters 20] [--factors 0.5,1,2] [--peaks 1,2,3]
[--oversubscription 4] [--volumes volumes.json] [--iterations 40] [--steps 100000] [--json]
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, unit_draws
from penstock.hardware.machines import Network, racks
from penstock.plan.placement import Budget, Evaluator, PlacementProblem, place, placement_problem
from penstock.simulate.gnn import GnnJob, gnn_workload
from penstock.simulate.levels import lower_bound
from penstock.simulate.rates import FLOW_POLICIES
from penstock.simulate.simulation import Simulator
from penstock.simulate.workload import Amounts, PeakToMean, Workload, draw_amounts, merge
from products_graph import show

SETTINGS = {"products": (8, 16, 2), "papers": (16, 20, 4), "jobs": (8, 8, 2)}
RESOURCES = {
    "worker": {"memory_gb": 3.0, "cores": 1.0, "gpus": 1.0},
    "sampler": {"memory_gb": 7.0, "cores": 2.0},
    "server": {"memory_gb": 5.0, "cores": 1.0},
}
FLOWS = "iteration-first"  # that our search simulates; the plan then takes the best of all flow policies
BASELINES = (
    ("distdgl", "oes"),
    ("distdgl", "fifo"),
    ("etp", "oes"),
    ("etp", "omcoflow"),
    ("etp", "mrtf"),
    ("search", "omcoflow"),
    ("search", "mrtf"),
)


Cluster = tuple[Mapping[str, Array], Network]


@dataclass(frozen=True)
class Volumes:
    """Mean bytes and seconds of an iteration."""

    pull_bytes: float = 30e6
    batch_bytes: float = 30e6
    model_bytes: float = 1e6
    store_seconds: float = 0.005
    sampler_seconds: float = 0.020
    worker_seconds: float = 0.030
    server_seconds: float = 0.002


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--setting", choices=SETTINGS, default="papers")
    parser.add_argument("--clusters", type=int, default=20)
    parser.add_argument("--factors", default="0.5,1,2", help="of the batch size, at a peak-to-mean ratio of 1")
    parser.add_argument("--peaks", default="1,2,3", help="peak-to-mean ratios of pulls, at the batch size given")
    parser.add_argument("--oversubscription", type=float, help="of racks of four; without it one switch for all")
    parser.add_argument("--volumes", type=Path, help="JSON with the fields of Volumes")
    parser.add_argument("--iterations", type=int, default=40, help="that plans are judged on")
    parser.add_argument("--steps", type=int, default=100_000, help="of our search; etp takes its 10,000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    volumes = Volumes(**json.loads(args.volumes.read_text())) if args.volumes else Volumes()
    cases = [(float(factor), 1.0) for factor in args.factors.split(",") if factor]
    cases += [(1.0, float(peak)) for peak in args.peaks.split(",") if peak and (1.0, float(peak)) not in cases]
    rows, skipped = [], 0
    for number in range(args.clusters):
        draw, means = first_that_holds(args, volumes, number + skipped)
        skipped = draw - number
        if args.setting == "jobs":
            rows.append({"cluster": draw} | together_or_in_turn(volumes, means, args))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
            continue
        for factor, peak in cases:
            problem = problem_of(workload(args.setting, scaled(volumes, factor)), *means)
            rows.append({"cluster": draw, "factor": factor, "peak": peak} | compare(problem, peak, args))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    shown = rows if args.setting == "jobs" else summary(rows, cases)
    show(f"placement {args.setting}, {skipped} draws could not hold the tasks", shown, args.json)


def scaled(volumes: Volumes, factor: float) -> Volumes:
    """Sampled bytes and the time that depends on them, for a batch so many times as large."""
    grown = ("pull_bytes", "batch_bytes", "store_seconds", "sampler_seconds", "worker_seconds")
    return Volumes(**{name: value * (factor if name in grown else 1) for name, value in asdict(volumes).items()})


def first_that_holds(args: argparse.Namespace, volumes: Volumes, draw: int) -> tuple[int, Cluster]:
    """The first random cluster from a draw on that can hold the tasks."""
    load = workload(args.setting, volumes)
    while True:
        means = cluster(SETTINGS[args.setting][0], draw, args.seed, args.oversubscription)
        try:
            problem_of(merge({"a": load, "b": load}) if args.setting == "jobs" else load, *means)
            return draw, means
        except PenstockError:
            draw += 1


def workload(setting: str, volumes: Volumes) -> Workload:
    """One job of a setting."""
    machines, workers, samplers = SETTINGS[setting]
    return gnn_workload(GnnJob(machines, workers, samplers, **asdict(volumes), resources=RESOURCES))


def cluster(machines: int, draw: int, seed: int, oversubscription: float | None) -> Cluster:
    """Capacities by name, and the network."""
    chances = unit_draws(key_of(seed, "cluster/{}", draw), machines * 4)
    memory, cores, gpus, nic = chances.reshape(4, machines)
    rates = np.array([10e9, 20e9, 50e9])[(nic * 3).astype(int)] / 8
    capacities = {"memory_gb": np.floor(32 + memory * 97), "cores": np.floor(4 + cores * 13)}
    rack_of = [number // 4 if oversubscription else 0 for number in range(machines)]
    network = racks(rack_of, rates, rates, oversubscription or 1.0)
    return capacities | {"gpus": np.floor(1 + gpus * 4)}, network


def problem_of(load: Workload, capacities: Mapping[str, Array], network: Network) -> PlacementProblem:
    """A job on a cluster."""
    return placement_problem(load, network, capacities)


def together_or_in_turn(volumes: Volumes, means: Cluster, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds an iteration of two jobs placed in one search, and of the second placed on what the first left."""
    capacities, network = means
    load = workload("jobs", volumes)
    both = problem_of(merge({"a": load, "b": load}), capacities, network)
    amounts = draw_amounts(both.workload, 20)
    first = place(Evaluator(problem_of(load, capacities, network), FLOWS), "search", Budget(args.steps))
    left = {name: np.array(amount, np.float64) for name, amount in capacities.items()}
    for name, held in load.resources.items():
        np.subtract.at(left[name], first.machine_of, held)
    try:
        second = place(Evaluator(problem_of(load, left, network), FLOWS), "search", Budget(args.steps))
    except PenstockError:
        joint = place(Evaluator(both, FLOWS, amounts), "search", Budget(args.steps))
        return {"together": joint.makespan / 20, "in_turn": None, "below_percent": None}
    each = np.concatenate([first.machine_of, second.machine_of])
    joint = place(Evaluator(both, FLOWS, amounts, [each]), "search", Budget(args.steps))
    in_turn = simulated(both, each, FLOWS, amounts)
    below = 100 * (1 - joint.makespan / in_turn)
    return {"together": joint.makespan / 20, "in_turn": in_turn / 20, "below_percent": below}


def compare(problem: PlacementProblem, peak: float, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds an iteration of our plan and of every baseline, on iterations that no plan was made on."""
    iterations: int = args.iterations
    spreads = {"pull": PeakToMean(peak), "batch": PeakToMean(peak)}
    known = draw_amounts(problem.workload, 20, 1, spreads)
    judged = draw_amounts(problem.workload, iterations, 2, spreads)
    began = time.perf_counter()
    ours = place(Evaluator(problem, FLOWS, known), "search", Budget(args.steps))
    search_seconds = time.perf_counter() - began
    placed = {"search": ours.machine_of}
    fair = Evaluator(problem, "oes", known)
    for policy in ("distdgl", "etp"):
        placed[policy] = place(fair, policy).machine_of
    flows = min(FLOW_POLICIES, key=lambda name: simulated(problem, placed["search"], name, known))
    out: dict[str, Any] = {"flows": flows, "search_s": search_seconds, "simulated": ours.simulated}
    out["ours"] = simulated(problem, placed["search"], flows, judged) / iterations
    case = Simulator(problem.workload, problem.network, judged).case(placed["search"])
    out["gap"] = out["ours"] * iterations / lower_bound(case) - 1
    for placement, policy in BASELINES:
        out[f"{placement}+{policy}"] = simulated(problem, placed[placement], policy, judged) / iterations
    return out


def simulated(problem: PlacementProblem, machine_of: Array, flows: str, amounts: Amounts) -> float:
    """Seconds of all iterations."""
    return Simulator(problem.workload, problem.network, amounts, flows).makespan(machine_of)


def summary(rows: list[dict[str, Any]], cases: list[tuple[float, float]]) -> list[dict[str, Any]]:
    """Per case the mean of our seconds and gap, and by how much we are below each baseline: mean, least and most."""
    out = []
    for factor, peak in cases:
        chosen = [row for row in rows if (row["factor"], row["peak"]) == (factor, peak)]
        line: dict[str, Any] = {"factor": factor, "peak": peak, "clusters": len(chosen)}
        for name in ("ours", "gap", "search_s"):
            line[name] = float(np.mean([row[name] for row in chosen]))
        for placement, policy in BASELINES:
            below = np.array([100 * (1 - row["ours"] / row[f"{placement}+{policy}"]) for row in chosen])
            line[f"below {placement}+{policy} %"] = f"{below.mean():.1f} ({below.min():.1f}..{below.max():.1f})"
        out.append(line)
    return out


if __name__ == "__main__":
    main()
