"""How long is an epoch of a graph like ogbn-papers100M on one GPU?

synthetic-papers at full scale with both directions (111 M vertices, 3.2 G list entries, 128 float16 features, 1.2 M
training vertices), GraphSAGE 3x256, fan-out 15,10,5, batches of 1024: `penstock train`, whole epochs with everything
in them. The graph is made once and kept, in memory (/dev/shm) where it fits, else on the disk.
Run: python benchmarks/gpu_papers.py [--epochs 5] [--out papers.json]
     python benchmarks/gpu_papers.py --features pinned --cache-share 0,0.1,0.5
With the latter, features stay outside the device but for a cache of the hottest rows, so large a share of them all.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_runs import (
    SAGE,
    batches_an_epoch,
    end_children_when_ended,
    folder_bytes,
    folder_with_room,
    given_fields,
    made,
    report,
    speed,
    stage_rows,
    tell,
    trained,
)
from penstock.graph.generate import recipe_named

NAME = "synthetic-papers"
KEPT = ("device_peak_mb", "device_predicted_mb", "peak_rss_mb", "train_loss", "limiting_stage", "placement", "notes")
"""Of the training run's JSON, what is kept beside its speed."""
WORKING = 24 << 30
"""Bytes of memory wanted beside the graph while it is made: one direction of its edges, and room to spare."""


def main() -> None:
    end_children_when_ended()
    args = arguments()
    folder = args.graph or folder_with_room(f"penstock-papers-{args.scale:g}", room(args.scale), WORKING)
    graph = made(NAME, folder, args.scale, symmetric=True, dtype="float16")
    batches, vertices = batches_an_epoch(graph), graph.num_nodes
    del graph
    if args.make_only:
        return
    rows: list[dict[str, Any]] = []
    for share in shares(args.cache_share):
        for number in range(args.repeats):
            result = trained(job(args, folder, share, vertices), args.limit)
            what = f"run {number + 1}" if share is None else f"cache {share:.0%}, run {number + 1}"
            kept = {name: result[name] for name in KEPT if name in result}
            rows.append({"what": what, **speed(result, batches), "wall_s": result["wall_s"], **kept, **counted(result)})
            tell(rows[-1])
    report(f"{NAME}, {batches} batches an epoch", rows, args.out)
    if stages := stage_rows(result):
        report("stages of the last run", stages, None)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="where the graph is, or is made and kept")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--make-only", action="store_true", help="make the graph and stop")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=5, help="of a run; the first is not counted")
    parser.add_argument("--repeats", type=int, default=3, help="runs")
    parser.add_argument("--compute", help="float32, tf32 or bfloat16")
    parser.add_argument("--topology", help="device, pinned or host instead of the run's own choice")
    parser.add_argument("--features", help="device, pinned or host instead of the run's own choice")
    parser.add_argument("--cache-share", default="", help="shares of all rows cached on the device, with commas")
    parser.add_argument("--cache-by", help="degree or counts: what makes a row hot")
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of the job")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds a run may take")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    return parser.parse_args()


def job(args: argparse.Namespace, folder: Path, share: float | None, vertices: int) -> dict[str, Any]:
    """The job's fields."""
    rows = None if share is None else round(share * vertices)
    asked = {"topology": args.topology, "features": args.features, "cache_rows": rows, "cache_by": args.cache_by}
    placement = {name: value for name, value in asked.items() if value is not None}
    fields = {**SAGE, "graph": str(folder), "device": args.device, "epochs": args.epochs}
    fields |= {"compute_type": args.compute, "placement": placement or None}
    return {**fields, **given_fields(args.job)}


def shares(text: str) -> list[float | None]:
    """Shares of the rows to cache; one run without a word about caching where none is given."""
    return [float(share) for share in text.split(",")] if text else [None]


def counted(result: dict[str, Any]) -> dict[str, Any]:
    """What the placement says in numbers: rows cached, and how often they were the ones read."""
    placement = result.get("placement") or {}
    return {name: placement[name] for name in ("cache_rows", "hit_rate") if name in placement}


def room(scale: float) -> int:
    """Bytes that the graph takes while it is made."""
    recipe = replace(recipe_named(NAME).scaled(scale), feature_dtype="float16")
    return folder_bytes(recipe.made_symmetric())


if __name__ == "__main__":
    main()
