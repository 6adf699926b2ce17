"""Steps whose bins read the level below where it stands, on the device that computes or on the host that does.

A bin is a range of rows of one array of lists, so that nothing is made for it and it copies no rows: it aggregates them
from the whole level, and its layer is given aggregates in place of rows. This is for layers that aggregate linearly.
The gradients of a level are pulled bin by bin (`pulled`), and so never there for all rows at once.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.blocks import map_blocks
from penstock.nn.first_rows import AggregatedRows, Aggregation
from penstock.nn.list_sums import sum_lists
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.train.session import Session
from penstock.train.whole.in_place_plan import InPlacePlan
from penstock.train.whole.levels import KeptLevel, LevelGradients
from penstock.train.whole.memory import Decision
from penstock.train.whole.neighbour_lists import PlacedLists, list_offsets
from penstock.train.whole.plan import Bin
from penstock.train.whole.prepared import PreparedBin, PreparedStep
from penstock.train.whole.pulled import Factors, NoGradients, PulledGradients

_ROWS = 1 << 18
"""Input rows that a thread reads at a time."""


class InPlaceStep(PreparedStep):
    """What every epoch needs for one step."""

    plan: InPlacePlan

    def __init__(
        self, session: Session, plan: InPlacePlan, decision: Decision, planned: Planned, what: Aggregation
    ) -> None:
        ((self._name, vertices),) = plan.order.items()
        self._what, device = what, session.inputs.device
        self._vertices = self._names(vertices[: plan.counts[1][self._name]], device)
        super().__init__(session, plan, decision, planned)
        self._rows = self._input_rows(vertices[: plan.counts[0][self._name]])
        self._factors = self._made_factors(vertices)
        self._readers = [
            {rows.start: self._reader_block(number, rows) for rows in (work.rows[self._name] for work in layer)}
            for number, layer in enumerate(self.bins[:-1])
        ]

    def prepared(self, work: Bin) -> PreparedBin:
        """Rows of the lists, and the names of their vertices."""
        rows = work.rows[self._name]
        return PreparedBin(work.rows, self._list_block(rows), {}, {}, {}, {self._name: self._vertices[rows]})

    def gradients(self, number: int) -> LevelGradients:
        """Pulled together for a bin at a time, except what the loss gives at once."""
        if number == self.plan.layers:
            return super().gradients(number)
        if number == 0:
            return NoGradients()
        rows = self.plan.counts[number + 1][self._name]
        return PulledGradients(self._readers[number - 1], rows, self._factors, self._dtype)

    def fetch(self, work: PreparedBin, level: KeptLevel | None) -> dict[str, Any]:
        """What the bin's layer aggregates, and the bin's own rows, as leaves of autograd's graph."""
        x, rows = self._rows if level is None else level.kept(self._name), work.rows[self._name]
        read, write = self._factors
        with torch.no_grad():
            neighbours = sum_lists(work.block, x, self._computed, read, None if write is None else write[rows])
            own = x[rows].to(self._computed)
            if read is not None and write is not None:
                neighbours.addcmul_(own, (read[rows] * write[rows])[:, None])
        leaves = [neighbours] if read is not None else [neighbours, own]
        return {self._name: AggregatedRows(self._what, *(each.requires_grad_(level is not None) for each in leaves))}

    def _list_block(self, rows: slice) -> Block:
        return block_of(self.plan.lists, rows, self.plan.counts[0][self._name])

    def _reader_block(self, number: int, rows: slice) -> Block:
        """The readers of some rows that layer `number` gives."""
        return block_of(self.plan.readers[number], rows, self.plan.counts[number + 2][self._name])

    def _names(self, vertices: Array, device: torch.device) -> Tensor:
        # A device's kernels take names of any integer type, the host's are compiled for one.
        small = device.type != "cpu" and int(vertices.max(initial=0)) <= np.iinfo(np.int32).max
        return torch.from_numpy(vertices.astype(np.int32 if small else np.int64, copy=False)).to(device)

    def _input_rows(self, vertices: Array) -> Tensor:
        """The features of level 0 where the model is computed, on a device in the type that they are stored in."""
        device = self._session.inputs.device
        if device.type == "cpu":
            return self.read(self._name, vertices)
        rows = torch.empty(self._input_shape(len(vertices)), dtype=self._input_type(), device=device)
        source, done = self._session.inputs.sources[self._name], 0
        # Threads read on the host what is copied one piece after the other.
        for piece in map_blocks(lambda first, last: source.read(vertices[first:last]), len(vertices), _ROWS):
            rows[done : done + len(piece)].copy_(torch.from_numpy(piece))
            done += len(piece)
        return rows

    def _input_shape(self, count: int) -> tuple[int, int]:
        return count, self._session.inputs.widths[self._name]

    def _input_type(self) -> torch.dtype:
        """On a device, of the features."""
        # Triton is imported where there is a device for it.
        from penstock.train.device.fitting import stored_type

        session = self._session
        return stored_type(session.job, session.graph.nodes[self._name].fields[session.inputs.fields[self._name]])

    def _made_factors(self, vertices: Array) -> Factors:
        (edges,) = self._session.task.messages.edges.values()  # type: ignore[union-attr]
        if self._what == "sum":
            return Factors()
        if self._what == "mean":
            return Factors(write=self._factor(1 / np.maximum(1, np.diff(self.plan.lists.indptr))))
        roots = self._factor(1 / np.sqrt(np.diff(list_offsets(edges, vertices)) + 1.0))
        return Factors(roots, roots)

    def _factor(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self._session.inputs.device, self._computed)


def block_of(lists: PlacedLists, rows: slice, sources: int) -> Block:
    """Some rows of lists as a block, which has no other memory than where its lists begin and end."""
    start, stop = int(lists.indptr[rows.start]), int(lists.indptr[rows.stop])
    local, indices = lists.indptr[rows.start : rows.stop + 1] - start, lists.indices[start:stop]
    if indices.device.type == "cuda":
        offsets: Any = torch.from_numpy(local.astype(np.int32)).to(indices.device)
        entries: Any = indices
        return DeviceBlock(offsets, entries, sources)
    return Block(local, indices.numpy(), sources)
