"""What captured batches are made from, at fixed places: an epoch's order, keys, labels; and the losses they give."""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from penstock.pipeline.schedule import Position, Schedule
from penstock.sampling.device.hops import NEVER, DeviceEpoch, Slot
from penstock.sampling.device.order import batch_keys, shuffled
from penstock.sampling.device.room import Room, largest_room
from penstock.sampling.device.streams import rest
from penstock.train.device.launches import Lane
from penstock.train.device.placed import Placed
from penstock.train.tasks import Task


class Supply:
    """The epoch under way, on the device."""

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
        """What each seed of a batch counts in the batch's loss."""
        self.losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        pinned = device.type == "cuda"
        self._seen_losses = torch.zeros(schedule.batches, dtype=torch.float32, pin_memory=pinned)
        self._seen_failure = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)

    def slot(self, room: Room, place: Tensor | None) -> Slot:
        """The memory for one batch."""
        return self.placed.slot(room, len(self.purposes), place)

    def prepare(self, slot: Slot, number: int) -> None:
        """Called before a batch's draw is launched: the device draws without the host."""

    def close(self) -> None:
        """Nothing is drawn any more."""

    def fill(self, position: Position) -> None:
        """Make an epoch ready from one of its batches on."""
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
        """The next batch drawn is this one."""
        self.epoch.cursor.fill_(batch)
        self.epoch.failed_at.fill_(NEVER)
        rest(self.placed.device)

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        """Losses of the batches [first, last) that were learned from, and the first that lacked room."""
        self._seen_losses[first:last].copy_(self.losses[first:last], non_blocking=True)
        self._seen_failure.copy_(self.epoch.failed_at, non_blocking=True)
        Lane.computing(self.placed.device).settle()
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
