"""Where does the time of a captured step go, kernel by kernel, and how far is it from the bytes and flops it must move?

Draws and learns batches of a graph on a GPU, each by itself, under torch's profiler. The floor of a row is the larger
of its bytes over the device's copy rate and its flops over its rate of matrix products, both measured here first.
Run: python benchmarks/gpu_profile.py --graph FOLDER [--compute tf32] [--out profile.json]
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from gpu_runs import FANOUTS, HIDDEN, report
from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.device.block import Room
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_context import run_context
from penstock.train.session import Session
from penstock.train.steps.engine import Engine

BATCHES = 32
PRODUCTS = "gemm", "cutlass", "splitk", "product_rows", "add_products"
ITEM = {"float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--compute", default="float32")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    args = parser.parse_args()
    fields = {"graph": str(args.graph), "device": "cuda", "compute_type": args.compute}
    job = make_job({**fields, "model": "sage", "hidden": HIDDEN, "fanouts": FANOUTS, "batch_size": 1024})
    with run_context(job):
        copy, product = copy_rate(), product_rate(args.compute)
        session = make_session(job)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, 2)
        with session.execution.steps(schedule, Position(0, 0), lambda _: BATCHES, lambda *_: None) as steps:
            next(iter(steps))
            rows = measured(steps, session, args.compute, copy, product)
    title = f"{args.graph.name}, {args.compute}: microseconds a batch; copies {copy / 1e12:.2f} TB/s counted both ways,"
    report(f"{title} products {product / 1e12:.0f} Tflop/s", rows, args.out)


def measured(steps: Engine, session: Session, compute: str, copy: float, product: float) -> list[dict[str, Any]]:
    """A row for each kind of kernel, with what it must move at least."""
    placed = session.execution.placed
    assert placed.room is not None
    room, item = placed.room, ITEM[compute]
    widths = [placed.table.shape[1], *[HIDDEN] * (len(FANOUTS) - 1), session.task.out]
    stored = placed.table.dtype.itemsize
    rows = []
    for what in ("draw", "learn"):
        steps.source.restart(0)
        alone = wall_us(lambda what=what: replay(steps, what))
        spent = kernels_of(lambda what=what: replay(steps, what))
        named = named_draws(spent) if what == "draw" else named_steps(spent, room, widths, stored, item)
        rows.append({"what": f"{what}: alone, by the clock", "us": round(alone, 1)})
        for name, (microseconds, moved, flops) in named.items():
            floor = max(moved / copy, flops / product) * 1e6
            row = {"what": f"{what}: {name}", "us": round(microseconds, 1)}
            if floor:
                row |= {"MB": round(moved / 1e6, 1), "Gflop": round(flops / 1e9, 2), "floor_us": round(floor, 1)}
                row["ratio"] = round(microseconds / floor, 2)
            rows.append(row)
    return rows


def replay(steps: Engine, what: str) -> None:
    """Launch a batch's work, slot by slot."""
    for number in range(BATCHES):
        getattr(steps.turns[number % 2], what).replay()


def wall_us(work: Callable[[], None]) -> float:
    """Microseconds a batch by the clock, the best of three."""
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best / BATCHES * 1e6


def kernels_of(work: Callable[[], None]) -> list[tuple[str, float]]:
    """(name, microseconds) of every kernel of a batch in the order they ran, the median batch's."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    events = sorted((event for event in profiler.events() if event.device_time > 0), key=lambda e: e.time_range.start)
    size = len(events) // BATCHES
    batches = [events[number * size : (number + 1) * size] for number in range(BATCHES)]
    middle = sorted(batches, key=lambda batch: sum(event.device_time for event in batch))[BATCHES // 2]
    return [(event.name, event.device_time) for event in middle]


Named = dict[str, tuple[float, float, float]]


def named_draws(spent: list[tuple[str, float]]) -> Named:
    """Draws by kernel: launches and latency, not bytes, are what they cost."""
    found: Named = {}
    for name, microseconds in spent:
        short = name.split("(")[0][-40:]
        found[short] = (found.get(short, (0.0, 0, 0))[0] + microseconds, 0.0, 0.0)
    return found


def named_steps(spent: list[tuple[str, float]], room: Room, widths: list[int], stored: int, item: int) -> Named:
    """Steps by what they do: gathers layer by layer, products, the rest."""
    gathers = [microseconds for name, microseconds in spent if name.startswith("gather_rows")]
    drops = [microseconds for name, microseconds in spent if name.startswith("drop_rows")]
    products = [(name, t) for name, t in spent if any(each in name.lower() for each in PRODUCTS)]
    found: Named = {}
    rows, layers = room.rows[::-1], list(pairwise(widths))
    for layer, (width, out) in enumerate(layers):
        num_dst, edges = rows[layer + 1], room.edges[::-1][layer]
        read = (edges + num_dst) * width * (stored if layer == 0 else item)
        found[f"gather, layer {layer + 1}"] = (gathers[layer], read + num_dst * (2 * width + 8) * item, 0.0)
        if layer < len(drops):
            found[f"rectifier and dropout, layer {layer + 1}"] = (drops[layer], 2 * num_dst * out * item, 0.0)
    for back, layer in enumerate(range(len(layers) - 1, 0, -1)):
        width, num_src, num_dst = layers[layer][0], rows[layer], rows[layer + 1]
        moved = (2 * num_src + 2 * num_dst) * width * item
        found[f"gradients back through layer {layer + 1}"] = (gathers[len(layers) + back], moved, 0.0)
    flops = sum(
        2 * rows[layer + 1] * (2 * width + 8) * out * (3 if layer else 2) for layer, (width, out) in enumerate(layers)
    )
    moved = sum(
        rows[layer + 1] * ((2 * width + 8) + out) * item * (3 if layer else 2)
        for layer, (width, out) in enumerate(layers)
    )
    found["products"] = (sum(t for _, t in products), moved, flops)
    counted = sum(gathers[: 2 * len(layers) - 1]) + sum(drops) + found["products"][0]
    found["everything else"] = (sum(t for _, t in spent) - counted, 0.0, 0.0)
    return found


def copy_rate() -> float:
    """Bytes a second of a copy within the device, read and written."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds_of(lambda: target.copy_(source))


def product_rate(compute: str) -> float:
    """Flops a second of a large square product in the type that is computed in."""
    dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(compute, torch.float32)
    a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
    return 2 * 8192**3 / seconds_of(lambda: torch.mm(a, b))


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds of one launch, the best of some."""
    best = float("inf")
    for _ in range(6):
        before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        before.record()
        work()
        after.record()
        torch.cuda.synchronize()
        best = min(best, before.elapsed_time(after) / 1e3)
    return best


if __name__ == "__main__":
    main()
