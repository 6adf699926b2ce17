"""How the slots of captured steps get their inputs: what a way of filling them gives, and rows that are gathered."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.aggregation import AggregatedRows
from penstock.nn.device.gather import TableRows
from penstock.nn.table_aggregation import READ_IN_PLACE
from penstock.sampling.device.block import Room
from penstock.sampling.device.slot import Slot
from penstock.store.device.divided import HostTableReading, ReadingPool, host_rows
from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.store.device.host_paths import HostPaths
from penstock.store.device.tables import DeviceSource, PinnedTable, ResidentTable
from penstock.traced import is_traced
from penstock.train.job import Job

# How the slots of captured steps are filled by the host. A slot's batch is drawn by a recorded launch. Then the host is
# sent what was drawn, does its part, and copies the result to a fixed address, where the recorded step reads it.


class Filling(Protocol):
    """The memory with which one slot is filled. For each batch its methods are called in the order: list, fetch, begin,
    finish.
    """

    def attach(self, slot: Slot) -> None:
        """Fill this slot from now on, with memory for its room. Waits for work in progress."""
        return

    def inputs(self) -> Tensor | TableRows | AggregatedRows | dict[str, Tensor]:
        """The model's inputs, at fixed addresses or by node type; called while the step is recorded."""

    def list(self) -> None:
        """Called at the end of a recorded draw, to prepare what the host will read."""
        return

    def fetch(self, stream: Any) -> None:
        """Start copying what was drawn to the host, on the stream that has drawn."""
        return

    def begin(self) -> None:
        """Wait for what was drawn, and start to fill the slot."""
        return

    def finish(self) -> None:
        """Wait until the host's part is done, and launch its copy to the slot."""
        return

    def hold(self, stream: Any) -> None:
        """Make later launches on a stream wait until the slot is filled."""
        return

    def abandon(self) -> None:
        """Discard the batch that was begun."""
        return


class SlotFill(Protocol):
    """How all slots of a run are filled."""

    numbers_rows: bool
    """Whether the last hop's neighbours are numbered as rows of the batch; else its lists hold vertex numbers."""
    slots: int
    """Batches whose memory there is at once."""
    ahead: int
    """How many batches before a batch's step its slot is begun to be filled."""

    @property
    def paths(self) -> HostPaths | None:
        """The paths of the host's rows to the device; None where the host has no part in it."""
        return None

    def take(self) -> Filling:
        """Memory for one slot, until it is given back."""

    def give_back(self, filling: Filling) -> None:
        """Return the memory for reuse. Launches that use it may still be in progress."""
        return

    def release(self) -> None:
        """Free unused memory, because slots are filled in another way for now."""
        return


class FillParts(NamedTuple):
    """What a `SlotFill` is made from."""

    job: Job
    rows: Array
    """The features, as kernels of the host read them (`nn.table_aggregation`)."""
    dtype: torch.dtype
    """The type of their values."""
    table: PinnedTable | None
    """The same features as the device reads them; None where it does not."""
    paths: Callable[[float | None], HostPaths]
    """Makes the paths of which the device does a given share of the work; None: the fastest share, found by trials."""
    device: torch.device
    row_type: torch.dtype
    """The type in which features reach the model."""


@dataclass(frozen=True)
class Filler:
    """Makes the `SlotFill` of a way of reading the first layer's inputs."""

    make: Callable[[FillParts], SlotFill]
    reasons_against: Callable[[Job, Array], list[str]]
    """The reasons why captured steps of a job with these features cannot be filled in this way; empty where they can.
    """
    host_bytes: Callable[[Room, int, int], int]
    """`host_bytes(room, width, number)`: page-locked memory of one slot, for rows of `width` numbers of `number` bytes
    each."""


HOST_FILLED = 4
"""Batches whose memory there is at once where the host fills slots: one is drawn, one filled, one learned from, and one
waits for the host."""


def fits(sizes: Any, room: Room) -> bool:
    """Whether a batch of these `sizes`, counted by the device, fits its room; if it does not, it is not filled."""
    return all(size <= held for size, held in zip(sizes, room.sizes, strict=True))


# Slots whose inputs need no word from the host.


class NoFilling(Filling):
    """For a slot whose step finds its inputs by itself."""

    def inputs(self) -> Any:
        return None


class DeviceFilling(Filling):
    """A slot's rows where the device reads them: in their table, or in a copy at a fixed place that the draw fills."""

    def __init__(self, fill: "DeviceRows") -> None:
        self._fill = fill

    def attach(self, slot: Slot) -> None:
        self._slot, fill = slot, self._fill
        self._rows: Tensor | TableRows
        if fill.in_place and isinstance(fill.table, ResidentTable):
            self._rows = TableRows(fill.table.table, slot.vertices[: slot.room.rows[-2]], direct=True)
        else:
            shape = len(slot.vertices), *fill.table.shape[1:]
            self._rows = torch.zeros(shape, dtype=fill.row_type, device=slot.vertices.device)

    def inputs(self) -> Any:
        return self._rows

    def list(self) -> None:
        """The batch's features are gathered, where they are not read in their table."""
        if not isinstance(self._rows, TableRows):
            self._fill.table.gather(self._slot.vertices, self._rows, self._slot.known[-1:])


class NoFill(SlotFill):
    """For steps that find their inputs by themselves."""

    numbers_rows, ahead = True, 0

    def __init__(self, slots: int) -> None:
        self.slots = slots

    def take(self) -> Filling:
        return NoFilling()


class DeviceRows(SlotFill):
    """Rows that the device reads from a table by itself."""

    numbers_rows, slots, ahead = True, 2, 0

    def __init__(self, table: DeviceSource, in_place: bool, row_type: torch.dtype) -> None:
        self.table, self.in_place, self.row_type = table, in_place, row_type

    def take(self) -> Filling:
        return DeviceFilling(self)


class RowsByTypeFilling(Filling):
    """A slot's rows by node type: a copy of stored ones, which the draw fills, and learned ones as they are when the
    step begins.
    """

    def __init__(self, fill: "RowsByType") -> None:
        self._fill = fill

    def attach(self, slot: Slot) -> None:
        fill, self._drawn = self._fill, slot.by_type(self._fill.node_type)
        self._rows: dict[str, Tensor] = {}
        for name, drawn in self._drawn.items():
            if name in fill.stored:
                shape = len(drawn.vertices), *fill.stored[name].shape[1:]
                self._rows[name] = torch.zeros(shape, dtype=fill.row_type, device=drawn.vertices.device)

    def list(self) -> None:
        """Gather the stored rows of the slot's vertices into its own memory, type by type."""
        for name, rows in self._rows.items():
            self._fill.stored[name].gather(self._drawn[name].vertices, rows, self._drawn[name].known)

    def inputs(self) -> dict[str, Tensor]:
        return {
            name: self._rows[name] if name in self._rows else self._learned(name, drawn.vertices)
            for name, drawn in self._drawn.items()
        }

    def _learned(self, name: str, vertices: Tensor) -> Tensor:
        """Current learned rows, of which the step computes gradients; those past the batch's own are not used."""
        table = self._fill.learned[name]
        rows = table.on_device[0] if isinstance(table, DeviceEmbeddingTable) else table.rows
        if is_traced():
            return torch.empty(len(vertices), rows.shape[1], device=vertices.device).requires_grad_()
        return rows.index_select(0, vertices).requires_grad_()


class RowsByType(SlotFill):
    """Rows by node type, stored or learned, that the device reads by itself."""

    numbers_rows, slots, ahead = True, 2, 0

    def __init__(
        self, stored: Mapping[str, DeviceSource], learned: Mapping[str, Any], row_type: torch.dtype, node_type: str
    ) -> None:
        """`node_type` is the only type, where the graph has one."""
        self.stored, self.learned, self.row_type, self.node_type = stored, learned, row_type, node_type

    def take(self) -> Filling:
        return RowsByTypeFilling(self)


# Slots of captured steps into which the host gathers rows: all of a batch, or those of one of several paths.


class RowFilling:
    """The `Filling` of a slot with rows that a `HostTableReading` reads."""

    def __init__(self, reading: HostTableReading, row_type: torch.dtype) -> None:
        self.reading, self._row_type = reading, row_type

    def attach(self, slot: Slot) -> None:
        self._slot = slot
        self.reading.make_room(len(slot.vertices), torch.int32)
        shape = len(slot.vertices), *self.reading.row_shape
        self._rows = torch.zeros(shape, dtype=self._row_type, device=slot.vertices.device)

    def inputs(self) -> Tensor:
        return self._rows

    def list(self) -> None:
        """Sort the slot's vertices by number."""
        self.reading.list(self._slot.vertices, self._slot.known[-1:])

    def fetch(self, stream: Any) -> None:
        self.reading.fetch(stream)

    def begin(self) -> None:
        self.reading.begin(self._slot.vertices, self._rows.view(len(self._rows), -1), self._slot.known[-1:])

    def finish(self) -> None:
        self.reading.finish()

    def hold(self, stream: Any) -> None:
        self.reading.hold(stream)

    def abandon(self) -> None:
        self.reading.abandon()


class GatheredSlots:
    """The `SlotFill` that fills slots with the rows of all vertices that a batch needs."""

    numbers_rows, slots, ahead = True, HOST_FILLED, 1

    def __init__(self, readings: ReadingPool, row_type: torch.dtype) -> None:
        self._readings, self._row_type, self.paths = readings, row_type, readings.paths

    def take(self) -> Filling:
        return RowFilling(self._readings.take(), self._row_type)

    def give_back(self, filling: Filling) -> None:
        assert isinstance(filling, RowFilling)
        self._readings.give_back(filling.reading)

    def release(self) -> None:
        self._readings.release()


def gathered_slots(parts: FillParts) -> GatheredSlots:
    """The fill for a table that only the host reads."""
    rows = host_rows(parts.rows, parts.dtype, parts.device)
    return GatheredSlots(ReadingPool(rows, parts.paths(0.0)), parts.row_type)


def gathered_bytes(room: Room, width: int, number: int) -> int:
    """Page-locked memory of one slot: rows, and their numbers (see `Filler.host_bytes`)."""
    return room.rows[-1] * (width * number + 4)


def reasons_against_reading(job: Job, table: Array) -> list[str]:
    """The reasons why the host's threads cannot read a table in place."""
    if table.ndim == 2 and table.dtype.type in READ_IN_PLACE and table.flags.c_contiguous:
        return []
    return [f"features of {table.dtype} {table.shape[1:]} are converted for each batch"]
