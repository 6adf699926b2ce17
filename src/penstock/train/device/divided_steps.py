"""Captured steps on features that reach the device along several paths.

Between a batch's draw and its step, both of which are recorded, the host has its turn: it sees which rows the batch
reads, divides them, launches the device's reads and has its threads gather the others (`store.device.divided`). Slots
are filled from the host so, at the places that the recorded step reads. Four of them take turns:

    drawing     | draw 2      | draw 3      | draw 4
    both paths  | rows of 1   | rows of 2   | rows of 3
    computing   | learn 0     | learn 1     | learn 2

The host waits for nothing but the numbers of a batch's rows, which were drawn while the one before was filled, and for
its own threads; those have the next batch's rows to gather by then.
"""

from typing import Any, Self

import torch
from torch import Tensor

from penstock.pipeline.clock import StageTime
from penstock.sampling.device.room import Room
from penstock.store.device.divided import DividedTable, Reading
from penstock.traced import memory_for
from penstock.train.device.captured import CapturedSlot, CapturedSteps
from penstock.train.device.launches import Lane
from penstock.train.device.supply import Supply
from penstock.train.session import Session
from penstock.train.steps import Step
from penstock.train.trace.categories import BATCHES


class DividedSteps(CapturedSteps):
    """Does the steps of a session whose features are in a `DividedTable`."""

    slots_in_turn = 4
    _begun = 0
    """The first batch whose rows nobody has begun to read."""
    _unfinished = 0
    """The first batch that has not all of its rows launched."""

    def __enter__(self) -> Self:
        self._readings: list[Reading] = []
        return super().__enter__()

    def __exit__(self, *given: object) -> None:
        self._abandon()
        super().__exit__(*given)
        while self._readings:
            self._table.give_back(self._readings.pop())

    def times(self) -> dict[str, StageTime]:
        """Seconds in which the device drew and learned, and those of the path that was busiest."""
        known = super().times()
        total = max(each.busy + each.wait for each in known.values())
        busy = max((each.seconds for each in self._table.paths.use().values()), default=0.0)
        transfer = StageTime(busy, max(0.0, total - busy), 1, 1)
        return {"sample": known["sample"], "transfer": transfer, "compute": known["compute"]}

    def _learn(self, epoch: int, number: int) -> None:
        last = self._schedule.batches - 1
        self._draw_up_to(epoch, min(number + 2, last))
        while self._begun <= min(number + 1, last):
            self._divided_slot(self._begun).begin()
            self._begun += 1
        slot = self._divided_slot(number)
        slot.reading.finish()
        self._unfinished = number + 1
        slot.reading.hold(self._computing.stream)
        self._launch_step(epoch, number)

    @property
    def _table(self) -> DividedTable:
        table = self._placed.table
        assert isinstance(table, DividedTable)
        return table

    def _divided_slot(self, number: int) -> "DividedSlot":
        slot = self._slot_of(number)
        assert isinstance(slot, DividedSlot)
        return slot

    def _make_slot(self, place: Tensor | None, pool: Any) -> CapturedSlot:
        room = self._placed.room
        assert room is not None
        with memory_for(BATCHES):
            if len(self._readings) < self.slots_in_turn:
                self._readings.append(self._table.take_reading(room.rows[-1], torch.int32))
            reading = self._readings[len(self._slots)]
            reading.make_room(room.rows[-1], torch.int32)
        return DividedSlot(self._session, self._supply, room, place, self._drawing, pool, reading)

    def _burst(self, many: int) -> list[Step]:
        done = super()._burst(many)
        if self._position.batch == 0:
            self._begun = self._unfinished = 0
        return done

    def _capture(self) -> None:
        self._abandon()
        super()._capture()
        self._begun = self._unfinished = self._drawn

    def _abandon(self) -> None:
        """Batches that were begun are drawn again, or not at all."""
        for number in range(self._unfinished, self._begun):
            self._divided_slot(number).reading.abandon()
        self._begun = self._unfinished


class DividedSlot(CapturedSlot):
    """A slot whose recorded draw ends with the numbers of the rows that it needs, and whose rows come from the host."""

    def __init__(
        self,
        session: Session,
        supply: Supply,
        room: Room,
        place: Tensor | None,
        drawing: Lane,
        pool: Any,
        reading: Reading,
    ) -> None:
        self.reading = reading
        super().__init__(session, supply, room, place, drawing, pool)

    def begin(self) -> None:
        """Start reading the rows of the batch that was drawn; waits for their numbers."""
        assert isinstance(self._rows, Tensor)
        self.reading.begin(self.slot.vertices, self._rows.view(len(self._rows), -1), self.slot.known[-1:])

    def was_drawn(self, lane: Lane) -> None:
        """See `CapturedSlot.was_drawn`; the numbers go to the host."""
        self.reading.fetch(lane.stream)
        super().was_drawn(lane)

    def _read_rows(self) -> None:
        self.reading.list(self.slot.vertices, self.slot.known[-1:])
