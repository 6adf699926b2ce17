"""What a job takes of the host: the process itself, the graph that it reads, and what its steps allocate."""

from dataclasses import dataclass

import numpy as np

from penstock.pipeline.schedule import Schedule
from penstock.train.batch_source import layers_of
from penstock.train.execution_modes import needs_placement
from penstock.train.layerwise.reach import Reach
from penstock.train.memory.device_forecast import DeviceForecast
from penstock.train.memory.host_steps import HostPeak, traced_host_run
from penstock.train.memory.host_trial import tried_on_host
from penstock.train.memory.process import process_bytes
from penstock.train.session import Session
from penstock.train.trace.categories import BATCHES, FEATURES, LIBRARIES, PROCESS, TOPOLOGY
from penstock.train.trace.libraries import LOADED_ON_HOST
from penstock.train.trace.untraceable import UntraceableError
from penstock.train.whole.bin_sizes import decided_sizes
from penstock.train.whole.execution import decide_step
from penstock.train.whole.plan import vertices_by_level
from penstock.train.whole.schedule import first_epoch
from penstock.train.whole.traced import StepSizes, traced_host_steps

_PINNED_STAGING = 128 << 20
"""Two page-locked buffers through which tables are copied to a GPU."""


@dataclass(frozen=True)
class HostForecast:
    """What a job takes of the host, in bytes."""

    bytes: int
    categories: dict[str, int]
    moment: str
    method: str
    reason: str


def forecast_host(session: Session, device: DeviceForecast | None) -> HostForecast:
    """For a session whose parts are on the host; `device` is what a GPU takes, where one computes."""
    fixed = {PROCESS: process_bytes(device is not None), **_graph_bytes(session)}
    if device is not None:
        reused = session.job.reuse_mb << 20 if session.job.reuse_batches else 0
        parts = fixed | {BATCHES: device.pinned + _PINNED_STAGING + reused}
        return HostForecast(sum(parts.values()), parts, device.peak.moment, device.method, device.reason)
    peak, method, reason = _steps(session)
    parts = fixed | {LIBRARIES: LOADED_ON_HOST}
    parts |= {name: parts.get(name, 0) + size for name, size in peak.categories.items()}
    return HostForecast(sum(parts.values()), parts, peak.moment, method, reason)


def _graph_bytes(session: Session) -> dict[str, int]:
    """Pages of the graph that a run touches: all lists and features, sooner or later."""
    graph, inputs = session.graph, session.inputs
    topology = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in graph.edges.values())
    stored = sum(graph.nodes[name].fields[field].nbytes for name, field in inputs.fields.items())
    learned = sum(4 * table.size for table in inputs.tables.values())
    return {TOPOLOGY: topology, FEATURES: stored + learned}


def _steps(session: Session) -> tuple[HostPeak, str, str]:
    """What steps and validations allocate at once."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed, session.job.epochs)
    try:
        if needs_placement(session.job.sampler):
            return traced_host_run(session, schedule)
        return _whole_steps(session, schedule)
    except UntraceableError as error:
        step = tried_on_host(session)
        size = step.of(step.whole) + 4 * step.whole.inputs
        reason = f"the step cannot be traced ({error}); two small steps were scaled up"
        return HostPeak({"activations": size}, "a step"), "trial", reason


def _whole_steps(session: Session, schedule: Schedule) -> tuple[HostPeak, str, str]:
    job, messages, layers = session.job, session.task.messages, layers_of(session.job)
    assert messages is not None
    reach = Reach(messages, [list(messages.edges)] * layers, session.list_weight, edges=bool(session.inputs.edges))
    found = HostPeak({}, "")
    for planned in first_epoch(schedule):
        planned = planned._replace(seeds=np.sort(planned.seeds))
        order, counts = vertices_by_level(reach, layers, session.task.readable(planned.seeds), job.scope == "all")
        order, decision, predicted = decide_step(session, reach, order, counts, planned)
        if predicted.reason:
            return HostPeak({"activations": decision.predicted_bytes}, "a step"), "rule", predicted.reason
        sizes = decided_sizes(reach, layers, order, counts, decision)
        events, further = traced_host_steps(session, StepSizes(order, counts, sizes, decision, planned))
        found = max(found, HostPeak.of(events, further), key=lambda each: each.bytes)
    return found, "traced", "every step is the same"
