"""The CoGNN queues on a simulated clock: five queues of 20 jobs, ten arrival orders, every policy of the queue.

A job's memory, seconds and share of the device are estimated here, not measured: bytes that its kernels move over the
device's bandwidth, or the time that launching them takes where that is longer. `penstock simulate --queue` takes traces
of measured jobs.

--random N simulates N random traces of three to six jobs instead (each is seeded by its number), and compares the mean
completion under `fit` with that of the best of all orders: without times, with times that are forecast (off by 20 % in
the median), and with known ones.

Run: python benchmarks/queue_policies.py [--random 200] [--json]
"""

import random
from dataclasses import dataclass, field
from itertools import permutations
from statistics import mean, median
from typing import Annotated, Any

import typer

from penstock.service.policies import Packing, PackingPolicy
from penstock.service.simulation import (
    METHODS,
    QueueTrace,
    least_makespan,
    least_mean_completion,
    simulate_method,
    simulate_queue,
)
from products_graph import show

GRAPHS = {
    "cora": (2_708, 10_858, 1_433),
    "citeseer": (3_327, 9_464, 3_703),
    "pubmed": (19_717, 88_676, 500),
    "PROTEINS": (43_471, 162_088, 29),
    "artist": (50_515, 1_638_396, 100),
    "soc-Blog": (88_784, 2_093_195, 128),
    "DD": (334_925, 1_686_092, 98),
    "amazon0601": (410_236, 4_878_875, 96),
    "TWITTER": (580_768, 1_435_116, 1_323),
    "Yeast": (1_714_644, 3_636_546, 74),
    "OVCAR-8H": (1_890_931, 3_946_402, 66),
}
"""Vertices, edges and features of the source's graphs (its Table IV)."""
HIDDEN, EPOCHS, LAYERS, JOBS = 64, 200, range(4, 11), 20
_BYTES_PER_S = 0.7 * 4.8e12
"""What kernels reach of an H200's memory bandwidth."""
_LAUNCH_S = 8e-6
_CONTEXT_GB = 0.5


@dataclass(frozen=True)
class Layer:
    """What a layer of a model keeps and moves, forward and backward together."""

    kept_rows: float
    """Rows of all vertices that are kept for the backward pass."""
    edge_rows: float
    """Rows of all (sampled) edges that exist at once, in which messages are materialised."""
    passes: float
    """How often rows are read or written in an epoch."""
    kernels: int
    sampled: float = 1.0


MODELS = {
    "GCN": Layer(kept_rows=3, edge_rows=1, passes=4, kernels=24),
    "SAGE": Layer(kept_rows=4, edge_rows=1, passes=5, kernels=30, sampled=0.5),
    "GAT": Layer(kept_rows=4, edge_rows=3, passes=8, kernels=70, sampled=0.6),
    "GIN": Layer(kept_rows=6, edge_rows=1, passes=8, kernels=44),
}


def main(
    orders: Annotated[int, typer.Option(min=1, help="Seeded arrival orders.")] = 10,
    interference: Annotated[float, typer.Option(help="By what part a neighbour makes steps longer.")] = 0.05,
    cold_start_s: Annotated[float, typer.Option(help="A new process until its first step.")] = 10.0,
    warm_start_s: Annotated[float, typer.Option(help="A warm worker until a job's first step.")] = 0.5,
    traces: Annotated[int, typer.Option("--random", min=0, help="Random traces, beside the best of all orders.")] = 0,
    json: bool = False,
) -> None:
    """Simulate every queue at full memory and at 26 GB."""
    if traces:
        show("queue orders", _order_rows(traces), json)
        return
    starts = {"cold_start_s": cold_start_s, "warm_start_s": warm_start_s, "interference": interference}
    rows = []
    for memory_gb in (141.0, 26.0):
        for queue in [*MODELS, "mix"]:
            rows += _queue_rows(queue, memory_gb, orders, starts)
    show("queue policies", rows, json)


def _queue_rows(queue: str, memory_gb: float, orders: int, options: dict[str, float]) -> list[dict[str, Any]]:
    """A row for each method, averaged over the orders of arrival."""
    traces = [_trace(queue, memory_gb, seed, options) for seed in range(orders)]
    known = [trace.model_copy(update={"times_known": True}) for trace in traces]
    two = [_with_limit(trace, 2) for trace in traces]
    cases = [(method, "auto", traces, method) for method in ("sequential-cold", "sequential")]
    cases += [(method, "2", two, method) for method in ("base", "lmcf", "bmc")]
    cases += [(method, "auto", traces, method) for method in METHODS if not method.startswith("sequential")]
    cases += [("fit, times known", "auto", known, "fit")]
    least = mean(map(least_makespan, traces)), mean(map(least_mean_completion, traces))
    rows: list[dict[str, Any]] = []
    for name, limit, given, method in cases:
        found = [simulate_method(trace, method).fields() for trace in given]
        averages = {
            field: mean(each[field] for each in found)
            for field in ("makespan_s", "mean_completion_s", "mean_queueing_s", "utilisation", "memory_used")
        }
        cold = rows[0] if rows else {"makespan_s": averages["makespan_s"], **averages}
        rows.append(
            {"queue": queue, "memory_gb": memory_gb, "method": name, "concurrent": limit, **averages}
            | {
                "jobs": found[0]["jobs"],
                "makespan_gain": cold["makespan_s"] / averages["makespan_s"],
                "completion_gain": cold["mean_completion_s"] / averages["mean_completion_s"],
                "queueing_gain": cold["mean_queueing_s"] / max(averages["mean_queueing_s"], 1e-9),
                "makespan_over_least": averages["makespan_s"] / least[0],
                "completion_over_least": averages["mean_completion_s"] / least[1],
                "largest_group_gb": max(max(each["peak_memory_gb"].values()) for each in found),
            }
        )
    return rows


def _trace(queue: str, memory_gb: float, seed: int, options: dict[str, float]) -> QueueTrace:
    """The 20 jobs of a queue, the same for every seed, arriving at once in the seed's order."""
    models = list(MODELS) if queue == "mix" else [queue]
    choices = [(model, graph, layers) for model in models for graph in GRAPHS for layers in LAYERS]
    jobs = random.Random(f"{queue} jobs").sample(choices, JOBS)
    random.Random(f"{queue} order {seed}").shuffle(jobs)
    return QueueTrace.model_validate(
        {
            "devices": [{"name": "gpu", "memory_gb": memory_gb}],
            "jobs": [_job(*job) for job in jobs],
            "age_s": 1e8,
            **options,
        }
    )


def _job(model: str, graph: str, layers: int) -> dict[str, Any]:
    layer, (vertices, edges, features) = MODELS[model], GRAPHS[graph]
    row, drawn = 4 * HIDDEN, edges * layer.sampled
    memory = 4 * vertices * features + 16 * edges + layers * layer.kept_rows * vertices * row
    memory += layer.edge_rows * drawn * row * (layers if model == "GAT" else 1)
    moved = layers * layer.passes * (vertices + layer.edge_rows * drawn) * row + 3 * 4 * vertices * features
    busy_s = moved / _BYTES_PER_S
    step_s = busy_s + layers * layer.kernels * _LAUNCH_S
    return {
        "name": f"{model} {graph} {layers}",
        "memory_gb": _CONTEXT_GB + memory / 1e9,
        "alone_s": EPOCHS * step_s,
        "share": max(0.01, busy_s / step_s),
    }


def _with_limit(trace: QueueTrace, limit: int) -> QueueTrace:
    devices = [device.model_copy(update={"concurrent": limit}) for device in trace.devices]
    return trace.model_copy(update={"devices": devices})


# Random traces of few jobs, of which all orders can be tried.

_FOREVER = 1e8
_OFF = 0.3
"""The deviation of the logarithm of forecast over true seconds: 20 % in the median."""


@dataclass(frozen=True)
class InOrder(PackingPolicy):
    """Every job that has room, in a given order."""

    name = "in order"
    barriers = False
    places: dict[str, int] = field(default_factory=dict)

    def fill(self, packing: Packing) -> None:
        for job in sorted(packing.candidates, key=lambda job: self.places[job.id]):
            device = packing.best_device(job)
            if device is not None:
                packing.start(job, device)


def _order_rows(count: int) -> list[dict[str, Any]]:
    found: dict[str, list[float]] = {}
    for seed in range(count):
        without, forecast = _random_trace(seed, None), _random_trace(seed, _OFF)
        names = [job.name for job in without.jobs]
        orders = (dict(zip(order, range(len(names)), strict=True)) for order in permutations(names))
        least = min(_mean_completion(without, InOrder(_FOREVER, places)) for places in orders)
        known = without.model_copy(update={"times_known": True})
        for name, trace in (("unknown", without), ("forecast", forecast), ("known", known)):
            taken = simulate_method(trace, "fit").fields()["mean_completion_s"]
            found.setdefault(name, []).append(taken / least)
    return [
        {"times": name, "traces": count, "mean": mean(ratios), "median": median(ratios), "worst": max(ratios)}
        | {"within_1.10": sum(ratio <= 1.1 for ratio in ratios)}
        for name, ratios in found.items()
    ]


def _mean_completion(trace: QueueTrace, policy: PackingPolicy) -> float:
    return float(simulate_queue(trace, policy).fields()["mean_completion_s"])


def _random_trace(seed: int, off: float | None) -> QueueTrace:
    """Jobs of 10 to 600 s on a GPU of 24 GB, half of them there at the start; their forecasts are `off`."""
    drawn, jobs = random.Random(f"orders {seed}"), []
    for number in range(3 + seed % 4):
        alone_s = 10 * 60 ** drawn.random()
        arrival_s = drawn.choice([0.0, drawn.uniform(0, 120)])
        job = {"name": str(number), "arrival_s": arrival_s, "alone_s": alone_s}
        job |= {"share": drawn.uniform(0.1, 1), "memory_gb": drawn.uniform(1, 16)}
        wrong = random.Random(f"forecasts {seed} {number}")
        jobs.append(job | ({} if off is None else {"expected_s": alone_s * wrong.lognormvariate(0, off)}))
    devices, options = (
        [{"name": "gpu", "memory_gb": 24}],
        {"age_s": _FOREVER, "interference": 0.05, "warm_start_s": 0.5},
    )
    return QueueTrace.model_validate({"devices": devices, "jobs": jobs, **options})


if __name__ == "__main__":
    typer.run(main)
