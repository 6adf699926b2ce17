"""Queues of jobs that were measured on a device, on a simulated clock: real runs of them would take days.

Takes what `queue_gpu.py` wrote of a queue that was run one job after the other, cold and warm, and under some policies.
A job's seconds are those of its steps in a warm worker, its memory what it was granted, and starts are what is left of
its time in a cold and in a warm process. One number is fitted: the share of the device that each job uses, with which
simulated makespans of the measured policies are nearest to the measured ones; `error` says how near each of them is.

Then the same jobs with so many more epochs that the shortest takes --least seconds alone, in ten orders of arrival, at
full memory and at 26 GB. `over cold` and `over warm` say how many times shorter than one job after the other; jobs that
do not fit are `refused`, and the others' times are given.
Run: python benchmarks/queue_measured.py queue.json [--least 60] [--json]
"""

import random
import sys
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import typer

from penstock.service import POLICIES
from penstock.service.simulation import QueueTrace, least_makespan, least_mean_completion, simulate_method
from products_graph import show
from queue_gpu_table import key_of, read_results

MEMORY_GB, CAPPED_GB = 141.0, 26.0
ONE_BY_ONE = {"cold": "sequential-cold", "warm": "sequential"}
_SHARES = np.linspace(0.3, 1.0, 71)
_ALL_AGES = 1e8
FIELDS = ("makespan_s", "mean_completion_s", "mean_queueing_s", "utilisation")


def main(
    results: Annotated[list[Path], typer.Argument(help="What queue_gpu.py wrote.")],
    least: Annotated[float, typer.Option(help="Seconds that the shortest job takes alone.")] = 60.0,
    orders: int = 10,
    json: bool = False,
) -> None:
    """Validate and simulate every queue that was run cold and warm."""
    rows = []
    for queue, found in _queues(results):
        measured = {method: max(job["end_s"] for job in jobs) for method, jobs in found.items()}
        share = _fitted_share(found, measured)
        for method in (*ONE_BY_ONE, *(each for each in POLICIES if each in measured)):
            simulated = _simulated(_trace(found, share), method)["makespan_s"]
            compared = {"measured_s": measured[method], "error": simulated / measured[method] - 1}
            rows.append(_row(queue, method, MEMORY_GB, share, {"makespan_s": simulated}) | compared)
        for memory_gb in (MEMORY_GB, CAPPED_GB):
            rows += _longer(queue, found, share, memory_gb, least, orders)
    show("measured jobs on a simulated clock", rows, json)


def _queues(files: list[Path]) -> list[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """The jobs of each queue by method, of queues that were run in both ways one by one; others are told about.

    Only what was run on one machine in one order with equal jobs is put together.
    """
    found: dict[Any, dict[str, list[dict[str, Any]]]] = {}
    for each in read_results(files):
        if any(job["state"] != "ended" for job in each["jobs"]):
            print(f"Left out: {key_of(each)}, not all jobs of which ended.", file=sys.stderr)
            continue
        found.setdefault(key_of({**each, "method": None}), {})[each["method"]] = each["jobs"]
    both = {key: methods for key, methods in found.items() if set(ONE_BY_ONE) <= set(methods)}
    for key in found.keys() - both.keys():
        print(f"Left out: {key}, which was not run both cold and warm.", file=sys.stderr)
    return [(key[1], methods) for key, methods in both.items()]


def _fitted_share(found: dict[str, list[dict[str, Any]]], measured: dict[str, float]) -> float:
    """The share with which the policies' makespans are nearest; 1 where none was measured."""
    policies = [method for method in POLICIES if method in measured]

    def error(share: float) -> float:
        trace = _trace(found, share)
        return sum((_simulated(trace, each)["makespan_s"] / measured[each] - 1) ** 2 for each in policies)

    return float(min(_SHARES, key=error)) if policies else 1.0


def _trace(
    found: dict[str, list[dict[str, Any]]],
    share: float,
    times: float = 1.0,
    memory_gb: float = MEMORY_GB,
    order: int | None = None,
) -> QueueTrace:
    """The queue's jobs with so many times the epochs, in the order in which they were run or in one of others."""
    cold, warm = found["cold"], found["warm"]
    jobs = [
        {"name": job["name"], "alone_s": times * job["train_s"], "memory_gb": job["device_bytes"] / 1e9, "share": share}
        for job in warm
    ]
    if order is not None:
        random.Random(f"order {order}").shuffle(jobs)
    starts = {"cold_start_s": cold, "warm_start_s": warm}
    return QueueTrace.model_validate(
        {"devices": [{"name": "gpu", "memory_gb": memory_gb}], "jobs": jobs, "age_s": _ALL_AGES}
        | {name: mean(job["ran_s"] - job["train_s"] for job in each) for name, each in starts.items()}
    )


def _simulated(trace: QueueTrace, method: str) -> dict[str, Any]:
    found: dict[str, Any] = simulate_method(trace, ONE_BY_ONE.get(method, method)).fields()
    return found


def _longer(
    queue: str, found: dict[str, list[dict[str, Any]]], share: float, memory_gb: float, least: float, orders: int
) -> list[dict[str, Any]]:
    """A row for each method, averaged over orders."""
    times = least / min(job["train_s"] for job in found["warm"])
    traces = [_trace(found, share, times, memory_gb, order) for order in range(orders)]
    bounds = mean(map(least_makespan, traces)), mean(map(least_mean_completion, traces))
    rows: dict[str, dict[str, Any]] = {}
    for method in (*ONE_BY_ONE, *POLICIES):
        each = [_simulated(trace, method) for trace in traces]
        averages = {name: mean(one[name] for one in each) for name in FIELDS}
        rows[method] = _row(queue, method, memory_gb, share, averages)
        rows[method] |= {
            f"{name.removesuffix('_s')} over {other}": rows[other][name] / max(averages[name], 1e-9)
            for other in ONE_BY_ONE
            for name in FIELDS[:3]
            if other in rows
        }
        rows[method]["refused"] = len(each[0]["refused"])
        rows[method] |= {
            "makespan over bound": averages["makespan_s"] / bounds[0],
            "completion over shortest first": averages["mean_completion_s"] / bounds[1],
        }
    return list(rows.values())


def _row(queue: str, method: str, memory_gb: float, share: float, figures: dict[str, float]) -> dict[str, Any]:
    return {"queue": queue, "method": method, "memory_gb": memory_gb, "share": share, **figures}


if __name__ == "__main__":
    typer.run(main)
