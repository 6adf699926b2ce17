"""Slots of captured steps that the host fills: what a way of filling them gives, and rows that are gathered."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.input_rows import AggregatedRows
from penstock.nn.table_aggregation import READ_IN_PLACE
from penstock.sampling.device.block import Room
from penstock.sampling.device.hops import Slot
from penstock.store.device.divided import HostTableReading, ReadingPool, host_rows
from penstock.store.device.host_paths import HostPaths
from penstock.store.device.tables import PinnedTable
from penstock.train.job import Job

# How the slots of captured steps are filled from the host: what a way of reading the first layer's inputs gives them.
#
# A slot's batch is drawn by a recorded launch. Behind it the host learns what was drawn, does its part, and copies the
# result to a fixed place, where the recorded step reads it.


class Filling(Protocol):
    """The memory with which one slot is filled, and a batch's passage through it: listed, fetched, begun, finished."""

    def attach(self, slot: Slot) -> None:
        """Have memory for what a slot has room for, and fill it from now on. Waits for what is under way."""

    def inputs(self) -> torch.Tensor | AggregatedRows:
        """What the model reads, from fixed places; recorded with the step."""

    def list(self) -> None:
        """The last of what a draw records: whatever makes it easier for the host."""

    def fetch(self, stream: Any) -> None:
        """Bring what was drawn to the host, on the stream that has drawn."""

    def begin(self) -> None:
        """Wait for what was drawn, and start to fill the slot."""

    def finish(self) -> None:
        """Wait until the host's part is done, and launch its copy."""

    def hold(self, stream: Any) -> None:
        """Let what is launched on a stream from now on wait until the slot is filled."""

    def abandon(self) -> None:
        """The batch that was begun is not wanted any more."""


class SlotFill(Protocol):
    """How all slots of a run are filled."""

    numbers_rows: bool
    """Whether neighbours of the last hop need rows of their own in the batch; else its lists name vertices."""
    paths: HostPaths

    def take(self) -> Filling:
        """Memory for one slot, until it is given back."""

    def give_back(self, filling: Filling) -> None:
        """The memory may be used again. What was launched with it may still be under way."""

    def release(self) -> None:
        """Free the memory that nobody uses: slots are filled in another way for now."""


class FillParts(NamedTuple):
    """What a fill is made from."""

    job: Job
    rows: Array
    """The features, as kernels of the host read them (`nn.table_aggregation`)."""
    dtype: torch.dtype
    """The type of their numbers."""
    table: PinnedTable | None
    """The same features as the device reads them, where it does."""
    paths: Callable[[float | None], HostPaths]
    """Makes paths on which the device has so large a share of the work; None: what is fastest, found by trying."""
    device: torch.device
    row_type: torch.dtype
    """The type in which features reach the model."""


@dataclass(frozen=True)
class Filler:
    """Makes fills for a way of reading the first layer's inputs."""

    make: Callable[[FillParts], SlotFill]
    reasons_against: Callable[[Job, Array], list[str]]
    """Why steps of a job whose features are this array cannot be filled so; empty where they can."""
    host_bytes: Callable[[Room, int, int], int]
    """`host_bytes(room, width, number)`: page-locked memory of one slot, for rows of `width` numbers of `number` bytes
    each."""


def fits(sizes: Any, room: Room) -> bool:
    """Whether a batch whose device counted these `sizes` has all of its lists: one that lacks room is not filled."""
    return all(size <= held for size, held in zip(sizes, room.sizes, strict=True))


# Slots of captured steps into which the host gathers rows: all of a batch, or those of one of several paths.


class RowFilling:
    """A slot's rows, read by a `HostTableReading`."""

    def __init__(self, reading: HostTableReading, row_type: torch.dtype) -> None:
        self.reading, self._row_type = reading, row_type

    def attach(self, slot: Slot) -> None:
        """See `Filling.attach`."""
        self._slot = slot
        self.reading.make_room(len(slot.vertices), torch.int32)
        shape = len(slot.vertices), *self.reading.row_shape
        self._rows = torch.zeros(shape, dtype=self._row_type, device=slot.vertices.device)

    def inputs(self) -> Tensor:
        """See `Filling.inputs`."""
        return self._rows

    def list(self) -> None:
        """See `Filling.list`: rows are sorted by their number."""
        self.reading.list(self._slot.vertices, self._slot.known[-1:])

    def fetch(self, stream: Any) -> None:
        """See `Filling.fetch`."""
        self.reading.fetch(stream)

    def begin(self) -> None:
        """See `Filling.begin`."""
        self.reading.begin(self._slot.vertices, self._rows.view(len(self._rows), -1), self._slot.known[-1:])

    def finish(self) -> None:
        """See `Filling.finish`."""
        self.reading.finish()

    def hold(self, stream: Any) -> None:
        """See `Filling.hold`."""
        self.reading.hold(stream)

    def abandon(self) -> None:
        """See `Filling.abandon`."""
        self.reading.abandon()


class GatheredSlots:
    """Slots are filled with the rows of all vertices that a batch needs."""

    numbers_rows = True

    def __init__(self, readings: ReadingPool, row_type: torch.dtype) -> None:
        self._readings, self._row_type, self.paths = readings, row_type, readings.paths

    def take(self) -> Filling:
        """See `SlotFill.take`."""
        return RowFilling(self._readings.take(), self._row_type)

    def give_back(self, filling: Filling) -> None:
        """See `SlotFill.give_back`."""
        assert isinstance(filling, RowFilling)
        self._readings.give_back(filling.reading)

    def release(self) -> None:
        """See `SlotFill.release`."""
        self._readings.release()


def gathered_slots(parts: FillParts) -> GatheredSlots:
    """Of a table that the host alone reads."""
    rows = host_rows(parts.rows, parts.dtype, parts.device)
    return GatheredSlots(ReadingPool(rows, parts.paths(0.0)), parts.row_type)


def gathered_bytes(room: Room, width: int, number: int) -> int:
    """Page-locked memory of one slot: rows, and their numbers (see `Filler.host_bytes`)."""
    return room.rows[-1] * (width * number + 4)


def reasons_against_reading(job: Job, table: Array) -> list[str]:
    """Why the host's threads cannot read a table where it lies."""
    if table.ndim == 2 and table.dtype.type in READ_IN_PLACE and table.flags.c_contiguous:
        return []
    return [f"features of {table.dtype} {table.shape[1:]} are converted for each batch"]
