"""How fast are models of several node types with learned embeddings on a GPU, and where does their time go?

Trains each model for some epochs and prints batches per second of the median epoch; with --profile also the kernels of
a drawn and a learned batch. The graph is one as `penstock data make synthetic-mag` makes. With --links RELATION its
edges are predicted instead, 1,024 with a negative each in a batch: some batches drawn by the host, and by the device.
Run: python benchmarks/gpu_typed.py --graph FOLDER [--models rgcn hgt] [--epochs 4] [--links RELATION] [--profile]
"""

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import penstock as ps
from gpu_profile import BATCHES, kernels_of, replay, wall_us
from penstock.pipeline.schedule import Position, Schedule
from penstock.train.build import make_session
from penstock.train.job import make_job
from penstock.train.run_context import run_context
from penstock.train.steps.engine import Engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["rgcn", "hgt"])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--links", help="source__relation__destination")
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    for model in args.models:
        fields = {
            "graph": str(args.graph), "model": model, "device": "cuda", "compute_type": "tf32", "seed": 1,
            "fanouts": [25, 20], "batch_size": 1024, "hidden": args.hidden, "embedding": args.embedding, "heads": 4,
            "epochs": args.epochs, "evaluate_every": 0,
        }  # fmt: skip
        if args.links:
            fields |= {"task": "link-prediction", "target": args.links}
            timed(f"{model}, links drawn by the host", {**fields, "sample_on": "host"}, 100)
            timed(f"{model}, links drawn by the device", fields, 1000)
        else:
            measured(model, fields)
        if args.profile:
            profiled(model, fields)


def measured(model: str, fields: dict[str, Any]) -> None:
    """Print the rate of the median epoch, the loss and the memory of a run."""
    gc.collect()
    before, began = torch.cuda.memory_allocated() / (1 << 20), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = ps.train(**{**fields, "run": str(Path(folder) / "run")}, progress=False)
    result = run.result
    seconds = sorted(result["epoch_seconds"])
    rate = result["steps"] / len(seconds) / seconds[len(seconds) // 2]
    spent = f"{time.perf_counter() - began:.1f} s in all"
    memory = f"{result['device_peak_mb'] - before:.0f} MB of {result['device_predicted_mb']:.0f} predicted"
    print(f"{model}: {rate:.1f} batches/s, loss {result['train_loss']:.4f}, {memory}, {spent}", flush=True)
    print(*(f"  {sentence}" for sentence in result["placement"]["why"]), sep="\n", flush=True)


def timed(what: str, fields: dict[str, Any], batches: int) -> None:
    """Print the rate of some batches, after half as many."""
    job, done, began = make_job(fields), 0, 0.0
    with run_context(job):
        session = make_session(job)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, 100)

        def pause(position: Position) -> int:
            return min(batches // 4, schedule.batches - position.batch)

        with session.execution.steps(schedule, Position(0, 0), pause, lambda *_: None) as steps:
            for some in steps:
                done += len(some)
                if not began and done >= batches // 2:
                    began, first = time.perf_counter(), done
                if began and done - first >= batches:
                    break
        rate = (done - first) / (time.perf_counter() - began)
        print(f"{what}: {rate:.1f} batches/s ({session.execution.name})", flush=True)
        print(*(f"  {sentence}" for sentence in session.execution.placed.why), sep="\n", flush=True)


def profiled(model: str, fields: dict[str, Any]) -> None:
    """Print the time of each kind of kernel in a batch, where steps are captured."""
    job = make_job(fields)
    with run_context(job):
        session = make_session(job)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed, 2)
        with session.execution.steps(schedule, Position(0, 0), lambda _: BATCHES, lambda *_: None) as steps:
            if not isinstance(steps, Engine):
                return
            next(iter(steps))
            for what in ("draw", "learn"):
                steps.source.restart(0)
                alone = wall_us(lambda what=what: replay(steps, what))
                spent: dict[str, list[float]] = {}
                for name, microseconds in kernels_of(lambda what=what: replay(steps, what)):
                    spent.setdefault(name.split("(")[0].split("<")[0][-46:], []).append(microseconds)
                print(f"{model}, {what}: {alone:.0f} us a batch", torch.cuda.get_device_name())
                for name, times in sorted(spent.items(), key=lambda item: -sum(item[1]))[:14]:
                    print(f"  {sum(times):8.1f} us {len(times):4d} x {name}", flush=True)


if __name__ == "__main__":
    main()
