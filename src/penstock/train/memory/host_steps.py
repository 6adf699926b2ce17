"""The steps of a job on the host, traced: as many batches as the pipeline holds, and a step on the largest."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.graph.blocks import default_threads
from penstock.pipeline.grouped_batches import group_size
from penstock.pipeline.host_carrier import as_tensors
from penstock.pipeline.loader import Loaded
from penstock.pipeline.reused_batches import kept_bytes
from penstock.pipeline.schedule import Schedule
from penstock.store.source import RowSource
from penstock.traced import memory_for
from penstock.train.execution.loaded import learn_from, loss_of, prepared_batch
from penstock.train.session import Session
from penstock.train.trace.allocations import META, Event
from penstock.train.trace.batch_sizes import LargestBatch, largest_batch
from penstock.train.trace.categories import BATCHES
from penstock.train.trace.fake_session import input_density, traced_session
from penstock.train.trace.heap import heap_peak
from penstock.train.trace.inference import trace_inference, trace_last_inference
from penstock.train.trace.untraceable import traceable

_STEPS = 2
"""The first step makes what later ones keep."""
_BUFFER_SLACK = 1.25
"""Feature buffers have room for somewhat larger batches than the first (`pipeline.buffers`)."""
HOLES = "holes of the heap"


class HostPeak(NamedTuple):
    """The most that steps take of the host's heap, by category, and when."""

    categories: dict[str, int]
    moment: str

    @property
    def bytes(self) -> int:
        """All categories together."""
        return sum(self.categories.values())

    @classmethod
    def of(cls, events: Sequence[Event], further: int = 0) -> "HostPeak":
        """The peak of a trace; `further` bytes are kept that it has not seen."""
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
    """What a run allocates of the heap at once, how that was found, and how the largest batch was."""
    batches = schedule.batches * max(1, session.job.epochs)
    largest = largest_batch(session, schedule, batches)
    with traceable(), traced_session(session, input_density(session), False) as allocations:
        with allocations.during("pipeline"), memory_for(BATCHES):
            ahead = [*_ahead(session, largest), _reused(session, largest, schedule.batches), _older(session)]
        for number in range(_STEPS):
            with allocations.during(f"step {number + 1}"):
                loaded = _carried(session, largest)
                x = prepared_batch(session, loaded)
                learn_from(session, loss_of(session, loaded, x), loaded.batch, x)
                del loaded, x
        trace_inference(session, session.whole_graph_inference, allocations)
        del ahead
        trace_last_inference(session, session.whole_graph_inference, allocations)
        return HostPeak.of(allocations.events), "traced", largest.how


def _ahead(session: Session, largest: LargestBatch) -> list[Any]:
    """Memory of the batches that wait in the pipeline's queues and threads, and of the one that is computed."""
    job, batch = session.job, largest.loaded().batch
    gathered = min(
        largest.batches, job.gather_threads + job.gather_depth + job.transfer_threads + job.transfer_depth + 1
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
    for name, source in _read_sources(session, batch).items():
        for shape, dtype in session.inputs.reader.reading(batch, name, source).shapes:
            size = int(_BUFFER_SLACK * np.prod(shape) * dtype.itemsize)
            # The buffer of the batch that is computed is made with it.
            held += [torch.empty(size, dtype=torch.uint8, device=META) for _ in range(gathered - 1)]
    for edges in session.inputs.edges.readings(batch.blocks):
        for shape, dtype in edges.shapes:
            size = int(_BUFFER_SLACK * np.prod(shape) * dtype.itemsize)
            held += [torch.empty(size, dtype=torch.uint8, device=META) for _ in range(gathered)]
    return held


def _reused(session: Session, largest: LargestBatch, batches: int) -> torch.Tensor:
    """Memory of the batches that are kept to be used again."""
    job = session.job
    most = batches * kept_bytes(largest.loaded().batch) if job.reuse_batches else 0
    return torch.empty(min(most, job.reuse_mb << 20), dtype=torch.uint8, device=META)


def _older(session: Session) -> torch.Tensor:
    """Memory of older weights, and of the newest beside them, where gradients are computed on older ones."""
    weights = sum(each.numel() * each.element_size() for each in session.learned.parameters())
    kept = session.job.staleness + 1 if session.job.staleness else 0
    return torch.empty(kept * weights, dtype=torch.uint8, device=META)


def _read_sources(session: Session, batch: Any) -> dict[str, RowSource]:
    return {name: source for name, source in session.inputs.sources.items() if name in batch.vertices}


def _arrays(part: Any) -> list[Array]:
    return [each for each in (part.indptr, part.indices, part.weights, part.totals, part.edges) if each is not None]


def _like(array: Array) -> torch.Tensor:
    return torch.empty(array.nbytes, dtype=torch.uint8, device=META)


def _carried(session: Session, largest: LargestBatch) -> Loaded:
    """The largest batch as the host's carrier makes it; its buffers are among those that are held ahead."""
    loaded = largest.loaded()
    session.task.label(loaded.batch)
    for name, source in _read_sources(session, loaded.batch).items():
        reading = session.inputs.reader.reading(loaded.batch, name, source)
        with memory_for(BATCHES):
            # Tensors without numbers stand for the arrays of the pipeline's buffers.
            buffers: list[Any] = [_buffer(*each) for each in reading.shapes]
            arrays = [
                buffer[: int(np.prod(shape))].view(shape)
                for buffer, (shape, _) in zip(buffers, reading.shapes, strict=True)
            ]
            loaded.batch.features[name] = reading.arrived(arrays, _converted(session), torch.device("cpu"))
        # A converted copy stands beside the buffer that it was made from.
        loaded.buffers += buffers
    with memory_for(BATCHES):
        loaded.batch.blocks = session.inputs.edges.attached(loaded.batch.blocks)
    loaded.batch.labels = as_tensors(loaded.batch.labels)
    return loaded


def _buffer(shape: tuple[int, ...], dtype: Any) -> torch.Tensor:
    stored = torch.from_numpy(np.empty(0, dtype)).dtype
    return torch.empty(int(_BUFFER_SLACK * np.prod(shape)), dtype=stored, device=META)


def _converted(session: Session) -> Callable[[Any], torch.Tensor]:
    scale = session.inputs.scale

    def move(rows: Any) -> torch.Tensor:
        x: torch.Tensor = rows.to(torch.float32)
        return x if scale is None else scale(x)

    return move
