"""Sampler explained beside other samplers on clusters of this host: accuracy, and bytes that batches bring.

For each graph, number of parts, fan-out and seed, all ways train the same model from the same first weights on the same
split and cut, one machine for each part. The test metric is that of the best model by validation. Bytes are those
between tasks of all workers, requests and headers included: feature rows and neighbour lists of batches apart, what a
sampler reads before the first batch, and what explanations read and send. Differences are paired by seed, with
Student's 95 % interval. Each finished run is one line of the file `--lines`, and is not done again when the benchmark
is started again with that file: slices add up.

Ways: neighbour, labor, fastgcn, ladies, cluster, explained; explained-nodes (all columns), explained-columns (plain
number of remote draws); with `-float16`, `-int8`, `-int8r` (int8 rounded at random) the rows travel so, and with
`-cache` every worker keeps a tenth of as many rows as its halo has.
Run: python benchmarks/explained.py [--data ../shared/data] [--graphs cora amazon-photo] [--parts 4] [--fanouts 5]
[--seeds 3] [--ways neighbour explained] [--epochs 30] [--lines explained.jsonl]
"""

import argparse
import json
import math
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.special import stdtrit

from clusters import result_of, trained
from penstock.partition import Cut, cut, open_partition
from penstock.train.dataset.labels import labelled_vertices
from penstock.train.dataset.prepared_graph import choose_task, open_data
from penstock.train.internals import Internals
from penstock.train.job import job_of

DATA = Path(__file__).parents[2] / "shared" / "data"
LAYERS = 2
ROW_OVERHEAD = 25
"""Bytes that a cache takes for a row beside the row itself."""
WAYS: dict[str, dict[str, Any]] = {
    "neighbour": {},
    "labor": {"sampler": "labor"},
    "fastgcn": {"sampler": "fastgcn"},
    "ladies": {"sampler": "ladies"},
    "cluster": {"sampler": "cluster"},
    "explained": {"sampler": "explained"},
    "explained-nodes": {"sampler": "explained", "feature_share": 1.0},
    "explained-columns": {"sampler": "explained", "remote_bias": 0.0},
}
TRANSPORT: dict[str, dict[str, Any]] = {
    "float16": {"wire_type": "float16"},
    "int8": {"wire_type": "int8"},
    "int8r": {"wire_type": "int8", "wire_rounding": "stochastic"},
    "cache": {"cached": 0.1},
}
"""Fields of the cluster file; `cached` is the share of the halo's rows that a worker keeps."""


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
    parser.add_argument("--rows", type=int, default=256, help="explain_rows")
    parser.add_argument("--steps", type=int, default=20, help="explain_steps")
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
                    loaded = open_data(job_of({"graph": str(args.data / f"{graph}.npz"), "seed": seed})).save(folder)
                    cut(loaded, Cut(parts, 1, args.method, seed=seed), folder.with_name(folder.name + "-parts"))
                line = case | one_run(args, folder, case)
                done.append(line)
                with args.lines.open("a") as file:
                    file.write(json.dumps(line) + "\n")


def one_run(args: argparse.Namespace, folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Train in one way; the test metric and the bytes."""
    way, transport = split_way(case["way"])
    parts = folder.with_name(folder.name + "-parts")
    if share := transport.pop("cached", 0.0):
        transport["remote_cache_mb"] = share * halo_bytes(parts) / (1 << 20)
    name = "-".join(str(case[key]) for key in ("way", "fanout", "every"))
    cluster = folder.with_name(f"{folder.name}-{name}.yaml")
    cluster.write_text(
        yaml.safe_dump(
            {
                "machines": [{"name": f"m{number}", "workers": 1} for number in range(case["parts"])],
                "partition": str(parts),
                **transport,
            }
        )
    )
    sizes = ",".join([str(args.batch * case["fanout"])] * LAYERS)
    job = {
        "model": args.model,
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
    internals: dict[str, Any] = {"explain_rows": args.rows, "explain_steps": args.steps}
    internals |= {name: job.pop(name) for name in list(job) if name in Internals.model_fields}
    if job.get("sampler") == "explained":
        job |= {"explain_every": args.every}
    if job.get("sampler") in ("fastgcn", "ladies"):
        job["fanouts"] = sizes
    elif job.get("sampler") == "cluster":
        job |= {"clusters": 10 * case["parts"], "batch_size": case["parts"], "layers": LAYERS}
    else:
        job["fanouts"] = ",".join([str(case["fanout"])] * LAYERS)
    run = folder.with_name(f"{folder.name}-{name}")
    flags = {key.replace("_", "-"): value for key, value in job.items()}
    trained(folder, run, str(cluster), flags, internals=internals)
    result = result_of(run)
    return {
        "test": next(iter(result["test"].values())),
        "bytes": result["batch_bytes"],
        "seconds": result["seconds"],
        "explanations": result.get("explanations", {}),
    }


def split_way(way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the job and of the cluster file that a way stands for."""
    name = max((each for each in WAYS if f"{way}-".startswith(f"{each}-")), key=len)
    transport: dict[str, Any] = {}
    for each in filter(None, way.removeprefix(name).split("-")):
        transport |= TRANSPORT[each]
    return dict(WAYS[name]), transport


SETTINGS = {"every": "explain_every", "share": "feature_share", "bias": "remote_bias", "steps": "explain_steps"}


def settings_of(text: str) -> dict[str, Any]:
    """Fields of the job that a text like `share=0.5,bias=0.05` stands for."""
    found: dict[str, Any] = {}
    for setting in filter(None, text.split(",")):
        key, _, value = setting.partition("=")
        found[SETTINGS[key]] = float(value) if key in ("share", "bias") else int(value)
    return found


def training_vertices(fields: Mapping[str, Any]) -> int:
    """How many training vertices a job of these fields has."""
    job = job_of(fields)
    graph = open_data(job)
    return len(labelled_vertices(graph, job, choose_task(graph, job)).splits["train"])


def halo_bytes(folder: Path) -> float:
    """What a cache of all rows of a part's halo would take, on average over parts."""
    partition, total = open_partition(folder), 0.0
    for part in range(partition.parts):
        graph = partition.part(part)
        (edges,), (nodes,) = graph.edges.values(), graph.nodes.values()
        far = np.unique(edges.indices)
        far = far[(far < nodes.first) | (far >= nodes.first + nodes.count)]
        row = nodes.fields["x"]
        total += len(far) * (row.shape[1] * row.dtype.itemsize + ROW_OVERHEAD)
    return total / partition.parts


def compared(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each case and way: the mean, and the paired difference to neighbour sampling, in points."""
    keys = ("graph", "parts", "fanout", "every", "epochs", "model")
    rows = []
    for case in sorted({tuple(line[key] for key in keys) for line in lines}, key=str):
        here = [line for line in lines if tuple(line[key] for key in keys) == case]
        plain = {line["seed"]: line for line in here if line["way"] == "neighbour"}
        for way in dict.fromkeys(line["way"] for line in here):
            found = {line["seed"]: line for line in here if line["way"] == way}
            row: dict[str, Any] = dict(zip(keys, case, strict=True)) | {"way": way, "seeds": len(found)}
            row["test"] = round(100 * statistics.mean(line["test"] for line in found.values()), 2)
            both = sorted(found.keys() & plain.keys())
            epochs = row["epochs"] * len(found)
            for use in ("rows", "lists", "preparation", "explanations"):
                row[f"{use}_mb_per_epoch"] = round(sum(line["bytes"][use] for line in found.values()) / epochs / 1e6, 3)
            if both and way != "neighbour":
                row["difference"], row["interval"] = paired([100 * (found[s]["test"] - plain[s]["test"]) for s in both])
                for name, uses in {"rows": ["rows"], "all": ["rows", "lists", "explanations"]}.items():
                    ours, theirs = (sum(each[s]["bytes"][use] for s in both for use in uses) for each in (found, plain))
                    row[f"{name}_to_neighbour"] = round(ours / theirs, 3)
            rows.append(row)
    return rows


def paired(differences: list[float]) -> tuple[float, float | None]:
    """The mean of paired differences and half the width of its 95 % interval."""
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return round(mean, 2), None
    half = float(stdtrit(len(differences) - 1, 0.975)) * statistics.stdev(differences) / math.sqrt(len(differences))
    return round(mean, 2), round(float(half), 2)


if __name__ == "__main__":
    main()
