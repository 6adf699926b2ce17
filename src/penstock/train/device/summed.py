"""Captured steps whose gradients workers sum: bursts of them are launched without a word from the host.

A step is two recordings with a sum between them: this worker's gradients, and the optimiser's step with everybody's. A
burst counts as a whole. If a worker is lost meanwhile, weights and optimiser go back to the burst's start; should
another worker have come to its end, this one takes its state when they meet. A share that lacks room makes every
worker leave out that step and those behind it, until its worker has made room.
"""

import time
from collections.abc import Iterator
from typing import Any, Self

from torch import Tensor

from penstock.coflow_context import batch_order, within_batch
from penstock.pipeline.clock import Recorder
from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.device.hops import NEVER
from penstock.sampling.device.room import Room
from penstock.sampling.device.streams import rest
from penstock.store.device.moments import Moment
from penstock.train.device.captured import BURST_SECONDS, CapturedSlot
from penstock.train.device.group_steps import ShareSteps
from penstock.train.device.launches import Lane, Recorded
from penstock.train.device.placed import Placed
from penstock.train.device.step_sum import Agreed, Snapshot, StepSum
from penstock.train.device.supply import Supply
from penstock.train.execution.worker_group import DeviceSums, WorkerGroup
from penstock.train.optimisers import prepare_skipping
from penstock.train.session import Session
from penstock.train.steps import Pause, Step


class SummedSteps(ShareSteps):
    """Does a session's steps together with other workers, all of which do them so."""

    def __init__(
        self,
        session: Session,
        placed: Placed,
        schedule: Schedule,
        start: Position,
        pause: Pause,
        recorder: Recorder,
        group: WorkerGroup,
        sums: DeviceSums,
    ) -> None:
        self._sums = sums
        super().__init__(session, placed, schedule, start, pause, recorder, group)
        self._row = StepSum(session, schedule.batches, group.world, placed.device)
        self._stopping, self._pace = False, 0.0

    def __enter__(self) -> Self:
        prepare_skipping(self._session.optimiser)
        self._supply.fill(self._position)
        self._capture()
        self._apply = Recorded(self._row.apply, self._placed.device)
        self._before = Snapshot(self._session)
        return self

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            yield self._burst(min(self._pause(self._position), self._most))

    def _make_slot(self, place: Tensor | None, pool: Any) -> CapturedSlot:
        assert self._placed.room is not None
        return _SummedSlot(self._session, self._supply, self._placed.room, place, self._drawing, pool, self._row)

    def _burst(self, many: int) -> list[Step]:
        began = time.perf_counter()
        self._row.begin(self._group.was_asked_to_stop(), self._pace)
        self._before.take()
        try:
            done = super()._burst(many)
        except BaseException:
            rest(self._placed.device)
            self._before.put_back()
            rest(self._placed.device)
            raise
        self._group.count_steps(self._session, len(done), self._stopping)
        self._pace = (time.perf_counter() - began) / many
        return done

    def _learn(self, epoch: int, number: int) -> None:
        super()._learn(epoch, number)
        with within_batch(batch_order(epoch, number)):
            self._sums.launch(self._row.numbers)
        self._clock.around("compute", Position(epoch, number), self._computing, self._apply.replay)

    def _look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """As all workers see it, so that they decide alike: where to go on, when to stop, how long bursts are."""
        seen, copied = self._row.fetch(first, last), Moment(self._placed.device)
        copied.mark(self._computing)
        self._sums.finish(copied.has_passed)
        self._computing.settle()
        agreed = [Agreed(*numbers) for numbers in seen.tolist()]
        self._stopping = agreed[0].asked > 0
        if agreed[0].pace > 0:
            self._most = max(1, int(BURST_SECONDS * self._group.world / agreed[0].pace))
        losses = [each.loss for each in agreed if not each.lacking]
        return losses, first + len(losses) if len(losses) < len(agreed) else None

    def _go_back_to(self, failed: int) -> None:
        """The worker whose share lacked room makes more; the others go back with it."""
        rest(self._placed.device)
        if int(self._supply.epoch.failed_at) == failed:
            self._enlarge(failed)
            return
        # A share behind it may have lacked room here, and left vertices behind.
        self._slots[0].slot.place.fill_(NEVER)
        self._supply.restart(failed)
        self._drawn = failed


class _SummedSlot(CapturedSlot):
    """A slot whose recorded step ends with the gradients in the row that is summed."""

    def __init__(
        self,
        session: Session,
        supply: Supply,
        room: Room,
        place: Tensor | None,
        drawing: Lane,
        pool: Any,
        row: StepSum,
    ) -> None:
        self._row = row
        super().__init__(session, supply, room, place, drawing, pool)

    def _both(self) -> None:
        super()._both()
        self._row.apply()

    def _learn(self) -> None:
        loss, skip = self._gradients()
        assert skip is not None
        self._row.take(self.slot, loss, skip)
