"""Steps whose bins read the level below in place, where the model is computed.

A bin is a range of rows of one array of lists, so it allocates nothing and copies no rows: it aggregates them from the
whole level, and its layer is given aggregates instead of rows. This is for layers that aggregate linearly. The
gradients of a level are computed bin by bin (`PulledGradients`), so they never exist for all rows at once.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.aggregation import AggregatedRows, Aggregation
from penstock.nn.table_aggregation import sum_lists
from penstock.pipeline.schedule import Planned
from penstock.processes import map_blocks
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.traced import FEATURES, TOPOLOGY, array_of, is_gpu, is_traced, memory_for
from penstock.train.session import Session
from penstock.train.whole.levels import KeptLevel, LevelGradients
from penstock.train.whole.memory import Decision
from penstock.train.whole.plan import Bin, InPlacePlan, PlacedLists, list_offsets
from penstock.train.whole.prepared import PreparedBin, PreparedStep

# Gradients of a level's rows, computed for some rows at a time. A layer that aggregates linearly gives gradients of its
# aggregates and of its own rows, as many rows as it computes, which are far fewer than those it read. The gradient of a
# row that it read is a sum over the rows that read it.


class Factors(NamedTuple):
    """Factors in write[i] * sum of read[j] * x[j] over list i; None: ones. With `read` a row reads itself (GCN)."""

    read: Tensor | None = None
    write: Tensor | None = None


class NoGradients(LevelGradients):
    """The `LevelGradients` of inputs that are not learned."""

    def __init__(self) -> None:
        super().__init__({}, torch.device("cpu"))

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Do nothing: rows are already in place."""


class PulledGradients(LevelGradients):
    """The gradients of one level's rows, computed from those of the aggregates of the layer above."""

    def __init__(self, readers: Mapping[int, Block], rows: int, factors: Factors, kept: torch.dtype) -> None:
        """`readers`, by the first row of each bin of the level, lists the rows of the layer above that read the bin's
        rows; the layer has `rows` rows. Gradients are stored in the type `kept`.
        """
        self._readers, self._rows, self._factors, self._kept = readers, rows, factors, kept
        self._neighbours: Tensor | None = None
        self._own: Tensor | None = None
        self._computed = torch.float32

    def take(self, work: Any, x: Mapping[str, Any]) -> None:
        """Store the gradients of what a bin aggregated, and of its own rows."""
        ((name, given),) = x.items()
        assert isinstance(given, AggregatedRows) and given.neighbours.grad is not None
        rows, gradients = work.rows[name], given.neighbours.grad
        if self._factors.write is not None:
            gradients = gradients * self._factors.write[rows, None]
        self._computed = gradients.dtype
        self._neighbours = self._put(self._neighbours, rows, gradients)
        if given.own is not None:
            assert given.own.grad is not None
            self._own = self._put(self._own, rows, given.own.grad)

    def of(self, node_type: str, rows: Any) -> Tensor | None:
        """The gradients of one bin's rows, in the type that they were computed in."""
        given, block, read = self._neighbours, self._readers[rows.start], self._factors.read
        if given is None:
            return None
        itself, last = self._own if read is None else given, min(rows.stop, self._rows)
        own = None if itself is None or last <= rows.start else itself[rows.start : last]
        found = sum_lists(block, given, self._computed, own=own)
        return found if read is None else found.mul_(read[rows, None])

    def clear(self) -> None:
        self._neighbours = self._own = None

    def _put(self, room: Tensor | None, rows: slice, gradients: Tensor) -> Tensor:
        if room is None:
            room = torch.empty(self._rows, gradients.shape[1], dtype=self._kept, device=gradients.device)
        room[rows] = gradients.to(self._kept)
        return room


_ROWS = 1 << 18
"""Input rows that a thread reads at a time."""


class InPlaceStep(PreparedStep):
    """A `PreparedStep` whose bins read levels in place."""

    plan: InPlacePlan

    def __init__(
        self, session: Session, plan: InPlacePlan, decision: Decision, planned: Planned, what: Aggregation
    ) -> None:
        ((name, vertices),) = plan.order.items()
        self._name = name
        self._what = what
        with memory_for(TOPOLOGY):
            self._vertices = _vertex_names(vertices[: plan.counts[1][self._name]], session.inputs.device)
            super().__init__(session, plan, decision, planned)
            self._rows = self._input_rows(vertices[: plan.counts[0][self._name]])
            self._factors = self._made_factors(vertices)
            self._readers = [
                {rows.start: block_of(lists, rows, level[name]) for rows in (work.rows[name] for work in layer)}
                for layer, lists, level in zip(self.bins[:-1], plan.readers, plan.counts[2:], strict=True)
            ]

    def prepared(self, work: Bin) -> PreparedBin:
        """The bin's rows of the lists, and their vertices."""
        rows = work.rows[self._name]
        block = block_of(self.plan.lists, rows, self.plan.counts[0][self._name])
        return PreparedBin(work.rows, block, {}, {}, {}, {self._name: self._vertices[rows]})

    def gradients(self, number: int) -> LevelGradients:
        """Computed for one bin at a time, except where the loss gives all of them at once."""
        if number == self.plan.layers:
            return super().gradients(number)
        if number == 0:
            return NoGradients()
        rows = self.plan.counts[number + 1][self._name]
        return PulledGradients(self._readers[number - 1], rows, self._factors, self._dtype)

    def fetch(self, work: PreparedBin, level: KeptLevel | None) -> dict[str, Any]:
        """The bin's aggregates and its own rows, as leaf tensors of autograd."""
        x, rows = self._rows if level is None else level.kept(self._name), work.rows[self._name]
        read, write = self._factors
        with torch.no_grad():
            neighbours = sum_lists(work.block, x, self._computed, read, None if write is None else write[rows])
            own = x[rows].to(self._computed)
            if read is not None and write is not None:
                neighbours.addcmul_(own, (read[rows] * write[rows])[:, None])
        leaves = [neighbours] if read is not None else [neighbours, own]
        return {self._name: AggregatedRows(self._what, *(each.requires_grad_(level is not None) for each in leaves))}

    def _input_rows(self, vertices: Array) -> Tensor:
        """The features of level 0 where the model is computed; on a device in their stored type."""
        inputs, done = self._session.inputs, 0
        if not is_gpu(inputs.device):
            return self.read(self._name, vertices)
        with memory_for(FEATURES):
            shape = len(vertices), inputs.widths[self._name]
            rows = torch.empty(shape, dtype=self._input_type(), device=inputs.device)
        if is_traced():
            return rows
        source = inputs.sources[self._name]
        # Threads read on the host what is copied piece by piece.
        for piece in map_blocks(lambda first, last: source.read(vertices[first:last]), len(vertices), _ROWS):
            rows[done : done + len(piece)].copy_(torch.from_numpy(piece))
            done += len(piece)
        return rows

    def _input_type(self) -> torch.dtype:
        """The type of the features on a device."""
        # Triton is imported where there is a device for it.
        from penstock.train.device.memory import stored_type

        session = self._session
        return stored_type(session.job, session.graph.nodes[self._name].fields[session.inputs.fields[self._name]])

    def _made_factors(self, vertices: Array) -> Factors:
        (edges,) = self._session.task.messages.edges.values()  # type: ignore[union-attr]
        if self._what == "sum":
            return Factors()
        if self._what == "mean":
            indptr = self.plan.lists.indptr
            return Factors(write=self._factor(len(indptr) - 1, lambda: 1 / np.maximum(1, np.diff(indptr))))
        roots = self._factor(len(vertices), lambda: 1 / np.sqrt(np.diff(list_offsets(edges, vertices)) + 1.0))
        return Factors(roots, roots)

    def _factor(self, count: int, values: Callable[[], Array]) -> Tensor:
        return _placed_values(count, self._computed, self._session.inputs.device, values)


def _vertex_names(vertices: Array, device: torch.device) -> Tensor:
    """The numbers of vertices on a device, whose kernels take any integer type; the host's are compiled for one."""
    small = is_gpu(device) and int(vertices.max(initial=0)) <= np.iinfo(np.int32).max
    return _placed_values(len(vertices), torch.int32 if small else torch.int64, device, lambda: vertices)


def _placed_values(count: int, dtype: torch.dtype, device: torch.device, values: Callable[[], Array]) -> Tensor:
    """So many values on a device; a trace does not compute them."""
    if is_traced():
        return torch.empty(count, dtype=dtype, device=device)
    return torch.from_numpy(values()).to(dtype).to(device)


def block_of(lists: PlacedLists, rows: slice, sources: int) -> Block:
    """Some rows of lists as a block; it allocates nothing but its row offsets."""
    start, stop = int(lists.indptr[rows.start]), int(lists.indptr[rows.stop])
    device, indices = lists.indices.device, lists.indices[start:stop]
    dtype = torch.int32 if is_gpu(device) else torch.int64
    count = rows.stop - rows.start + 1
    offsets = _placed_values(count, dtype, device, lambda: lists.indptr[rows.start : rows.stop + 1] - start)
    if is_gpu(device):
        return DeviceBlock(cast(Any, offsets), cast(Any, indices), sources)
    return Block(array_of(offsets), array_of(indices), sources)
