"""Slots of captured steps into which the host aggregates: what the first layer aggregates, and destinations' own rows.

A batch's lists name vertices, so that the device need not number the last hop's neighbours, and come to the host as
they were drawn. GCN's sum needs degrees of the neighbours; for it they are numbered.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.first_rows import AggregatedRows, Aggregation
from penstock.nn.layer_table import layer_entry
from penstock.nn.table_aggregation import TableLists, shared_aggregation
from penstock.sampling.device.hops import Slot
from penstock.sampling.device.room import Room
from penstock.sampling.device.streams import on_stream
from penstock.store.device.host_paths import AGGREGATED, HostPaths, Span
from penstock.store.device.host_threads import HostTask
from penstock.store.device.moments import Moment
from penstock.store.device.pinned_memory import page_locked
from penstock.store.rows import shared_gather
from penstock.train.first_layer.slot_fill import Filling, FillParts, fits

_STEP = 64
"""Destinations that a thread takes at a time: some tens of microseconds, so that all end at about the same time."""


class AggregatedFilling:
    """A slot's aggregates and own rows, and the memory of the host that they come from."""

    def __init__(self, fill: "AggregatedSlots") -> None:
        self._fill, self._paths = fill, fill.paths
        self._listed, self._placed = Moment(self._paths.device), Moment(self._paths.device)
        self._task: HostTask | None = None
        self._room: Any = None
        self._host = 0
        """Destinations of the batch that the host has."""

    def attach(self, slot: Slot) -> None:
        """See `Filling.attach`."""
        self._slot = slot
        self._block = slot.blocks()[0]
        if slot.room == self._room:
            return
        self._placed.settle()
        self._room, device, fill = slot.room, self._paths.device, self._fill
        rows, width = slot.room.rows[-2], fill.width
        drawn = {} if slot.is_drawn_by_host else self._drawn()
        self._seen = {name: page_locked(tuple(x.shape), x.dtype, device) for name, x in drawn.items()}
        self._sums = page_locked((rows, width), torch.float32, device)
        self._neighbours = torch.zeros((rows, width), dtype=torch.float32, device=device)
        if fill.what != "normalised":
            self._own_rows = page_locked((rows, width), fill.dtype, device)
            self._own = torch.zeros((rows, width), dtype=fill.dtype, device=device)

    def inputs(self) -> AggregatedRows:
        """See `Filling.inputs`."""
        fill = self._fill
        own = None if fill.what == "normalised" else self._own.to(fill.row_type)
        return AggregatedRows(fill.what, self._neighbours.to(fill.row_type), own)

    def list(self) -> None:
        """See `Filling.list`: lists are read as they were drawn."""

    def fetch(self, stream: Any) -> None:
        """See `Filling.fetch`."""
        if self._slot.is_drawn_by_host:
            self._seen = self._slot.on_host()
        else:
            with on_stream(stream):
                for name, drawn in self._drawn().items():
                    self._seen[name].copy_(drawn, non_blocking=True)
        self._listed.mark_on(stream)

    def begin(self) -> None:
        """See `Filling.begin`."""
        self._listed.settle()
        self._paths.count_arrived()
        seen = {name: values.numpy() for name, values in self._seen.items()}
        # The draw of a batch that lacks room has left lists that end nowhere; its step is skipped.
        count = int(seen["counts"][len(self._room.rows) - 2]) if fits(seen["sizes"].tolist(), self._room) else 0
        first = self._start_device(seen["indptr"][: count + 1]) if count else 0
        self._host = count - first
        if self._host:
            # The last batch's copy from the same memory.
            self._placed.settle()
            self._task = self._paths.threads.start(self._works(seen, first, count), -(-self._host // _STEP))

    def finish(self) -> None:
        """See `Filling.finish`."""
        task, paths, count, self._task = self._task, self._paths, self._host, None
        if task is not None:
            seconds = task.wait()
            with on_stream(paths.copying):
                # The slot's step before this one has read its inputs when the batch was drawn.
                self._listed.hold(paths.copying)
                self._copy(count, seconds)
        self._placed.mark_on(paths.copying)

    def hold(self, stream: Any) -> None:
        """See `Filling.hold`."""
        self._placed.hold(stream)

    def abandon(self) -> None:
        """See `Filling.abandon`."""
        if self._task is not None:
            self._task.wait()
        self._task = None

    _first = 0
    """The first destination of the host's."""

    def _start_device(self, indptr: Array) -> int:
        """Start what the device does by itself; returns the first destination that is the host's."""
        return 0

    def _works(self, seen: dict[str, Array], first: int, count: int) -> Sequence[Callable[[], None]]:
        """What threads do for the destinations [first, count)."""
        fill, host = self._fill, count - first
        self._first = first
        none = np.empty(0, np.float32)
        ids = seen["vertices"] if self._slot.numbers_last else np.empty(0, np.int32)
        used = "totals" in seen and fill.what != "mean"
        totals = seen["totals"].astype(np.float64) if used else np.empty(0, np.float64)
        lists = TableLists(seen["indptr"][: count + 1], seen["indices"], ids, none, totals)
        sums = self._sums[:host].numpy()
        works = [shared_aggregation(lists, fill.what, fill.rows, sums, first, count, _STEP)]
        if fill.what != "normalised":
            own = self._own_rows[:host].view(torch.uint8).numpy()
            works.append(shared_gather(fill.flat, seen["vertices"][first:count], own, 4 * _STEP))
        return works

    def _copy(self, count: int, seconds: float) -> None:
        first, paths = self._first, self._paths
        size = self._sums[:count].nbytes
        before, after = (Moment(paths.device, timed=True) for _ in range(2))
        before.mark_on(paths.copying)
        self._neighbours[first : first + count].copy_(self._sums[:count], non_blocking=True)
        if self._fill.what != "normalised":
            self._own[first : first + count].copy_(self._own_rows[:count], non_blocking=True)
            size += self._own_rows[:count].nbytes
        after.mark_on(paths.copying)
        paths.launched(Span(AGGREGATED, count, size, before, after), seconds)

    def _drawn(self) -> dict[str, Tensor]:
        """What of the batch the host reads."""
        fill, slot, block = self._fill, self._slot, self._block
        indptr: Any = block.indptr
        indices: Any = block.indices
        rows = len(slot.vertices) if slot.numbers_last else block.num_dst
        found = {"sizes": slot.needed, "counts": slot.known, "indptr": indptr, "indices": indices}
        found["vertices"] = slot.vertices[:rows]
        if slot.totals is not None and fill.what != "mean":
            found["totals"] = slot.totals[:rows]
        return found


class AggregatedSlots:
    """Slots are filled with aggregates of the host."""

    def __init__(
        self, what: Aggregation, rows: Array, dtype: torch.dtype, paths: HostPaths, row_type: torch.dtype
    ) -> None:
        """`rows`: a table as `readable` gives it, whose numbers are of type `dtype`."""
        self.what, self.rows, self.dtype, self.paths, self.row_type = what, rows, dtype, paths, row_type
        self.numbers_rows = what == "normalised"
        self.width = rows.shape[1]
        self.flat = rows.view(np.uint8)
        self._idle: list[Filling] = []

    def take(self) -> Filling:
        """See `SlotFill.take`."""
        return self._idle.pop() if self._idle else self._made()

    def give_back(self, filling: Filling) -> None:
        """See `SlotFill.give_back`."""
        self._idle.append(filling)

    def release(self) -> None:
        """See `SlotFill.release`."""
        self._idle.clear()

    def _made(self) -> Filling:
        return AggregatedFilling(self)


def aggregated_bytes(room: Room, width: int, number: int) -> int:
    """Page-locked memory of one slot: sums, own rows and lists (see `Filler.host_bytes`)."""
    return room.rows[-2] * (width * (4 + number) + 8) + 4 * room.edges[-1]


def aggregated_slots(parts: FillParts) -> AggregatedSlots:
    """Of a table that the host alone reads."""
    what = layer_entry(parts.job.model).aggregates(parts.job)
    assert what is not None, "the way was refused"
    return AggregatedSlots(what, parts.rows, parts.dtype, parts.paths(0.0), parts.row_type)
