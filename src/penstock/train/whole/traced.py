"""The memory of a step on the whole graph, before its bins are made: traced on bins of the counted sizes."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import START, Planned, Schedule
from penstock.sampling.block import Block
from penstock.sampling.device.block import CHUNK, DeviceBlock
from penstock.trace.allocations import META, AllocationEvent, PeakMemory, UntraceableError, traceable
from penstock.trace.allocators import DevicePeak, device_peak, heap_peak
from penstock.trace.kernel_rates import kernel_rates
from penstock.trace.libraries import LOADED_ON_HOST
from penstock.traced import FEATURES, TOPOLOGY, array_of, current_trace, memory_for, room, stand_in, tensor_of
from penstock.train.session import Session
from penstock.train.steps.engine import Course
from penstock.train.trace.batches import try_small_batch
from penstock.train.trace.fake_session import input_density, traced_session
from penstock.train.trace.inference import trace_inference, trace_last_inference
from penstock.train.whole.in_place import Factors, InPlaceStep
from penstock.train.whole.levels import KeptLevel
from penstock.train.whole.memory import BinSize, Decision
from penstock.train.whole.plan import Bin, InPlacePlan, PlacedLists, WholePlan, reads_in_place
from penstock.train.whole.prepared import PreparedBin, PreparedStep
from penstock.train.whole.steps import RepeatedWork, StepPasses, WholeStep, is_captured

# A step whose bins read levels in place, on meta tensors, to predict its memory.

_TRACED = 2
"""Bins of a layer that are traced, those with most rows: bins are computed one after the other, and keep next to
nothing.
"""


class TracedInPlaceStep(InPlaceStep):
    """A step whose lists have sizes only."""

    def __init__(
        self,
        session: Session,
        order: dict[str, Array],
        counts: list[dict[str, int]],
        sizes: list[list[BinSize]],
        decision: Decision,
        planned: Planned,
    ) -> None:
        what = reads_in_place(session)
        assert what is not None
        trace = current_trace()
        self._on_device = trace is not None and trace.on_device
        most = [sorted(layer, key=lambda each: -_rows(each))[:_TRACED] for layer in sizes]
        loads = [sum(each.load for layer in some for each in layer) for some in (sizes, most)]
        self._untraced = 1 - loads[1] / max(1, loads[0])
        self._entries = [sum(edges for each in layer for edges in each.edges.values()) for layer in sizes]
        with memory_for(TOPOLOGY):
            lists, *readers = (_empty_lists(entries) for entries in self._entries)
        bins = [[Bin(each.rows, each, {}, {}) for each in layer] for layer in most]
        super().__init__(session, InPlacePlan(order, counts, bins, lists, readers), decision, planned, what)

    def further(self, kept: int) -> int:
        """Bytes that bins which were not traced keep: the offsets of their lists, and on a device the chunks of long
        ones.

        What the traced ones keep is no measure: it is less than what libraries take in a first step.
        """
        rows = sum(level[self._name] for level in [*self.plan.counts[1:], *self.plan.counts[1:-1]])
        size = 4 * rows + 4 * (sum(self._entries) + sum(self._entries[1:])) // CHUNK if self._on_device else 8 * rows
        return round(size * self._untraced)

    def prepared(self, work: Bin) -> Any:
        """Meta tensors of the sizes that the bin's lists will have."""
        self._work: Any = work.block
        return super().prepared(work)

    def _list_block(self, rows: slice) -> Block:
        return self._block(self.plan.lists, rows, sum(self._work.edges.values()), self.plan.counts[0][self._name])

    def _reader_block(self, number: int, rows: slice) -> Block:
        """The readers are assumed to be as many, in proportion, as the entries that the rows read themselves."""
        read = sum(self._size_of(number, rows).edges.values())
        entries = read * self._entries[number + 1] // max(1, self._entries[number])
        return self._block(self.plan.readers[number], rows, entries, self.plan.counts[number + 2][self._name])

    def _size_of(self, number: int, rows: slice) -> BinSize:
        found: BinSize = next(work.block for work in self.plan.bins[number] if work.rows[self._name] == rows)
        return found

    def _block(self, lists: PlacedLists, rows: slice, entries: int, sources: int) -> Block:
        with memory_for(TOPOLOGY):
            kind = torch.int32 if self._on_device else torch.int64
            offsets: Any = torch.empty(rows.stop - rows.start + 1, dtype=kind, device=META)
        indices: Any = lists.indices[:entries]
        if self._on_device:
            return DeviceBlock(offsets, indices, sources)
        return Block(array_of(offsets), array_of(indices), sources)

    def _names(self, vertices: Array, device: torch.device) -> Tensor:
        with memory_for(TOPOLOGY):
            return torch.empty(len(vertices), dtype=torch.int32 if self._on_device else torch.int64, device=META)

    def _input_rows(self, vertices: Array) -> Tensor:
        with memory_for(FEATURES):
            dtype = self._input_type() if self._on_device else self._computed
            return torch.empty(self._input_shape(len(vertices)), dtype=dtype, device=META)

    def _made_factors(self, vertices: Array) -> Factors:
        if self._what == "sum":
            return Factors()
        rows = len(vertices) if self._what == "normalised" else self.plan.counts[1][self._name]
        with memory_for(TOPOLOGY):
            values = torch.empty(rows, dtype=self._computed, device=META)
        return Factors(values, values) if self._what == "normalised" else Factors(write=values)


def _empty_lists(entries: int) -> PlacedLists:
    return PlacedLists(np.empty(0, np.int64), torch.empty(entries, dtype=torch.int32, device=META))


def _rows(size: BinSize) -> int:
    return sum(rows.stop - rows.start for rows in size.rows.values())


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
    if not getattr(session.model, "layerwise", False):
        raise UntraceableError("a module of your own is computed on the whole graph at once, without bins")
    step = StepSizes(order, counts, sizes, decision, planned)
    if session.inputs.device.type == "cuda":
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
        trace_inference(session, session.whole_graph_inference, allocations)
        trace_last_inference(session, session.whole_graph_inference, allocations)
        return allocations.events, traced.further(kept)


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
                course = Course(_schedule(session), START, lambda _: 1, lambda *_: None)
                with allocations.during("captured step", step=True):
                    entered.enter_context(captured_whole_steps(session, traced, course))
            for step, given in () if is_recorded else zip(traced, steps, strict=True):
                allocations.work.times = _load(given.sizes) / max(
                    1, _load([[each.block for each in layer] for layer in step.plan.bins])
                )
                for number in range(_STEPS):
                    with allocations.during(f"step {number + 1}", step=True):
                        _trace_step(session, step, given.planned)
                further += step.further(_kept_by(session, allocations.now - before))
            for trace in (trace_inference, trace_last_inference):
                trace(session, lambda: session.whole_graph_inference(whole_on_device(session)), allocations)
        count = session.job.epochs * len(steps)
        found, share = device_peak(allocations.events), allocations.work.share(kernel_rates(), is_recorded, count)
        found = found._replace(share=share, host_validates=allocations.host_validates)
        return found._replace(allocated=found.allocated + further, reserved=found.reserved + further)


def _load(bins: Sequence[Sequence[Any]]) -> int:
    """The number of rows and edges in some bins."""
    return sum(size.load for layer in bins for size in layer)


def _kept_by(session: Session, held: int) -> int:
    """The part of the bytes held after steps that bins keep, without gradients and the optimiser's state."""
    held -= sum(p.grad.nbytes for p in session.learned.parameters() if p.grad is not None)
    states = session.optimiser.state.values()
    return held - sum(each.nbytes for state in states for each in state.values() if isinstance(each, Tensor))


def _stood_for(step: StepSizes) -> dict[str, Array]:
    return {name: stand_in(len(ids), np.int64) for name, ids in step.order.items()}


def _traced_step(
    session: Session, given: StepSizes, vertices: dict[str, Array], on_device: bool
) -> "_TracedStep | TracedInPlaceStep":
    if given.decision.in_place:
        return TracedInPlaceStep(session, given.order, given.counts, given.sizes, given.decision, given.planned)
    return _TracedStep(session, given, vertices, on_device)


def _trace_step(session: Session, step: PreparedStep, planned: Planned) -> None:
    work = RepeatedWork(_schedule(session), START, lambda *_: None)
    WholeStep(session, lambda planned: StepPasses(session, step, planned.key), work)(planned)


def _schedule(session: Session) -> Schedule:
    return Schedule(session.task.items, session.task.batch_size, session.job.draw_seed, session.job.epochs)


class _TracedStep(PreparedStep):
    """A step whose bins have sizes only."""

    def __init__(self, session: Session, given: StepSizes, vertices: dict[str, Array], on_device: bool) -> None:
        most = None if given.decision.retain else _TRACED
        traced = [sorted(layer, key=lambda each: -each.load)[:most] for layer in given.sizes]
        loads = [sum(each.load for layer in some for each in layer) for some in (given.sizes, traced)]
        self._untraced = loads[0] / max(1, loads[1]) - 1
        # A bin's size takes the place of its block.
        bins = [[Bin(each.rows, each, {}, {}) for each in layer] for layer in traced]
        plan = WholePlan(given.order, given.counts, bins)
        self._vertices, self._on_device = vertices, on_device
        self._typed, self._whole = not session.graph.is_homogeneous, given.decision.bins == [1] * plan.layers
        self._weighted = session.list_weight is not None
        super().__init__(session, plan, given.decision, given.planned)

    def further(self, kept: int) -> int:
        """Bytes that untraced bins keep, if the traced ones keep `kept`."""
        return round(kept * self._untraced)

    def prepared(self, work: Bin) -> PreparedBin:
        """Arrays and meta tensors of the sizes that the bin's will have."""
        with memory_for(TOPOLOGY):
            return self._prepared(work)

    def _prepared(self, work: Bin) -> PreparedBin:
        size: Any = work.block
        new = stand_in if self._on_device else room
        names: dict[str, Array] = {}
        places: dict[str, Tensor | None] = {}
        row_names: dict[str, Tensor] = {}
        for name, count in size.inputs.items():
            if self._whole:
                names[name], places[name] = self._vertices[name][:count], None
            else:
                names[name], places[name] = new(count, np.int32), torch.empty(count, dtype=torch.int64, device=META)
            if self._whole and not self._on_device:
                row_names[name] = tensor_of(self._vertices[name])[:count]
            else:
                row_names[name] = torch.empty(count, dtype=torch.int64, device=META)
        return PreparedBin(work.rows, self._block(size), dict.fromkeys(names), names, places, row_names)

    def read(self, node_type: str, ids: Array) -> Tensor:
        """Traced feature rows [ids, width], which have no values."""
        with memory_for(FEATURES):
            return torch.empty(len(ids), self._session.inputs.widths[node_type], device=META)

    def level(self, number: int) -> KeptLevel:
        """Storage for a level's rows; rows kept elsewhere take no traced memory."""
        level = super().level(number)
        elsewhere = self.decision.keep == "disk" or (self.decision.keep == "host" and self._on_device)
        return _LevelElsewhere(level) if elsewhere and number < self.plan.layers else level

    def _block(self, size: BinSize) -> Any:
        rows = {name: some.stop - some.start for name, some in size.rows.items()}
        parts = {
            kind: self._part(size.inputs.get(kind[0], 0), rows[kind[2]], edges, size.filled[kind])
            for kind, edges in size.edges.items()
        }
        if not self._typed:
            return next(iter(parts.values()))
        given = {kind: part for kind, part in parts.items() if part.num_edges}
        return Block.of_relations(
            given, dict.fromkeys(self.plan.order, 0) | size.inputs, dict.fromkeys(self.plan.order, 0) | rows
        )

    def _part(self, sources: int, rows: int, edges: int, filled: int) -> Block:
        totals = rows if self._typed else sources
        if self._on_device:
            lists: Any = torch.empty(rows + 1, dtype=torch.int32, device=META)
            indices: Any = torch.empty(edges, dtype=torch.int32, device=META)
            weights: Any = torch.empty(edges, device=META) if self._weighted else None
            sums: Any = torch.empty(totals, device=META)
            return DeviceBlock(lists, indices, sources, weights, sums)
        # Kernels read which rows are empty, but not the lengths of the other lists.
        indptr = np.minimum(np.arange(rows + 1), filled) * edges // max(1, filled)
        weights = room(edges, np.float32) if self._weighted else None
        return Block(indptr, room(edges, np.int32), sources, weights, room(totals, np.float32))


class _LevelElsewhere(KeptLevel):
    """Rows that are kept outside the traced memory."""

    def __init__(self, level: KeptLevel) -> None:
        self.__dict__.update(level.__dict__)

    def write(self, node_type: str, rows: slice, out: Tensor) -> None:
        """Record the width."""
        self._values[node_type] = torch.empty(0, out.shape[1], device=META)

    def read(self, node_type: str, rows: Tensor | None) -> Tensor:
        """New rows of that width."""
        count = self._counts[node_type] if rows is None else len(rows)
        return torch.empty(count, self._values[node_type].shape[1], dtype=self._computed, device=META)
