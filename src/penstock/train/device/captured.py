"""Steps captured once and replayed: a batch is drawn and learned from without a word from the host.

Two slots take turns. While one is learned from on the stream that computes, the next batch is drawn into the other on a
stream of its own. Shapes are fixed by the room (`sampling.device.block.Room`); a batch that lacks room is not learned
from, nor are those behind it, until the host has seen it, made more room and captured anew.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from penstock.nn.device.gather import TableRows
from penstock.nn.drop import dropping
from penstock.pipeline.schedule import Position, Schedule
from penstock.pipeline.stages import Recorder, StageTime
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.hops import NEVER, Slot
from penstock.sampling.device.streams import rest
from penstock.store.device.moments import Moment
from penstock.traced import launches, memory_for
from penstock.train.device.host_drawn import HostDrawnSupply
from penstock.train.device.launches import LaunchStream, Recorded, Stopwatch, warm_up
from penstock.train.device.placed import Placed
from penstock.train.device.supply import Supply
from penstock.train.optimisers import prepare_skipping
from penstock.train.session import Pause, Session, Step
from penstock.train.trace.allocations import BATCHES

_FIRST_BURST = 16
BURST_SECONDS = 1.0
"""Steps done at first before the loop hears of them, and later as many as take about a second."""
_WARM_UPS = 3
"""Steps before the capture: kernels compile, libraries allocate what they keep."""


class CapturedSteps:
    """Does the steps of a session; between two lists of them the device is at rest."""

    slots_in_turn = 2
    """Batches whose memory there is at once."""

    def __init__(
        self,
        session: Session,
        placed: Placed,
        schedule: Schedule,
        start: Position,
        pause: Pause,
        recorder: Recorder,
    ) -> None:
        self._session, self._schedule, self._pause = session, schedule, pause
        self._position, self._placed = start, placed
        device = placed.device
        self._clock = Stopwatch(device, recorder)
        with memory_for(BATCHES):
            self._supply = self._make_supply()
        self._computing, self._drawing = LaunchStream.computing(device), LaunchStream.beside(device)
        self._slots: list[CapturedSlot] = []
        self._drawn = 0
        self._most = _FIRST_BURST

    def _make_supply(self) -> Supply:
        given = self._session.task, self._schedule, self._placed
        if self._placed.topology is not None:
            return Supply(*given)
        return HostDrawnSupply(*given, self._session.job.drawing_threads, self._session.graph.num_nodes)

    def _make_slot(self, place: Tensor | None, pool: Any) -> "CapturedSlot":
        assert self._placed.room is not None
        return CapturedSlot(self._session, self._supply, self._placed.room, place, self._drawing, pool)

    def __enter__(self) -> Self:
        prepare_skipping(self._session.optimiser)
        self.fill(self._position)
        self._capture()
        return self

    def __exit__(self, *_: object) -> None:
        rest(self._placed.device)
        self._supply.close()
        self._slots.clear()
        # Gradients lie in the captured steps' memory.
        self._session.optimiser.zero_grad(set_to_none=True)

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            began, many = time.perf_counter(), min(self._pause(self._position), self._most)
            yield self._burst(many)
            # Whoever asks to stop is heard between two bursts.
            self._most = max(1, int(BURST_SECONDS * many / (time.perf_counter() - began)))

    def fill(self, position: Position) -> None:
        """Make an epoch ready from one of its batches on."""
        with memory_for(BATCHES):
            self._supply.fill(position)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The device is at rest anyway."""
        yield

    def times(self) -> dict[str, StageTime]:
        """Seconds in which the device drew and learned."""
        return self._clock.times()

    def _burst(self, many: int) -> list[Step]:
        epoch, first = self._position
        done: list[Step] = []
        batch = first
        while batch < first + many:
            self._clock.start(self._computing)
            for number in range(batch, first + many):
                self._learn(epoch, number)
            losses, failed = self._look(batch, first + many)
            self._clock.read()
            done += [self._step(epoch, batch + place, loss) for place, loss in enumerate(losses)]
            batch += len(losses)
            if failed is not None:
                self._go_back_to(failed)
        ended = batch == self._schedule.batches
        self._position = Position(epoch + 1, 0) if ended else Position(epoch, batch)
        if ended:
            self.fill(self._position)
            self._drawn = 0
        return done

    def _step(self, epoch: int, batch: int, loss: float) -> Step:
        last = batch == self._schedule.batches - 1
        size = self._schedule.batch_size
        examples = len(self._schedule.items) - batch * size if last else size
        return Step(Position(epoch, batch), examples, loss, last)

    def _learn(self, epoch: int, number: int) -> None:
        """Launch the step of a batch and, beside it, the drawing of the next."""
        self._draw_up_to(epoch, number)
        self._launch_step(epoch, number)
        if number + 1 < self._schedule.batches:
            self._draw_up_to(epoch, number + 1)

    def _launch_step(self, epoch: int, number: int) -> None:
        """Launch the step of a batch that was drawn."""
        slot = self._slot_of(number)
        self._computing.wait(slot.drawn)
        self._clock.around("compute", Position(epoch, number), self._computing, slot.learn.replay)
        slot.free.mark(self._computing)

    def _slot_of(self, number: int) -> "CapturedSlot":
        """The slot of a batch by its number in the epoch."""
        return self._slots[number % len(self._slots)]

    def _look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the batches [first, last) that were learned from, and the first that lacked room."""
        return self._supply.look(first, last)

    def _go_back_to(self, failed: int) -> None:
        """Do the steps from a batch that lacked room on again."""
        self._enlarge(failed)

    def _draw_up_to(self, epoch: int, number: int) -> None:
        while self._drawn <= number:
            slot = self._slot_of(self._drawn)
            with self._drawing.entered():
                self._drawing.wait(slot.free)
                self._supply.prepare(slot.slot, self._drawn)
                self._clock.around("sample", Position(epoch, self._drawn), self._drawing, slot.draw.replay)
                slot.was_drawn(self._drawing)
            self._drawn += 1

    def _capture(self) -> None:
        """Slots for the room there is, and their launches recorded. Nothing is learned by the warm-up."""
        place = self._slots[0].slot.place if self._slots else None
        rest(self._placed.device)
        self._slots.clear()
        batch = self._position.batch
        pool = None
        for _ in range(self.slots_in_turn):
            made = self._make_slot(place, pool)
            place, pool = made.slot.place, made.learn.pool
            self._slots.append(made)
        # A warm-up whose batch lacked room has left vertices behind.
        self._slots[0].slot.place.fill_(NEVER)
        self._supply.restart(batch)
        self._drawn = batch

    def _enlarge(self, failed: int) -> None:
        """More room for a batch, and go on from it."""
        rest(self._placed.device)
        self._placed.room = self._supply.room_of(self._placed.room, failed, self._slots[0].slot.place)
        self._position = Position(self._position.epoch, failed)
        self._capture()


class CapturedSlot:
    """One slot and its two recorded launches."""

    def __init__(
        self,
        session: Session,
        supply: Supply,
        room: Room,
        place: Tensor | None,
        drawing: LaunchStream,
        pool: Any,
    ) -> None:
        self._session, self._supply, placed = session, supply, supply.placed
        assert room.rows[0] == supply.epoch.batch_size
        self._blocks: list[DeviceBlock] = []
        with memory_for(BATCHES):
            self.slot: Slot = supply.slot(room, place)
            self._batch = self._make_batch()
        device = placed.device
        self.drawn, self.free = Moment(device), Moment(device)
        self.free.mark(LaunchStream.computing(device))
        # As if all batches had lacked room: nothing is learned by the warm-up.
        supply.epoch.failed_at.fill_(-1)
        warm_up(self._both, device, _WARM_UPS)
        self.draw = Recorded(self._draw, device, drawing)
        self.learn = Recorded(self._learn, device, pool=pool)

    def _make_batch(self) -> MiniBatch:
        supply, slot = self._supply, self.slot
        size = slot.room.rows[0]
        self._blocks = slot.blocks()
        blocks: list[Block] = [*self._blocks]
        seeds: Any = slot.vertices[:size]
        vertices: Any = slot.vertices
        (name,) = self._session.graph.nodes
        batch = MiniBatch({name: seeds}, {name: vertices}, blocks)
        batch.labels = torch.zeros(
            (size, *supply.labels.shape[1:]), dtype=supply.labels.dtype, device=slot.vertices.device
        )
        share: Any = torch.zeros(size, dtype=torch.float32, device=slot.vertices.device)
        batch.seed_weights = share
        self._make_rows()
        return batch

    def _make_rows(self) -> None:
        """The fixed places in which a batch finds its features."""
        self._rows = self._supply.placed.static_rows(self.slot)

    def _both(self) -> None:
        self._supply.epoch.cursor.zero_()
        self._draw()
        self._learn()

    def _draw(self) -> None:
        supply, slot, batch = self._supply, self.slot, self._batch
        slot.draw(supply.epoch)
        size = slot.room.rows[0]
        width = batch.labels.shape[1] if batch.labels.dim() > 1 else 1
        columns = 1 << (width - 1).bit_length()
        rows = max(1, min(1024, 4096 // columns))
        if launches(batch.labels, batch.labels):
            from penstock.train.device.kernels import take_labels

            take_labels[(-(-size // rows),)](
                supply.labels, slot.number, supply.epoch.counts, supply.weights, size, batch.labels, batch.seed_weights,
                WIDTH=width, COLUMNS=columns, B=rows,
            )  # fmt: skip
        self._read_rows()

    def _read_rows(self) -> None:
        """The last of what a draw launches: the batch's features, where they are not read in their table."""
        if not isinstance(self._rows, TableRows):
            self._supply.placed.table.gather(self.slot.vertices, self._rows, self.slot.known[-1:])

    def _inputs(self) -> Any:
        """What the model reads of a batch's features."""
        return self._rows

    def was_drawn(self, lane: LaunchStream) -> None:
        """Called when a draw was launched on a lane."""
        self.drawn.mark(lane)

    def _learn(self) -> None:
        _, skip = self._gradients()
        make_step(self._session, skip)

    def _gradients(self) -> tuple[Tensor, Tensor | None]:
        """Forward and back; the loss goes to its place among the epoch's. Returns it, and whether to leave the step
        out."""
        session, slot, supply = self._session, self.slot, self._supply
        for block in self._blocks:
            # What layers derive is derived anew in every step; only the draw's part was just made.
            block.derived = kept(block.derived, *slot.kept_lists)
        session.optimiser.zero_grad(set_to_none=True)
        x = self._inputs()
        if session.inputs.scale is not None and isinstance(x, Tensor):
            x = session.inputs.scale(x.clone())
        with dropping(slot.keys[-1:], self._batch.row_names), session.precision():
            loss = session.task.loss(session.model(self._batch.blocks, x), self._batch)
        skip = session.backward(loss, slot.skip)
        value = loss.detach().float().view(1)
        supply.losses.scatter_(0, slot.number.long(), value)
        return value, skip


def make_step(session: Session, skip: Tensor | None) -> None:
    """The optimiser's step with the gradients that the parameters have; left out where `skip` is 1 on the device."""
    if session.job.clip:
        torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip, foreach=True)
    fused: Any = session.optimiser
    fused.found_inf = None if skip is None else skip[0]
    session.optimiser.step()
    fused.found_inf = None


def kept(derived: dict[str, Any], *names: str) -> dict[str, Any]:
    """The entries of a block's derived arrays that a captured step keeps."""
    return {name: made for name, made in derived.items() if name in names}
