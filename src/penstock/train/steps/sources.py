"""Sources of batches of vertices for bursts, at fixed addresses: an epoch's order, keys and labels, and its drawing.

A source combines two parts: the order of an epoch, which is all items or this worker's shares of the batches, and a
drawing, by the device or by host threads (`host_drawn`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.drop import dropping
from penstock.nn.norm import PaddedBatch, normalising
from penstock.pipeline.schedule import START, Planned, Position, Schedule
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.epoch import NEVER, DeviceEpoch, batch_keys, shuffled
from penstock.sampling.device.hops import Tables
from penstock.sampling.device.program import DeviceProgram
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.streams import rest
from penstock.traced import BATCHES, launches, memory_for
from penstock.train.session import Session
from penstock.train.steps.parts import Source, StepGradients
from penstock.train.steps.runner import LaunchStream


class PlacedGraph(Protocol):
    """A placed graph that a source draws from (`device.placed.Placed`)."""

    device: torch.device
    program: DeviceProgram
    totals: bool
    topology: Any
    room: Room | None

    def slot(self, room: Room, keys: int, tables: Tables | None = None) -> Slot:
        """The memory for one batch."""

    def largest_room(self, batch_size: int) -> Room:
        """The room that no batch can exceed."""


@dataclass(eq=False)
class VertexSlot:
    """One batch at fixed addresses: its vertices and lists, and what the model and the loss read."""

    slot: Slot
    blocks: list[DeviceBlock]
    batch: MiniBatch
    listed: list[dict[str, Any]] = field(init=False)
    """Values derived from each block that the draw keeps current."""

    def __post_init__(self) -> None:
        self.listed = [dict(block.derived) for block in self.blocks]


class Order(Protocol):
    """The items of an epoch's batches."""

    items: int
    """Places of an epoch, including those that stay empty."""
    batch_size: int
    """Places of a batch."""

    def bring(self, device: torch.device) -> None:
        """Copy what never changes to a device."""
        return

    def places(self, epoch: int, counts: Tensor, weights: Tensor) -> Tensor:
        """The index in the schedule's items of each place of an epoch; writes each batch's number of seeds to `counts`
        and each seed's weight in the batch's loss to `weights`.
        """

    def close(self) -> None:
        """End what computes epochs ahead."""
        return


class BatchDrawing(Protocol):
    """Draws batches into slots."""

    def slot(self, room: Room, keys: int, tables: Tables | None) -> Slot:
        """The memory for one batch."""

    def start(self, position: Position) -> None:
        """Prepare to draw batches in order from this one on."""
        return

    def prepare(self, slot: Slot, number: int, epoch: DeviceEpoch) -> None:
        """Called before a batch's draw is launched."""
        return

    def enlarged(self, source: "VertexSource", failed: int) -> Room:
        """A room that is large enough for a batch which lacked it."""

    def close(self) -> None:
        """End what draws ahead."""
        return


class VertexSource(Source):
    """Batches of vertices: the data of the current epoch on the device, and the losses of its batches."""

    is_drawn = True

    def __init__(
        self, session: Session, schedule: Schedule, placed: PlacedGraph, drawing: BatchDrawing, order: Order
    ) -> None:
        self._schedule, self.placed, self._drawing, self._order = schedule, placed, drawing, order
        (self._name,) = session.graph.nodes
        self._tables: Tables | None = None
        """The tables that slots share."""
        self._number = 0
        """The number of the current epoch."""
        self._make_room(session, placed.device)

    @memory_for(BATCHES)
    def _make_room(self, session: Session, device: torch.device) -> None:
        schedule, order, placed = self._schedule, self._order, self.placed
        self._purposes = [*placed.program.purposes, "dropout"]
        self.epoch = DeviceEpoch(order.items, order.batch_size, len(self._purposes), device)
        order.bring(device)
        program = placed.program
        items = program.items(schedule.items)
        self._items = torch.from_numpy(np.ascontiguousarray(items, np.int32)).to(device)
        labelled = np.arange(session.graph.num_nodes) if program.finds_seeds else schedule.items
        self._of_items = torch.from_numpy(cast(Any, session.task).labels_of(labelled)).to(device)
        """The labels of all items; of all vertices where a batch finds its seeds."""
        places = 0 if program.finds_seeds else order.items
        self._labels = torch.zeros((places, *self._of_items.shape[1:]), dtype=self._of_items.dtype, device=device)
        weights = program.seed_weights
        self._seed_weights = None if weights is None else torch.from_numpy(weights).to(device)
        self._found = torch.zeros(schedule.batches, dtype=torch.int32, device=device)
        """The seeds that each batch has found."""
        self._seen_found: dict[int, int] = {}
        self._weights = 1.0 / self.epoch.counts.float()
        """Each seed's weight in the loss of its batch."""
        self._losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        pinned = device.type == "cuda"
        self._seen_losses = torch.zeros(schedule.batches, dtype=torch.float32, pin_memory=pinned)
        self._seen_failure = torch.zeros(1, dtype=torch.int32, pin_memory=pinned)

    @memory_for(BATCHES)
    def fill(self, position: Position) -> None:
        epochs = self._schedule.epochs
        if epochs is not None and position.epoch >= epochs:
            return
        self._number = position.epoch
        places = self._order.places(position.epoch, self.epoch.counts, self._weights)
        # Under a trace, index_select would import sympy, which takes a second.
        if launches(self.epoch.order, self._labels):
            torch.index_select(self._items, 0, places, out=self.epoch.order)
            if not self.placed.program.finds_seeds:
                torch.index_select(self._of_items, 0, places, out=self._labels)
        keys = batch_keys(self._schedule.seed, position.epoch, self._schedule.batches, self._purposes)
        self.epoch.keys.copy_(torch.from_numpy(keys))
        self.rewind(position.batch)

    @memory_for(BATCHES)
    def slot(self, number: int) -> VertexSlot:
        room = self.placed.room
        assert room is not None and room.rows[0] == self.epoch.batch_size
        slot = self.empty_slot(room)
        self._tables, device = slot.tables, slot.vertices.device
        size, held = self.placed.program.seeds_room(room), slot.blocks()
        blocks: list[Block] = [*held]
        seeds: Any = slot.vertices[:size]
        vertices: Any = slot.vertices
        batch = MiniBatch({self._name: seeds}, {self._name: vertices}, blocks)
        batch.labels = torch.zeros((size, *self._labels.shape[1:]), dtype=self._labels.dtype, device=device)
        share: Any = torch.zeros(size, dtype=torch.float32, device=device)
        batch.seed_weights = share
        return VertexSlot(slot, held, batch)

    def empty_slot(self, room: Room) -> Slot:
        """Memory for one drawn batch, sized by a room."""
        return self._drawing.slot(room, len(self._purposes), self._tables)

    def idle(self) -> None:
        """Mark all batches as lacking room, so that their steps are skipped."""
        self.epoch.failed_at.fill_(-1)

    def first(self) -> None:
        self.epoch.cursor.zero_()

    def prepare(self, slot: VertexSlot, number: int) -> None:
        self._drawing.prepare(slot.slot, number, self.epoch)

    def draw(self, slot: VertexSlot) -> None:
        """Launch the draw of the batch, its labels, and its seeds' weights."""
        slot.slot.draw(self.epoch)
        size, batch = self.placed.program.seeds_room(slot.slot.room), slot.batch
        width = batch.labels.shape[1] if batch.labels.dim() > 1 else 1
        columns = 1 << (width - 1).bit_length()
        rows = max(1, min(1024, 4096 // columns))
        if not launches(batch.labels, batch.labels):
            return
        if self.placed.program.finds_seeds:
            from penstock.sampling.device.subgraph_kernels import take_found_labels

            take_found_labels[(-(-size // rows),)](
                self._of_items, slot.slot.vertices, slot.slot.needed[1:], self._seed_weights, size, batch.labels,
                batch.seed_weights, WEIGHTED=self._seed_weights is not None, WIDTH=width, COLUMNS=columns, B=rows,
            )  # fmt: skip
        else:
            from penstock.store.device.kernels import take_labels

            take_labels[(-(-size // rows),)](
                self._labels, slot.slot.number, self.epoch.counts, self._weights, size, batch.labels,
                batch.seed_weights, WIDTH=width, COLUMNS=columns, B=rows,
            )  # fmt: skip

    def keep(self, slot: VertexSlot, loss: Tensor) -> None:
        self._losses.scatter_(0, slot.slot.number.long(), loss)
        if self.placed.program.finds_seeds:
            self._found.scatter_(0, slot.slot.number.long(), slot.slot.needed[1:2])

    def restart(self, batch: int) -> None:
        """Draw from this batch on, and clear the vertices that a batch without room has left in the table."""
        if self._tables is not None:
            self._tables["place"].fill_(NEVER)
        self.rewind(batch)

    def rewind(self, batch: int) -> None:
        """Make this batch the next that is drawn."""
        self.epoch.cursor.fill_(batch)
        self.epoch.failed_at.fill_(NEVER)
        rest(self.placed.device)
        self._drawing.start(Position(self._number, batch))

    def look(self, first: int, last: int) -> tuple[list[float], int | None]:
        self._seen_losses[first:last].copy_(self._losses[first:last], non_blocking=True)
        self._seen_failure.copy_(self.epoch.failed_at, non_blocking=True)
        LaunchStream.computing(self.placed.device).settle()
        failed = int(self._seen_failure)
        if self.placed.program.finds_seeds:
            self._seen_found = dict(zip(range(first, last), self._found[first:last].tolist(), strict=True))
        losses: list[float] = self._seen_losses[first : min(last, failed)].tolist()
        return losses, failed if failed < last else None

    def examples(self, batch: int) -> int | None:
        return self._seen_found.get(batch)

    def lacks_room(self, batch: int) -> bool:
        return int(self.epoch.failed_at) == batch

    def enlarge(self, failed: int) -> None:
        self.placed.room = self._drawing.enlarged(self, failed)

    def close(self) -> None:
        self._drawing.close()
        self._order.close()


class VertexCompute:
    """Computes the model's outputs for a batch's seeds, the task's loss, and the gradients."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def gradients(self, slot: VertexSlot, inputs: Any) -> StepGradients:
        session, drawn, batch = self._session, slot.slot, slot.batch
        for block, listed in zip(slot.blocks, slot.listed, strict=True):
            # Discards what layers derived from the slot's last batch.
            block.derived = dict(listed)
        session.optimiser.zero_grad(set_to_none=True)
        x = inputs
        if session.inputs.scale is not None and isinstance(x, Tensor):
            x = session.inputs.scale(x.clone())
        with dropping(drawn.keys[-1:], batch.row_names), normalising(_real_rows(drawn)), session.precision():
            loss = session.task.loss(session.model(batch.blocks, x), batch)
        skip = session.backward(loss, drawn.skip)
        return StepGradients(loss.detach().float().view(1), skip)


def _real_rows(slot: Slot) -> PaddedBatch:
    """The rows of a batch in each layer, the outermost first, among those that the slot has room for."""
    return PaddedBatch([slot.known[hop : hop + 1] for hop in reversed(range(len(slot.known) - 1))], slot.skip)


class DeviceDrawing(BatchDrawing):
    """A `BatchDrawing` by the device, without the host."""

    def __init__(self, schedule: Schedule, placed: PlacedGraph) -> None:
        self._schedule, self._placed = schedule, placed

    def slot(self, room: Room, keys: int, tables: Tables | None) -> Slot:
        return self._placed.slot(room, keys, tables)

    def enlarged(self, source: VertexSource, failed: int) -> Room:
        """The room that drawing the batch on its own shows to be needed."""
        placed, room = self._placed, self._placed.room
        assert room is not None
        largest = placed.largest_room(self._schedule.batch_size)
        while True:
            source.restart(failed)
            slot = source.empty_slot(room)
            slot.draw(source.epoch)
            needed: list[int] = slot.needed.tolist()
            if room.holds_sizes(needed):
                return room
            room = room.enlarged(needed, largest)


class WholeOrder(Order):
    """All items of a schedule, shuffled."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self.items, self.batch_size = schedule, len(schedule.items), schedule.batch_size

    def bring(self, device: torch.device) -> None:
        self._names = torch.from_numpy(np.ascontiguousarray(self._schedule.names, np.int64)).to(device)

    def places(self, epoch: int, counts: Tensor, weights: Tensor) -> Tensor:
        return shuffled(self._names, self._schedule.order_key(epoch))


# One worker's shares of the batches of an epoch, on its device.

Share = Callable[[Planned], Planned]


class ShareOfSchedule:
    """One worker's shares of the batches of a schedule."""

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
    """A worker's shares of an epoch: for each batch as many places in the schedule's items as the largest share has."""

    places: Array
    counts: Array
    wholes: Array


class ShareOrder(Order):
    """One worker's shares of the batches of an epoch; a thread computes the next epoch's ahead."""

    def __init__(self, schedule: Schedule, share: Share) -> None:
        self._schedule, self._share = schedule, share
        self.batch_size = ShareOfSchedule(schedule, share).batch_size
        self.items = schedule.batches * self.batch_size
        self._ahead = ThreadPoolExecutor(1, "epoch-shares")
        self._next: tuple[int, Future[_EpochShares]] | None = None

    def places(self, epoch: int, counts: Tensor, weights: Tensor) -> Tensor:
        shares = self._shares(epoch)
        counts.copy_(torch.from_numpy(shares.counts))
        weights.copy_(1.0 / torch.from_numpy(shares.wholes).to(weights.device))
        return torch.from_numpy(shares.places).to(counts.device)

    def close(self) -> None:
        """End the thread that computes shares ahead."""
        self._ahead.shutdown(cancel_futures=True)

    def _shares(self, epoch: int) -> _EpochShares:
        known = self._next if self._next is not None and self._next[0] == epoch else None
        shares = self._computed(epoch) if known is None else known[1].result()
        self._next = epoch + 1, self._ahead.submit(self._computed, epoch + 1)
        return shares

    def _computed(self, epoch: int) -> _EpochShares:
        schedule, width = self._schedule, self.batch_size
        places = np.zeros((schedule.batches, width), np.int64)
        counts, wholes = np.zeros(schedule.batches, np.int32), np.ones(schedule.batches, np.float32)
        order = schedule.shuffled_from
        endless = Schedule(schedule.items, schedule.batch_size, schedule.seed, shuffled_from=order)
        for number, planned in zip(range(schedule.batches), endless.from_position(Position(epoch, 0)), strict=False):
            seeds = self._share(planned).seeds
            places[number, : len(seeds)] = np.searchsorted(schedule.items, seeds)
            counts[number], wholes[number] = len(seeds), len(planned.seeds)
        return _EpochShares(places.reshape(-1), counts, wholes)
