"""Several processes on one GPU, each with the graph on it: do they lose what one loses, and what does an epoch take?

synthetic-products, GraphSAGE 3x256, fan-out 15,10,5, batches of 1024. One process trains alone; then the workers of a
cluster of one machine share the GPU, each with its share of every batch, captured steps, and the graph in the
device's memory. Sums go through the host, as NCCL wants a GPU for each process. All in one run, one after the other.
Run: python benchmarks/gpu_workers.py [--scale 0.25] [--workers 1,2,4] [--out workers.json]
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from gpu_runs import SAGE, end_children_when_ended, folder_with_room, made, report, tell, trained

NAME = "synthetic-products"


def main() -> None:
    end_children_when_ended()
    args = arguments()
    folder = args.graph or folder_with_room(f"penstock-products-{args.scale:g}", 4 << 30)
    made(NAME, folder, args.scale)
    rows = [row(folder, args, None)]
    tell(rows[0])
    for workers in [int(count) for count in args.workers.split(",")]:
        rows.append(row(folder, args, workers) | {"beside_one": None})
        if "epoch_s" in rows[-1]:
            rows[-1]["beside_one"] = round(rows[-1]["epoch_s"] / rows[0]["epoch_s"], 3)
            rows[-1]["loss_apart"] = abs(rows[-1]["train_loss"] - rows[0]["train_loss"])
        tell(rows[-1])
    report(f"{NAME} at {args.scale:g}: one process alone, and workers that share its GPU", rows, args.out)


def row(folder: Path, args: argparse.Namespace, workers: int | None) -> dict[str, Any]:
    """A run's seconds an epoch (the first one left out), its loss and where the graph was."""
    fields = {**SAGE, "graph": folder, "device": "cuda", "epochs": args.epochs, "dropout": 0.5}
    if workers is not None:
        fields["cluster"] = cluster_file(folder, workers)
    found = trained(fields, args.limit)
    what = {"what": "alone" if workers is None else f"{workers} workers"}
    if "error" in found:
        return {**what, **found}
    seconds = statistics.median(found["epoch_seconds"][1:])
    placement = found["placement"]
    where = {"topology": placement["topology"], "features": placement["features"]}
    return {**what, "epoch_s": round(seconds, 4), "train_loss": found["train_loss"], **where, "why": placement["why"]}


def cluster_file(folder: Path, workers: int) -> Path:
    """One machine whose workers share one GPU."""
    path = folder.parent / f"{folder.name}-{workers}-workers.yaml"
    machine = {"name": "one", "workers": workers, "gpus": 1}
    document = {"machines": [machine], "share_gpus": True, "method": "chunk"}
    path.write_text(json.dumps(document))
    return path


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, help="where the graph is, or is made and kept")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a run")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
