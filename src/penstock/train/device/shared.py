"""Captured steps among workers: each replays its share of a batch, forward and back, and then all make the same step.

The draw of the next share runs beside the step, as for one device alone. Between the gradients of a batch and the step
of the optimiser the workers sum. A share that lacks room is drawn again by its own worker before it sums, so that the
others do not notice.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from penstock.coflow_context import batch_order, within_batch
from penstock.graph.arrays import Array
from penstock.pipeline.clock import Recorder
from penstock.pipeline.schedule import START, Planned, Position, Schedule
from penstock.sampling.device.hops import DeviceEpoch
from penstock.sampling.device.order import batch_keys
from penstock.train.device.captured import CapturedSlot, CapturedSteps
from penstock.train.device.execution import CapturedExecution
from penstock.train.device.placed import Placed
from penstock.train.device.supply import Supply
from penstock.train.execution.shared import SharedExecution
from penstock.train.execution.worker_group import WorkerGroup
from penstock.train.session import Session
from penstock.train.steps import Pause, Step, Steps
from penstock.train.tasks import Task

Share = Callable[[Planned], Planned]


class CapturedSharedExecution(SharedExecution):
    """Among workers, each of which has the graph on its device."""

    name = "captured-shared"

    def __init__(self, session: Session, alone: CapturedExecution, group: WorkerGroup) -> None:
        super().__init__(session, alone, group)
        self._placed = alone.placed

    def steps(self, schedule: Schedule, start: Position, pause: Pause, recorder: Recorder) -> Steps:
        """One at a time: between two the workers sum their gradients."""
        return CapturedSharedSteps(self._session, self._placed, schedule, start, pause, recorder, self.group)

    def state(self) -> Any:
        """The room of this worker's shares."""
        return {"rank": self.group.rank, "room": self.alone.state()}

    def restore(self, state: Any) -> None:
        """Another worker's room is for its own shares."""
        if isinstance(state, dict) and state.get("rank") == self.group.rank:
            self.alone.restore(state.get("room"))


class ShareOfSchedule:
    """One worker's shares of the batches of a schedule."""

    def __init__(self, schedule: Schedule, share: Share) -> None:
        self._schedule, self._share = schedule, share
        sizes = {len(schedule.items) % schedule.batch_size, min(len(schedule.items), schedule.batch_size)} - {0}
        first = next(schedule.from_position())
        shares = [len(share(first._replace(seeds=first.seeds[:size])).seeds) for size in sizes]
        self.batch_size = max(1, *shares)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every share from `start` on."""
        return map(self._share, self._schedule.from_position(start))


class _EpochShares(NamedTuple):
    """A worker's shares of an epoch: for each batch as many places in the schedule's items as the largest share has."""

    places: Array
    counts: Array
    wholes: Array


class SharedSupply(Supply):
    """One worker's shares of the epoch under way, on its device."""

    def __init__(self, task: Task, schedule: Schedule, placed: Placed, share: Share) -> None:
        super().__init__(task, schedule, placed)
        self._share, device = share, placed.device
        self._width = ShareOfSchedule(schedule, share).batch_size
        size = schedule.batches * self._width
        self.epoch = DeviceEpoch(size, self._width, len(self.purposes), device)
        self.labels = torch.zeros((size, *self._of_items.shape[1:]), dtype=self._of_items.dtype, device=device)
        self._ahead = ThreadPoolExecutor(1, "epoch-shares")
        self._next: tuple[int, Future[_EpochShares]] | None = None

    def fill(self, position: Position) -> None:
        """Make an epoch ready from one of its batches on; the next one's shares are computed meanwhile."""
        schedule = self._schedule
        if schedule.epochs is not None and position.epoch >= schedule.epochs:
            return
        shares = self._shares(position.epoch)
        places = torch.from_numpy(shares.places).to(self.placed.device)
        torch.index_select(self._items, 0, places, out=self.epoch.order)
        torch.index_select(self._of_items, 0, places, out=self.labels)
        self.epoch.counts.copy_(torch.from_numpy(shares.counts))
        self.weights.copy_(1.0 / torch.from_numpy(shares.wholes).to(self.placed.device))
        keys = batch_keys(schedule.seed, position.epoch, schedule.batches, self.purposes)
        self.epoch.keys.copy_(torch.from_numpy(keys))
        self.restart(position.batch)

    def close(self) -> None:
        """End the thread that computes shares ahead."""
        self._ahead.shutdown(cancel_futures=True)

    def _shares(self, epoch: int) -> _EpochShares:
        known = self._next if self._next is not None and self._next[0] == epoch else None
        shares = self._computed(epoch) if known is None else known[1].result()
        self._next = epoch + 1, self._ahead.submit(self._computed, epoch + 1)
        return shares

    def _computed(self, epoch: int) -> _EpochShares:
        schedule, width = self._schedule, self._width
        places = np.zeros((schedule.batches, width), np.int64)
        counts, wholes = np.zeros(schedule.batches, np.int32), np.ones(schedule.batches, np.float32)
        batches = Schedule(schedule.items, schedule.batch_size, schedule.seed).from_position(Position(epoch, 0))
        for number, planned in zip(range(schedule.batches), batches, strict=False):
            seeds = self._share(planned).seeds
            places[number, : len(seeds)] = np.searchsorted(schedule.items, seeds)
            counts[number], wholes[number] = len(seeds), len(planned.seeds)
        return _EpochShares(places.reshape(-1), counts, wholes)


class _GradientSlot(CapturedSlot):
    """A slot whose recorded step ends with the gradients, which it keeps."""

    gradients: list[Tensor | None]

    def _learn(self) -> None:
        self._gradients()
        self.gradients = [parameter.grad for parameter in self._session.learned.parameters()]


class CapturedSharedSteps(CapturedSteps):
    """Does a session's steps together with other workers."""

    def __init__(
        self,
        session: Session,
        placed: Placed,
        schedule: Schedule,
        start: Position,
        pause: Pause,
        recorder: Recorder,
        group: WorkerGroup,
    ) -> None:
        self._group = group
        super().__init__(session, placed, schedule, start, pause, recorder)

    def __enter__(self) -> Self:
        self._supply.fill(self._position)
        self._capture()
        return self

    def __exit__(self, *given: object) -> None:
        super().__exit__(*given)
        assert isinstance(self._supply, SharedSupply)
        self._supply.close()

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            with within_batch(batch_order(*self._position)):
                done = self._shared_step()
            yield [done]

    def _make_supply(self) -> Supply:
        return SharedSupply(self._session.task, self._schedule, self._placed, self._group.share)

    def _make_slot(self, place: Tensor | None, pool: Any) -> CapturedSlot:
        assert self._placed.room is not None
        return _GradientSlot(self._session, self._supply, self._placed.room, place, self._drawing, pool)

    def _shared_step(self) -> Step:
        epoch, batch = self._position
        loss = self._gradients_of(epoch, batch)
        slot = self._slots[batch % 2]
        assert isinstance(slot, _GradientSlot)
        for parameter, gradient in zip(self._session.learned.parameters(), slot.gradients, strict=True):
            parameter.grad = gradient
        total = self._group.reduce_and_step(self._session, loss)
        done = self._step(epoch, batch, total)
        self._position = Position(epoch + 1, 0) if done.last else Position(epoch, batch + 1)
        if done.last:
            self._supply.fill(self._position)
            self._drawn = 0
        return done

    def _gradients_of(self, epoch: int, batch: int) -> float:
        """This worker's part of a batch's loss; its gradients are in the batch's slot then."""
        while True:
            self._clock.start(self._computing)
            self._learn(epoch, batch)
            losses, failed = self._supply.look(batch, batch + 1)
            self._clock.read()
            if failed is None:
                return losses[0]
            self._enlarge(failed)
