"""Predicts what a job takes of the host: the process itself, the graph that it reads, and what its steps allocate."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.pipeline.batch_rows import as_tensors
from penstock.pipeline.grouped_batches import group_size, kept_bytes
from penstock.pipeline.schedule import Planned, Schedule
from penstock.pipeline.stages import Batch, Loaded
from penstock.processes import default_threads
from penstock.store.disk_rows import DiskRows
from penstock.store.embedding import MOMENTS
from penstock.store.source import RowSource
from penstock.trace.allocations import (
    ACTIVATIONS,
    META,
    PROCESS,
    AllocationEvent,
    UntraceableError,
    traceable,
)
from penstock.trace.allocators import heap_peak
from penstock.trace.libraries import library_memory
from penstock.traced import BATCHES, FEATURES, TOPOLOGY, by_other_threads, memory_for, weights_only_counted
from penstock.train.assembly import session_of
from penstock.train.auto_values import decide_gather_threads, with_order_costs
from penstock.train.device.host_trial import tried_on_host
from penstock.train.execution_modes import needs_placement
from penstock.train.finalists import group_bytes
from penstock.train.job import Job
from penstock.train.layerwise.inference import evaluating
from penstock.train.memory.device_forecast import DeviceForecast
from penstock.train.memory.process_memory import process_bytes
from penstock.train.run_context import UNKNOWN, assumed_memory, is_host_full, run_context
from penstock.train.session import Session
from penstock.train.steps.one_by_one import LearnAlone, StaleWeights, loss_of
from penstock.train.trace.fake_session import (
    TRIED,
    LargestBatch,
    input_density,
    largest_batch,
    trace_last_inference,
    trace_validation,
    traced_session,
)
from penstock.train.whole.execution import decided_steps
from penstock.train.whole.traced import traced_host_steps

# The steps of a job on the host, traced: as many batches as the pipeline holds, and a step on the largest.

HOLES = "holes of the heap"


class HostPeak(NamedTuple):
    """The peak of steps on the host's heap, by category, and its moment."""

    categories: dict[str, int]
    moment: str

    @property
    def bytes(self) -> int:
        """The sum of all categories."""
        return sum(self.categories.values())

    @classmethod
    def of(cls, events: Sequence[AllocationEvent], further: int = 0) -> "HostPeak":
        """The peak of a trace, with `further` bytes that are kept outside it."""
        peak = heap_peak(events)
        held, most, now = Counter[str](), dict[str, int](), 0
        best = 0
        for event in events:
            held[event.category] += event.bytes
            now += event.bytes
            if now > best:
                best, most = now, dict(+held)
        holes = max(0, peak.bytes - best)
        return cls({**most, HOLES: holes + further}, peak.moment)


def traced_host_run(session: Session, schedule: Schedule) -> tuple[HostPeak, str, str]:
    """The traced peak of a run's heap, the method, and how the largest batch was found."""
    batches = schedule.batches * max(1, session.job.epochs)
    largest = largest_batch(session, schedule, batches)
    with traceable(), traced_session(session, input_density(session), False) as allocations:
        with allocations.during("trial of a few seeds"):
            _try_out(session, next(schedule.from_position()))
        with allocations.during("pipeline"), memory_for(BATCHES), by_other_threads():
            ahead = [*_ahead(session, largest), _reused(session, largest, schedule.batches), _older(session)]
        # Older weights are among what lies ahead.
        learn = LearnAlone(session, StaleWeights(session.learned, 0))
        for number, each in enumerate(largest.steps):
            with allocations.during(f"step {number + 1}"):
                with by_other_threads(), memory_for(BATCHES):
                    buffers = _buffers(session, each.batch)
                    loaded = _carried(session, each, buffers)
                learn(loaded)
                del loaded, buffers
        with by_other_threads(), memory_for(BATCHES):
            buffers = _buffers(session, largest.batch)
        trace_validation(session, session.whole_graph_inference, allocations)
        del ahead, buffers
        trace_last_inference(session, session.whole_graph_inference, allocations)
        return HostPeak.of(allocations.events), "traced", largest.how


def _try_out(session: Session, planned: Planned) -> None:
    """Do what `assembly.try_out` does: the thread that computes reads the rows, which for a subgraph are as many as
    those of any batch, and leaves a hole.
    """
    batch = session.task.sample(planned._replace(seeds=planned.seeds[:TRIED]))
    loaded = _carried(session, Loaded(planned, batch), _buffers(session, batch))
    with torch.no_grad(), evaluating(session.model):
        loss_of(session, loaded, session.inputs.complete(loaded.batch))


def _ahead(session: Session, largest: LargestBatch) -> list[Any]:
    """Memory of the batches that wait in the pipeline's queues and threads, and of the one being computed."""
    job, batch = session.job, largest.loaded().batch
    gathered = min(
        largest.batches, job.reading_threads + job.gather_depth + job.transfer_threads + job.transfer_depth + 1
    )
    drawn = (
        job.drawing_threads + job.sample_depth
        if job.groups == 1
        else group_size(job.groups, job.threads or default_threads())
    )
    sampled = min(largest.batches - gathered, drawn)
    arrays = [array for block in batch.blocks for part in block.parts for array in _arrays(part)]
    arrays += [*batch.vertices.values(), *batch.seeds.values()]
    held: list[Any] = [_like(array) for _ in range(gathered + sampled) for array in arrays]
    # Buffers are kept for as long as the pipeline is. They have room for more than their first batch, but pages that
    # nothing is written to do not exist. Those of the batch being computed are allocated by the caller.
    buffers = [_buffers(session, batch) for _ in range(gathered - 1)]
    transferred = job.transfer_threads + job.transfer_depth
    held += [_arrived(session, batch, each) for each in buffers[:transferred]]
    for edges in session.inputs.edges.readings(batch.blocks):
        held += [_buffer(*each) for each in edges.shapes for _ in range(gathered)]
    return [*held, *buffers]


def _reused(session: Session, largest: LargestBatch, batches: int) -> torch.Tensor:
    """Memory of the batches that are kept for reuse."""
    job = session.job
    most = batches * kept_bytes(largest.loaded().batch) if job.reuse_batches else 0
    return torch.empty(min(most, job.reuse_mb << 20), dtype=torch.uint8, device=META)


def _older(session: Session) -> torch.Tensor:
    """Memory of older weights, and of the newest beside them, where gradients are computed on older ones."""
    weights = sum(each.numel() * each.element_size() for each in session.learned.parameters())
    kept = session.job.staleness + 1 if session.job.staleness else 0
    return torch.empty(kept * weights, dtype=torch.uint8, device=META)


def _read_sources(session: Session, batch: Batch) -> dict[str, RowSource]:
    return {name: source for name, source in session.inputs.sources.items() if name in batch.vertices}


def _arrays(part: Any) -> list[Array]:
    return [each for each in (part.indptr, part.indices, part.weights, part.totals, part.edges) if each is not None]


def _like(array: Array) -> torch.Tensor:
    return torch.empty(array.nbytes, dtype=torch.uint8, device=META)


Buffers = dict[str, list[torch.Tensor]]
"""Memory into which a batch's rows are read, by node type; meta tensors stand for the arrays of the pipeline."""


def _buffers(session: Session, batch: Batch) -> Buffers:
    """The buffers of a batch, which the pipeline keeps from batch to batch."""
    return {
        name: [_buffer(*each) for each in session.inputs.reader.reading(batch, name, source).shapes]
        for name, source in _read_sources(session, batch).items()
    }


def _arrived(session: Session, batch: Batch, buffers: Buffers) -> dict[str, Any]:
    """The rows of a batch as the model reads them: views of its buffers, or copies of another type beside them."""
    found = {}
    for name, source in _read_sources(session, batch).items():
        reading = session.inputs.reader.reading(batch, name, source)
        arrays: list[Any] = [
            buffer[: int(np.prod(shape))].view(shape)
            for buffer, (shape, _) in zip(buffers[name], reading.shapes, strict=True)
        ]
        found[name] = reading.arrived(arrays, _converted(session), torch.device("cpu"))
    return found


def _carried(session: Session, drawn: Loaded, buffers: Buffers) -> Loaded:
    """A drawn batch as the host's carrier makes it in some buffers."""
    loaded = Loaded(drawn.planned, replace(drawn.batch, features={}))
    session.task.label(loaded.batch)
    with memory_for(BATCHES):
        loaded.batch.features |= _arrived(session, loaded.batch, buffers)
        loaded.batch.blocks = session.inputs.edges.attached(loaded.batch.blocks)
    loaded.batch.labels = as_tensors(loaded.batch.labels)
    return loaded


def _buffer(shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
    stored = torch.from_numpy(np.empty(0, dtype)).dtype
    return torch.empty(int(np.prod(shape)), dtype=stored, device=META)


def _converted(session: Session) -> Callable[[Any], torch.Tensor]:
    scale = session.inputs.scale

    def move(rows: Any) -> torch.Tensor:
        x: torch.Tensor = rows.to(torch.float32)
        return x if scale is None else scale(x)

    return move


# All that a job takes of the host.

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
    """For a session whose parts are on the host; `device` is the GPU's forecast, where one computes."""
    fixed = {PROCESS: process_bytes(device is not None, session.job.sampler), **_graph_bytes(session)}
    if device is not None:
        reused = session.job.reuse_mb << 20 if session.job.reuse_batches else 0
        parts = fixed | {BATCHES: device.pinned + _PINNED_STAGING + reused + group_bytes(session)}
        return HostForecast(sum(parts.values()), parts, device.peak.moment, device.method, device.reason)
    peak, method, reason = _steps(session)
    parts = fixed | {name: fixed.get(name, 0) + size for name, size in peak.categories.items()}
    return HostForecast(sum(parts.values()), parts, peak.moment, method, reason)


def _graph_bytes(session: Session) -> dict[str, int]:
    """Pages of the graph that a run touches: all lists and features, eventually; of features that are read from the
    disk, what is kept of them.
    """
    graph, inputs = session.graph, session.inputs
    topology = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in graph.edges.values())
    sources, fields = inputs.sources, {name: graph.nodes[name].fields[field] for name, field in inputs.fields.items()}
    kept = {name: source.memory_bytes for name, source in sources.items() if isinstance(source, DiskRows)}
    stored = sum(kept.get(name, table.nbytes) for name, table in fields.items())
    learned = sum(4 * table.size * (1 + MOMENTS[table.optimiser]) for table in inputs.tables.values())
    return {TOPOLOGY: topology, FEATURES: stored + learned}


def _steps(session: Session) -> tuple[HostPeak, str, str]:
    """The peak of what steps and validations allocate."""
    schedule = Schedule(session.task.items, session.task.batch_size, session.job.draw_seed, session.job.epochs)
    try:
        if needs_placement(session.job.sampler):
            return traced_host_run(session, schedule)
        return _whole_steps(session, schedule)
    except UntraceableError as error:
        step = tried_on_host(session)
        size = step.of(step.whole) + 4 * step.whole.inputs
        reason = f"the step cannot be traced ({error}); two small steps were scaled up"
        return HostPeak({ACTIVATIONS: size}, "a step"), "trial", reason


def _whole_steps(session: Session, schedule: Schedule) -> tuple[HostPeak, str, str]:
    found = HostPeak({}, "")
    for step, predicted in decided_steps(session, schedule):
        if predicted.reason:
            return HostPeak({ACTIVATIONS: step.decision.predicted_bytes}, "a step"), predicted.method, predicted.reason
        found = max(found, HostPeak.of(*traced_host_steps(session, step)), key=lambda each: each.bytes)
    return found, "traced", "every step is the same"


# A job's session for a forecast: nothing is placed, and weights are only counted.

_UNCOUNTABLE = ("verflow", "too large", "invalid shape", "invalid for input of size")
"""Parts of torch's and NumPy's messages about sizes that exceed 64 bits."""


@contextmanager
def counted_session(
    job: Job, graph: Graph | None, device_memory: int | None, module: torch.nn.Module | None
) -> Iterator[Session]:
    """A job's session on the host, whose weights are only counted; the device is taken to have `device_memory` bytes,
    or room for everything where that is None."""
    on_host = with_order_costs(job.model_copy(update={"device": "cpu"}), built=module is not None)
    room = UNKNOWN if device_memory is None else max(0, device_memory - library_memory().context)
    with _countable(), run_context(on_host), assumed_memory(room), weights_only_counted():
        session = session_of(on_host, torch.device("cpu"), graph, module)
        decide_gather_threads(session)
        yield session


@contextmanager
def _countable() -> Iterator[None]:
    """Turn errors about sizes beyond 64 bits, or beyond this machine's memory, into one sentence."""
    try:
        yield
    except (MemoryError, RuntimeError, OverflowError, TypeError, ValueError) as error:
        if is_host_full(error):
            raise PenstockError(
                "The memory of the job cannot be forecast: batches of it do not fit into this machine's memory. Lower"
                " batch_size, fanouts or embedding.",
                code="out-of-memory",
            ) from error
        if not any(word in str(error) for word in _UNCOUNTABLE):
            raise
        raise PenstockError(
            "The job would need arrays of more than 2^63 bytes, which no machine has: lower hidden, layers or"
            " batch_size.",
            code="out-of-memory",
        ) from error
