"""Steps captured once and replayed: a batch is drawn and learned from without a word from the host.

Two slots take turns. While one is learned from on the stream that computes, the next batch is drawn into the other on a
stream of its own. Shapes are fixed by the room (`sampling.device.room`); a batch that lacks room is not learned from,
nor are those behind it, until the host has seen it, made more room and captured anew.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.hashing import key_of
from penstock.nn.device.rows import TableRows
from penstock.nn.drop import dropping
from penstock.pipeline.clock import Recorder, StageTime
from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import DeviceBlock
from penstock.sampling.device.hops import NEVER, Epoch, Slot
from penstock.sampling.device.order import batch_keys, shuffled
from penstock.sampling.device.room import Room, largest_room
from penstock.train.device.kernels import take_labels
from penstock.train.device.placed import Placed
from penstock.train.optimisers import prepare_skipping
from penstock.train.session import Session
from penstock.train.steps import Step

_FIRST_BURST = 16
_BURST_SECONDS = 1.0
"""Steps done at first before the loop hears of them, and later as many as take about a second."""
_WARM_UPS = 3
"""Steps before the capture: kernels compile, libraries allocate what they keep."""


class CapturedSteps:
    """Does the steps of a session; between two lists of them the device is at rest."""

    def __init__(
        self,
        session: Session,
        schedule: Schedule,
        start: Position,
        pause: Callable[[Position], int],
        recorder: Recorder,
    ) -> None:
        assert session.device is not None and session.device.room is not None
        self._session, self._schedule, self._pause = session, schedule, pause
        self._position, self._placed = start, session.device
        self._clock = _Clock(recorder)
        self._supply = _Supply(session, schedule, self._placed)
        self._drawing = _stream(self._placed.device)
        self._slots: list[_Captured] = []
        self._drawn = 0
        self._most = _FIRST_BURST

    def __enter__(self) -> Self:
        prepare_skipping(self._session.optimiser)
        self._supply.fill(self._position)
        self._capture()
        return self

    def __exit__(self, *_: object) -> None:
        torch.cuda.synchronize(self._placed.device)
        self._slots.clear()
        # Gradients lie in the captured steps' memory.
        self._session.optimiser.zero_grad(set_to_none=True)

    def __iter__(self) -> Iterator[list[Step]]:
        epochs = self._schedule.epochs
        while epochs is None or self._position.epoch < epochs:
            began, many = time.perf_counter(), min(self._pause(self._position), self._most)
            yield self._burst(many)
            # Whoever asks to stop is heard between two bursts.
            self._most = max(1, int(_BURST_SECONDS * many / (time.perf_counter() - began)))

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
            begun = self._clock.start(torch.cuda.current_stream(self._placed.device))
            for number in range(batch, first + many):
                self._learn(number)
            losses, failed = self._supply.look(batch, first + many)
            self._clock.read(begun, epoch)
            done += [self._step(epoch, batch + place, loss) for place, loss in enumerate(losses)]
            batch += len(losses)
            if failed is not None:
                self._enlarge(failed)
        ended = batch == self._schedule.batches
        self._position = Position(epoch + 1, 0) if ended else Position(epoch, batch)
        if ended:
            self._supply.fill(self._position)
            self._drawn = 0
        return done

    def _step(self, epoch: int, batch: int, loss: float) -> Step:
        last = batch == self._schedule.batches - 1
        size = self._schedule.batch_size
        examples = len(self._schedule.items) - batch * size if last else size
        return Step(Position(epoch, batch), examples, loss, last)

    def _learn(self, number: int) -> None:
        """Launch the step of a batch and, beside it, the drawing of the next."""
        self._draw_up_to(number)
        slot, computing = self._slots[number % 2], torch.cuda.current_stream(self._placed.device)
        computing.wait_event(slot.drawn)
        self._clock.around("compute", number, computing, slot.learn.replay)
        slot.free.record(computing)
        if number + 1 < self._schedule.batches:
            self._draw_up_to(number + 1)

    def _draw_up_to(self, number: int) -> None:
        while self._drawn <= number:
            slot = self._slots[self._drawn % 2]
            with torch.cuda.stream(self._drawing):
                self._drawing.wait_event(slot.free)
                self._clock.around("sample", self._drawn, self._drawing, slot.draw.replay)
                slot.drawn.record(self._drawing)
            self._drawn += 1

    def _capture(self) -> None:
        """Slots for the room there is, and their launches recorded. Nothing is learned by the warm-up."""
        place = self._slots[0].slot.place if self._slots else None
        self._slots.clear()
        torch.cuda.synchronize(self._placed.device)
        assert self._placed.room is not None
        batch = self._position.batch
        pool = None
        for _ in range(2):
            made = _Captured(self._session, self._supply, self._placed.room, place, self._drawing, pool)
            place, pool = made.slot.place, made.learn.pool()
            self._slots.append(made)
        # A warm-up whose batch lacked room has left vertices behind.
        self._slots[0].slot.place.fill_(NEVER)
        self._supply.restart(batch)
        self._drawn = batch

    def _enlarge(self, failed: int) -> None:
        """More room for a batch, and go on from it."""
        torch.cuda.synchronize(self._placed.device)
        self._placed.room = self._supply.room_of(self._placed.room, failed, self._slots[0].slot.place)
        self._position = Position(self._position.epoch, failed)
        self._capture()


class _Supply:
    """What batches are made from: the epoch's order, keys and labels, at fixed places; and the losses that come out."""

    def __init__(self, session: Session, schedule: Schedule, placed: Placed) -> None:
        self.session, self._schedule, self.placed = session, schedule, placed
        device, task = placed.device, cast(Any, session.task)
        self.purposes = [*(str(hop) for hop in range(len(placed.fanouts))), "dropout"]
        self.epoch = Epoch(len(schedule.items), schedule.batch_size, len(self.purposes), device)
        names = np.ascontiguousarray(schedule.names, np.int64)
        self._names = torch.from_numpy(names).to(device)
        self._items = torch.from_numpy(np.ascontiguousarray(schedule.items, np.int32)).to(device)
        self._of_items = torch.from_numpy(task.labels_of(schedule.items)).to(device)
        self.labels = torch.zeros_like(self._of_items)
        self.losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self._seen_losses = torch.zeros(schedule.batches, dtype=torch.float32, pin_memory=True)
        self._seen_failure = torch.zeros(1, dtype=torch.int32, pin_memory=True)

    def fill(self, position: Position) -> None:
        """Make an epoch ready from one of its batches on."""
        epochs = self._schedule.epochs
        if epochs is not None and position.epoch >= epochs:
            return
        seed = self._schedule.seed
        order = shuffled(self._names, key_of(seed, f"{position.epoch}/order"))
        torch.index_select(self._items, 0, order, out=self.epoch.order)
        torch.index_select(self._of_items, 0, order, out=self.labels)
        keys = batch_keys(seed, position.epoch, self._schedule.batches, self.purposes)
        self.epoch.keys.copy_(torch.from_numpy(keys))
        self.restart(position.batch)

    def restart(self, batch: int) -> None:
        """The next batch drawn is this one."""
        self.epoch.cursor.fill_(batch)
        self.epoch.failed_at.fill_(NEVER)
        torch.cuda.synchronize(self.placed.device)

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the batches [first, last) that were learned from, and the first that lacked room."""
        self._seen_losses[first:last].copy_(self.losses[first:last], non_blocking=True)
        self._seen_failure.copy_(self.epoch.failed_at, non_blocking=True)
        torch.cuda.current_stream(self.placed.device).synchronize()
        failed = int(self._seen_failure)
        losses: list[float] = self._seen_losses[first : min(last, failed)].tolist()
        return losses, failed if failed < last else None

    def room_of(self, room: Room | None, batch: int, place: Tensor) -> Room:
        """Room that holds a batch, found by drawing it."""
        assert room is not None
        placed = self.placed
        largest = largest_room(self._schedule.batch_size, placed.fanouts, placed.topology.count)
        while True:
            slot = placed.slot(room, len(self.purposes), place.fill_(NEVER))
            self.restart(batch)
            slot.draw(self.epoch)
            needed: list[int] = slot.needed.tolist()
            if all(need <= held for need, held in zip(needed, room.sizes, strict=True)):
                return room
            room = room.enlarged(needed, largest)


class _Captured:
    """One slot and its two recorded launches."""

    def __init__(
        self,
        session: Session,
        supply: _Supply,
        room: Room,
        place: Tensor | None,
        drawing: torch.cuda.Stream,
        pool: Any,
    ) -> None:
        self._session, self._supply, placed = session, supply, supply.placed
        self._blocks: list[DeviceBlock] = []
        self.slot: Slot = placed.slot(room, len(supply.purposes), place)
        self._batch = self._make_batch()
        self.drawn, self.free = _event(), _event()
        self.free.record()
        supply.epoch.failed_at.fill_(-1)
        self._warm_up()
        self.draw, self.learn = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.draw, stream=drawing):
            self._draw()
        with torch.cuda.graph(self.learn, pool=pool):
            self._learn()

    def _make_batch(self) -> MiniBatch:
        supply, slot = self._supply, self.slot
        size = slot.room.rows[0]
        self._blocks = slot.blocks()
        blocks: list[Block] = [*self._blocks]
        seeds: Any = slot.vertices[:size]
        vertices: Any = slot.vertices
        batch = MiniBatch(seeds, vertices, blocks)
        batch.labels = torch.zeros(
            (size, *supply.labels.shape[1:]), dtype=supply.labels.dtype, device=slot.vertices.device
        )
        share: Any = torch.zeros(size, dtype=torch.float32, device=slot.vertices.device)
        batch.seed_weights = share
        self._rows = supply.placed.static_rows(slot)
        return batch

    def _warm_up(self) -> None:
        side = _stream(self.slot.vertices.device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                self._supply.epoch.cursor.zero_()
                self._draw()
                self._learn()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()

    def _draw(self) -> None:
        supply, slot, batch = self._supply, self.slot, self._batch
        slot.draw(supply.epoch)
        size = slot.room.rows[0]
        width = batch.labels.shape[1] if batch.labels.dim() > 1 else 1
        columns = 1 << (width - 1).bit_length()
        rows = max(1, min(1024, 4096 // columns))
        take_labels[(-(-size // rows),)](
            supply.labels, slot.number, supply.epoch.items, size, batch.labels, batch.seed_weights,
            WIDTH=width, COLUMNS=columns, B=rows,
        )  # fmt: skip
        if not isinstance(self._rows, TableRows):
            supply.placed.table.gather(slot.vertices, self._rows, slot.known[-1:])

    def _learn(self) -> None:
        session, slot, supply = self._session, self.slot, self._supply
        optimiser: Any = session.optimiser
        for block in self._blocks:
            # What layers derive is derived anew in every step; only the draw's part was just made.
            block.derived = kept(block.derived, "longest", "sources", "source_chunks")
        optimiser.zero_grad(set_to_none=True)
        x = self._rows
        if session.inputs.scale is not None and isinstance(x, Tensor):
            x = session.inputs.scale(x.clone())
        with dropping(slot.keys[-1:]), session.precision():
            loss = session.task.loss(session.model(self._batch.blocks, x), self._batch)
        skip = session.backward(loss, slot.skip)
        if session.job.clip:
            torch.nn.utils.clip_grad_norm_(session.learned.parameters(), session.job.clip, foreach=True)
        optimiser.found_inf = None if skip is None else skip[0]
        optimiser.step()
        optimiser.found_inf = None
        supply.losses.scatter_(0, slot.number.long(), loss.detach().float().view(1))


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event(timed: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]


def kept(derived: dict[str, Any], *names: str) -> dict[str, Any]:
    """Of what was derived from a block, some."""
    return {name: made for name, made in derived.items() if name in names}


class _Clock:
    """When the device drew and learned, read from its own events when it is at rest."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._pending: list[tuple[str, int, torch.cuda.Event, torch.cuda.Event]] = []
        self._busy = {"sample": 0.0, "compute": 0.0}
        self._wait = {"sample": 0.0, "compute": 0.0}
        self._zero = _event(True)

    def start(self, stream: torch.cuda.Stream) -> float:
        """A burst begins; at this moment, which the device notes too."""
        self._zero = _event(True)
        self._zero.record(stream)
        return time.perf_counter()

    def around(self, stage: str, number: int, stream: torch.cuda.Stream, launch: Callable[[], None]) -> None:
        """Launch between two events."""
        before, after = _event(True), _event(True)
        before.record(stream)
        launch()
        after.record(stream)
        self._pending.append((stage, number, before, after))

    def read(self, begun: float, epoch: int) -> None:
        """Add up what has ended of a burst that began at `begun`."""
        spent = time.perf_counter() - begun
        busy = dict.fromkeys(self._busy, 0.0)
        rest = []
        for stage, number, before, after in self._pending:
            if not cast(Any, after).query():
                rest.append((stage, number, before, after))
                continue
            start, end = self._zero.elapsed_time(before) / 1e3, self._zero.elapsed_time(after) / 1e3
            busy[stage] += end - start
            self._recorder(stage, 0, begun + start, begun + end, Step(Position(epoch, number), 0, 0.0, False))
        self._pending = rest
        for stage, seconds in busy.items():
            self._busy[stage] += seconds
            self._wait[stage] += max(0.0, spent - seconds)

    def times(self) -> dict[str, StageTime]:
        """Seconds so far."""
        return {stage: StageTime(self._busy[stage], self._wait[stage], 1, 1) for stage in self._busy}
