"""A step whose bins read levels in place, on tensors without numbers: for the memory that it will take."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned
from penstock.sampling.block import Block
from penstock.sampling.device.block import CHUNK, DeviceBlock
from penstock.traced import array_of, current_trace, memory_for
from penstock.train.session import Session
from penstock.train.trace.allocations import META
from penstock.train.trace.categories import FEATURES, TOPOLOGY
from penstock.train.whole.bin_sizes import BinSize
from penstock.train.whole.in_place import InPlaceStep
from penstock.train.whole.in_place_plan import InPlacePlan, reads_in_place
from penstock.train.whole.memory import Decision
from penstock.train.whole.neighbour_lists import PlacedLists
from penstock.train.whole.plan import Bin
from penstock.train.whole.pulled import Factors

_TRACED = 2
"""Bins of a layer that are traced, those of most rows: one is computed after the other, and keeps next to nothing."""


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
        """What bins that were not traced keep: where their lists begin, and on a device the rows of long ones' chunks.

        What the traced ones keep tells nothing: it is less than what libraries take in a first step.
        """
        rows = sum(level[self._name] for level in [*self.plan.counts[1:], *self.plan.counts[1:-1]])
        size = 4 * rows + 4 * (sum(self._entries) + sum(self._entries[1:])) // CHUNK if self._on_device else 8 * rows
        return round(size * self._untraced)

    def prepared(self, work: Bin) -> Any:
        """Names and lists of the sizes that the bin's will have."""
        self._work: Any = work.block
        return super().prepared(work)

    def _list_block(self, rows: slice) -> Block:
        return self._block(self.plan.lists, rows, sum(self._work.edges.values()), self.plan.counts[0][self._name])

    def _reader_block(self, number: int, rows: slice) -> Block:
        """Readers are taken to be as many, in proportion, as what the rows read themselves."""
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
