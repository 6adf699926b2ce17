"""The inputs of captured batches at fixed addresses: an epoch's order, keys, labels; and the losses of its batches."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import START, Planned, Position, Schedule
from penstock.sampling.device.block import Room, largest_room
from penstock.sampling.device.hops import NEVER, DeviceEpoch, Slot, batch_keys, shuffled
from penstock.sampling.device.streams import rest
from penstock.train.device.launches import LaunchStream
from penstock.train.device.placed import Placed
from penstock.train.tasks import Task


class Supply:
    """The current epoch on the device: items in order, random keys, labels, and the losses that steps write."""

    def __init__(self, task: Task, schedule: Schedule, placed: Placed) -> None:
        self._schedule, self.placed = schedule, placed
        device = placed.device
        self.purposes = [*(str(hop) for hop in range(len(placed.fanouts))), "dropout"]
        self.epoch = DeviceEpoch(len(schedule.items), schedule.batch_size, len(self.purposes), device)
        self._names = torch.from_numpy(np.ascontiguousarray(schedule.names, np.int64)).to(device)
        self._items = torch.from_numpy(np.ascontiguousarray(schedule.items, np.int32)).to(device)
        self._of_items = torch.from_numpy(cast(Any, task).labels_of(schedule.items)).to(device)
        self.labels = torch.zeros_like(self._of_items)
        self.weights = 1.0 / self.epoch.counts.float()
        """The weight of each seed of a batch in the batch's mean loss."""
        self.losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        pinned = device.type == "cuda"
        self._seen_losses = torch.zeros(schedule.batches, dtype=torch.float32, pin_memory=pinned)
        self._seen_failure = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)

    def slot(self, room: Room, place: Tensor | None) -> Slot:
        """Allocate the memory for one batch."""
        return self.placed.slot(room, len(self.purposes), place)

    def prepare(self, slot: Slot, number: int) -> None:
        """Called before a batch's draw is launched; nothing to do where the device draws by itself."""

    def close(self) -> None:
        """Release threads, if any; nothing is drawn afterwards."""

    def fill(self, position: Position) -> None:
        """Load an epoch to the device, to be drawn from one of its batches on."""
        epochs = self._schedule.epochs
        if epochs is not None and position.epoch >= epochs:
            return
        order = shuffled(self._names, self._schedule.order_key(position.epoch))
        torch.index_select(self._items, 0, order, out=self.epoch.order)
        torch.index_select(self._of_items, 0, order, out=self.labels)
        keys = batch_keys(self._schedule.seed, position.epoch, self._schedule.batches, self.purposes)
        self.epoch.keys.copy_(torch.from_numpy(keys))
        self.restart(position.batch)

    def restart(self, batch: int) -> None:
        """Set the next batch to be drawn."""
        self.epoch.cursor.fill_(batch)
        self.epoch.failed_at.fill_(NEVER)
        rest(self.placed.device)

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the batches [first, last) up to the first that lacked room, and that batch's number or None."""
        self._seen_losses[first:last].copy_(self.losses[first:last], non_blocking=True)
        self._seen_failure.copy_(self.epoch.failed_at, non_blocking=True)
        LaunchStream.computing(self.placed.device).settle()
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
            if room.holds_sizes(needed):
                return room
            room = room.enlarged(needed, largest)


# One worker's shares of the batches of an epoch, on its device.

Share = Callable[[Planned], Planned]


class ShareOfSchedule:
    """A `BatchPlan`: one worker's shares of the batches of a schedule."""

    def __init__(self, schedule: Schedule, share: Share) -> None:
        self._schedule, self._share, self.batches = schedule, share, schedule.batches
        sizes = {len(schedule.items) % schedule.batch_size, min(len(schedule.items), schedule.batch_size)} - {0}
        first = next(schedule.from_position())
        shares = [len(share(first._replace(seeds=first.seeds[:size])).seeds) for size in sizes]
        self.batch_size = max(1, *shares)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every share from `start` on."""
        return map(self._share, self._schedule.from_position(start))


class _EpochShares(NamedTuple):
    """A worker's shares of an epoch, as positions in the schedule's items; each batch is padded to
    the largest share.
    """

    places: Array
    counts: Array
    wholes: Array


class SharedSupply(Supply):
    """The `Supply` of one worker's shares of the current epoch."""

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
        """Load an epoch's shares from one of its batches on, and start computing the next epoch's in a thread."""
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
        """Stop the thread that computes shares ahead."""
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
        order = schedule.shuffled_from
        endless = Schedule(schedule.items, schedule.batch_size, schedule.seed, shuffled_from=order)
        for number, planned in zip(range(schedule.batches), endless.from_position(Position(epoch, 0)), strict=False):
            seeds = self._share(planned).seeds
            places[number, : len(seeds)] = np.searchsorted(schedule.items, seeds)
            counts[number], wholes[number] = len(seeds), len(planned.seeds)
        return _EpochShares(places.reshape(-1), counts, wholes)
