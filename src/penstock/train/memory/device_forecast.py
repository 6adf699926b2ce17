"""What a job takes of a GPU: traced, or concluded from two small steps where a trace cannot be had."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from penstock.pipeline.schedule import Schedule
from penstock.plan import Residence
from penstock.train.batch_source import layers_of
from penstock.train.device.decision import Decision, decide
from penstock.train.device.fitting import stored_type, way_of
from penstock.train.device.host_filled_steps import HostFilledSteps
from penstock.train.device.memory import TrialMemory
from penstock.train.device.traced import TracedMemory
from penstock.train.execution_modes import needs_placement
from penstock.train.first_layer.gathered_slots import gathered_bytes
from penstock.train.layerwise.reach import Reach
from penstock.train.memory.host_trial import tried_on_host
from penstock.train.sample_threads import decide_sample_threads
from penstock.train.session import Session
from penstock.train.trace.categories import FEATURES, TOPOLOGY
from penstock.train.trace.cuda_allocator import DevicePeak
from penstock.train.trace.libraries import library_memory
from penstock.train.trace.untraceable import UntraceableError
from penstock.train.whole.bin_sizes import decided_sizes
from penstock.train.whole.execution import decide_step
from penstock.train.whole.memory import free_bytes
from penstock.train.whole.plan import vertices_by_level
from penstock.train.whole.schedule import first_epoch
from penstock.train.whole.support import is_captured
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
    """Bytes of the host that the GPU reads."""
    recorded: bool = False
    """Whether steps are graphs that a GPU replays without the help of the host, and validations are its work too."""


def forecast_device(session: Session) -> DeviceForecast:
    """For a session whose parts are on the host; the GPU is not touched."""
    session.inputs.device = torch.device("cuda")
    decide_sample_threads(session)
    try:
        found = _sampled(session) if needs_placement(session.job.sampler) else _whole(session)
        return replace(found, peak=_with_tables(session, found.peak))
    finally:
        session.inputs.device = torch.device("cpu")


def _sampled(session: Session) -> DeviceForecast:
    """Of steps on batches that are drawn."""
    task, context = session.task, library_memory().context
    schedule = Schedule(task.items, task.batch_size, session.job.draw_seed)
    traced = TracedMemory(session, schedule)
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


def _staged(session: Session, decision: Decision) -> int:
    """Bytes of the host into which rows are gathered for the GPU, with their numbers."""
    job, inputs, graph, room = session.job, session.inputs, session.graph, decision.room
    if room is None:
        return 0
    tables = [graph.nodes[name].fields[field] for name, field in inputs.fields.items()]
    width = max(table.size // max(1, len(table)) for table in tables)
    number = max(stored_type(job, table).itemsize for table in tables)
    filler, slots = way_of(job, decision.residence.features).filler, HostFilledSteps.slots_in_turn
    if filler is not None and decision.captured:
        return slots * filler.host_bytes(room, width, number)
    if not decision.gathers:
        return 0
    return (slots if decision.captured else job.transfer_threads) * gathered_bytes(room, width, number)


def _placed(residence: Residence, session: Session) -> dict[str, int]:
    """What lies on the device of the graph."""
    graph, inputs = session.graph, session.inputs
    topology = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in graph.edges.values())
    features = sum(graph.nodes[name].fields[field].nbytes for name, field in inputs.fields.items())
    found = {TOPOLOGY: topology if residence.topology == "device" else 0}
    return found | {FEATURES: features if residence.features == "device" else 0}


def _whole(session: Session) -> DeviceForecast:
    """Of steps on the whole graph."""
    job, messages, layers = session.job, session.task.messages, layers_of(session.job)
    assert messages is not None
    reach = Reach(messages, [list(messages.edges)] * layers, session.list_weight, edges=bool(session.inputs.edges))
    schedule = Schedule(session.task.items, session.task.batch_size, job.draw_seed, job.epochs)
    steps, reason = list[StepSizes](), ""
    for planned in first_epoch(schedule):
        planned = planned._replace(seeds=np.sort(planned.seeds))
        order, counts = vertices_by_level(reach, layers, session.task.readable(planned.seeds), job.scope == "all")
        order, decision, predicted = decide_step(session, reach, order, counts, planned)
        reason = reason or predicted.reason
        sizes = decided_sizes(reach, layers, order, counts, decision)
        steps.append(StepSizes(order, counts, sizes, decision, planned))
    why = [f"Each layer is computed in {steps[0].decision.bins[0]} bins; rows wait on {steps[0].decision.keep}."]
    context = library_memory().context
    if reason:
        most = max(step.decision.predicted_bytes for step in steps)
        return DeviceForecast(DevicePeak(most, most, "a step", {}), context, "rule", reason, why)
    peak = _with_features(session, steps, traced_device_run(session, steps))
    recorded = is_captured(session, [step.decision for step in steps]) and not peak.host_validates
    return DeviceForecast(peak, context, "traced", "every step is the same", why, recorded=recorded)


def _with_tables(session: Session, peak: DevicePeak) -> DevicePeak:
    """With the learnable rows that lie on the device before anything else does."""
    return _larger(peak, session.inputs.room_for_tables(free_bytes(session.inputs.device, 1.0)))


def _larger(peak: DevicePeak, size: int) -> DevicePeak:
    """With that many more bytes of features."""
    if not size:
        return peak
    parts = peak.categories | {FEATURES: peak.categories.get(FEATURES, 0) + size}
    return peak._replace(allocated=peak.allocated + size, reserved=peak.reserved + size, categories=parts)


def _with_features(session: Session, steps: list[StepSizes], peak: DevicePeak) -> DevicePeak:
    """Bins that are computed again read features on the device, where these fit beside the steps; those that read in
    place always do, and the trace knows it."""
    if all(step.decision.retain or step.decision.in_place for step in steps):
        return peak
    inputs, graph = session.inputs, session.graph
    tables = [graph.nodes[name].fields[field] for name, field in inputs.fields.items()]
    size = sum(table.size * stored_type(session.job, table).itemsize for table in tables)
    if peak.allocated + size > free_bytes(inputs.device, session.job.device_share):
        return peak
    return _larger(peak, size)
