"""Captured steps whose inputs come from the host.

Between a batch's draw and its step, both of which are recorded, the host has its turn: it sees what was drawn, and its
threads gather or aggregate what the step reads, at the places that the recorded step knows (`first_layer.slots`).
Four slots take turns:

    drawing     | draw 2      | draw 3      | draw 4
    filling     | rows of 1   | rows of 2   | rows of 3
    computing   | learn 0     | learn 1     | learn 2

The host waits for nothing but what was drawn, which happened while the batch before was filled, and for its own
threads; those have the next batch's rows to read by then.
"""

from typing import Any, Self

from torch import Tensor

from penstock.pipeline.stages import StageTime
from penstock.sampling.device.block import Room
from penstock.traced import memory_for
from penstock.train.device.captured import CapturedSlot, CapturedSteps
from penstock.train.device.launches import LaunchStream
from penstock.train.device.supply import Supply
from penstock.train.first_layer.slots import Filling, SlotFill
from penstock.train.session import Session, Step
from penstock.train.trace.allocations import BATCHES


class HostFilledSteps(CapturedSteps):
    """Does the steps of a session whose slots the host fills."""

    slots_in_turn = 4
    _begun = 0
    """The first batch whose slot nobody has begun to fill."""
    _unfinished = 0
    """The first batch that is not filled, or about to be without the host."""

    def __enter__(self) -> Self:
        self._fillings: list[Filling] = []
        return super().__enter__()

    def __exit__(self, *given: object) -> None:
        self._abandon()
        super().__exit__(*given)
        while self._fillings:
            self._fill.give_back(self._fillings.pop())

    def times(self) -> dict[str, StageTime]:
        """Seconds in which the device drew and learned, and those of the path that was busiest."""
        known = super().times()
        total = max(each.busy + each.wait for each in known.values())
        busy = max((each.seconds for each in self._fill.paths.use().values()), default=0.0)
        transfer = StageTime(busy, max(0.0, total - busy), 1, 1)
        return {"sample": known["sample"], "transfer": transfer, "compute": known["compute"]}

    def _learn(self, epoch: int, number: int) -> None:
        last = self._schedule.batches - 1
        self._draw_up_to(epoch, min(number + 2, last))
        while self._begun <= min(number + 1, last):
            self._filling(self._begun).begin()
            self._begun += 1
        filling = self._filling(number)
        filling.finish()
        self._unfinished = number + 1
        filling.hold(self._computing.stream)
        self._launch_step(epoch, number)

    @property
    def _fill(self) -> SlotFill:
        fill = self._placed.fill
        assert fill is not None
        return fill

    def _filling(self, number: int) -> Filling:
        slot = self._slot_of(number)
        assert isinstance(slot, HostFilledSlot)
        return slot.filling

    def _make_slot(self, place: Tensor | None, pool: Any) -> CapturedSlot:
        room = self._placed.room
        assert room is not None
        with memory_for(BATCHES):
            if len(self._fillings) < self.slots_in_turn:
                self._fillings.append(self._fill.take())
        filling = self._fillings[len(self._slots)]
        return HostFilledSlot(self._session, self._supply, room, place, self._drawing, pool, filling)

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
            self._filling(number).abandon()
        self._begun = self._unfinished


class HostFilledSlot(CapturedSlot):
    """A slot whose recorded draw ends with what the host needs, and whose inputs the host brings."""

    def __init__(
        self,
        session: Session,
        supply: Supply,
        room: Room,
        place: Tensor | None,
        drawing: LaunchStream,
        pool: Any,
        filling: Filling,
    ) -> None:
        self.filling = filling
        super().__init__(session, supply, room, place, drawing, pool)

    def was_drawn(self, lane: LaunchStream) -> None:
        """See `CapturedSlot.was_drawn`; what was drawn goes to the host."""
        self.filling.fetch(lane.stream)
        super().was_drawn(lane)

    def _make_rows(self) -> None:
        self.filling.attach(self.slot)

    def _read_rows(self) -> None:
        self.filling.list()

    def _inputs(self) -> Any:
        return self.filling.inputs()
