"""Predicts what a job takes of a GPU: by a trace, or from two small steps where it cannot be traced."""

from dataclasses import dataclass, replace

import torch

from penstock.errors import PenstockError
from penstock.pipeline.schedule import BatchPlan, Planned, Schedule
from penstock.plan import Residence
from penstock.sampling.sampler_table import SAMPLERS
from penstock.store.device.shards import current_gpu_group, own_bytes
from penstock.trace.allocations import UntraceableError
from penstock.trace.allocators import DevicePeak
from penstock.trace.libraries import library_memory
from penstock.traced import FEATURES, TOPOLOGY
from penstock.train.auto_values import decide_sample_threads
from penstock.train.device.decision import PlacementDecision, decide
from penstock.train.device.host_trial import tried_on_host
from penstock.train.device.memory import TrialMemory, stored_type, way_of
from penstock.train.device.traced import SUMMED_BYTES, SharedTrace, TracedMemory
from penstock.train.execution_modes import needs_placement
from penstock.train.first_layer.slots import HOST_FILLED, gathered_bytes
from penstock.train.session import Session
from penstock.train.steps.sources import ShareOfSchedule
from penstock.train.whole.execution import decided_steps
from penstock.train.whole.memory import free_bytes
from penstock.train.whole.steps import is_captured
from penstock.train.whole.traced import StepSizes, traced_device_run


@dataclass(frozen=True)
class DeviceForecast:
    """What a job takes of a GPU."""

    peak: DevicePeak
    context: int
    method: str
    reason: str
    why: list[str]
    pinned: int = 0
    """Bytes of host memory that the GPU reads."""
    recorded: bool = False
    """Whether steps are CUDA graphs that replay without the host, and validations run on the GPU too."""

    @property
    def bytes(self) -> int:
        """All that the job takes of the device: torch's segments and the CUDA context."""
        return self.peak.reserved + self.context


def forecast_device(session: Session) -> DeviceForecast:
    """For a session whose parts are on the host; no GPU is used."""
    job, group = session.job, current_gpu_group()
    divides_seeds = needs_placement(job.sampler) and not SAMPLERS[job.sampler].joint and not session.inputs.tables
    if group is not None and not (divides_seeds and session.task.facts.about == "vertices"):
        raise PenstockError(
            "The memory of several GPUs is predicted where each draws for its share of a batch's vertices, without"
            " learned embeddings: leave out gpus.",
            code="unsupported-combination",
        )
    session.inputs.device = torch.device("cuda")
    decide_sample_threads(session)
    try:
        found = _sampled(session) if needs_placement(session.job.sampler) else _whole(session)
        return replace(found, peak=_with_tables(session, found.peak))
    finally:
        session.inputs.device = torch.device("cpu")


def _sampled(session: Session) -> DeviceForecast:
    """The forecast for steps on sampled batches."""
    task, context = session.task, library_memory().context
    alone = Schedule(task.items, task.batch_size, session.job.draw_seed)
    schedule, traced = _of_one_gpu(session, alone)
    try:
        decision = decide(session, schedule, traced)
    except UntraceableError as error:
        decision = decide(session, schedule, TrialMemory(session, tried_on_host(session), str(error)))
        residence, working = decision.residence, decision.working
        parts = _placed(residence, session) | working.parts
        peak = DevicePeak(decision.predicted_bytes, decision.predicted_bytes, "a step", parts)
        reason = f"the step cannot be traced ({error}); two small steps on the host were scaled up"
        return DeviceForecast(peak, context, "trial", reason, decision.why, residence.pinned_bytes)
    reason = "room for the largest batch is made before the first step" if decision.captured else traced.largest.how
    staged = _staged(session, decision)
    pinned = decision.residence.pinned_bytes + staged
    recorded = decision.captured and not staged and not traced.peak.host_validates
    return DeviceForecast(traced.peak, context, "traced", reason, decision.why, pinned, recorded)


def _of_one_gpu(session: Session, alone: Schedule) -> tuple[BatchPlan, TracedMemory]:
    """The batches of one GPU, which are shares of a schedule's where several GPUs train together; and their trace."""
    group = current_gpu_group()
    if group is None:
        return alone, TracedMemory(session, alone)
    count = group.count

    def share(planned: Planned) -> Planned:
        whole = len(planned.seeds)
        return planned._replace(seeds=planned.seeds[: -(-whole // count)], whole=whole)

    shares = ShareOfSchedule(alone, share)
    summed = SUMMED_BYTES * sum(each.numel() for each in session.learned.parameters())
    as_if_alone = Schedule(alone.items, shares.batch_size, session.job.draw_seed)
    return shares, SharedTrace(session, as_if_alone, shares, summed)


def _staged(session: Session, decision: PlacementDecision) -> int:
    """Bytes of host memory into which rows are gathered for the GPU, with their numbers."""
    job, inputs, graph, room = session.job, session.inputs, session.graph, decision.room
    tables = [graph.nodes[name].fields[field] for name, field in inputs.fields.items()]
    if room is None or not tables:
        return 0
    width = max(table.size // max(1, len(table)) for table in tables)
    number = max(stored_type(job, table).itemsize for table in tables)
    filler = way_of(job, decision.residence.features).filler
    if filler is not None and decision.captured:
        return HOST_FILLED * filler.host_bytes(room, width, number)
    if not decision.gathers:
        return 0
    return (HOST_FILLED if decision.captured else job.transfer_threads) * gathered_bytes(room, width, number)


def _placed(residence: Residence, session: Session) -> dict[str, int]:
    """The bytes of the graph that lie on the device, by kind."""
    graph, inputs = session.graph, session.inputs
    topology = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in graph.edges.values())
    features = sum(graph.nodes[name].fields[field].nbytes for name, field in inputs.fields.items())
    if residence.shared:
        features = sum(own_bytes(graph.nodes[name].fields[field].nbytes) for name, field in inputs.fields.items())
    found = {TOPOLOGY: topology if residence.topology == "device" else 0}
    return found | {FEATURES: features if residence.features == "device" else 0}


def _whole(session: Session) -> DeviceForecast:
    """The forecast for steps on the whole graph."""
    job = session.job
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed, job.epochs)
    decided = list(decided_steps(session, schedule))
    steps, untraced = [step for step, _ in decided], [predicted for _, predicted in decided if predicted.reason]
    why = [f"Each layer is computed in {steps[0].decision.bins[0]} bins; rows wait on {steps[0].decision.keep}."]
    if not getattr(session.model, "layerwise", False):
        why = ["The module computes the whole neighbourhood of a step at once."]
    context = library_memory().context
    if untraced:
        most = max(step.decision.predicted_bytes for step in steps)
        return DeviceForecast(DevicePeak(most, most, "a step", {}), context, *untraced[0], why)
    peak = _with_features(session, steps, traced_device_run(session, steps))
    recorded = is_captured(session, [step.decision for step in steps]) and not peak.host_validates
    return DeviceForecast(peak, context, "traced", "every step is the same", why, recorded=recorded)


def _with_tables(session: Session, peak: DevicePeak) -> DevicePeak:
    """The peak with the learnable rows that lie on the device from the start."""
    return _larger(peak, session.inputs.room_for_tables(free_bytes(session.inputs.device, 1.0)))


def _larger(peak: DevicePeak, size: int) -> DevicePeak:
    """The peak with so many more bytes of features."""
    if not size:
        return peak
    parts = peak.categories | {FEATURES: peak.categories.get(FEATURES, 0) + size}
    return peak._replace(allocated=peak.allocated + size, reserved=peak.reserved + size, categories=parts)


def _with_features(session: Session, steps: list[StepSizes], peak: DevicePeak) -> DevicePeak:
    """The peak with the features on the device, which bins read again when they are recomputed, if these fit beside the
    steps; layers that read features in place always have them there, and the trace has counted them.
    """
    if all(step.decision.retain or step.decision.in_place for step in steps):
        return peak
    inputs, graph = session.inputs, session.graph
    tables = [graph.nodes[name].fields[field] for name, field in inputs.fields.items()]
    size = sum(table.size * stored_type(session.job, table).itemsize for table in tables)
    if peak.allocated + size > free_bytes(inputs.device, session.job.device_share):
        return peak
    return _larger(peak, size)
