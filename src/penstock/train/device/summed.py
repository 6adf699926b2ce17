"""Captured steps whose gradients workers sum: bursts of them are launched without a word from the host.

A step is two recordings with a sum between them: this worker's gradients, and the optimiser's step with everybody's. A
burst counts as a whole. If a worker is lost meanwhile, weights and optimiser go back to the burst's start; should
another worker have come to its end, this one takes its state when they meet. A share that lacks room makes every
worker leave out that step and those behind it, until its worker has made room.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from penstock.pipeline.schedule import Position, Schedule
from penstock.pipeline.stages import Recorder
from penstock.sampling.device.block import Room
from penstock.sampling.device.hops import NEVER, Slot
from penstock.sampling.device.streams import rest
from penstock.store.device.moments import Moment
from penstock.train.device.captured import BURST_SECONDS, CapturedSlot, CapturedSteps, make_step
from penstock.train.device.launches import LaunchStream, Recorded
from penstock.train.device.placed import Placed
from penstock.train.device.supply import SharedSupply, Supply
from penstock.train.execution.shared import DeviceSums, WorkerGroup
from penstock.train.optimisers import prepare_skipping
from penstock.train.session import Pause, Session, Step
from penstock.wire.coflows import batch_order, within_batch

# What captured steps of workers have in common: the group, and a supply of this worker's shares of the batches.


class GroupSteps(CapturedSteps):
    """Captured steps of a worker of a group."""

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


class ShareSteps(GroupSteps):
    """Captured steps on this worker's shares of the batches."""

    def _make_supply(self) -> Supply:
        return SharedSupply(self._session.task, self._schedule, self._placed, self._group.share)


# What workers sum in each captured step, as one row of numbers on the device: gradients, and what they agree on.

_ALIGNED = 4
"""Gradients start at multiples of so many numbers, so that kernels read several at once."""


class Agreed(NamedTuple):
    """The numbers behind the gradients, summed over all workers: the same for each of them."""

    loss: float
    asked: float
    """Workers that had been asked to stop when the burst began."""
    pace: float
    """Seconds that a step took in the burst before."""
    ready: float
    """Workers whose gradients may be used."""
    lacking: float
    """Workers whose share of the batch, or of one before it, lacked room."""


_MORE = len(Agreed._fields)
_READY = Agreed._fields.index("ready")


class StepSum:
    """The row of the step under way, and what was agreed on in each step of the epoch; all at fixed places."""

    def __init__(self, session: Session, batches: int, world: int, device: torch.device) -> None:
        self._session, self._world = session, world
        parameters = [parameter for parameter in session.learned.parameters() if parameter.requires_grad]
        rooms = [-(-parameter.numel() // _ALIGNED) * _ALIGNED for parameter in parameters]
        self.numbers = torch.zeros(sum(rooms) + _MORE, dtype=torch.float32, device=device)
        parts = torch.split(self.numbers[:-_MORE], rooms)
        self._gradients = [
            (parameter, part[: parameter.numel()].view_as(parameter))
            for parameter, part in zip(parameters, parts, strict=True)
        ]
        self._more = self.numbers[-_MORE:]
        self._told = torch.zeros(2, dtype=torch.float32, device=device)
        self._number = torch.zeros(1, dtype=torch.int64, device=device)
        self._agreed = torch.zeros((batches, _MORE), dtype=torch.float32, device=device)
        self._seen = torch.zeros((batches, _MORE), dtype=torch.float32, pin_memory=device.type == "cuda")

    def begin(self, asked: bool, pace: float) -> None:
        """What this worker says in the steps of a burst."""
        self._told[0].fill_(float(asked))
        self._told[1].fill_(pace)

    def take(self, slot: Slot, loss: Tensor, skip: Tensor) -> None:
        """Put this worker's part of a step into the row. A parameter without a gradient has none on any worker."""
        given = [(part, parameter.grad) for parameter, part in self._gradients if parameter.grad is not None]
        torch._foreach_copy_([part for part, _ in given], [gradient for _, gradient in given])
        torch.cat([loss, self._told, (skip == 0).float(), slot.skip], out=self._more)
        # The next but one batch may be drawn into the slot before the sum is there.
        self._number.copy_(slot.number)

    def apply(self) -> None:
        """The optimiser's step with the sums; left out unless every worker's part may be used."""
        for parameter, part in self._gradients:
            parameter.grad = part if parameter.grad is not None else None
        make_step(self._session, (self._more[_READY : _READY + 1] != self._world).float())
        self._agreed.index_copy_(0, self._number, self._more.view(1, _MORE))

    def fetch(self, first: int, last: int) -> Tensor:
        """Launch the copy of what was agreed on in some batches to the host."""
        return self._seen[first:last].copy_(self._agreed[first:last], non_blocking=True)


class Snapshot:
    """The weights and the optimiser's state at the start of a burst, which a burst that fails goes back to."""

    def __init__(self, session: Session) -> None:
        states = [value for state in session.optimiser.state.values() for value in state.values()]
        self._live = [parameter.detach() for parameter in session.learned.parameters()]
        self._live += [value for value in states if isinstance(value, Tensor)]
        self._kept = [torch.empty_like(value) for value in self._live]

    def take(self) -> None:
        """Launch a copy of what is."""
        torch._foreach_copy_(self._kept, self._live)

    def put_back(self) -> None:
        """Launch its way back."""
        torch._foreach_copy_(self._live, self._kept)


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
        drawing: LaunchStream,
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
