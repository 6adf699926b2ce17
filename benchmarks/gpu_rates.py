"""How many batches a second does each model train with on one GPU, by which kernels, and which way of several is best?

A graph like ogbn-products (`--scale` of synthetic-products), 3 x 256, fan-outs 15, 10, 5, batches of 1,024: every case
is a session of this process, whose captured steps run epochs with their draws beside them; then steps alone are
replayed under a profiler. A case's way changes constants of modules. Products are timed alone as well, for each tile.
Run: python benchmarks/gpu_rates.py [--graph FOLDER] [--scale 0.1] [--seconds 85] [--only gatv2,products]
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from gpu_profile import BATCHES, kernels_of, replay, seconds_of
from gpu_runs import FANOUTS, HIDDEN, made
from penstock.nn.device import attention, products
from penstock.nn.device.drop import Dropping, drop_rows, pass_where_positive
from penstock.nn.device.gather import KeptRows
from penstock.pipeline.schedule import Position, Schedule
from penstock.train import optimisers
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_context import run_context

FUSED: dict[tuple[Any, str], Any] = {}
UNFUSED = {(products, "fuses"): lambda x, weight: False}
WHOLE = {(optimisers, "_LEAST"): 1 << 40}
CASES: list[tuple[str, str, str, dict[tuple[Any, str], Any]]] = [
    ("sage", "tf32", "fused", FUSED),
    ("sage", "tf32", "passes of their own", UNFUSED),
    ("sage", "tf32", "passes of their own, Adam whole", UNFUSED | WHOLE),
    ("sage", "bfloat16", "fused", FUSED),
    ("sage", "bfloat16", "passes of their own", UNFUSED),
    ("sage", "float32", "three TF32 products, fused", FUSED),
    ("sage", "float32", "torch's products", UNFUSED),
    ("gin", "tf32", "fused", FUSED),
    ("gin", "tf32", "passes of their own", UNFUSED),
    ("gatv2", "tf32", "fused", FUSED),
    ("gatv2", "tf32", "8 rows a program backward", FUSED | {(attention, "_TOGETHER_BACK"): 8}),
    ("gatv2", "tf32", "8 edges a tile backward", FUSED | {(attention, "_EDGES"): 8}),
    ("gat", "tf32", "fused", FUSED),
    ("gat", "tf32", "passes of their own", UNFUSED),
    ("gcn", "tf32", "fused", FUSED),
    ("gcn", "tf32", "passes of their own", UNFUSED),
]


def main() -> None:
    """Run cases until time is up; every line is printed at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, default=Path(tempfile.gettempdir()) / "products-like")
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--seconds", type=float, default=85)
    parser.add_argument("--only", default="", help="models, and `products`")
    parser.add_argument("--kernels", type=int, default=12, help="kernels shown of a step")
    args = parser.parse_args()
    began, only = time.perf_counter(), set(args.only.split(",")) - {""}
    made("synthetic-products", args.graph, args.scale)
    cases: list[tuple[str, Callable[[], str]]] = [
        (" ".join(case[:3]), partial(rate, str(args.graph), *case, args.kernels))
        for case in CASES
        if not only or case[0] in only
    ]
    if not only or "products" in only:
        cases += product_cases()
    for name, work in cases:
        spent = time.perf_counter() - began
        if spent > args.seconds:
            print(f"{name}: left out, {spent:.0f} s are over", flush=True)
            continue
        try:
            print(f"[{spent:.0f} s] {name}: {work()}", flush=True)
        except Exception:
            print(f"[{spent:.0f} s] {name}: {traceback.format_exc()[-900:]}", flush=True)
            if isinstance(sys.exc_info()[1], torch.AcceleratorError):
                raise


def rate(graph: str, model: str, compute: str, way: str, constants: dict[tuple[Any, str], Any], shown: int) -> str:
    """Batches a second of the best and the median epoch, microseconds of a step alone, and its kernels."""
    fields: dict[str, Any] = {"graph": graph, "device": "cuda", "compute_type": compute, "model": model}
    fields |= {"hidden": HIDDEN, "fanouts": FANOUTS, "batch_size": 1024}
    fields |= {"heads": 4} if model.startswith("gat") else {}
    with ExitStack() as stack:
        for (module, name), value in constants.items():
            stack.enter_context(mock.patch.object(module, name, value))
        job = make_job(fields)
        stack.enter_context(run_context(job))
        session = make_session(job)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, 1000)

        def to_the_end(position: Position) -> int:
            return schedule.batches - position.batch

        steps = stack.enter_context(session.execution.steps(schedule, Position(0, 0), to_the_end, lambda *_: None))
        bursts, rates, losses = iter(steps), list[float](), list[float]()
        warm = time.perf_counter() + 0.3
        until = warm + 0.5
        while time.perf_counter() < until:
            started = time.perf_counter()
            done = next(bursts)
            if started > warm:
                rates.append(len(done) / (time.perf_counter() - started))
            losses.append(done[-1].loss)
        alone = seconds_of(lambda: replay(steps, "learn")) / BATCHES * 1e6
        found = dict[str, list[float]]()
        for name, microseconds in kernels_of(lambda: replay(steps, "learn")):
            found.setdefault(name.removeprefix("void ").split("(")[0][:58], []).append(microseconds)
    rates.sort()
    lines = [f"{sum(each):8.1f} us {len(each):3} x {name}" for name, each in found.items()]
    lines.sort(key=lambda line: -float(line.split()[0]))
    total, count = sum(map(sum, found.values())), sum(map(len, found.values()))
    speed = f"{rates[len(rates) // 2]:.0f} batches/s, best burst {rates[-1]:.0f}; step alone {alone:.0f} us"
    told = f"{speed}, of it kernels {total:.0f} us ({count}); loss {losses[0]:.4f}, {losses[-1]:.4f}"
    return "\n    ".join([told, *lines[:shown]])


def product_cases() -> list[tuple[str, Callable[[], str]]]:
    """Products of a batch's size, in passes of their own and by each tile, and their errors against float64."""
    tiles: list[tuple[int, ...]] = [(128, 256, 32, 8, 3), (128, 128, 32, 8, 3)]
    split: list[tuple[int, ...]] = [(128, 128, 32, 8, 2), (64, 128, 32, 4, 2)]
    return [
        ("product 208 to 256, ReLU and dropout, TF32", lambda: forward(True, tiles)),
        ("product 256 to 256, gradient of rectified rows, TF32", lambda: backward([*tiles, (64, 128, 32, 4, 3)])),
        ("product 208 to 256 in float32", lambda: forward(False, split)),
    ]


ROWS = 150_000
NAMES = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"


def forward(tf32: bool, tiles: list[tuple[int, ...]]) -> str:
    """A layer's product and what follows it."""
    x, weight = torch.randn(ROWS, 208, device="cuda"), torch.randn(256, 208, device="cuda")
    drops = Dropping(limit=1 << 15, scale=2.0)
    out = torch.empty(ROWS, 256, device="cuda")

    def apart() -> torch.Tensor:
        torch.mm(x, weight.t(), out=out)
        drop_rows(out, drops, True, out)
        return out

    def together(tile: dict[str, int]) -> torch.Tensor:
        return products.launched_product(x, weight, drops, precision="tf32" if tf32 else "tf32x3", tile=tile)

    exact = x[:2000].double() @ weight.double().t()
    return _compared(tf32, apart, together, tiles, lambda result: _error(result[:2000], exact))


def _error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Of the values that dropout and ReLU let pass, halved; relative to all of them."""
    kept = result > 0
    return float((result.double() / 2 - exact)[kept].norm() / exact[kept].norm())


def backward(tiles: list[tuple[int, ...]]) -> str:
    """The gradient of rows behind a ReLU and dropout."""
    grad, weight = torch.randn(ROWS, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    kept = KeptRows(torch.randn(ROWS, 256, device="cuda"), 2.0)

    def apart() -> torch.Tensor:
        out = grad @ weight
        return pass_where_positive(kept.positive, out, kept.scale, out)

    def together(tile: dict[str, int]) -> torch.Tensor:
        return products.launched_product(grad, weight.t().contiguous(), None, kept, precision="tf32", tile=tile)

    exact = torch.where(kept.positive[:2000] > 0, 2 * grad[:2000].double() @ weight.double(), 0)
    return _compared(True, apart, together, tiles, lambda got: float((got[:2000] - exact).norm() / exact.norm()))


def _compared(
    tf32: bool,
    apart: Callable[[], torch.Tensor],
    together: Callable[[dict[str, int]], torch.Tensor],
    tiles: list[tuple[int, ...]],
    error: Callable[[torch.Tensor], float],
) -> str:
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, tf32
    try:
        lines = [f"torch {seconds_of(apart) * 1e6:.0f} us, error {error(apart()):.2e}"]
        for tile in tiles:
            try:
                timed = partial(together, dict(zip(NAMES, tile, strict=True)))
                wrong = error(timed())
                lines.append(f"{tile} {seconds_of(timed) * 1e6:.0f} us, error {wrong:.2e}")
            except Exception as reason:
                lines.append(f"{tile}: {type(reason).__name__} {str(reason)[:120]}")
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return "\n    ".join(lines)


if __name__ == "__main__":
    main()
