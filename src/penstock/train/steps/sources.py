"""Sources of batches of vertices or edges for bursts, at fixed addresses: an epoch's order, keys, labels, its drawing.

A source combines two parts: the order of an epoch, which is all items or this worker's shares of the batches, and a
drawing, by the device or by host threads (`host_drawn`).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.drop import dropping
from penstock.nn.norm import PaddedBatch, has_batch_norm, normalising
from penstock.pipeline.schedule import START, Planned, Position, Schedule
from penstock.sampling import BatchKey
from penstock.sampling.block import Block, MiniBatch, Purpose
from penstock.sampling.device.block import PADDED, PADDING, DeviceBlock, DrawnRows, Room
from penstock.sampling.device.epoch import NEVER, DeviceEpoch, batch_keys, shuffled
from penstock.sampling.device.hops import Tables
from penstock.sampling.device.links import EdgeSeeds
from penstock.sampling.device.program import DeviceProgram
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.streams import rest
from penstock.sampling.device.typed import TypedSlot
from penstock.sampling.links.batcher import WholeEdgeBatch
from penstock.store.device.copies import zeros_for_copies
from penstock.store.device.embedding import DeviceEmbeddingTable
from penstock.traced import BATCHES, launches, memory_for
from penstock.train.session import Session
from penstock.train.steps.parts import Source, StepCompute, StepGradients
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
    blocks: list[tuple[DeviceBlock, dict[str, Any]]]
    """The blocks of all layers and relations, and what the draw derives from them."""
    batch: MiniBatch
    drawn: dict[str, DrawnRows]
    """Its vertices by node type."""
    learned: "LearnedTables"
    pairs: "PaddedPairs | None" = None


class PaddedPairs:
    """The edges of a batch as one list of pairs at fixed addresses, for a user's module."""

    def __init__(self, slot: Slot) -> None:
        edges, device = sum(slot.room.edges), slot.keys.device
        behind = slot.room.rows[-1] + torch.arange(edges, device=device) % PADDING
        self._unused = behind.expand(2, edges).contiguous()
        self.edges = self._unused.clone()
        self._counts = torch.zeros(len(slot.room.edges) + 1, dtype=torch.int32, device=device)

    def draw(self, slot: Slot) -> None:
        """Launch the copy of the batch's edges; unused pairs join rows behind those of the slot."""
        self.edges.copy_(self._unused)
        slot.merge(self.edges, self._counts)


def plain_values(model: torch.nn.Module) -> list[Any]:
    """Numbers, words and switches of a user's module, which its forward may read on the host; those of the library's
    models do not change.
    """
    if getattr(model, "layerwise", False):
        return []
    kinds = bool, int, float, str
    own = [
        (name, key, value)
        for name, part in model.named_modules()
        for key, value in vars(part).items()
        if isinstance(value, kinds)
    ]
    return [own, [parameter.requires_grad for parameter in model.parameters()]]


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
    """Draws the neighbourhoods of batches into slots, on the device or on the host."""

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
        """End the threads that draw batches ahead; by default there are none."""
        return


class VertexSource(Source):
    """Batches of vertices: the data of the current epoch on the device, and the losses of its batches."""

    is_drawn = True

    def __init__(
        self, session: Session, schedule: Schedule, placed: PlacedGraph, drawing: BatchDrawing, order: Order
    ) -> None:
        self._schedule, self.placed, self._drawing, self._order = schedule, placed, drawing, order
        only = next(iter(session.graph.nodes))
        self.node_type: str = only if session.graph.is_homogeneous else ""
        """The only node type; empty where there are several."""
        self._merges = not getattr(session.model, "layerwise", False)
        self._learned = LearnedTables(session, schedule.batches, placed.device)
        self._tables: Tables | None = None
        """The tables that slots share."""
        self._number = 0
        """The number of the current epoch."""
        self._make_room(session, placed.device)

    @memory_for(BATCHES)
    def _make_room(self, session: Session, device: torch.device) -> None:
        schedule, order, placed = self._schedule, self._order, self.placed
        self._purposes = [*placed.program.purposes, Purpose("dropout")]
        self.epoch = DeviceEpoch(order.items, order.batch_size, len(self._purposes), device)
        order.bring(device)
        self._bring_items(session, device)
        self._weights = 1.0 / self.epoch.counts.float()
        """Each seed's weight in the loss of its batch."""
        self._losses = torch.zeros(schedule.batches, dtype=torch.float32, device=device)
        self._seen_losses = zeros_for_copies(schedule.batches, torch.float32, device)
        self._seen_failure = zeros_for_copies(1, torch.int32, device)
        self._found = torch.zeros(schedule.batches, dtype=torch.int32, device=device)
        """The seeds of each batch that finds its own."""
        self._seen_found: dict[int, int] = {}

    def _bring_items(self, session: Session, device: torch.device) -> None:
        """Copy the items of an epoch and their labels to the device."""
        program, items = self.placed.program, self._schedule.items
        self._items = torch.from_numpy(np.ascontiguousarray(program.items(items), np.int32)).to(device)
        labelled, places = items, self._order.items
        if program.finds_seeds:
            labelled, places = np.arange(session.graph.num_nodes), 0
        self._of_items = torch.from_numpy(cast(Any, session.task).labels_of(labelled)).to(device)
        """The labels of all items; of all vertices where a batch finds its seeds."""
        self._labels = torch.zeros((places, *self._of_items.shape[1:]), dtype=self._of_items.dtype, device=device)
        weights = program.seed_weights
        self._seed_weights = None if weights is None else torch.from_numpy(weights).to(device)

    @memory_for(BATCHES)
    def fill(self, position: Position) -> None:
        epochs = self._schedule.epochs
        if epochs is not None and position.epoch >= epochs:
            return
        self._number = position.epoch
        places = self._order.places(position.epoch, self.epoch.counts, self._weights)
        self._arrange(places)
        keys = batch_keys(self._schedule.seed, position.epoch, self._schedule.batches, self._purposes)
        self.epoch.keys.copy_(torch.from_numpy(keys))
        self._learned.begin()
        self.rewind(position.batch)

    def _arrange(self, places: Tensor) -> None:
        """Put the items of an epoch and their labels in its order."""
        # Under a trace, index_select would import sympy, which takes a second.
        if launches(self.epoch.order, self._labels):
            torch.index_select(self._items, 0, places, out=self.epoch.order)
            if not self.placed.program.finds_seeds:
                torch.index_select(self._of_items, 0, places, out=self._labels)

    @memory_for(BATCHES)
    def slot(self, number: int) -> VertexSlot:
        room = self.placed.room
        assert room is not None and room.rows[0] == self.epoch.batch_size
        slot = self.empty_slot(room)
        self._tables, blocks = slot.tables, list[Block](slot.blocks())
        drawn = slot.by_type(self.node_type)
        vertices: dict[str, Any] = {name: rows.vertices for name, rows in drawn.items()}
        seeds: dict[str, Any] = slot.seeds(self.node_type)
        batch = MiniBatch(seeds, vertices, blocks)
        self._add_labels(batch, slot)
        pairs = PaddedPairs(slot) if self._merges else None
        if pairs is not None:
            blocks[0].derived[PADDED] = pairs.edges
        parts = [(cast(DeviceBlock, part), dict(part.derived)) for block in blocks for part in block.parts]
        return VertexSlot(slot, parts, batch, drawn, self._learned, pairs)

    def _add_labels(self, batch: MiniBatch, slot: Slot) -> None:
        """Add memory for what the loss reads to a batch at fixed addresses."""
        size, labels, device = self.placed.program.seeds_room(slot.room), self._labels, slot.keys.device
        batch.labels = torch.zeros((size, *labels.shape[1:]), dtype=labels.dtype, device=device)
        share: Any = torch.zeros(size, dtype=torch.float32, device=device)
        batch.seed_weights = share

    def empty_slot(self, room: Room) -> Slot:
        """Memory for one drawn batch, sized by a room."""
        return self._drawing.slot(room, len(self._purposes), self._tables)

    def idle(self) -> None:
        """Mark all batches as lacking room, so that their steps are skipped."""
        self.epoch.failed_at.fill_(-1)

    def first(self) -> None:
        self.epoch.cursor.zero_()

    def prepare(self, slot: VertexSlot, number: int) -> None:
        self._learned.set_rates()
        self._drawing.prepare(slot.slot, number, self.epoch)

    def draw(self, slot: VertexSlot) -> None:
        """Launch the draw of the batch, its labels, and its seeds' weights."""
        slot.slot.draw(self.epoch)
        if slot.pairs is not None:
            slot.pairs.draw(slot.slot)
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
        self._learned.fetch()
        LaunchStream.computing(self.placed.device).settle()
        self._learned.count()
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


class VertexCompute(StepCompute):
    """Computes the model's outputs for a batch's seeds, the task's loss, and the gradients."""

    def __init__(self, session: Session) -> None:
        self._session, self._normalises = session, has_batch_norm(session.learned)

    def gradients(self, slot: VertexSlot, inputs: Any) -> StepGradients:
        session, drawn, batch = self._session, slot.slot, slot.batch
        for block, derived in slot.blocks:
            # Discards what layers derived from the slot's last batch; lists that the draw derives are current.
            block.derived = dict(derived)
        session.optimiser.zero_grad(set_to_none=True)
        x = inputs if isinstance(inputs, dict) else {batch.node_type: inputs}
        if session.inputs.scale is not None:
            x = {name: self._scaled(rows) for name, rows in x.items()}
        norms = normalising(_real_rows(drawn)) if self._normalises else nullcontext()
        with dropping(drawn.keys[-1:], batch.row_names), norms, session.precision():
            loss = session.task.loss(session.encode(batch, x), batch)
        skip = session.backward(loss, drawn.skip)
        assert skip is not None
        return StepGradients(loss.detach().float().view(1), skip, slot.learned.rows(slot, x, skip))

    def drawing(self, position: Position) -> AbstractContextManager[None]:
        """A user's module draws from torch's generators, which the batch's key seeds."""
        session = self._session
        if getattr(session.model, "layerwise", False):
            return nullcontext()
        return session.drawing(BatchKey(session.job.draw_seed, *position).purpose("dropout"))

    def constants(self) -> Any:
        return plain_values(self._session.model)

    def _scaled(self, rows: Any) -> Any:
        """Stored features as the job scales them; they were not scaled when they were gathered."""
        scale = self._session.inputs.scale
        is_stored = isinstance(rows, Tensor) and not rows.requires_grad
        return scale(rows.clone()) if scale is not None and is_stored else rows


# Embeddings in the device's memory that captured steps learn.


class LearnedTables:
    """The tables of a session's learned embeddings, and the learning rates of an epoch's steps on them.

    A table's step is counted, on the device, where the batch has vertices of its type and is not skipped.
    """

    def __init__(self, session: Session, batches: int, device: torch.device) -> None:
        self._tables, self._before = session.inputs.tables, dict[str, int]()
        """The tables, and the steps of each before those of `made`."""
        self._names = {name: place for place, name in enumerate(self._tables)}
        self.made = torch.zeros(len(self._names), dtype=torch.int64, device=device)
        """The steps of each table since the epoch was prepared."""
        self._seen = zeros_for_copies(len(self._names), torch.int64, device)
        self._rates = torch.zeros((len(self._names), batches), dtype=torch.float32, device=device)
        self._is_rated = False

    def begin(self) -> None:
        """Prepare an epoch, from any of its batches on."""
        self._is_rated = False

    def set_rates(self) -> None:
        """Set the learning rates of the epoch at its first batch: they may have changed after the last epoch."""
        if self._names and not self._is_rated:
            self._is_rated = True
            self._before = {name: table.steps for name, table in self._tables.items()}
            rates = np.stack([table.rates(self._rates.shape[1]) for table in self._tables.values()])
            self._rates.copy_(torch.from_numpy(rates))
            self.made.zero_()

    def fetch(self) -> None:
        """Launch the copy of the numbers of steps to the host."""
        self._seen.copy_(self.made, non_blocking=True)

    def count(self) -> None:
        """Count the steps that were made, after they were fetched."""
        for name, made in zip(self._before, self._seen.tolist(), strict=False):
            self._tables[name].steps = self._before[name] + made

    def rows(self, slot: VertexSlot, x: dict[str, Any], skip: Tensor) -> "DrawnLearnedRows | None":
        """The learned rows that a batch has read; None where there are none."""
        steps = {}
        for name in self._tables:
            if name in x:
                place = self._names[name]
                made = self.made[place : place + 1]
                steps[name] = made, self._rates[place].index_select(0, made)
        return DrawnLearnedRows(self._tables, slot.drawn, x, steps, skip) if steps else None


class DrawnLearnedRows(NamedTuple):
    """The learned rows of a batch at fixed addresses (`parts.LearnedRows`)."""

    tables: dict[str, Any]
    drawn: dict[str, DrawnRows]
    x: dict[str, Any]
    steps: dict[str, tuple[Tensor, Tensor]]
    """By the types whose rows are learned, the number of steps so far, and the learning rate of this one."""
    skip: Tensor

    def learned_rows(self) -> list[Tensor]:
        """The rows with their gradients, which are zero past the batch's own."""
        return [self.x[name] for name in self.steps]

    def learn(self) -> None:
        """Launch the step of the rows that are the batch's own, unless the step is skipped."""
        for name, (made, rate) in self.steps.items():
            table, (vertices, known), gradients = self.tables[name], self.drawn[name], self.x[name].grad
            if gradients is None:
                # The loss does not depend on rows of this type.
                continue
            places = torch.arange(len(vertices), dtype=torch.int32, device=vertices.device)
            ids = torch.where((places < known) & (self.skip == 0), vertices, NEVER)
            idle = (known == 0) | (self.skip != 0)
            if isinstance(table, DeviceEmbeddingTable):
                table.step(ids, gradients, rate, idle)
            made.add_(~idle)


def _real_rows(slot: Slot) -> PaddedBatch | None:
    """The rows of a batch in each layer, the outermost first, among those that the slot has room for; None for several
    types, whose rows are not normalised together.
    """
    if isinstance(slot, TypedSlot):
        return None
    if slot.program.finds_seeds:
        rows = [slot.known[2:3]] * (len(slot.blocks()) - 1) + [slot.known[1:2]]
        return PaddedBatch(rows, slot.skip)
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


# Batches of edges: the device draws edges, negatives and neighbourhoods.


class FixedLinks(NamedTuple):
    """What a loss reads of a batch's edges beside its labels: how many there are, on the device."""

    whole: WholeEdgeBatch


class EdgeSource(VertexSource):
    """Batches of edges and their negatives, whose ends are the seeds. An epoch's order has the positions of its edges
    among the schedule's items.
    """

    def _bring_items(self, session: Session, device: torch.device) -> None:
        self._task = cast(Any, session.task)
        values = self._task.labels_of(self._schedule.items)
        self._values = None if values is None else torch.from_numpy(values).to(device)
        """The labels of the items; None where only their edges are learned."""

    def _arrange(self, places: Tensor) -> None:
        self.epoch.order.copy_(places)

    def _add_labels(self, batch: MiniBatch, slot: Slot) -> None:
        pairs, values, size = slot.beginning, self._values, slot.room.rows[0]
        assert isinstance(pairs, EdgeSeeds)
        of_batch = None
        if values is not None:
            of_batch = torch.zeros(size, dtype=values.dtype, device=values.device)
        batch.labels = self._task.fixed_labels(pairs, of_batch)
        whole: Any = pairs.sizes[0], pairs.sizes[1]
        batch.links = FixedLinks(WholeEdgeBatch(*whole))

    def draw(self, slot: VertexSlot) -> None:
        """Launch the draw of the batch, and the copy of its edges' labels."""
        slot.slot.draw(self.epoch)
        pairs = slot.slot.beginning
        assert isinstance(pairs, EdgeSeeds)
        if self._values is not None and launches(pairs.items, rows=len(pairs.items), of=self._values[:, None]):
            torch.index_select(self._values, 0, pairs.items, out=slot.batch.labels["values"])
