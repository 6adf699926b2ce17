"""Predicted and measured seconds of a batch, for every execution of a job that this machine can carry out.

    python benchmarks/execution_plans.py [--graph G] [--models sage,gcn,gat] [--fanouts 10,5] [--batches N] [--json]

Each alternative of `penstock plan --execution` that needs no other machine is trained for some batches, all of them in
turn and that twice; the faster turn counts. The cost model is this machine's (`penstock profile --operators`).
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from penstock.cost.model import CostModel, machine_model
from penstock.cost.profile import read_profile
from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.train.execution_plan import fields_of, plan_execution, seconds_of_batch
from penstock.train.job import Job, make_job

TURNS = 2


def rows_of(job: Job, graph: Graph, model: CostModel, batches: int) -> list[dict[str, Any]]:
    """A line for each alternative of a job, the fastest prediction first."""
    there = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    found = plan_execution(job, graph, model).plan.alternatives
    found = [each for each in found if each.choice.device in there]
    jobs = [job.model_copy(update=fields_of(each.choice)) for each in found]
    # A group is drawn at once, so several of them are measured.
    counts = [max(batches, 3 * each.groups + 1) for each in jobs]
    times = [
        [seconds_of_batch(each, graph, count) for each, count in zip(jobs, counts, strict=True)] for _ in range(TURNS)
    ]
    return [
        {
            "model": job.model,
            "first_layer": each.choice.first_layer,
            "order": " ".join(each.choice.order),
            "threads": each.choice.sample_threads,
            "groups": each.choice.groups,
            "predicted_ms": each.predicted.seconds * 1e3,
            "ms": min(spent) * 1e3,
            "ratio": each.predicted.seconds / min(spent),
            "limit": each.predicted.limit,
        }
        for each, spent in zip(found, zip(*times, strict=True), strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="synthetic-arxiv")
    parser.add_argument("--models", default="sage,gcn,gat")
    parser.add_argument("--fanouts", default="10,5")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    model = machine_model() if asked.profile is None else CostModel(read_profile(asked.profile))
    graph, lines = load(asked.graph), list[dict[str, Any]]()
    for name in asked.models.split(","):
        fields = {"model": name, "fanouts": asked.fanouts, "hidden": asked.hidden, "device": asked.device}
        lines += rows_of(make_job({"graph": asked.graph, **fields}), graph, model, asked.batches)
    if asked.json:
        print(json.dumps({"machine": model.machine.model_dump(), "alternatives": lines}))
        return
    table = Table(*lines[0], box=None)
    for line in lines:
        table.add_row(*(f"{each:.3g}" if isinstance(each, float) else f"{each}" for each in line.values()))
    Console(width=150).print(table)
    for name in asked.models.split(","):
        own = [line for line in lines if line["model"] == name]
        fastest, chosen = min(line["ms"] for line in own), own[0]["ms"]
        print(f"{name}: the chosen plan takes {chosen / fastest - 1:.1%} more than the fastest that was measured")


if __name__ == "__main__":
    main()
