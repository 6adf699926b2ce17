"""Sampler explained beside other samplers on clusters of this host: accuracy, and bytes that batches bring.

For each graph, number of parts, fan-out and seed, all ways train the same model from the same first weights on the same
split and cut, one machine for each part. The test metric is that of the best model by validation. Bytes are those of
batches (rows and lists) that came over the wire, of all workers, and for `explained` also what explanations read and
scores took (the first worker's figures, times the workers). Differences are paired by seed, with Student's 95 %
interval. Each finished run is one line of the file `--lines`, and is not done again when the benchmark is started again
with that file: slices add up.

Ways: neighbour, labor, fastgcn, ladies, explained; explained-nodes (all columns), explained-columns (plain number of
remote draws), neighbour-int8, explained-int8.
Run: python benchmarks/explained.py [--data ../shared/data] [--graphs cora amazon-photo] [--parts 4] [--fanouts 5]
[--seeds 3] [--ways neighbour explained] [--epochs 30] [--lines explained.jsonl]
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import yaml
from scipy.stats import t as student

from clusters import result_of, trained
from penstock.partition import Cut, cut
from penstock.train.data import open_data
from penstock.train.job import make_job

DATA = Path(__file__).parents[2] / "shared" / "data"
LAYERS = 2
WAYS: dict[str, dict[str, Any]] = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "fastgcn": {"sampler": "fastgcn"},
    "ladies": {"sampler": "ladies"},
    "explained": {"sampler": "explained"},
    "explained-nodes": {"sampler": "explained", "feature_share": 1.0},
    "explained-columns": {"sampler": "explained", "remote_bias": 0.0},
    "neighbour-int8": {"wire_type": "int8"},
    "explained-int8": {"sampler": "explained", "wire_type": "int8"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--graphs", nargs="+", default=["cora", "amazon-photo"])
    parser.add_argument("--parts", type=int, nargs="+", default=[4])
    parser.add_argument("--fanouts", type=int, nargs="+", default=[5], help="the same number for both hops")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=["neighbour", "labor", "fastgcn", "ladies", "explained"])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--every", type=int, default=30, help="explain_every")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--model", default="sage")
    parser.add_argument("--method", default="metis", help="of the partition")
    parser.add_argument("--lines", type=Path, default=Path("explained.jsonl"))
    parser.add_argument("--summary", action="store_true", help="only compare what the file has")
    args = parser.parse_args()
    done = read_lines(args.lines)
    if not args.summary:
        with tempfile.TemporaryDirectory() as scratch:
            for graph in args.graphs:
                for parts in args.parts:
                    train_slice(args, graph, parts, Path(scratch), done)
    for line in compared(done):
        print(json.dumps(line), flush=True)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What earlier slices have found."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def train_slice(args: argparse.Namespace, graph: str, parts: int, scratch: Path, done: list[dict[str, Any]]) -> None:
    """Every way and seed on one cut of one graph; each run is added to the file as it ends."""
    for seed in range(args.seeds):
        folder = scratch / f"{graph}-{parts}-{seed}"
        loaded = None
        for fanout in args.fanouts:
            for way in args.ways:
                case = {
                    "graph": graph,
                    "parts": parts,
                    "fanout": fanout,
                    "every": args.every,
                    "epochs": args.epochs,
                    "model": args.model,
                    "way": way,
                    "seed": seed,
                }
                if any(case.items() <= line.items() for line in done):
                    continue
                if loaded is None:
                    # A set without a split of its own gets another one with every seed.
                    loaded = open_data(make_job({"graph": str(args.data / f"{graph}.npz"), "seed": seed})).save(folder)
                    cut(loaded, Cut(parts, 1, args.method, seed=seed), folder.with_name(folder.name + "-parts"))
                line = case | one_run(args, folder, case)
                done.append(line)
                with args.lines.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def one_run(args: argparse.Namespace, folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Train in one way; the test metric and the bytes."""
    way = dict(WAYS[case["way"]])
    name = "-".join(str(case[key]) for key in ("way", "fanout", "every"))
    cluster = folder.with_name(f"{folder.name}-{name}.yaml")
    cluster.write_text(
        yaml.safe_dump(
            {
                "machines": [{"name": f"m{number}", "workers": 1} for number in range(case["parts"])],
                "partition": str(folder.with_name(folder.name + "-parts")),
                "wire_type": way.pop("wire_type", "stored"),
            }
        )
    )
    sizes = ",".join([str(args.batch * case["fanout"])] * LAYERS)
    job = {
        "model": args.model,
        "fanouts": ",".join([str(case["fanout"])] * LAYERS),
        "layer_sizes": sizes,
        "hidden": 64,
        "batch_size": args.batch,
        "epochs": args.epochs,
        "evaluate_every": max(1, args.epochs // 10),
        "dropout": 0.5,
        "lr": 0.01,
        "threads": 1,
        "seed": case["seed"],
        **way,
    }
    if job.get("sampler") == "explained":
        job["explain_every"] = args.every
    run = folder.with_name(f"{folder.name}-{name}")
    trained(folder, run, str(cluster), {key.replace("_", "-"): value for key, value in job.items()})
    result = result_of(run)
    (batches,) = (each for each in result["coflows"] if each["kind"] == "batch")
    found = result.get("explanations", {})
    workers = case["parts"]
    extra = workers * (found.get("bytes_pulled", 0) + found.get("score_bytes_sent", 0))
    return {
        "test": next(iter(result["test"].values())),
        "batch_bytes": batches["bytes"],
        "explanation_bytes": extra,
        "seconds": result["seconds"],
        "explanations": found,
    }


def compared(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case and way: the mean, and the paired difference to neighbour sampling, in points."""
    keys = ("graph", "parts", "fanout", "every", "epochs", "model")
    rows = []
    for case in sorted({tuple(line[key] for key in keys) for line in lines}, key=str):
        here = [line for line in lines if tuple(line[key] for key in keys) == case]
        plain = {line["seed"]: line for line in here if line["way"] == "neighbour"}
        for way in WAYS:
            found = {line["seed"]: line for line in here if line["way"] == way}
            if not found:
                continue
            row: dict[str, Any] = dict(zip(keys, case, strict=True)) | {"way": way, "seeds": len(found)}
            row["test"] = round(100 * statistics.mean(line["test"] for line in found.values()), 2)
            both = sorted(found.keys() & plain.keys())
            if both and way != "neighbour":
                row["difference"], row["interval"] = paired([100 * (found[s]["test"] - plain[s]["test"]) for s in both])
                bytes_of = [found[s]["batch_bytes"] + found[s]["explanation_bytes"] for s in both]
                row["bytes_to_neighbour"] = round(sum(bytes_of) / sum(plain[s]["batch_bytes"] for s in both), 3)
            rows.append(row)
    return rows


def paired(differences: list[float]) -> tuple[float, float | None]:
    """The mean of paired differences and half the width of its 95 % interval."""
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return round(mean, 2), None
    half = student.ppf(0.975, len(differences) - 1) * statistics.stdev(differences) / math.sqrt(len(differences))
    return round(mean, 2), round(float(half), 2)


if __name__ == "__main__":
    main()
