"""The memory of a step on the whole graph, before its bins are made: it is traced on bins of the counted sizes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.traced import room, stand_in, tensor_of
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import Block, TypedBlock
from penstock.sampling.device.block import DeviceBlock
from penstock.train.memory.allocations import PeakMemory, peak_of
from penstock.train.memory.fake_session import input_density, traced_session
from penstock.train.memory.heap import heap_peak
from penstock.train.memory.libraries import LOADED_ON_HOST, WORKSPACE
from penstock.train.session import Session
from penstock.train.whole.bin_sizes import BinSize
from penstock.train.whole.levels import KeptLevel
from penstock.train.whole.memory import Decision
from penstock.train.whole.plan import Bin, WholePlan
from penstock.train.whole.prepared import PreparedBin, PreparedStep
from penstock.train.whole.step_passes import StepPasses

_TRACED = 2
"""Bins of a layer that are traced, the largest ones, where one is computed after the other. What further ones keep from
step to step is concluded from these."""
_STEPS = 2
"""The first step makes what later ones keep: constant aggregates, transposed lists, the optimiser's state."""
_CAPTURED, _LAUNCHED = 5, 2
"""Workspaces of matrix libraries on a GPU where steps are captured, and where they are launched one by one."""
_DEVICE_UNIT = 512
"""A GPU's memory is allocated in pieces of so many bytes."""


def traced_step_memory(
    session: Session,
    order: dict[str, Array],
    counts: list[dict[str, int]],
    sizes: list[list[BinSize]],
    decision: Decision,
    planned: Planned,
) -> PeakMemory:
    """The most memory that steps take at once where the model is computed, their bins and the weights included."""
    on_device = session.inputs.device.type == "cuda"
    with traced_session(session, input_density(session)) as allocations:
        most = None if decision.retain else _TRACED
        traced = [sorted(layer, key=lambda each: -each.load)[:most] for layer in sizes]
        # A bin's size stands where its block will be.
        plan = WholePlan(order, counts, [[Bin(each.rows, each, {}, {}) for each in layer] for layer in traced])
        vertices = {
            name: stand_in(len(ids), np.int64) if on_device else room(len(ids), np.int64) for name, ids in order.items()
        }
        before = allocations.now
        step = _TracedStep(session, plan, decision, planned, vertices, on_device)
        key = torch.zeros(1, dtype=torch.int64) if on_device else None
        for number in range(_STEPS):
            with allocations.during(f"step {number + 1}"):
                _trace_step(session, step, planned, key, allocations)
        session.optimiser.zero_grad(set_to_none=True)
        session.optimiser.state.clear()
        loads = [sum(each.load for layer in some for each in layer) for some in (sizes, traced)]
        further = (allocations.now - before) * (loads[0] / max(1, loads[1]) - 1)
        if on_device:
            peak, libraries = peak_of(allocations.events, _DEVICE_UNIT), _workspaces(session, decision) * WORKSPACE
        else:
            peak, libraries = heap_peak(allocations.events), LOADED_ON_HOST
        return PeakMemory(peak.bytes + round(further) + libraries, peak.moment)


def _workspaces(session: Session, decision: Decision) -> int:
    """Streams and libraries with a workspace on a GPU: warm-ups and the capture have their own."""
    return _CAPTURED if session.job.capture and decision.retain else _LAUNCHED


def _trace_step(session: Session, step: "_TracedStep", planned: Planned, key: Any, allocations: Any) -> None:
    session.optimiser.zero_grad(set_to_none=True)
    passes = StepPasses(session, step, planned.key, key)
    with allocations.during(f"{allocations.moment}, forward"):
        loss = passes.forward()
    with allocations.during(f"{allocations.moment}, backward"):
        passes.backward(loss)
    with allocations.during(f"{allocations.moment}, update"), allocations.updating():
        session.optimiser.step()


class _TracedStep(PreparedStep):
    """A step whose bins have sizes only."""

    def __init__(
        self,
        session: Session,
        plan: WholePlan,
        decision: Decision,
        planned: Planned,
        vertices: dict[str, Array],
        on_device: bool,
    ) -> None:
        self._vertices, self._on_device = vertices, on_device
        self._typed, self._whole = not session.graph.is_homogeneous, decision.bins == [1] * plan.layers
        self._weighted = session.job.weight is not None
        super().__init__(session, plan, decision, planned)

    def prepared(self, work: Bin) -> PreparedBin:
        """Arrays and tensors of the sizes that the bin's will have."""
        size: Any = work.block
        new = stand_in if self._on_device else room
        names: dict[str, Array] = {}
        places: dict[str, Tensor | None] = {}
        row_names: dict[str, Tensor] = {}
        for name, count in size.inputs.items():
            if self._whole:
                names[name], places[name] = self._vertices[name][:count], None
            else:
                names[name], places[name] = new(count, np.int32), torch.empty(count, dtype=torch.int64)
            shared = self._whole and not self._on_device
            row_names[name] = (
                tensor_of(self._vertices[name])[:count] if shared else torch.empty(count, dtype=torch.int64)
            )
        return PreparedBin(work.rows, self._block(size), dict.fromkeys(names), names, places, row_names)

    def read(self, node_type: str, ids: Array) -> Tensor:
        """Rows of features."""
        return torch.empty(len(ids), self._session.inputs.widths[node_type])

    def level(self, number: int) -> KeptLevel:
        """Room for a level's rows; what is kept elsewhere takes none."""
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
        return TypedBlock(
            given, dict.fromkeys(self.plan.order, 0) | size.inputs, dict.fromkeys(self.plan.order, 0) | rows
        )

    def _part(self, sources: int, rows: int, edges: int, filled: int) -> Block:
        totals = rows if self._typed else sources
        if self._on_device:
            lists: Any = torch.empty(rows + 1, dtype=torch.int32)
            indices: Any = torch.empty(edges, dtype=torch.int32)
            weights: Any = torch.empty(edges) if self._weighted else None
            sums: Any = torch.empty(totals)
            return DeviceBlock(lists, indices, sources, weights, sums)
        # Which rows are empty is read; how long the lists of the others are is not.
        indptr = np.minimum(np.arange(rows + 1), filled) * edges // max(1, filled)
        weights = room(edges, np.float32) if self._weighted else None
        return Block(indptr, room(edges, np.int32), sources, weights, room(totals, np.float32))


class _LevelElsewhere(KeptLevel):
    """Rows that are kept where they take none of the traced memory."""

    def __init__(self, level: KeptLevel) -> None:
        self.__dict__.update(level.__dict__)

    def write(self, node_type: str, rows: slice, out: Tensor) -> None:
        """Keep the shape."""
        self._values[node_type] = torch.empty(0, out.shape[1])

    def read(self, node_type: str, rows: Tensor | None) -> Tensor:
        """New rows."""
        count = self._counts[node_type] if rows is None else len(rows)
        return torch.empty(count, self._values[node_type].shape[1], dtype=self._computed)
