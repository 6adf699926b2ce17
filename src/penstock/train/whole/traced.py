"""The memory of a step on the whole graph, before its bins are made: traced on bins of the counted sizes."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.pipeline.schedule import START, Planned, Schedule
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import CHUNK
from penstock.trace.allocations import META, AllocationEvent, PeakMemory, traceable
from penstock.trace.allocators import DevicePeak, device_peak, heap_peak
from penstock.trace.kernel_rates import kernel_rates
from penstock.trace.libraries import LOADED_ON_HOST
from penstock.traced import TOPOLOGY, memory_for, room, stand_in
from penstock.train.session import Session
from penstock.train.steps.engine import Course
from penstock.train.trace.fake_session import (
    input_density,
    trace_last_inference,
    trace_validation,
    traced_session,
    try_small_batch,
)
from penstock.train.whole.in_place import InPlaceStep
from penstock.train.whole.memory import BinSize, Decision
from penstock.train.whole.own_module import KeptNeighbourhood, OwnModulePasses
from penstock.train.whole.plan import Bin, InPlacePlan, PlacedLists, WholePlan, list_offsets, reads_in_place
from penstock.train.whole.prepared import PreparedStep
from penstock.train.whole.steps import Passes, RepeatedWork, StepPasses, WholeStep, is_captured

_TRACED = 2
"""Bins of a layer that are traced: they are computed one after the other, and keep next to nothing."""
_STEPS = 2
"""Two steps are traced, as the first allocates what later ones keep: constant aggregates, transposed lists, the
optimiser's state.
"""


class StepSizes(NamedTuple):
    """One step of an epoch, before its bins are made."""

    order: dict[str, Array]
    counts: list[dict[str, int]]
    sizes: list[list[BinSize]]
    decision: Decision
    planned: Planned


def traced_step_memory(
    session: Session,
    order: dict[str, Array],
    counts: list[dict[str, int]],
    sizes: list[list[BinSize]],
    decision: Decision,
    planned: Planned,
) -> PeakMemory:
    """The peak memory of steps where the model is computed, including their bins and the weights."""
    step = StepSizes(order, counts, sizes, decision, planned)
    if session.inputs.on_gpu:
        found = traced_device_run(session, [step])
        return PeakMemory(found.allocated, found.moment)
    events, further = traced_host_steps(session, step)
    peak = heap_peak(events)
    return PeakMemory(peak.bytes + further + LOADED_ON_HOST, peak.moment)


def traced_host_steps(session: Session, given: StepSizes) -> tuple[list[AllocationEvent], int]:
    """What steps allocate on the host in order, and the bytes that untraced bins keep from step to step."""
    with traceable(), traced_session(session, input_density(session), False) as allocations:
        vertices = {name: room(len(ids), np.int64) for name, ids in given.order.items()}
        before = allocations.now
        traced = _traced_step(session, given, vertices, False)
        for number in range(_STEPS):
            with allocations.during(f"step {number + 1}"):
                _trace_step(session, traced, given.planned)
        kept = _kept_by(session, allocations.now - before)
        trace_validation(session, session.whole_graph_inference, allocations)
        trace_last_inference(session, session.whole_graph_inference, allocations)
        return allocations.events, _further(given, kept, False)


def traced_device_run(session: Session, steps: Sequence[StepSizes]) -> DevicePeak:
    """The peak of a run on a GPU: its steps, captured or launched, and its validations."""
    from penstock.pipeline.device import DeviceCarrier
    from penstock.train.whole.device import captured_whole_steps, whole_on_device

    inputs, further = session.inputs, 0
    with traceable(), traced_session(session, input_density(session), True) as allocations:
        inputs.carrier = DeviceCarrier(META, inputs.sources, scale=inputs.scale, edges=inputs.edges)
        with allocations.during("trial of a few seeds"):
            try_small_batch(session, steps[0].planned)
        with allocations.during("preparation"):
            traced = [_traced_step(session, each, _stood_for(each), True) for each in steps]
        before, is_recorded = allocations.now, is_captured(session, [each.decision for each in steps])
        with ExitStack() as entered:
            if is_recorded:
                layered = [step for step in traced if isinstance(step, PreparedStep)]
                course = Course(_schedule(session), START, lambda _: 1, lambda *_: None)
                with allocations.during("captured step", step=True):
                    entered.enter_context(captured_whole_steps(session, layered, course))
            for step, given in () if is_recorded else zip(traced, steps, strict=True):
                whole, some = (sum(map(_load, bins)) for bins in (given.sizes, _traced_bins(given)))
                allocations.work.times = whole / max(1, some)
                for number in range(_STEPS):
                    with allocations.during(f"step {number + 1}", step=True):
                        _trace_step(session, step, given.planned)
                further += _further(given, _kept_by(session, allocations.now - before), True)
            for trace in (trace_validation, trace_last_inference):
                trace(session, lambda: session.whole_graph_inference(whole_on_device(session)), allocations)
        count = session.job.epochs * len(steps)
        found, share = device_peak(allocations.events), allocations.work.share(kernel_rates(), is_recorded, count)
        found = found._replace(share=share, host_validates=allocations.host_validates)
        return found._replace(allocated=found.allocated + further, reserved=found.reserved + further)


def _kept_by(session: Session, held: int) -> int:
    """The part of the bytes held after steps that bins keep, without gradients and the optimiser's state."""
    held -= sum(p.grad.nbytes for p in session.learned.parameters() if p.grad is not None)
    states = session.optimiser.state.values()
    return held - sum(each.nbytes for state in states for each in state.values() if isinstance(each, Tensor))


def _stood_for(step: StepSizes) -> dict[str, Array]:
    return {name: stand_in(len(ids), np.int64) for name, ids in step.order.items()}


def _traced_step(
    session: Session, given: StepSizes, vertices: dict[str, Array], on_device: bool
) -> PreparedStep | KeptNeighbourhood:
    """The run's own step on bins that have sizes and no values."""
    bins = _traced_bins(given)
    if not getattr(session.model, "layerwise", False):
        batch = _SizedBins(session, given, vertices, on_device).neighbourhood()
        return KeptNeighbourhood(session, batch, given.planned)
    if given.decision.in_place:
        what = reads_in_place(session)
        assert what is not None
        return InPlaceStep(session, _in_place_plan(given, bins), given.decision, given.planned, what)
    make = _SizedBins(session, given, vertices, on_device)
    plan = WholePlan(given.order, given.counts, [[make.bin(size) for size in layer] for layer in bins])
    return PreparedStep(session, plan, given.decision, given.planned)


def _trace_step(session: Session, step: PreparedStep | KeptNeighbourhood, planned: Planned) -> None:
    def passes(planned: Planned) -> Passes:
        if isinstance(step, KeptNeighbourhood):
            return OwnModulePasses(session, step, planned.key)
        return StepPasses(session, step, planned.key)

    WholeStep(session, passes, RepeatedWork(_schedule(session), START, lambda *_: None))(planned)


def _schedule(session: Session) -> Schedule:
    return Schedule(session.task.items, session.task.batch_size, session.job.draw_seed, session.job.epochs)


def _traced_bins(given: StepSizes) -> list[list[BinSize]]:
    """Those bins of every layer that are traced: the largest, or all where all that they compute is kept."""
    most = None if given.decision.retain else _TRACED
    load = _rows if given.decision.in_place else _load
    return [sorted(layer, key=lambda size: -load([size]))[:most] for layer in given.sizes]


def _load(bins: Sequence[BinSize]) -> int:
    """The number of rows and edges in some bins."""
    return sum(size.load for size in bins)


def _rows(bins: Sequence[BinSize]) -> int:
    return sum(rows.stop - rows.start for size in bins for rows in size.rows.values())


def _further(given: StepSizes, kept: int, on_device: bool) -> int:
    """Bytes that bins which were not traced keep, if the traced ones keep `kept`.

    Bins that read levels in place keep the offsets of their lists, and on a device the chunks of long ones; what the
    traced ones keep is no measure there, since it is less than what libraries take in a first step.
    """
    traced, whole = (sum(map(_load, bins)) for bins in (_traced_bins(given), given.sizes))
    if not given.decision.in_place:
        return round(kept * (whole / max(1, traced) - 1))
    (name,), entries = given.order, _entries(given)
    rows = sum(level[name] for level in [*given.counts[1:], *given.counts[1:-1]])
    size = 4 * rows + 4 * (sum(entries) + sum(entries[1:])) // CHUNK if on_device else 8 * rows
    return round(size * (1 - traced / max(1, whole)))


def _entries(given: StepSizes) -> list[int]:
    """The entries of every layer's lists."""
    return [sum(edges for size in layer for edges in size.edges.values()) for layer in given.sizes]


def _in_place_plan(given: StepSizes, bins: list[list[BinSize]]) -> InPlacePlan:
    """Lists without entries, whose offsets are known where the traced bins begin and end.

    The readers of rows are assumed to be as many, in proportion, as the entries that the rows read themselves.
    """
    (name,), entries = given.order, _entries(given)

    def lists(rows: int, some: Sequence[BinSize], read: int, own: int) -> PlacedLists:
        # Pages of zeros that nobody writes take no memory.
        indptr = np.zeros(rows + 1, np.int64)
        for size in some:
            (mine,), (edges,) = size.rows.values(), size.edges.values()
            for place, entry in (mine.start, size.first_entry), (mine.stop, size.first_entry + edges):
                indptr[place] = entry * read // max(1, own)
        with memory_for(TOPOLOGY):
            return PlacedLists(indptr, torch.empty(read, dtype=torch.int32, device=META))

    rows = [level[name] for level in given.counts[1:]]
    all_lists = lists(rows[0], list(chain.from_iterable(bins)), entries[0], entries[0])
    readers = [lists(*of_layer) for of_layer in zip(rows, bins, entries[1:], entries, strict=False)]
    made = [[Bin(size.rows, None, {}, {}) for size in layer] for layer in bins]
    return InPlacePlan(given.order, given.counts, made, all_lists, readers)


class _SizedBins:
    """Makes bins that have sizes and no values."""

    def __init__(self, session: Session, given: StepSizes, vertices: dict[str, Array], on_device: bool) -> None:
        self._session, self._given, self._vertices, self._on_device = session, given, vertices, on_device
        # What a host prepares for a GPU is not counted.
        self._new: Any = stand_in if on_device else room
        self._is_typed, self._is_whole = not session.graph.is_homogeneous, given.decision.bins == [1] * len(given.sizes)
        self._is_weighted, self._has_edges = session.list_weight is not None, bool(session.inputs.edges)

    def bin(self, size: BinSize) -> Bin:
        """A bin of this size."""
        with memory_for(TOPOLOGY):
            if self._is_whole:
                names = {name: self._vertices[name][:count] for name, count in size.inputs.items()}
                return Bin(size.rows, self._block(size), dict.fromkeys(names), names)
            places = {name: self._new(count, np.int64) for name, count in size.inputs.items()}
            names = {name: self._new(count, np.int32) for name, count in size.inputs.items()}
            return Bin(size.rows, self._block(size), places, names)

    def neighbourhood(self) -> MiniBatch:
        """The whole neighbourhood of a step, every layer of which is one bin. Its lists are as long as they will be,
        since modules get those of all layers as one.
        """
        graph, order, known = self._session.graph, self._given.order, dict[EdgeType, Array]()
        for name, mine in order.items():
            for kind in (each for each in graph.edges if each[2] == name):
                known[kind] = list_offsets(graph.edges[kind], mine[: self._given.counts[1][name]])
        with memory_for(TOPOLOGY):
            blocks = [self._block(size, known) for layer in self._given.sizes for size in layer]
        seeds = self._session.task.readable(self._given.planned.seeds)
        return MiniBatch(seeds, self._vertices, blocks)

    def _block(self, size: BinSize, known: dict[EdgeType, Array] | None = None) -> Block:
        rows = {name: some.stop - some.start for name, some in size.rows.items()}
        parts = {
            kind: self._part(
                size.inputs.get(kind[0], 0),
                rows[kind[2]],
                edges,
                size.filled[kind],
                None if known is None else known[kind][: rows[kind[2]] + 1],
            )
            for kind, edges in size.edges.items()
        }
        if not self._is_typed:
            return next(iter(parts.values()))
        given = {kind: part for kind, part in parts.items() if part.num_edges}
        none = dict.fromkeys(self._vertices, 0)
        return Block.of_relations(given, none | size.inputs, none | rows)

    def _part(self, sources: int, rows: int, edges: int, filled: int, offsets: Array | None) -> Block:
        new = self._new
        if offsets is not None:
            indptr = offsets
        elif self._on_device:
            indptr = new(rows + 1, np.int64)
        else:
            # The host's kernels read which rows are empty, but not the lengths of the other lists.
            indptr = np.minimum(np.arange(rows + 1), filled) * edges // max(1, filled)
        weights = new(edges, np.float32) if self._is_weighted else None
        totals = new(rows if self._is_typed else sources, np.float32)
        numbers = new(edges, np.int64) if self._has_edges else None
        return Block(indptr, new(edges, np.int32), sources, weights, totals, numbers)
