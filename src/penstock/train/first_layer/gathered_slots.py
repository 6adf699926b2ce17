"""Slots of captured steps into which the host gathers rows: all of a batch, or those of one of several paths."""

from typing import Any

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.stored_numbers import READ_IN_PLACE
from penstock.sampling.device.hops import Slot
from penstock.sampling.device.room import Room
from penstock.store.device.divided import Reading, ReadingPool, host_rows
from penstock.train.first_layer.slot_fill import Filling, FillParts
from penstock.train.job import Job


class RowFilling:
    """A slot's rows, read by a `Reading`."""

    def __init__(self, reading: Reading, row_type: torch.dtype) -> None:
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
