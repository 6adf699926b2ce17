"""Memory of full-graph training as the number of bins grows: predicted before the run and measured in it.

Each number of bins is trained in a process of its own. On the host the measure is the growth of resident memory over a
session that is ready to train; on a GPU the most that tensors took. `--plain` adds PyG on the same device.
Run: python benchmarks/whole_graph_memory.py [--device cuda] [--graph synthetic-arxiv].
"""

import argparse
import json
import subprocess
import sys
from typing import Any

import torch

from penstock.graph.convert import load
from penstock.memory import HOST_PEAK, resident_mb
from penstock.pipeline.schedule import START, Schedule
from penstock.train.build import make_session
from penstock.train.job import job_of
from penstock.train.run_context import run_context

BINS = (1, 2, 4, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", default="synthetic-arxiv")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="sage")
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--bins", type=int, nargs="+", default=list(BINS))
    parser.add_argument("--keep", default="auto")
    parser.add_argument("--keep-type", default="float32")
    parser.add_argument("--one", action="store_true", help="train with the first number of bins and stop")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(trained(args)))
        return
    for bins in args.bins:
        given = [each for each in sys.argv[1:] if each != "--one"]
        answer = subprocess.run(
            [sys.executable, __file__, *given, "--bins", str(bins), "--one"],
            capture_output=True,
            text=True,
            check=False,
        )
        print(answer.stdout.strip() or f"bins {bins}: {answer.stderr.strip().splitlines()[-1]}", flush=True)


def trained(args: argparse.Namespace) -> dict[str, Any]:
    """Three epochs with one number of bins."""
    fields = {"sampler": "whole", "scope": "all", "keep": args.keep, "keep_type": args.keep_type, "device": args.device}
    fields |= {"model": args.model, "hidden": args.hidden, "layers": args.layers, "bins": args.bins[0], "epochs": 4}
    graph, job = load(args.graph), job_of(fields)
    with run_context(job):
        session = make_session(job, graph)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, job.epochs)
        before, peak = resident_mb(), HOST_PEAK.measure()
        with session.execution.steps(schedule, START, lambda _: 1, lambda *_: None) as steps:
            losses = [done[0].loss for done in steps]
            facts, times = session.execution.facts(), steps.times()
        on_device = torch.device(args.device).type == "cuda"
        measured = facts["device_peak_mb"] if on_device else peak.read() - before
    return {
        "bins": args.bins[0],
        "keep": facts["keep"],
        "recomputed": facts["recomputed"],
        "predicted_mb": facts["predicted_mb"],
        "measured_mb": round(measured, 1),
        "off": round(facts["predicted_mb"] / max(measured, 1e-9) - 1, 3),
        "epoch_s": round(sum(time.busy for time in times.values()) / len(losses), 4),
        "loss": losses[-1],
    }


if __name__ == "__main__":
    main()
