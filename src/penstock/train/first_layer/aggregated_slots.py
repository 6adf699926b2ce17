"""Slots of captured steps into which the host aggregates: all destinations, or some beside the device."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.aggregation import AggregatedRows, Aggregation
from penstock.nn.device.aggregation import aggregate
from penstock.nn.layer_table import LAYERS
from penstock.nn.table_aggregation import TableLists, shared_aggregation
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.streams import on_stream
from penstock.store.device.copies import page_locked
from penstock.store.device.divided import read_beside
from penstock.store.device.host_paths import AGGREGATED, PATHS, PINNED, HostPaths, HostTask, Span
from penstock.store.device.moments import Moment
from penstock.store.device.tables import PinnedTable
from penstock.store.rows import shared_gather
from penstock.train.first_layer.slots import HOST_FILLED, Filling, FillParts, fits
from penstock.train.job import Job

# Slots of captured steps into which the host aggregates: what the first layer aggregates, and destinations' own rows.
#
# A batch's lists name vertices, so that the device need not number the last hop's neighbours, and come to the host as
# they were drawn. GCN's sum needs degrees of the neighbours; for it they are numbered.

_STEP = 64
"""Destinations that a thread takes at a time: some tens of microseconds of work, so that all threads finish together.
"""


class AggregatedFilling:
    """The `Filling` of a slot with aggregates and own rows, and the host memory that they come from."""

    def __init__(self, fill: "AggregatedSlots") -> None:
        self._fill, self._paths = fill, fill.paths
        self._listed, self._placed = Moment(self._paths.device), Moment(self._paths.device)
        self._task: HostTask | None = None
        self._room: Any = None
        self._host = 0
        """Destinations of the batch that the host aggregates."""

    def attach(self, slot: Slot) -> None:
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
        fill = self._fill
        own = None if fill.what == "normalised" else self._own.to(fill.row_type)
        return AggregatedRows(fill.what, self._neighbours.to(fill.row_type), own)

    def list(self) -> None:
        """Do nothing: lists are read as they were drawn."""

    def fetch(self, stream: Any) -> None:
        if self._slot.is_drawn_by_host:
            self._seen = self._slot.on_host()
        else:
            with on_stream(stream):
                for name, drawn in self._drawn().items():
                    self._seen[name].copy_(drawn, non_blocking=True)
        self._listed.mark_on(stream)

    def begin(self) -> None:
        self._listed.settle()
        self._paths.count_arrived()
        seen = {name: values.numpy() for name, values in self._seen.items()}
        # The lists of a batch that lacked room are incomplete; its step is skipped.
        count = int(seen["counts"][len(self._room.rows) - 2]) if fits(seen["sizes"].tolist(), self._room) else 0
        first = self._start_device(seen["indptr"][: count + 1]) if count else 0
        self._host = count - first
        if self._host:
            # Wait for the last batch's copy from the same memory.
            self._placed.settle()
            self._task = self._paths.threads.start(self._works(seen, first, count), -(-self._host // _STEP))

    def finish(self) -> None:
        task, paths, count, self._task = self._task, self._paths, self._host, None
        if task is not None:
            seconds = task.wait()
            with on_stream(paths.copying):
                # No wait is needed: the slot's previous step had read its inputs before this batch was drawn.
                self._listed.hold(paths.copying)
                self._copy(count, seconds)
        self._placed.mark_on(paths.copying)

    def hold(self, stream: Any) -> None:
        self._placed.hold(stream)

    def abandon(self) -> None:
        if self._task is not None:
            self._task.wait()
        self._task = None

    _first = 0
    """The first of the host's destinations."""

    def _start_device(self, indptr: Array) -> int:
        """Start the device's part; returns the first of the host's destinations."""
        return 0

    def _works(self, seen: dict[str, Array], first: int, count: int) -> Sequence[Callable[[], None]]:
        """The work of each thread for the destinations [first, count)."""
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
        """The parts of the drawn batch that the host reads."""
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
    """The `SlotFill` that fills slots with aggregates computed by the host."""

    slots, ahead = HOST_FILLED, 1

    def __init__(
        self, what: Aggregation, rows: Array, dtype: torch.dtype, paths: HostPaths, row_type: torch.dtype
    ) -> None:
        """`rows` is a table as `readable` gives it; `dtype` is the type of its values."""
        self.what, self.rows, self.dtype, self.paths, self.row_type = what, rows, dtype, paths, row_type
        self.numbers_rows = what == "normalised"
        self.width = rows.shape[1]
        self.flat = rows.view(np.uint8)
        self._idle: list[Filling] = []

    def take(self) -> Filling:
        return self._idle.pop() if self._idle else self._made()

    def give_back(self, filling: Filling) -> None:
        self._idle.append(filling)

    def release(self) -> None:
        self._idle.clear()

    def _made(self) -> Filling:
        return AggregatedFilling(self)


def aggregated_bytes(room: Room, width: int, number: int) -> int:
    """Page-locked memory of one slot: sums, own rows and lists (see `Filler.host_bytes`)."""
    return room.rows[-2] * (width * (4 + number) + 8) + 4 * room.edges[-1]


def aggregated_slots(parts: FillParts) -> AggregatedSlots:
    """The fill for a table that only the host reads."""
    what = LAYERS[parts.job.model].aggregates(parts.job)
    assert what is not None, "the way was refused"
    return AggregatedSlots(what, parts.rows, parts.dtype, parts.paths(0.0), parts.row_type)


# Slots of captured steps that host and device fill together: each aggregates the lists of some destinations.
#
# Both read one table in page-locked memory. The device has the first destinations: it reads the rows of their lists
# over the bus in the table's order, and adds them up. The share of the edges that it has is fixed by `host_share`, or
# the one under which batches follow each other fastest.

_CHUNK_EDGES = 2048
_FEWEST_CHUNKS = 64
"""The least number of chunks of edges into which a batch is divided between host and device."""


class DividedFilling(AggregatedFilling):
    """The `Filling` of a slot with aggregates: of the first destinations by the device, of the others by the host."""

    _fill: "DividedSlots"

    def attach(self, slot: Slot) -> None:
        super().attach(slot)
        self._read = Moment(self._paths.device)
        self._fill.make_room(slot.room.edges[-1], slot.room.rows[-2])

    def hold(self, stream: Any) -> None:
        super().hold(stream)
        self._read.hold(stream)

    def _start_device(self, indptr: Array) -> int:
        fill, paths = self._fill, self._paths
        chunks = max(_FEWEST_CHUNKS, int(indptr[-1]) // _CHUNK_EDGES)
        divided = paths.division.divide(chunks)
        # Lists are not cut: the list that crosses the boundary goes to the device.
        wanted = divided.pinned / chunks * indptr[-1]
        first = min(len(indptr) - 1, int(indptr.searchsorted(wanted, side="left")))
        fill.host_share = 1 - int(indptr[first]) / max(1, int(indptr[-1]))
        if first:
            with on_stream(paths.reading):
                self._listed.hold(paths.reading)
                self._aggregate(first, int(indptr[first]))
        self._read.mark_on(paths.reading)
        return first

    def _aggregate(self, first: int, edges: int) -> None:
        """Read the rows of the device's destinations and edges, and sum them."""
        fill, paths, block, table = self._fill, self._paths, self._block, self._fill.table
        indptr: Any = block.indptr
        indices: Any = block.indices
        totals: Any = block.totals
        steps: Any = fill.steps[:edges]
        count = edges + first
        before, after = (Moment(paths.device, timed=True) for _ in range(2))
        before.mark_on(paths.reading)
        ids = torch.cat([indices[:edges], self._slot.vertices[:first]])
        rows = fill.workspace[:count]
        read_beside(table, ids, rows, fill.turn)
        lists = DeviceBlock(
            indptr[: first + 1],
            steps,
            edges,
            None,
            None if totals is None else totals[:first],
            derived={name: block.derived[name] for name in ("longest",) if name in block.derived},
        )
        self._neighbours[:first].copy_(aggregate(lists, rows[:edges], fill.what))
        self._own[:first].copy_(rows[edges:])
        after.mark_on(paths.reading)
        paths.launched(Span(PATHS[PINNED], count, count * table.row_bytes, before, after))


class DividedSlots(AggregatedSlots):
    """The `SlotFill` whose slots host and device fill together."""

    host_share = 0.0
    """The host's share of the last batch's edges."""

    def __init__(
        self, what: Aggregation, rows: Array, table: PinnedTable, paths: HostPaths, row_type: torch.dtype
    ) -> None:
        super().__init__(what, rows, table.dtype, paths, row_type)
        self.table = table
        self.workspace = torch.empty((0, self.width), device=paths.device)
        self.steps = torch.empty(0, dtype=torch.int32, device=paths.device)
        self.turn = torch.zeros(1, dtype=torch.int32, device=paths.device)

    def make_room(self, edges: int, rows: int) -> None:
        """Allocate memory for the rows that the device reads of one batch; used on the stream `reading` only."""
        if len(self.workspace) < edges + rows or len(self.steps) < edges:
            device = self.paths.device
            with on_stream(self.paths.reading):
                self.workspace = torch.empty((edges + rows, self.width), dtype=torch.float32, device=device)
                self.steps = torch.arange(edges, dtype=torch.int32, device=device)

    def release(self) -> None:
        super().release()
        self.workspace, self.steps = self.workspace[:0].clone(), self.steps[:0].clone()

    def _made(self) -> Filling:
        return DividedFilling(self)


def divided_slots(parts: FillParts) -> DividedSlots:
    """The fill for a table that host and device read."""
    job, table = parts.job, parts.table
    what = LAYERS[job.model].aggregates(job)
    assert what is not None and table is not None, "the way was refused"
    paths = parts.paths(None if job.host_share is None else 1 - job.host_share)
    return DividedSlots(what, parts.rows, table, paths, parts.row_type)


def reasons_against_dividing(job: Job, table: Array) -> list[str]:
    """The reasons why host and device cannot divide the batches of captured steps."""
    if LAYERS[job.model].aggregates(job) == "normalised":
        return [f"the host computes a part of the first layer, and model {job.model} needs its neighbours' degrees"]
    return [] if table.ndim == 2 else [f"features of shape {table.shape[1:]} are read row by row"]
