"""Selectors of paths against the optimum and the fluid bound, on the source's four applications, in the simulator.

Four tables: median latency against offered load; the distance to a clairvoyant search on a short recorded sequence;
where `leo` misleads and `leo-smooth` does not; what a decision costs.

    python benchmarks/path_selectors.py --requests 100000 --out paths.json
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock.graph.hashing import document_key
from penstock.paths import build_routes, find_application, find_hardware, selector_named
from penstock.paths.decisions import complete_chunk, decide_chunk, nothing_in_progress
from penstock.paths.documents import ApplicationDocument
from penstock.paths.optimum import fluid_bound, highest_rate
from penstock.paths.request_sequence import draw_sequence, with_noise, workload_shares
from penstock.paths.route_table import RouteTable
from penstock.paths.rules import new_state
from penstock.paths.simulation import Disturbance, simulate_paths
from products_graph import show

CASES = (
    ("key-value-store", "ycsb-c"),
    ("key-value-store", "ycsb-b"),
    ("file-system", "writes"),
    ("block-storage", "mixed"),
    ("all-reduce", "chunks-256k"),
)
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
SELECTORS = ("leo-smooth", "leo", "leo-per-place", "greedy-end-to-end", "greedy-intra", "ipipe", "random", "static")
_CHUNK = 64


def built(name: str) -> tuple[ApplicationDocument, RouteTable]:
    """An application and its paths on its hardware."""
    application = find_application(name)
    return application, build_routes(application, find_hardware(application.hardware))


def against_load(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Median latency of every selector at every load, and the fluid bound of the mean."""
    rows = []
    for name, workload in CASES:
        application, table = built(name)
        _, mix = workload_shares(application, workload)
        top = highest_rate(table, mix)
        for load in LOADS:
            bound = fluid_bound(table, mix, load * top)
            assert bound is not None, "loads are below the highest rate"
            row: dict[str, Any] = {"application": name, "workload": workload, "load": load, "rate": round(load * top)}
            sequence = draw_sequence(application, workload, load * top, options.requests, options.seed)
            for selector in SELECTORS:
                row[selector] = round(
                    float(np.median(simulate_paths(table, sequence, selector, options.seed).latencies)), 2
                )
            greedy = row["greedy-end-to-end"], row["greedy-intra"]
            row["gain"] = "-".join(f"{each / row['leo-smooth']:.2f}" for each in sorted(greedy))
            rows.append(row | {"fluid_mean": round(bound.mean_us, 2)})
    return rows


def against_optimum(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A short sequence: mean latency of the clairvoyant search, and how far others are from it."""
    rows = []
    for name, workload in CASES:
        application, table = built(name)
        _, mix = workload_shares(application, workload)
        top = highest_rate(table, mix)
        for load in (0.3, 0.6, 0.8, 0.9, 0.95):
            sequence = draw_sequence(application, workload, load * top, options.optimum_requests, options.seed)
            start = time.perf_counter()
            best = simulate_paths(table, sequence, "clairvoyant", options.seed)
            seconds = time.perf_counter() - start
            row: dict[str, Any] = {"application": name, "workload": workload, "load": load}
            least = float((best.record.end - sequence.arrivals).mean())
            row["clairvoyant"] = round(least, 2)
            for selector in ("rolling-horizon", *SELECTORS[:5]):
                other = simulate_paths(table, sequence, selector, options.seed, options.horizon)
                row[selector] = f"{(other.record.end - sequence.arrivals).mean() / least - 1:+.1%}"
            rows.append(row | {"clairvoyant_s": round(seconds, 2)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def misleading(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Conditions under which counts of slow completions are wrong: noise, delay of the signal, a slow node."""
    application, table = built("key-value-store")
    _, mix = workload_shares(application, "ycsb-c")
    top = highest_rate(table, mix)
    visits = max(len(table.visits_of(path)) for path in range(len(table.paths)))
    rows = []
    for what, load, noise, slow in (
        ("as profiled", 0.4, 0.0, 1.0),
        ("services up to 2 % longer", 0.4, 0.02, 1.0),
        ("services up to 10 % longer", 0.4, 0.10, 1.0),
        ("accelerator saturated", 0.65, 0.0, 1.0),
        ("accelerator 3x slower for a third", 0.4, 0.0, 3.0),
    ):
        sequence = draw_sequence(application, "ycsb-c", load * top, options.requests, options.seed)
        if noise:
            sequence = with_noise(sequence, visits, noise, options.seed)
        span = float(sequence.arrivals[-1])
        disturbances = (Disturbance("responder.acc", span / 3, 2 * span / 3, slow),) if slow > 1 else ()
        for selector in ("leo-smooth", "leo", "greedy-end-to-end", "greedy-intra", "ipipe"):
            outcome = simulate_paths(table, sequence, selector, options.seed, disturbances=disturbances)
            found = outcome.fields()
            changes = float((np.diff(outcome.record.path) != 0).mean())
            rows.append(
                {
                    "condition": what,
                    "load": load,
                    "selector": selector,
                    "median_us": round(float(str(found["median_us"])), 2),
                    "p99_us": round(float(str(found["p99_us"])), 2),
                    "acc_share": round(float((outcome.record.path == 0).mean()), 3),
                    "path_changes": round(changes, 3),
                }
            )
    return rows


def decision_cost(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Nanoseconds of one decision and one completion, in chunks of 64, and a core's share at 1 million a second."""
    _, table = built("key-value-store")
    rows = []
    count = _CHUNK
    kinds, groups, slots = np.zeros(count, np.int32), np.arange(count), np.arange(count)
    took, out = np.full((count, 3), 20.0), np.empty(count, np.int32)
    for selector in SELECTORS:
        entry, _ = selector_named(selector)
        state = new_state(table.routes, count, document_key(0, "paths choices"))._replace(
            weights=np.array([1.0, 0.0, 1.0])
        )
        open_ones, spent = nothing_in_progress(count), np.zeros(2)
        for repeat in range(options.decisions // count):
            now = repeat * 10.0
            start = time.perf_counter()
            decide_chunk(entry.rule, table.routes, state, open_ones, kinds, groups, 0, slots, now, out)
            middle = time.perf_counter()
            complete_chunk(entry.rule, table.routes, state, open_ones, kinds, groups, out, slots, took, now + 8.0)
            if repeat:
                spent += middle - start, time.perf_counter() - middle
        decide, complete = spent / (options.decisions // count - 1) / count * 1e9
        rows.append(
            {
                "selector": selector,
                "decision_ns": round(decide, 1),
                "completion_ns": round(complete, 1),
                "core_share_at_1M_per_s": f"{(decide + complete) * 1e-3:.1%}",
            }
        )
    return rows


def main() -> int:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--optimum-requests", type=int, default=100)
    parser.add_argument("--horizon", type=int, default=8)
    parser.add_argument("--decisions", type=int, default=640_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tables = {
        "decision cost": decision_cost(options),
        "median latency (us) against load": against_load(options),
        "where leo misleads": misleading(options),
        "against the clairvoyant search (mean)": against_optimum(options),
    }
    if options.out is not None:
        options.out.write_text(json.dumps(tables))
    for name, rows in tables.items():
        show(name, rows, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
