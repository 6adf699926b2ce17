"""What batches of a run take beyond their simulated operators: small jobs are trained here, and rates fitted to them.

Operators are measured alone. In a run, threads of the host prepare batches beside the step, wait for each other and
for Python, and every batch is handed from stage to stage. No operator has that time; of a small batch it is a third.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.cost.fit import fit_and_compare
from penstock.cost.model import BATCH, LAUNCHED_BATCH, CostModel, batch_work
from penstock.cost.profile import FittedOperator
from penstock.graph.generate import make_graph, recipe_named
from penstock.graph.graph import Graph
from penstock.pipeline.schedule import START, Schedule
from penstock.plan.execution import Alternative, predict
from penstock.progress import SILENT, Progress
from penstock.train.build import make_session
from penstock.train.execution_plan.planning import fields_of, plan_execution
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job, make_job
from penstock.train.product_order import with_order_costs
from penstock.train.run_context import run_context

_SCALES = {"small": 0.02, "large": 0.3}
"""Of synthetic-arxiv: 3,400 and 51,000 vertices with 128 columns."""
_JOBS: list[tuple[str, dict[str, Any]]] = [
    ("small", {"model": "sage", "hidden": 32, "fanouts": [10, 5], "batch_size": 256}),
    ("large", {"model": "gcn", "hidden": 64, "fanouts": [10, 5], "batch_size": 1024}),
    ("small", {"model": "gcn", "hidden": 32, "fanouts": [10, 5], "batch_size": 1024}),
    ("large", {"model": "sage", "hidden": 128, "fanouts": [10, 10], "batch_size": 512}),
    ("large", {"model": "gat", "hidden": 64, "fanouts": [5, 5], "batch_size": 512}),
    ("small", {"model": "sage", "hidden": 64, "fanouts": [10, 5], "batch_size": 64}),
    ("large", {"model": "sage", "hidden": 64, "fanouts": [10, 5], "batch_size": 1024}),
    ("large", {"model": "gcn", "hidden": 256, "fanouts": [15, 10], "batch_size": 512}),
]
_HELD_OUT = frozenset({2, 6, 9})
"""Places of the measurements that no rate is fitted to."""
_BATCHES, _TURNS = 24, 2


class MeasuredBatch(NamedTuple):
    """A batch of a run: what its operators were simulated to take, how many they are, and what it took."""

    simulated: float
    operators: int
    seconds: float


def fit_batches(model: CostModel, device: str, progress: Progress = SILENT) -> list[FittedOperator]:
    """Rates of a batch among many, from runs of small jobs on this machine; `model` has its operators.

    Of a GPU there are two: for steps that are captured, and for steps that are launched one by one.
    """
    progress.status(f"batches on {device}")
    bare = [fit for fit in model.profile.fits if fit.name not in (BATCH, LAUNCHED_BATCH)]
    model = CostModel(model.profile.model_copy(update={"fits": bare}))
    found = [fitted_batches(BATCH, device, list(_measured(model, device)))]
    if device == "cuda":
        found.append(fitted_batches(LAUNCHED_BATCH, device, list(_measured(model, device, launched=True))))
    return found


def fitted_batches(name: str, device: str, found: list[MeasuredBatch]) -> FittedOperator:
    """Rates of some measured batches."""
    work = [batch_work(each.simulated, each.operators) for each in found]
    held_out = [place in _HELD_OUT for place in range(len(found))]
    seconds = [each.seconds for each in found]
    fit = fit_and_compare(work, seconds, held_out)
    return FittedOperator(
        name=name,
        device=device,
        rates=fit.rates,
        ranges={"seconds": (min(seconds), max(seconds))},
        fitted=held_out.count(False),
        held_out=len(fit.errors),
        mean_error=float(np.mean(fit.errors)),
        p95_error=float(np.quantile(fit.errors, 0.95)),
    )


def _measured(model: CostModel, device: str, launched: bool = False) -> Iterator[MeasuredBatch]:
    with tempfile.TemporaryDirectory(prefix="penstock-batches-") as place:
        graphs = dict[str, Graph]()
        for name, scale in _SCALES.items():
            graphs[name] = make_graph(recipe_named("synthetic-arxiv").scaled(scale), Path(place) / name)
        for name, fields in _JOBS:
            job = make_job({"graph": str(Path(place) / name), "device": device, "timed_choices": [], **fields})
            planned = plan_execution(job, graphs[name], model)
            for each in _carried_out(planned.plan.alternatives, device):
                simulated = each.predicted
                if launched:
                    choice = replace(each.choice, launched=True)
                    way = WAYS[choice.first_layer].planned
                    assert way is not None
                    simulated = predict(model, planned.kind, choice, way)
                own = job.model_copy(update={**fields_of(each.choice), "capture": not launched})
                spent = min(seconds_of_batch(own, graphs[name], _BATCHES) for _ in range(_TURNS))
                yield MeasuredBatch(simulated.seconds, simulated.operators, spent)


def _carried_out(alternatives: list[Alternative], device: str) -> list[Alternative]:
    """The alternatives of a job that are trained: on the host both ways of reading rows, on a GPU captured steps."""
    usual = [each for each in alternatives if each.choice.device == device and each.choice.groups == 1]
    if device == "cuda":
        usual = [each for each in usual if each.choice.captured and each.choice.features == "device"]
    by_way = {each.choice.first_layer: each for each in reversed(usual) if each.choice.first_layer != "transform"}
    return list(by_way.values())


def seconds_of_batch(job: Job, graph: Graph, batches: int) -> float:
    """Seconds of a batch in training, behind the first quarter of them."""
    job = with_order_costs(job)
    with run_context(job):
        session = make_session(job, graph)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed)
        with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
            ends = [time.perf_counter() for _ in islice(steps, batches)]
        first = max(batches // 4, job.groups % batches)
        return (ends[-1] - ends[first]) / (batches - 1 - first)
