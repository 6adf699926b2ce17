"""Slots of captured steps that host and device fill together: each aggregates the lists of some destinations.

Both read one table in page-locked memory. The device has the first destinations: it reads the rows of their lists over
the bus in the table's order, and adds them up. The share of the edges that it has is fixed by `host_share`, or the one
under which batches follow each other fastest.
"""

from typing import Any

import torch

from penstock.graph.arrays import Array
from penstock.nn.device.aggregation import aggregate
from penstock.nn.first_rows import Aggregation
from penstock.nn.layer_table import layer_entry
from penstock.sampling.device.block import DeviceBlock
from penstock.sampling.device.hops import Slot
from penstock.sampling.device.streams import on_stream
from penstock.store.device.divided import read_beside
from penstock.store.device.host_paths import PATHS, HostPaths, Span
from penstock.store.device.moments import Moment
from penstock.store.device.path_division import PINNED
from penstock.store.device.tables import PinnedTable
from penstock.train.first_layer.aggregated_slots import AggregatedFilling, AggregatedSlots
from penstock.train.first_layer.slot_fill import Filling, FillParts
from penstock.train.job import Job

_CHUNK_EDGES = 2048
_FEWEST_CHUNKS = 64
"""Edges that one decision is made for; smaller batches have smaller chunks."""


class DividedFilling(AggregatedFilling):
    """A slot's aggregates: of the first destinations by the device, of the others by the host."""

    _fill: "DividedSlots"

    def attach(self, slot: Slot) -> None:
        """See `Filling.attach`."""
        super().attach(slot)
        self._read = Moment(self._paths.device)
        self._fill.make_room(slot.room.edges[-1], slot.room.rows[-2])

    def hold(self, stream: Any) -> None:
        """See `Filling.hold`."""
        super().hold(stream)
        self._read.hold(stream)

    def _start_device(self, indptr: Array) -> int:
        fill, paths = self._fill, self._paths
        chunks = max(_FEWEST_CHUNKS, int(indptr[-1]) // _CHUNK_EDGES)
        divided = paths.division.divide(chunks)
        # Lists are not cut: the one that crosses the boundary is the device's.
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
        """Read the rows of so many destinations and their edges, and add them up."""
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
            derived={"longest": block.derived["longest"]},
        )
        self._neighbours[:first].copy_(aggregate(lists, rows[:edges], fill.what))
        self._own[:first].copy_(rows[edges:])
        after.mark_on(paths.reading)
        paths.launched(Span(PATHS[PINNED], count, count * table.row_bytes, before, after))


class DividedSlots(AggregatedSlots):
    """Slots are filled with aggregates of both."""

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
        """Have memory for the rows that the device reads of one batch; used on the stream `reading` alone."""
        if len(self.workspace) < edges + rows or len(self.steps) < edges:
            device = self.paths.device
            with on_stream(self.paths.reading):
                self.workspace = torch.empty((edges + rows, self.width), dtype=torch.float32, device=device)
                self.steps = torch.arange(edges, dtype=torch.int32, device=device)

    def release(self) -> None:
        """See `SlotFill.release`."""
        super().release()
        self.workspace, self.steps = self.workspace[:0].clone(), self.steps[:0].clone()

    def _made(self) -> Filling:
        return DividedFilling(self)


def divided_slots(parts: FillParts) -> DividedSlots:
    """Of a table that host and device read."""
    job, table = parts.job, parts.table
    what = layer_entry(job.model).aggregates(job)
    assert what is not None and table is not None, "the way was refused"
    paths = parts.paths(None if job.host_share is None else 1 - job.host_share)
    return DividedSlots(what, parts.rows, table, paths, parts.row_type)


def reasons_against_dividing(job: Job, table: Array) -> list[str]:
    """Why host and device cannot divide the batches of captured steps."""
    if layer_entry(job.model).aggregates(job) == "normalised":
        return [f"the host has a part of the first layer, and model {job.model} needs its neighbours' degrees"]
    return [] if table.ndim == 2 else [f"features of shape {table.shape[1:]} are read row by row"]
