"""How long does exact inference over all vertices take, in two versions of the sources?

GraphSAGE 3x256 trains for a few epochs with an evaluation after each, which is exact inference over whole
neighbourhoods. The seconds of an evaluation are the time between the records of two epochs, less the epoch's own
seconds. Each version runs in a process of its own, in turn, `repeats` times; the first evaluation of a run, which
compiles kernels, does not count.
Run: python benchmarks/exact_inference.py --graph FOLDER [--sources src OTHER/src] [--device cuda] [--out rows.json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpu_runs import SAGE, flags, given_fields, report, tell


def main() -> None:
    args = _arguments()
    rows = []
    for number in range(args.repeats):
        for source in args.sources:
            seconds, accuracy = _evaluations(source, args)
            rows.append(
                {
                    "source": source,
                    "run": number + 1,
                    "evaluations": len(seconds),
                    "least, s": min(seconds),
                    "median, s": statistics.median(seconds),
                    "last accuracy": accuracy,
                }
            )
            tell(rows[-1])
    report("exact inference", rows, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", required=True)
    parser.add_argument("--sources", nargs="+", default=["src"], help="folders with a package penstock")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--job", action="append", default=[], metavar="NAME=VALUE", help="any other field of the job")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds a run may take")
    parser.add_argument("--out", type=Path, help="write all of it as JSON")
    return parser.parse_args()


def _evaluations(source: str, args: argparse.Namespace) -> tuple[list[float], float]:
    """Seconds of each evaluation but the first, and the accuracy at the last."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        job = {**SAGE, "graph": args.graph, "device": args.device, "epochs": args.epochs, "evaluate_every": 1}
        asked = flags({**job, **given_fields(args.job), "run": str(run)})
        path = os.pathsep.join([str(Path(source).resolve()), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-c", "from penstock.cli import main; main()", "train", *asked, "--json"]
        subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, check=True, timeout=args.limit, stdout=subprocess.DEVNULL
        )
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs: list[dict[str, Any]] = [record for record in records if record["kind"] == "epoch"]
    seconds = [after["time"] - before["time"] - after["seconds"] for before, after in pairwise(epochs)]
    return seconds, epochs[-1]["val"]["accuracy"]


if __name__ == "__main__":
    main()
