"""Batches that host threads draw ahead for captured steps: packed into page-locked memory, and copied to slots.

Shapes are bounded by the room, as those of batches that the device draws. A batch that lacks room is not copied: its
step and the following ones are skipped until the room is enlarged.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned, Position, Schedule
from penstock.pipeline.stages import Batch
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import Tables
from penstock.sampling.device.program import DeviceProgram
from penstock.sampling.device.slot import Slot
from penstock.store.device.copies import page_locked
from penstock.traced import is_traced
from penstock.train.first_layer.slots import HOST_FILLED, fits
from penstock.train.session import Session
from penstock.train.steps.sources import PlacedGraph, VertexSource


class DrawnLists:
    """One batch's neighbour lists in page-locked memory, in the layout of its slot; hop 0 is that of the seeds."""

    def __init__(self, room: Room, totals: bool, device: torch.device) -> None:
        self._room, hops = room, len(room.edges)

        def locked(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return page_locked((size,), dtype, device)

        self.sizes, self.counts, self.vertices = locked(2 * hops), locked(hops + 1), locked(room.rows[-1])
        self.indptrs = [locked(rows + 1) for rows in room.rows[:-1]]
        self.indices = [locked(edges) for edges in room.edges]
        self.totals = locked(room.rows[-1], torch.float32) if totals else None
        self.fits = False

    def take(self, batch: Batch) -> "DrawnLists":
        """Copy a batch's lists into this memory; keep only their sizes where they do not fit."""
        blocks: list[Any] = batch.blocks[::-1]
        sizes = _sizes(batch)
        self.sizes.numpy()[:] = sizes
        self.counts.numpy()[:] = [blocks[0].num_dst, *sizes[1::2]]
        self.fits = fits(sizes, self._room)
        if not self.fits:
            return self
        (vertices,) = batch.vertices.values()
        _put(self.vertices, vertices, 0)
        for hop, block in enumerate(blocks):
            _put(self.indptrs[hop], block.indptr, block.num_edges)
            _put(self.indices[hop], block.indices)
        if self.totals is not None:
            _put(self.totals, blocks[-1].totals, 0)
        return self

    def of_first_layer(self) -> dict[str, Tensor]:
        """The lists of the first layer, by which the host fills the slot's inputs."""
        found = {"sizes": self.sizes, "counts": self.counts, "vertices": self.vertices}
        found |= {"indptr": self.indptrs[-1], "indices": self.indices[-1]}
        return found if self.totals is None else {**found, "totals": self.totals}


def _sizes(batch: Batch) -> list[int]:
    """The sizes that a batch needs, in the order of `Room.sizes`."""
    blocks: list[Any] = batch.blocks[::-1]
    return [size for block in blocks for size in (block.num_edges, block.num_src)]


def _put(room: Tensor, values: Any, behind: int | None = None) -> None:
    """Write values to the beginning of a buffer, and the number `behind`, where given, to all of its rest."""
    array: Array = room.numpy()
    array[: len(values)] = values
    if behind is not None:
        array[len(values) :] = behind


class HostSlot(Slot):
    """The `Slot` of a batch that the host draws: lists are copied into it, and it has none of the memory for drawing on
    the device.
    """

    is_drawn_by_host = True

    def __init__(
        self, program: DeviceProgram, room: Room, device: torch.device, keys: int, totals: bool, first_layer: bool
    ) -> None:
        """`first_layer`: whether the device needs the lists of the last hop."""
        self.program, self._rules, self.room, self._first_layer = program, program.rules, room, first_layer
        self.numbers_last = True

        def empty(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(max(1, size), dtype=dtype, device=device)

        hops = len(self._rules)
        self.tables = {"place": empty(1)}
        self.vertices, self.known = empty(room.rows[-1]), empty(hops + 1)
        self.keys, self.number = empty(keys, torch.int64), empty(1)
        # A warm-up step must be skipped, so that it does not update the model.
        self.needed, self.skip = empty(2 * hops), torch.ones(1, dtype=torch.float32, device=device)
        self._indptrs = [empty(rows + 1) for rows in room.rows[:-1]]
        self._indices = [empty(size) for size in room.edges]
        self.totals = empty(room.rows[-1], torch.float32) if totals else None
        self._drawn: DrawnLists | None = None

    def draw(self, epoch: DeviceEpoch) -> None:
        """Do nothing: the host has drawn the batch already."""

    def blocks(self) -> list[DeviceBlock]:
        rows: Any = self.room.rows
        found = []
        for hop in reversed(range(len(self._rules))):
            indptr: Any = self._indptrs[hop]
            indices: Any = self._indices[hop]
            totals: Any = None if self.totals is None else self.totals[: rows[hop + 1]]
            longest = self._rules[hop].longest
            derived: dict[str, Any] = {} if longest is None else {"longest": longest}
            found.append(DeviceBlock(indptr, indices, rows[hop + 1], None, totals, derived=derived))
        return found

    def on_host(self) -> dict[str, Tensor]:
        assert self._drawn is not None
        return self._drawn.of_first_layer()

    def put(self, drawn: DrawnLists, number: int, keys: Tensor, skipped: bool) -> "DrawnLists | None":
        """Copy a batch's lists here on the current stream; returns the memory of the previous
        batch, which is free now.
        """
        before, self._drawn = self._drawn, drawn
        self.number.fill_(number)
        self.keys.copy_(keys)
        self.skip.fill_(float(skipped))
        if not skipped:
            hops = len(self._rules)
            pairs = [(self.known, drawn.counts), (self.vertices, drawn.vertices)]
            for hop in range(hops if self._first_layer else hops - 1):
                pairs += [(self._indptrs[hop], drawn.indptrs[hop]), (self._indices[hop], drawn.indices[hop])]
            if self.totals is not None and drawn.totals is not None:
                pairs.append((self.totals, drawn.totals))
            for here, there in pairs:
                here.copy_(there, non_blocking=True)
        return before


class HostDraws:
    """Batches drawn by threads of the host, in the order of a schedule."""

    def __init__(self, sample: Callable[[Planned], Batch], threads: int, make: Callable[[], DrawnLists]) -> None:
        self._sample, self._ahead = sample, threads + 1
        self._pool = ThreadPoolExecutor(threads, "host-draws")
        self._free: SimpleQueue[DrawnLists] = SimpleQueue()
        for _ in range(self._ahead + HOST_FILLED):
            self._free.put(make())
        self._pending: deque[Future[DrawnLists]] = deque()
        self._planned: Any = iter(())

    def start(self, planned: Any) -> None:
        """Start drawing these batches; those of an earlier call that were not taken are discarded."""
        self._drop()
        self._planned = planned
        self._draw_ahead()

    def take(self) -> DrawnLists:
        """The next batch in the schedule's order; waits until it is drawn."""
        self._draw_ahead()
        found = self._pending.popleft().result()
        self._draw_ahead()
        return found

    def give_back(self, drawn: DrawnLists | None) -> None:
        """Return the memory of a batch, which may then hold another one."""
        if drawn is not None:
            self._free.put(drawn)

    def close(self) -> None:
        """Stop the drawing threads and wait for them."""
        self._drop()
        self._pool.shutdown()

    def _draw_ahead(self) -> None:
        while len(self._pending) < self._ahead:
            planned = next(self._planned, None)
            if planned is None:
                return
            self._pending.append(self._pool.submit(self._drawn, planned))

    def _drawn(self, planned: Planned) -> DrawnLists:
        batch = self._sample(planned)
        return self._free.get().take(batch)

    def _drop(self) -> None:
        while self._pending:
            each = self._pending.popleft()
            if not each.cancel():
                self._free.put(each.result())


class HostDrawing:
    """A `BatchDrawing` by host threads; the recorded draw only copies labels."""

    def __init__(self, session: Session, schedule: Schedule, placed: PlacedGraph, needs_lists: bool) -> None:
        """`needs_lists` says whether the device reads the lists of the last hop."""
        self._schedule, self._placed, self._needs_lists = schedule, placed, needs_lists
        self._sample, self._threads = session.task.sample, session.job.drawing_threads
        self._epoch = 0
        self._draws: HostDraws | None = None
        self._drawn_room: Room | None = None
        self._failed = False

    def slot(self, room: Room, keys: int, tables: Tables | None) -> Slot:
        placed = self._placed
        return HostSlot(placed.program, room, placed.device, keys, placed.totals, self._needs_lists)

    def start(self, position: Position) -> None:
        self._epoch, self._failed, room = position.epoch, False, self._placed.room
        if is_traced() or room is None:
            return
        if room != self._drawn_room:
            self.close()
            device, totals = self._placed.device, self._placed.totals
            self._draws = HostDraws(self._sample, self._threads, lambda: DrawnLists(room, totals, device))
            self._drawn_room = room
        assert self._draws is not None
        self._draws.start(self._from(position.batch))

    def prepare(self, slot: Slot, number: int, epoch: DeviceEpoch) -> None:
        """Copy the next batch to the slot."""
        assert isinstance(slot, HostSlot) and self._draws is not None
        drawn = self._draws.take()
        if not drawn.fits and not self._failed:
            self._failed = True
            epoch.failed_at.fill_(number)
        self._draws.give_back(slot.put(drawn, number, epoch.keys[number], self._failed))

    def enlarged(self, source: VertexSource, failed: int) -> Room:
        room = self._placed.room
        assert room is not None
        needed = _sizes(self._sample(next(self._from(failed))))
        return room.enlarged(needed, self._placed.largest_room(self._schedule.batch_size))

    def close(self) -> None:
        if self._draws is not None:
            self._draws.close()
        self._draws = self._drawn_room = None

    def _from(self, batch: int) -> Any:
        """The epoch's planned batches from number `batch` on."""
        epoch = self._epoch
        for planned in self._schedule.from_position(Position(epoch, batch)):
            if planned.position.epoch != epoch:
                return
            yield planned
