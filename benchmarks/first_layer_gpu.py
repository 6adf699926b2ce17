"""Batches a second of a GPU whose features are in host memory, for every way of reading the first layer's inputs.

    python benchmarks/first_layer_gpu.py [--graph FOLDER | --scale 0.02] [--cases papers] [--seconds 2] [--out FILE]

Cases, chosen by name or by the beginning of names:
  floor      what the host's threads alone need for the rows of a batch: gathering, aggregating
  papers-*   synthetic-papers (128 columns of float16), GraphSAGE 3x256, fan-outs 15, 10, 5, topology on the device
  cached-*   the same with the hottest half of the rows on the device; cached90-*: nine tenths
  limit16-*  and limit8-*: a GPU of so many GB, which do not hold the topology either
  narrow-*   602 columns of float32 narrowed to 64, fan-outs 10, 5: a made graph
A folder that gpu_papers.py has made can be used again (`--graph`); `--scale` makes a smaller graph. Losses of the first
batches are compared with those of the first case of a graph. With a profile of the machine (`penstock profile
--operators`) each case has the predicted rate too. Every case is printed as a line of JSON when it ends, and the file
is written anew.
"""

import argparse
import gc
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gpu_runs import SAGE, folder_bytes, folder_with_room, made
from penstock import EdgeSet, Graph, NodeSet
from penstock.cost.model import CostModel, measured_model
from penstock.errors import PenstockError
from penstock.graph.generate import recipe_named
from penstock.nn.table_aggregation import readable, shared_aggregation, table_lists
from penstock.pipeline.schedule import START, Position, Schedule
from penstock.plan.execution import BatchKind, ExecutionChoice, PipelineDepths, predict
from penstock.plan.execution.first_layer import rows_of_place
from penstock.plan.execution.search import cheapest_orders
from penstock.processes import default_threads
from penstock.sampling import NeighbourSampler
from penstock.store.device.host_paths import HostThreads
from penstock.store.rows import shared_gather
from penstock.train.auto_values import with_order_costs
from penstock.train.build import make_session
from penstock.train.device import memory, placed_graph
from penstock.train.finalists import settle
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job, job_of
from penstock.train.job_batches import kind_of_batches
from penstock.train.run_context import assumed_memory, run_context
from penstock.train.session import Session

NAME = "synthetic-papers"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""A CPU tries the benchmark out."""
WORKING = 24 << 30
BURST = 20
COMPARED = 8
PINNED = {"features": "pinned"}
GRAPHS = ("papers", "narrow")


@dataclass(frozen=True)
class Case:
    """A job on one of the graphs."""

    name: str
    graph: str
    fields: dict[str, Any] = field(default_factory=dict)
    cached: float = 0.0
    """Share of the rows that the device has as well."""
    limit: float | None = None
    """GB of the GPU's memory; None: all that it has."""


def cases() -> list[Case]:
    """All of them, the reference of each graph first."""
    on_device = {"topology": "device"}
    found = [
        Case(
            "papers-pinned",
            "papers",
            {"first_layer": "device", "placement": PINNED | on_device, "feature_paths": ["pinned"]},
        ),
        Case(
            "papers-paths",
            "papers",
            {"first_layer": "device", "placement": PINNED | on_device, "feature_paths": "pinned,gathered"},
        ),
    ]
    ways = ("gather", "aggregate", "transform")
    found += [Case(f"papers-{way}", "papers", {"first_layer": way, "placement": on_device}) for way in ways]
    found += [
        Case("papers-aggregate-pinned", "papers", {"first_layer": "aggregate", "placement": PINNED | on_device}),
        Case("papers-divided", "papers", {"first_layer": "divided", "placement": on_device}),
        Case("papers-auto", "papers", {"first_layer": "auto", "feature_paths": ["cache", "pinned"]}, limit=24),
        Case("papers-auto-paths", "papers", {"first_layer": "auto", "feature_paths": "auto"}, limit=24),
        Case("papers-auto-host", "papers", {"first_layer": "auto", "placement": {"features": "host"}}, limit=24),
    ]
    for share in (0.2, 0.35, 0.5, 0.65):
        fields = {"first_layer": "divided", "placement": on_device, "host_share": share}
        found.append(Case(f"papers-share-{share:g}", "papers", fields))
    device: dict[str, Any] = {"first_layer": "device", "feature_paths": ["cache", "pinned"]}
    cached = {
        "pinned": device,
        "paths": {**device, "feature_paths": ["cache", "pinned", "gathered"]},
        "divided": {"first_layer": "divided"},
    }
    for name, fields in cached.items():
        for start, share in (("cached", 0.5), ("cached90", 0.9)):
            found.append(Case(f"{start}-{name}", "papers", {**fields, "placement": PINNED | on_device}, cached=share))
    for limit in (16, 8):
        where = {"topology": "pinned"}
        limited = {
            "pinned": {"first_layer": "device", "placement": PINNED | where, "feature_paths": ["pinned"]},
            "paths": {"first_layer": "device", "placement": PINNED | where, "feature_paths": "auto"},
            "aggregate": {"first_layer": "aggregate", "placement": PINNED | where},
            "divided": {"first_layer": "divided", "placement": where},
            "host": {"first_layer": "aggregate", "placement": PINNED, "sample_on": "host"},
        }
        found += [Case(f"limit{limit}-{name}", "papers", fields, limit=limit) for name, fields in limited.items()]
    narrow = {"hidden": 64, "fanouts": [10, 5]}
    for name, paths in (("pinned", ["pinned"]), ("paths", "auto")):
        fields = {**narrow, "first_layer": "device", "placement": PINNED, "feature_paths": paths}
        found.append(Case(f"narrow-{name}", "narrow", fields))
    for way in ("gather", "aggregate", "transform", "divided"):
        found.append(Case(f"narrow-{way}", "narrow", {**narrow, "first_layer": way}))
    return found


def narrow_graph(count: int, columns: int = 602, degree: int = 16, classes: int = 47) -> Graph:
    """Lists of equal length whose neighbours are skewed and lie anywhere; features that repeat."""
    rng = np.random.default_rng(0)
    skewed = (rng.random(count * degree, np.float32) ** 2 * count).astype(np.int64)
    indices = (skewed * 2_654_435_761 % count).astype(np.int32)
    block = rng.standard_normal((min(count, 1 << 15), columns), np.float32)
    features = np.tile(block, (-(-count // len(block)), 1))[:count]
    nodes = NodeSet(count, {"x": features, "y": rng.integers(0, classes, count)}, {"train": np.arange(0, count, 2)})
    lists = EdgeSet(np.arange(count + 1, dtype=np.int64) * degree, indices)
    return Graph({"node": nodes}, {("node", "to", "node"): lists}, "made")


def papers_graph(args: argparse.Namespace) -> Graph:
    """The one in the folder that was named, or one of the scale asked for, made once and kept."""
    recipe = replace(recipe_named(NAME).scaled(args.scale), feature_dtype="float16").made_symmetric()
    folder = args.graph or folder_with_room(f"penstock-papers-{args.scale:g}", folder_bytes(recipe), WORKING)
    return made(NAME, folder, args.scale, symmetric=True, dtype="float16")


class Kept:
    """Copies of a graph's arrays that cases share: page-locking 28 GB takes longer than a case."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Within it arrays are copied once."""
        usual = {name: getattr(placed_graph, name) for name in ("to_pinned", "one_copy")}
        for name, make in usual.items():
            setattr(placed_graph, name, self._once(name, make))
        available = memory.available_mb
        # What is pinned already need not be pinned again.
        memory.available_mb = lambda: available() + self._pinned_bytes // (1 << 20)
        try:
            yield
        finally:
            memory.available_mb = available
            for name, make in usual.items():
                setattr(placed_graph, name, make)

    @property
    def _pinned_bytes(self) -> int:
        return sum(made.nbytes for (name, *_), made in self._made.items() if name == "to_pinned")

    def _once(self, name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def copied(array: Any, device: torch.device, dtype: Any = None, **more: Any) -> Any:
            if device.type == "meta":
                return make(array, device, dtype, **more)
            key = name, array.__array_interface__["data"][0], array.shape, dtype
            if key not in self._made:
                self._made[key] = make(array, device, dtype, **more)
            return self._made[key]

        return copied


def case_job(case: Case, rows: int, args: argparse.Namespace) -> Job:
    """The case's job."""
    fields = {
        **SAGE, "device": DEVICE, "epochs": 1000, "dropout": 0.0, "compute_type": args.compute,
        "gather_threads": args.gather_threads, "sample_threads": args.sample_threads, "transfer_depth": 2,
        **case.fields,
    }  # fmt: skip
    if case.cached:
        fields["placement"] = {**fields["placement"], "cache_rows": round(case.cached * rows)}
    elif fields["first_layer"] == "divided" or "pinned" in fields.get("placement", {}).values():
        fields["placement"] = {**fields.get("placement", {}), "cache_rows": 0}
    return with_order_costs(job_of(fields))


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
            if DEVICE == "cuda":
                torch.cuda.empty_cache()


def measured(
    session: Session, seconds: float, warm_seconds: float = math.inf
) -> tuple[float, list[float], dict[str, Any]]:
    """Batches a second behind a warm-up, the first losses, and seconds that stages were busy for each batch.

    The warm-up takes no longer than `warm_seconds` once the first batch is done.
    """
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.seed)

    def pause(position: Position) -> int:
        return min(BURST, schedule.batches - position.batch)

    losses, began, count, total = list[float](), 0.0, 0, 0
    warm, first = tried_batches(session), 0.0
    with session.execution.steps(schedule, START, pause, lambda *_: None) as steps:
        for done in steps:
            losses += [step.loss for step in done][: COMPARED - len(losses)] if len(losses) < COMPARED else []
            count, total = count + len(done), total + len(done)
            now = time.perf_counter()
            if not began:
                first = first or now
                if count >= warm or now - first > warm_seconds:
                    began, count = now, 0
            elif now - began > seconds:
                break
        stages = {name: round(each.busy / total, 6) for name, each in steps.times().items()}
    return count / (now - began), losses, stages


def tried_batches(session: Session) -> int:
    """Batches before the measurement: where shares are tried, all of them are."""
    placed = session.placed
    fill = None if placed is None else placed.fill
    division = None if fill is None else fill.paths.division
    return 320 if type(division).__name__ == "FastestDivision" else 2 * BURST


def predicted(model: CostModel | None, kind: BatchKind | None, session: Session, way: str) -> float | str | None:
    """Batches a second by the cost model; why not, where it does not know an operator."""
    work, job = WAYS[way].planned, session.job
    if model is None or kind is None or work is None or session.placed is None:
        return None
    residence, placed = session.placed.decision.residence, session.placed
    if placed.decision.gathers:
        work = rows_of_place(on_host=False, gathers=True)
    drawn = "cuda" if placed.sample is not None or placed.is_captured else "cpu"
    order = cheapest_orders(model, kind, "cuda")
    choice = ExecutionChoice("cuda", drawn, residence.features, way, order, residence.cache_rows)  # type: ignore[arg-type]
    try:
        found = predict(model, kind, choice, work, PipelineDepths(job.sample_depth, job.gather_depth, 2))
    except PenstockError as error:
        return str(error)
    return round(1 / found.seconds, 1)


class Bench:
    """The cases one after the other, and what is known from those before."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._rows, self._model = args, list[dict[str, Any]](), measured_model()
        self._losses: dict[str, list[float]] = {}
        self._kinds: dict[str, BatchKind] = {}

    def run(self, graph_name: str, graph: Graph, chosen: list[Case]) -> None:
        """All cases of a graph."""
        with Kept().shared():
            for case in chosen:
                self.tell(self._measure(case, graph, graph_name))

    def floor(self, graph: Graph) -> None:
        """What threads of the host take for the rows of one batch of a graph, from its own arrays."""
        sampler = NeighbourSampler(graph, SAGE["fanouts"])
        schedule = Schedule(graph.split("train"), SAGE["batch_size"], 0)
        drawn = [sampler.sample(each.seeds, each.key) for each, _ in zip(schedule.from_position(), range(4))]  # noqa: B905
        (node,) = graph.nodes.values()
        rows = readable(node.x)
        for count in sorted({1, max(1, default_threads() // 2), default_threads()}):
            threads = HostThreads(count)
            line: dict[str, Any] = {"case": "floor", "threads": count}
            for name, work in (("gather", self._gathered), ("aggregate", self._aggregated)):
                times = []
                for batch in drawn * 2:
                    works, pieces = work(batch, rows)
                    began = time.perf_counter()
                    threads.start(works, pieces).wait()
                    times.append(time.perf_counter() - began)
                line[f"{name}_ms"] = round(1e3 * float(np.median(times)), 2)
            block = drawn[0].blocks[0]
            line |= {"rows": block.num_src, "destinations": block.num_dst, "edges": block.num_edges}
            self.tell(line)

    def tell(self, line: dict[str, Any]) -> None:
        """Print a line and write the file anew."""
        self._rows.append(line)
        print(json.dumps(line), flush=True)
        if self._args.out:
            self._args.out.parent.mkdir(parents=True, exist_ok=True)
            self._args.out.write_text(json.dumps({"benchmark": "first layer", "rows": self._rows}, indent=1) + "\n")

    @staticmethod
    def _gathered(batch: Any, rows: Any) -> tuple[list[Callable[[], None]], int]:
        (ids,) = batch.vertices.values()
        # As a device lists them: by number.
        ids = np.sort(ids)
        out = np.full((len(ids), rows.shape[1]), 0, rows.dtype)
        return [shared_gather(rows, ids, out, 256)], len(ids) // 256

    @staticmethod
    def _aggregated(batch: Any, rows: Any) -> tuple[list[Callable[[], None]], int]:
        (ids,), block = batch.vertices.values(), batch.blocks[0]
        sums, own = (
            np.full((block.num_dst, rows.shape[1]), 0, np.float32),
            np.full((block.num_dst, rows.shape[1]), 0, rows.dtype),
        )
        lists = table_lists(block, "mean", ids)
        named = lists._replace(indices=ids[block.indices].astype(np.int32), ids=np.empty(0, np.int32))
        sums_of = shared_aggregation(named, "mean", rows, sums, 0, block.num_dst, 64)
        return [sums_of, shared_gather(rows, ids[: block.num_dst], own, 256)], block.num_dst // 64

    def _measure(self, case: Case, graph: Graph, graph_name: str) -> dict[str, Any]:
        began, job = time.perf_counter(), case_job(case, graph.num_nodes, self._args)
        line: dict[str, Any] = {"case": case.name}
        scale = 1.0 if self._args.graph else self._args.scale
        room = nullcontext() if case.limit is None else assumed_memory(int(case.limit * scale * 1e9) + (2 << 30))
        if case.limit is not None and scale == 1.0:
            room = assumed_memory(int(case.limit * 1e9))
        try:
            with room, session_of(job, graph) as session:
                if job.first_layer == "auto":
                    settle(session)
                if graph_name not in self._kinds and self._model is not None:
                    self._kinds[graph_name] = kind_of_batches(session)
                line["placed_s"] = round(time.perf_counter() - began, 1)
                rate, losses, stages = measured(session, self._args.seconds)
                known = self._losses.setdefault(graph_name, losses)
                chosen = session.job.first_layer
                way = "device" if chosen == "auto" else chosen
                facts = session.execution.facts()
                placement = facts.get("placement", {})
                fill = None if session.placed is None else session.placed.fill
                line |= {
                    "batches_per_second": round(rate, 1),
                    "predicted": predicted(self._model, self._kinds.get(graph_name), session, way),
                    "execution": session.execution.name,
                    "stages": stages,
                    "paths": facts.get("feature_paths"),
                    "placement": {name: value for name, value in placement.items() if name != "why"},
                    "host_share": getattr(fill, "host_share", None),
                    "device_share": getattr(getattr(getattr(fill, "paths", None), "division", None), "share", None),
                    "first_layer": chosen,
                    "settled": session.settled.get("first_layer"),
                    "device_peak_mb": facts.get("device_peak_mb"),
                    "loss_error": float(np.max(np.abs(np.array(losses) - known[: len(losses)]))),
                    "why": placement.get("why", [""])[-1],
                }
        except (PenstockError, RuntimeError, torch.OutOfMemoryError) as error:
            line["error"] = f"{type(error).__name__}: {error}"
        return line | {"took_s": round(time.perf_counter() - began, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="floor,papers,cached,limit16,limit8,narrow", help="beginnings of names")
    parser.add_argument("--graph", type=Path, help="the papers-like graph, in a folder that has it or gets it")
    parser.add_argument("--scale", type=float, default=0.02, help="of the papers-like graph, and of limits")
    parser.add_argument("--narrow-rows", type=int, default=500_000, help="vertices of the graph that is narrowed")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a case is measured for")
    parser.add_argument("--gather-threads", type=int, default=4)
    parser.add_argument("--sample-threads", type=int, default=4)
    parser.add_argument("--compute", default="tf32")
    parser.add_argument("--out", type=Path, help="a JSON file, written anew after every case")
    args = parser.parse_args()
    wanted = args.cases.split(",")
    chosen = [case for case in cases() if any(case.name.startswith(each) for each in wanted)]
    bench = Bench(args)
    for name in GRAPHS:
        of_graph = [case for case in chosen if case.graph == name]
        if not of_graph and not (name == "papers" and "floor" in wanted):
            continue
        graph = papers_graph(args) if name == "papers" else narrow_graph(args.narrow_rows)
        if name == "papers" and "floor" in wanted:
            bench.floor(graph)
        bench.run(name, graph, of_graph)


if __name__ == "__main__":
    main()
