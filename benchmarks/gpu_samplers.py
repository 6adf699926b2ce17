"""How many batches a second does one GPU train on with each sampler?

A graph like ogbn-products (`--scale` of synthetic-products), GraphSAGE 3x256, batches of 1024 vertices, TF32, each
sampler by `ps.train` in this process: whole epochs with everything in them, of which the first is not counted.
Run: python benchmarks/gpu_samplers.py --graph FOLDER [--scale 0.25] [--only labor,ladies]
"""

import argparse
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock as ps
from gpu_runs import SAGE, made

SAMPLERS = {
    "neighbour": {},
    "neighbour 10,10,-1": {"fanouts": [10, 10, -1]},
    "neighbour -1": {"fanouts": [-1, -1, -1], "batch_size": 8},
    "neighbour 40,5,5": {"fanouts": [40, 5, 5]},
    "labor": {"sampler": "labor"},
    "ladies": {"sampler": "ladies", "fanouts": [2048, 2048, 2048]},
    "fastgcn": {"sampler": "fastgcn", "fanouts": [2048, 2048, 2048]},
    "saint-walk": {"sampler": "saint-walk", "batch_size": 4000, "layers": 3},
    "cluster": {"sampler": "cluster", "batch_size": 4, "clusters": 400, "layers": 3},
}


def main() -> None:
    """Train with each sampler and print its rate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--only", default="")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    made("synthetic-products", args.graph, args.scale)
    for name in args.only.split(",") if args.only else SAMPLERS:
        fields = {**SAGE, "epochs": args.epochs, "compute_type": "tf32", "device": "cuda", **SAMPLERS[name]}
        if "sampler" in SAMPLERS[name] and "fanouts" not in SAMPLERS[name] and name != "labor":
            del fields["fanouts"]
        print(f"{name}: {rate(str(args.graph), fields)}", flush=True)


def rate(graph: str, fields: dict) -> str:
    """The batches a second of a run, or why there are none."""
    began = time.perf_counter()
    with TemporaryDirectory() as folder:
        try:
            run = ps.train(graph, **fields, run=str(Path(folder) / "run"), progress=False)
        except Exception:
            return traceback.format_exc()[-700:]
    result = run.result
    why = [each for each in result["placement"]["why"] if "raw" in each or "teps" in each]
    memory = result.get("device_peak_mb"), result.get("device_predicted_mb")
    return f"{result['batches_per_second']:.0f} batches/s, memory {memory}, {time.perf_counter() - began:.0f} s; {why}"


if __name__ == "__main__":
    main()
