"""How many batches a second on one GPU, beside DGL, PyG and plain torch?

synthetic-products at full scale (2.45 M vertices, 122 M list entries, 100 float32 features), GraphSAGE 3x256, fan-out
15,10,5, batches of 1024, Adam; every measurement in a process of its own, all in one run. Ours is `penstock train`,
whole epochs with everything in them; the others are described in gpu_peers.py.
Run: python benchmarks/gpu_products.py [--compute bfloat16] [--job name=value]... [--out products.json]
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from gpu_runs import (
    SAGE,
    batches_an_epoch,
    end_children_when_ended,
    folder_bytes,
    folder_with_room,
    given_fields,
    in_a_process,
    made,
    report,
    speed,
    tell,
    trained,
)
from penstock.graph.generate import recipe_named

NAME = "synthetic-products"
PEERS = ["dgl", "naive", "pyg", "blocks"]
KEPT = ("device", "placement", "device_peak_mb", "device_predicted_mb", "train_loss", "limiting_stage", "stages")
"""Of the training run's JSON, what is kept beside its speed."""


def main() -> None:
    end_children_when_ended()
    args = arguments()
    folder = args.graph or folder_with_room(f"penstock-products-{args.scale:g}", room(args.scale))
    graph = made(NAME, folder, args.scale)
    batches = batches_an_epoch(graph)
    del graph
    rows: list[dict[str, Any]] = []
    for compute in args.compute.split(",") if args.compute else [None]:
        ours = [our_row(folder, compute, number, batches, args) for number in range(args.repeats)]
        rows += [*ours, *together(ours)]
    for peer in [name for name in args.peers.split(",") if name]:
        rows.append({"what": peer, **peer_row(peer, folder, args)})
        tell(rows[-1])
    report(f"{NAME}, {batches} batches an epoch", rows, args.out)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="where the graph is, or is made and kept")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compute", default="", help="float32, tf32, bfloat16; several with commas: one after another")
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of our job")
    parser.add_argument("--epochs", type=int, default=6, help="of a run; the first is not counted")
    parser.add_argument("--repeats", type=int, default=3, help="runs of ours")
    parser.add_argument("--peers", default=",".join(PEERS), help="which others; empty: none")
    parser.add_argument("--peer-batches", type=int, default=150)
    parser.add_argument("--workers", type=int, default=16, help="processes that sample for DGL")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a measurement may take")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    return parser.parse_args()


def our_row(folder: Path, compute: str | None, number: int, batches: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run of ours."""
    fields = {**SAGE, "graph": str(folder), "device": args.device, "epochs": args.epochs, "compute_type": compute}
    result = trained({**fields, **given_fields(args.job)}, args.limit)
    kept = {name: result[name] for name in KEPT if name in result}
    what = " ".join(["penstock", *([compute] if compute else []), f"run {number + 1}"])
    row = {"what": what, **speed(result, batches), **kept, "wall_s": result["wall_s"]}
    tell(row)
    return row


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The middle of several runs and how far they spread."""
    rates = sorted(row["batches_per_second"] for row in rows if "error" not in row)
    if len(rates) < 2:
        return []
    what = f"{rows[0]['what'].rsplit(' run', 1)[0]}: {len(rates)} runs, {rates[0]:,.1f} to {rates[-1]:,.1f}"
    return [{"what": what, "batches_per_second": statistics.median(rates)}]


def peer_row(peer: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Another way's batches a second."""
    script = str(Path(__file__).with_name("gpu_peers.py"))
    command = [sys.executable, script, peer, "--graph", str(folder), "--device", args.device]
    return in_a_process([*command, "--batches", str(args.peer_batches), "--workers", str(args.workers)], args.limit)


def room(scale: float) -> int:
    """Bytes that the graph takes while it is made."""
    return folder_bytes(recipe_named(NAME).scaled(scale))


if __name__ == "__main__":
    main()
