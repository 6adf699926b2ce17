"""Batches a second of a GPU whose features are in host memory, for every way of reading the first layer's inputs.

    python benchmarks/first_layer_gpu.py [--cases papers,narrowing] [--ways device,divided] [--rows 40] [--seconds 3]

A graph is made in memory: 128 columns of float16 and GraphSAGE 3x256 with fan-outs 15, 10, 5 as for ogbn-papers100M
(`papers`), or 602 columns of float32 narrowed to 64 (`narrowing`). Each way trains for some seconds; `auto` has a GPU
whose memory does not hold the features. Losses of the first batches are compared with those of `device`. With a profile
of the machine (`penstock profile --operators`) each line has the predicted rate too. Every way is a line of JSON.
"""

import argparse
import gc
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from penstock import EdgeSet, Graph, NodeSet
from penstock.cost.machine_model import measured_model
from penstock.cost.model import CostModel
from penstock.errors import PenstockError
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, predict
from penstock.plan.execution.search import cheapest_orders
from penstock.train.build import make_session
from penstock.train.device_memory import assumed_memory
from penstock.train.finalists.settlement import settle
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job, make_job
from penstock.train.job_batches import kind_of_batches
from penstock.train.product_order import with_order_costs
from penstock.train.run_context import run_context
from penstock.train.session import Session

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""A CPU tries the benchmark out."""
DEGREE = 16
CLASSES = 47
BURST = 20
COMPARED = 8
CASES: dict[str, dict[str, Any]] = {
    "papers": {"columns": 128, "dtype": torch.float16, "rows": 1.0, "hidden": 256, "fanouts": [15, 10, 5]},
    "narrowing": {"columns": 602, "dtype": torch.float32, "rows": 0.05, "hidden": 64, "fanouts": [10, 5]},
}


def made_graph(count: int, columns: int, dtype: torch.dtype) -> Graph:
    """Lists of equal length whose neighbours are skewed and lie anywhere; features that repeat."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    indices = torch.empty(count * DEGREE, dtype=torch.int32)
    for first in range(0, len(indices), 1 << 27):
        part = indices[first : first + (1 << 27)]
        skewed = (torch.rand(len(part), device=DEVICE, generator=generator) ** 2 * count).long()
        part.copy_((skewed * 2_654_435_761 % count).int())
    block = torch.randn(min(count, 1 << 20), columns, device=DEVICE, generator=generator).to(dtype).cpu()
    features = torch.empty(count, columns, dtype=dtype)
    for first in range(0, count, len(block)):
        part = features[first : first + len(block)]
        part.copy_(block[: len(part)])
    labels = np.random.default_rng(0).integers(0, CLASSES, count)
    train = np.arange(0, count, max(1, count // 1_200_000))
    nodes = NodeSet(count, {"x": features.numpy(), "y": labels}, {"train": train})
    lists = EdgeSet(np.arange(count + 1, dtype=np.int64) * DEGREE, indices.numpy())
    return Graph({"node": nodes}, {("node", "to", "node"): lists}, "made")


def job_of(case: dict[str, Any], way: str, args: argparse.Namespace) -> Job:
    """The job of a way, with features that the GPU's memory does not hold."""
    placement: dict[str, Any] = {"topology": "device"}
    if way == "device":
        placement |= {"features": "pinned", "cache_rows": args.cache_rows}
    if way == "divided":
        placement |= {"cache_rows": args.cache_rows}
    fields = {
        "model": "sage", "hidden": case["hidden"], "fanouts": case["fanouts"], "batch_size": 1024, "device": DEVICE,
        "epochs": 100, "evaluate_every": -1, "first_layer": way, "placement": placement, "dropout": 0.0,
        "gather_threads": args.gather_threads, "transfer_depth": 2, "compute_type": args.compute,
    }  # fmt: skip
    return with_order_costs(make_job(fields))


@contextmanager
def session_of(job: Job, graph: Graph) -> Iterator[Session]:
    """A session, whose memory is given back afterwards."""
    with run_context(job):
        session = make_session(job, graph)
        try:
            yield session
        finally:
            session.placed, session._execution, session.inputs.sources = None, None, {}
            del session
            gc.collect()
            torch.cuda.empty_cache()


def measured(session: Session, seconds: float) -> tuple[float, list[float]]:
    """Batches a second behind a warm-up, and the first losses."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed)

    def pause(position: Position) -> int:
        return min(BURST, schedule.batches - position.batch)

    losses, began, count = list[float](), 0.0, 0
    with session.execution.steps(schedule, START, pause, lambda *_: None) as steps:
        for done in steps:
            losses += [step.loss for step in done][: COMPARED - len(losses)] if len(losses) < COMPARED else []
            count += len(done)
            now = time.perf_counter()
            if not began:
                if count >= 2 * BURST:
                    began, count = now, 0
            elif now - began > seconds:
                break
    return count / (now - began), losses


def predicted(model: CostModel | None, kind: BatchKind | None, session: Session, way: str) -> float | None:
    """Batches a second by the cost model; None where it does not know an operator."""
    work, job = WAYS[way].planned, session.job
    if model is None or kind is None or work is None or session.placed is None:
        return None
    residence = session.placed.decision.residence
    drawn = "cuda" if session.placed.sample is not None or session.placed.is_captured else "cpu"
    order = cheapest_orders(model, kind, "cuda")
    choice = ExecutionChoice("cuda", drawn, residence.features, way, order, residence.cache_rows)  # type: ignore[arg-type]
    try:
        found = predict(model, kind, choice, work, PipelineDepths(job.sample_depth, job.gather_depth, 2))
    except PenstockError as error:
        print(json.dumps({"way": way, "unpredicted": str(error)}), flush=True)
        return None
    return 1 / found.seconds


def run_case(name: str, args: argparse.Namespace) -> None:
    """Every way of a case."""
    case, began = CASES[name], time.perf_counter()
    graph = made_graph(int(args.rows * case["rows"] * 1e6), case["columns"], case["dtype"])
    size, model, kind = graph.nodes["node"].x.nbytes, measured_model(), None
    made = {"case": name, "feature_gb": round(size / 1e9, 1), "made_s": round(time.perf_counter() - began, 1)}
    print(json.dumps(made), flush=True)
    known: list[float] = []
    for way in args.ways.split(","):
        began, job = time.perf_counter(), job_of(case, way, args)
        room = assumed_memory(int(graph.num_edges * 4 + 8 * graph.num_nodes + size // 4 + (4 << 30)))
        line: dict[str, Any] = {"case": name, "way": way}
        try:
            with room if way == "auto" else nullcontext(), session_of(job, graph) as session:
                if way == "auto":
                    settle(session)
                if kind is None and model is not None:
                    kind = kind_of_batches(session)
                line["placed_s"] = round(time.perf_counter() - began, 1)
                rate, losses = measured(session, args.seconds)
                known = known or losses
                chosen = session.job.first_layer
                foretold = predicted(model, kind, session, "device" if chosen == "auto" else chosen)
                share = getattr(getattr(session.inputs.reader, "share", None), "last", None)
                line |= {
                    "batches_per_second": round(rate, 1),
                    "predicted": None if foretold is None else round(foretold, 1),
                    "execution": session.execution.name,
                    "placement": session.execution.facts()["placement"],
                    "host_share": None if share is None else round(share, 3),
                    "first_layer": chosen,
                    "decided_by": session.decided_by,
                    "settled": session.settled,
                    "loss_error": float(np.max(np.abs(np.array(losses) - known))),
                }
        except (PenstockError, RuntimeError) as error:
            line["error"] = f"{type(error).__name__}: {error}"
        print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="papers,narrowing")
    parser.add_argument("--ways", default="device,gather,aggregate,transform,divided,auto")
    parser.add_argument("--rows", type=float, default=40.0, help="millions of vertices of the papers-like graph")
    parser.add_argument("--seconds", type=float, default=3.0, help="that a way is measured for")
    parser.add_argument("--cache-rows", type=int, default=0)
    parser.add_argument("--gather-threads", type=int, default=4)
    parser.add_argument("--compute", default="tf32")
    args = parser.parse_args()
    for name in args.cases.split(","):
        run_case(name, args)


if __name__ == "__main__":
    main()
