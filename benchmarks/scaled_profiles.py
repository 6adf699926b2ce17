"""How far off is a profile that was scaled from a smaller one?

A job is measured with 1, 2, 4 and 8 parts and as many workers, all on this host. Every measured profile is scaled to
the other sizes, and each predicted amount is held beside the one measured there: bytes that a worker reads, the largest
share of them that comes from one part, and processor seconds by kind of task. Errors are shares of what was measured.
Run: python benchmarks/scaled_profiles.py [--graph synthetic-arxiv] [--sizes 1,2,4,8] [--iterations 20] [--out FILE]
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from penstock.cluster.cluster_file import read_cluster
from penstock.cluster.planning import fit_profile
from penstock.cluster.profiling import profile_job
from penstock.cost.profile import Profile
from penstock.errors import PenstockError
from penstock.progress import SILENT
from penstock.train.job import Job, make_job


def main() -> None:
    """Measure, scale, compare, print."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--graph", default="synthetic-arxiv")
    words.add_argument("--fanouts", default="10,5")
    words.add_argument("--hidden", type=int, default=64)
    words.add_argument("--batch-size", type=int, default=1024)
    words.add_argument("--sizes", default="1,2,4,8", help="numbers of parts, each with as many workers")
    words.add_argument("--iterations", type=int, default=20)
    words.add_argument("--out", type=Path, help="a JSON file for the rows")
    asked = words.parse_args()
    fields = {"graph": asked.graph, "hidden": asked.hidden, "batch_size": asked.batch_size}
    job = make_job({**fields, "fanouts": [int(each) for each in asked.fanouts.split(",")]})
    try:
        rows = compare(job, [int(each) for each in asked.sizes.split(",")], asked.iterations)
    except PenstockError as error:
        sys.exit(str(error))
    print(f"{'from':>5} {'to':>5} {'amount':<18} {'measured':>12} {'predicted':>12} {'error':>8}")
    for row in rows:
        print(
            f"{row['from']:>5} {row['to']:>5} {row['amount']:<18} {row['measured']:>12.5g} {row['predicted']:>12.5g}"
            f" {row['error']:>8.1%}"
        )
    if asked.out:
        asked.out.write_text(json.dumps({"job": job.model_dump(mode="json"), "rows": rows}, indent=1) + "\n")


def compare(job: Job, sizes: list[int], iterations: int) -> list[dict[str, Any]]:
    """A row for each pair of sizes and each amount."""
    clusters = {size: read_cluster(f"{size}x1") for size in sizes}
    profiles = {}
    for size, cluster in clusters.items():
        print(f"measuring {size} parts and workers", file=sys.stderr, flush=True)
        profiles[size] = profile_job(job, cluster, iterations, SILENT)
    measured = {size: amounts_of(profile) for size, profile in profiles.items()}
    rows = []
    for source in sizes:
        for target in (size for size in sizes if size != source):
            scaled = fit_profile(profiles[source], job, clusters[target], SILENT)
            for name, predicted in amounts_of(scaled).items():
                real = measured[target][name]
                error = predicted / real - 1 if real else 0.0
                row = {"from": source, "to": target, "amount": name, "measured": real, "predicted": predicted}
                rows.append({**row, "error": error})
    return rows


def amounts_of(profile: Profile) -> dict[str, float]:
    """Bytes for each worker and iteration, the share of the part it reads most from, and seconds by operator."""
    found = {}
    for each in (each for each in profile.transfers if each.target == "worker"):
        matrix = np.array(each.bytes)
        found[f"{each.name} bytes"] = float(matrix.sum() / profile.workers)
        if each.source == "part":
            found[f"{each.name} nearest"] = float(matrix.max(axis=0).sum() / matrix.sum())
    names = dict.fromkeys(each.name for each in profile.operators)
    return found | {f"{name} seconds": profile.operator(name).seconds.mean for name in names}


if __name__ == "__main__":
    main()
