"""The execution plan of a job on one machine, as `penstock plan --execution` reports it."""

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from penstock.cost.fit import fit_and_compare
from penstock.cost.model import BATCH, LAUNCHED_BATCH, CostModel, Extrapolation, batch_work, machine_model
from penstock.cost.profile import FittedOperator, MeasuredMachine
from penstock.errors import PenstockError
from penstock.formatting import counted, percent
from penstock.graph.folder import Graph
from penstock.graph.generate import make_graph, recipe_named
from penstock.pipeline.grouped_batches import PER_PROCESSOR
from penstock.pipeline.schedule import START, Schedule
from penstock.plan.document import Compared, Effort, Plan, Predicted, one_machine_plan
from penstock.plan.execution import (
    Alternative,
    BatchKind,
    ExecutionChoice,
    ExecutionPlan,
    Space,
    outside_measured,
    predict,
    search,
)
from penstock.plan.execution.choice import Device, Features
from penstock.plan.execution.search import PlannedWay
from penstock.plan.residence import NoRoomError
from penstock.progress import SILENT, Progress
from penstock.train.assembly import session_of
from penstock.train.auto_values import with_order_costs
from penstock.train.build import make_session
from penstock.train.device.decision import PlacementDecision, decide
from penstock.train.device.traced import TracedMemory
from penstock.train.execution.support import DEVICE_SAMPLING, demands_of
from penstock.train.execution.support import reasons_against as reasons_against_mode
from penstock.train.first_layer.ways import WAYS, reasons_against
from penstock.train.job import Job, make_job
from penstock.train.job_batches import depths_of, kind_of_batches
from penstock.train.run_context import UNKNOWN, assumed_memory, run_context
from penstock.train.run_files.run_folder import found_anywhere
from penstock.train.session import Session

# The choices that a job and a profiled machine leave open.


class TakenMemory(NamedTuple):
    """The GPU memory that a job takes."""

    taken: int | None
    """Bytes taken with everything placed where it fits; None where not even a step fits."""
    memory: int | None
    """Bytes of the GPU; None where that is not known and everything is assumed to fit."""
    features: Features
    """The place closest to the GPU at which features fit."""


def space_of(
    session: Session, model: CostModel, device_memory: int | None, traced: TracedMemory
) -> tuple[Space, TakenMemory | None]:
    """The space of all executions that a job allows; `device_memory` bytes bound what is placed on a GPU.

    A GPU is considered if the profile has one whose copies were measured. A job that does not fit on it is computed by
    the host, if it leaves that open.
    """
    job, inputs = session.job, session.inputs
    ways = {
        way.name: PlannedWay(way.planned, way.on_host, way.on_both)
        for way in WAYS.values()
        if way.planned is not None and not reasons_against(way, job, session.model, inputs)
    }
    devices, room, places = devices_of(job.device, model), None, list[tuple[Features, int]]()
    on_device = False
    if "cuda" in devices:
        try:
            decision = _decision(session, device_memory, traced)
        except NoRoomError:
            if devices == ("cuda",):
                raise
            devices, room = ("cpu",), TakenMemory(None, device_memory, "host")
        else:
            places = _places(decision)
            room = TakenMemory(decision.predicted_bytes, device_memory, decision.residence.features)
            # Lists that stay on the host can only be drawn there.
            refused = reasons_against_mode(DEVICE_SAMPLING, demands_of(session))
            on_device = not refused and decision.residence.topology != "host"
    cores = model.machine.cores
    space = Space(
        ways,
        devices,
        ("cpu", "cuda") if on_device else ("cpu",),
        (("host", 0), *places),
        tuple(dict.fromkeys((job.drawing_threads, cores))),
        (1, PER_PROCESSOR * cores),
        depths_of(job),
    )
    return space, room


def devices_of(asked: str, model: CostModel) -> tuple[Device, ...]:
    """The devices of the profile that a job may compute on."""
    known: tuple[Device, ...] = ("cpu", "cuda") if model.knows("copy_up", "cuda") else ("cpu",)
    return known if asked == "auto" else tuple(each for each in known if each == asked.partition(":")[0])


def schedule_of(session: Session) -> Schedule:
    """The schedule of a job's batches."""
    return Schedule(session.task.items, session.task.batch_size, session.job.draw_seed)


def _decision(session: Session, device_memory: int | None, traced: TracedMemory) -> PlacementDecision:
    """What a run would place on a GPU with so much memory."""
    session.inputs.device = torch.device("cuda")
    try:
        with assumed_memory(UNKNOWN if device_memory is None else device_memory):
            return decide(session, schedule_of(session), traced)
    finally:
        session.inputs.device = torch.device("cpu")


def _places(decision: PlacementDecision) -> list[tuple[Features, int]]:
    """Where a GPU can read features: pinned, with as large a cache as fits, or on the device."""
    residence, found = decision.residence, list[tuple[Features, int]]([("pinned", 0)])
    if residence.features == "device":
        return [*found, ("device", 0)]
    return [*found, ("pinned", residence.cache_rows)] if residence.cache_rows else found


# The plan of a job's execution on one machine, or on each of several.


@dataclass(frozen=True)
class PlannedExecution:
    """The plan of a job's execution, and what it was made from."""

    plan: ExecutionPlan
    kind: BatchKind
    machine: MeasuredMachine
    seconds: float
    """Seconds that planning took, without counting batches."""
    room: TakenMemory | None = None
    """The GPU memory that the job takes; None without a GPU."""
    outside: tuple[Extrapolation, ...] = ()
    """Sizes of the chosen execution outside the range of what was measured, the farthest first."""

    @property
    def epoch_s(self) -> float:
        """Predicted seconds of an epoch by the chosen execution."""
        return self.plan.chosen.predicted.seconds * self.kind.batches


def plan_execution(
    job: Job, graph: Graph | None = None, model: CostModel | None = None, device_memory: int | None = None
) -> PlannedExecution:
    """Compare all executions of a job on the machine of a cost model, by default this one's.

    Batches are drawn on the host to be counted. Nothing is trained and no GPU is touched, so a GPU's profile serves on
    a machine without one; `device_memory` is that GPU's, in bytes, and everything fits where it is None.
    """
    (found,) = plan_executions(job, [(machine_model() if model is None else model, device_memory)], graph)
    if isinstance(found, PenstockError):
        raise found
    return found


def plan_executions(
    job: Job, machines: Iterable[tuple[CostModel, int | None]], graph: Graph | None = None
) -> Iterator[PlannedExecution | PenstockError]:
    """The plan, or an error, for each machine's cost model and bytes of its GPU; batches are drawn once."""
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}))
    with run_context(on_host):
        session = session_of(on_host, torch.device("cpu"), graph)
        kind = kind_of_batches(session)
        session.job = job
        # The memory that steps take of a GPU is the same on all machines.
        traced = TracedMemory(session, schedule_of(session))
        for model, device_memory in machines:
            began = time.perf_counter()
            if not devices_of(job.device, model):
                yield PenstockError(
                    f"The profile has no operators of {job.device}: name a machine that has it with --machine, such as"
                    " h200, or measure one with `penstock profile --operators -o FILE` and name that file.",
                    code="missing-data",
                )
                continue
            try:
                space, room = space_of(session, model, device_memory, traced)
                plan = search(model, kind, space)
            except PenstockError as error:
                if error.code not in ("missing-data", "out-of-memory"):
                    raise
                yield error
                continue
            chosen = plan.chosen
            outside = outside_measured(model, kind, chosen, space.ways[chosen.choice.first_layer].work)
            yield PlannedExecution(
                plan, kind, model.machine, round(time.perf_counter() - began, 3), room, tuple(outside)
            )


def fields_of(choice: ExecutionChoice) -> dict[str, Any]:
    """The job fields and internals that select a choice; those for devices are left out on a CPU."""
    found: dict[str, Any] = {
        "device": choice.device,
        "first_layer": choice.first_layer,
        "order": list(choice.order),
        "groups": choice.groups,
        "sample_threads": choice.sample_threads,
    }
    if not choice.on_gpu:
        return found
    placement: dict[str, Any] = {"features": choice.features}
    if choice.features == "pinned":
        placement["cache_rows"] = choice.cache_rows
    return {**found, "sample_on": "device" if choice.drawn_on_gpu else "host", "placement": placement}


def plan_document(job: Job, found: PlannedExecution, machine: str) -> Plan:
    """The plan as the document that `penstock train --plan` carries out; `machine` is the machine's name.

    What it decides are fields of its job, so that nothing is left to decide when it is carried out.
    """
    chosen = found.plan.chosen
    choice, predicted, gpu = chosen.choice, chosen.predicted, chosen.choice.on_gpu
    fields = fields_of(choice)
    if isinstance(job.placement, dict):
        fields["placement"] = {**job.placement, **fields.get("placement", {})}
    threads = job.threads or found.machine.cores
    planned = job.model_copy(update={**fields, **found_anywhere(job), "threads": threads, "timed_choices": []})
    compared = [_compared(each, found.kind.batches) for each in found.plan.alternatives]
    taken = None if found.room is None or not gpu else found.room.taken
    return one_machine_plan(
        planned.model_dump(mode="json"),
        {**asdict(choice), "order": list(choice.order)},
        _reasons(choice, [each.choice for each in found.plan.alternatives]),
        choice.words,
        (machine, found.machine),
        predicted=Predicted(
            iteration_s=predicted.seconds,
            epoch_s=found.epoch_s,
            lower_bound_s=min(each.lower_bound_s for each in compared),
            placement_bound_s=compared[0].lower_bound_s,
            link_utilisation=predicted.use,
            device_memory_gb={} if taken is None else {"gpu": {machine: taken / 1e9}},
        ),
        bottleneck=f"{predicted.limit} is busy {percent(predicted.use[predicted.limit])} of the time.",
        compared=compared,
        search=Effort(steps=len(compared), seconds=found.seconds, simulated=len(compared)),
        notes=found.plan.unknown,
    )


def _reasons(choice: ExecutionChoice, compared: Sequence[ExecutionChoice]) -> dict[str, str]:
    """By name, why a plan decides as it does: a value is the only one that the job allows, or of the fastest."""
    fastest = f"It is that of the fastest of {counted(len(compared), 'executions')} that were predicted."
    return {
        name: fastest if len({getattr(each, name) for each in compared}) > 1 else "The job allows nothing else here."
        for name in asdict(choice)
    }


def _compared(each: Alternative, batches: int) -> Compared:
    """An execution as a plan lists it: what is busy most limits it, as a link does in a cluster."""
    choice, predicted = each.choice, each.predicted
    busy = predicted.use[predicted.limit]
    return Compared(
        placement=choice.words,
        flows="fair",
        iteration_s=predicted.seconds,
        epoch_s=predicted.seconds * batches,
        lower_bound_s=predicted.seconds * busy,
        gap=1 / busy - 1 if busy else 0.0,
        slowest_link=predicted.limit,
        slowest_link_bytes=0.0,
    )


# The time of a batch that no operator accounts for, fitted to runs of small jobs. Operators are measured alone; in a
# run, threads prepare batches beside the step, wait for each other and for the interpreter lock, and hand every batch
# from stage to stage. For a small batch that is a third of its time.

_SCALES = {"small": 0.02, "large": 0.3}
"""Scales of synthetic-arxiv: 3,400 and 51,000 vertices with 128 columns."""
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
"""Positions of the measurements that are held out from fitting."""
_BATCHES, _TURNS = 24, 2


class MeasuredBatch(NamedTuple):
    """A measured batch: the simulated seconds of its operators, their number, and the seconds it took."""

    simulated: float
    operators: int
    seconds: float


def fit_batches(model: CostModel, device: str, progress: Progress = SILENT) -> list[FittedOperator]:
    """Fit the rates of a whole batch to runs of small jobs on this machine; `model` has its operators.

    A GPU has two: for captured steps, and for steps that are launched one by one.
    """
    progress.status(f"batches on {device}")
    bare = [fit for fit in model.profile.fits if fit.name not in (BATCH, LAUNCHED_BATCH)]
    model = CostModel(model.profile.model_copy(update={"fits": bare}))
    found = [fitted_batches(BATCH, device, list(_measured(model, device)))]
    if device == "cuda":
        found.append(fitted_batches(LAUNCHED_BATCH, device, list(_measured(model, device, launched=True))))
    return found


def fitted_batches(name: str, device: str, found: list[MeasuredBatch]) -> FittedOperator:
    """Rates fitted to some measured batches."""
    work = [batch_work(each.simulated, each.operators) for each in found]
    held_out = [place in _HELD_OUT for place in range(len(found))]
    seconds = [each.seconds for each in found]
    fit = fit_and_compare(name, device, work, seconds, held_out)
    return fit.model_copy(update={"ranges": {"seconds": (min(seconds), max(seconds))}})


def _measured(model: CostModel, device: str, launched: bool = False) -> Iterator[MeasuredBatch]:
    with tempfile.TemporaryDirectory(prefix="penstock-batches-") as place:
        graphs = dict[str, Graph]()
        for name, scale in _SCALES.items():
            graphs[name] = make_graph(recipe_named("synthetic-arxiv").scaled(scale), Path(place) / name)
        for name, fields in _JOBS:
            job = make_job(
                {"graph": str(Path(place) / name), "device": device, **fields}, internals={"timed_choices": []}
            )
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
    """The alternatives that are trained for fitting: both ways of reading rows on the host, captured steps on a GPU."""
    usual = [each for each in alternatives if each.choice.device == device and each.choice.groups == 1]
    if device == "cuda":
        usual = [each for each in usual if each.choice.captured and each.choice.features == "device"]
    by_way = {each.choice.first_layer: each for each in reversed(usual) if each.choice.first_layer != "transform"}
    return list(by_way.values())


def seconds_of_batch(job: Job, graph: Graph, batches: int) -> float:
    """Mean seconds of a batch in training, the first quarter not counted."""
    job = with_order_costs(job)
    with run_context(job):
        session = make_session(job, graph)
        schedule = Schedule(session.task.items, session.task.batch_size, job.seed)
        with session.execution.steps(schedule, START, lambda position: 1, lambda *_: None) as steps:
            ends = [time.perf_counter() for _ in islice(steps, batches)]
        first = max(batches // 4, job.groups % batches)
        return (ends[-1] - ends[first]) / (batches - 1 - first)
