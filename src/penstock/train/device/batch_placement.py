"""A graph on a device for batches alone: the model is the user's own, and a share of the memory is left for it."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.pipeline.stages import Batch
from penstock.plan.residence import Place
from penstock.progress import SILENT, Progress
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import MERGED, Room, bounds_key
from penstock.sampling.device.epoch import NEVER, DeviceEpoch
from penstock.sampling.device.hops import Tables
from penstock.sampling.device.sampler import check_count
from penstock.sampling.device.streams import rest
from penstock.sampling.device.typed import TypedSlot, TypedTopology, new_slot
from penstock.sampling.lists import check_seeds
from penstock.store.device.copies import zeros_for_copies
from penstock.store.device.moments import Moment
from penstock.train.dataset.inputs import Inputs
from penstock.train.device.decision import PlacementDecision, decide
from penstock.train.device.memory import NOTHING, Working, loaded_working, row_type
from penstock.train.device.placed import Placed, drawing_on_device
from penstock.train.device.placed_graph import bring_batches, place_as_decided
from penstock.train.job import Job
from penstock.train.run_context import device_memory_of
from penstock.train.session import Session
from penstock.train.steps.runner import LaunchStream, runner_for

# Batches drawn on a device while the host does something else: captured once as a CUDA graph, replayed for each batch.
#
# Two slots take turns. What a draw needs of the host, seeds and keys, reaches the device in one copy; what the host
# needs to know of it, how large the batch is, comes back in another, which the host looks at when it wants the batch.


class DrawnAhead:
    """Draws a loader's batches on the device ahead of their use (`pipeline.loader.AheadSampler`), equal to those of the
    host.
    """

    slots = 2

    def __init__(
        self,
        placed: Placed,
        batch_size: int,
        node_type: str,
        merging: threading.Event,
        expected: "DrawnSizes | None" = None,
    ) -> None:
        """`merging` is set where batches also hold the edges of all hops as one list. `expected`: the sizes of batches
        that are only traced.
        """
        check_count(placed.topology.count)
        assert placed.room is not None
        self._expected = expected
        self._placed, self._batch_size, self._node_type, self._merging = placed, batch_size, node_type, merging
        self._lane, self._room = LaunchStream.beside(placed.device), placed.room
        self._free, self._begun = deque[_AheadSlot](), deque[tuple[_AheadSlot, Planned]]()
        self._make_slots()

    def begin(self, planned: Planned) -> None:
        """Launch the drawing of a batch, without waiting for it."""
        slot = self._free.popleft()
        self._begun.append((slot, planned))
        with self._lane.entered():
            slot.draw(self._seeds(planned), planned)

    def finish(self) -> Batch:
        """The batch that was begun first; waits until it is drawn."""
        while not self._room.holds_sizes(needed := self._sizes(self._begun[0][0]).needed):
            self._begin_again(needed)
        slot, planned = self._begun.popleft()
        seeds, sizes = self._seeds(planned), self._sizes(slot)
        with self._lane.entered():
            blocks = slot.copied_blocks(len(seeds), sizes)
            # Tensors, where batches of the host have arrays.
            vertices: Any = slot.slot.copied_vertices(self._node_type, len(seeds), sizes.needed)
            batch = MiniBatch({self._node_type: seeds}, vertices, blocks, key=planned.key)
            if self._merging.is_set() and slot.merges:
                batch.merged = blocks[0].derived[MERGED] = slot.copied_edges(sizes)
        self._free.append(slot)
        if self._lane.stream is not None:
            batch.ready = self._lane.stream.record_event()
        return batch

    def sample(self, planned: Planned) -> Batch:
        """Draw one batch, while none is begun."""
        self.begin(planned)
        return self.finish()

    def abandon(self) -> None:
        """Discard the batches that were begun and not finished."""
        if not self._begun:
            return
        # Wait: the user may drop the loader now, and its memory would be reused while kernels still write to it.
        self._lane.settle()
        with self._lane.entered():
            # A draw that lacked room has left entries in the table of places: clear it.
            self._tables["place"].fill_(NEVER)
        while self._begun:
            self._free.append(self._begun.popleft()[0])

    def _sizes(self, slot: "_AheadSlot") -> "DrawnSizes":
        return slot.sizes() if self._expected is None else self._expected

    def _seeds(self, planned: Planned) -> Array:
        count = self._placed.topology.count_of(self._node_type)
        return check_seeds(planned.seeds, count, self._node_type, np.dtype(np.int32))

    def _begin_again(self, needed: list[int]) -> None:
        """Draw again with more room a batch that lacked it, and the batches begun after it, which shared its table of
        places.
        """
        placed, waiting = self._placed, [planned for _, planned in self._begun]
        self._room = self._room.enlarged(needed, placed.largest_room(self._batch_size))
        self._make_slots()
        for planned in waiting:
            self.begin(planned)

    def _make_slots(self) -> None:
        placed = self._placed
        rest(placed.device)
        self._begun.clear()
        self._free.clear()
        # Slots are filled one after the other, so they share tables.
        self._tables = placed.program.tables(placed.topology, placed.device)
        for _ in range(self.slots):
            self._free.append(_AheadSlot(placed, self._room, self._batch_size, self._tables, self._lane))


class _AheadSlot:
    """Memory for one batch, and its recorded draw."""

    def __init__(self, placed: Placed, room: Room, batch_size: int, tables: Tables, lane: LaunchStream) -> None:
        device, hops, self._purposes = placed.device, placed.program.hops, placed.program.purposes
        keys = len(self._purposes)
        given = placed.topology, placed.program, room, device, keys, placed.totals, placed.names_edges
        self.slot = new_slot(*given, tables=tables)
        self.merges = not isinstance(self.slot, TypedSlot)
        """Whether the draw also makes one list of all hops' edges; those of several relations are merged later."""
        # Keys, the number of seeds, and the seeds, which are half as wide: one copy brings all.
        words = keys + 1 + (batch_size + 1) // 2
        self._given = torch.zeros(words, dtype=torch.int64, device=device)
        self._given_here = zeros_for_copies(words, torch.int64, device)
        self._epoch = DeviceEpoch(batch_size, batch_size, keys, device)
        self._epoch.keys = self._given[:keys].view(1, keys)
        self._epoch.counts = self._given[keys : keys + 1].view(torch.int32)
        self._epoch.order = self._given[keys + 1 :].view(torch.int32)
        self._merged = torch.zeros((2, sum(room.edges) if self.merges else 0), dtype=torch.int64, device=device)
        self._pairs = torch.zeros(hops + 1, dtype=torch.int32, device=device)
        self._counted = torch.zeros(3 * hops, dtype=torch.int32, device=device)
        self._counted_here = zeros_for_copies(3 * hops, torch.int32, device)
        self._hops, self._lane, self._drawn = hops, lane, Moment(device)
        runner = runner_for(device)
        runner.warm_up(self._launch, 1)
        self._recorded = runner.record(self._launch, lane)

    def draw(self, seeds: Array, planned: Planned) -> None:
        """Launch the draw of a batch on the current lane (its stream)."""
        here, keys = self._given_here.numpy(), len(self._purposes)
        here[:keys] = np.array([purpose.key(planned.key) for purpose in self._purposes], np.uint64).view(np.int64)
        here[keys] = len(seeds)
        here[keys + 1 :].view(np.int32)[: len(seeds)] = seeds
        self._given.copy_(self._given_here, non_blocking=True)
        self._recorded.replay()
        self._counted_here.copy_(self._counted, non_blocking=True)
        self._drawn.mark(self._lane)

    def sizes(self) -> "DrawnSizes":
        """How large the batch is; waits until it is drawn."""
        self._drawn.settle()
        counted: list[int] = self._counted_here.tolist()
        return DrawnSizes(counted[: 2 * self._hops], counted[2 * self._hops :])

    def copied_blocks(self, seeds: int, sizes: "DrawnSizes") -> list[Block]:
        """The batch's blocks in memory of their own, with the bounds of the lists that the hop before does not have."""
        blocks = self.slot.copied_blocks(seeds, sizes.needed)
        for (block, known), bounds in zip(self.slot.with_new_rows(blocks), sizes.bounds(), strict=True):
            if block is not None:
                block.derived[bounds_key(known)] = bounds
        return blocks

    def copied_edges(self, sizes: "DrawnSizes") -> Tensor:
        """The batch's edges as one list, in memory of its own."""
        pairs = sum(stop - start for start, stop in sizes.bounds())
        return self._merged[:, :pairs].clone(memory_format=torch.contiguous_format)

    def _launch(self) -> None:
        epoch, slot = self._epoch, self.slot
        epoch.cursor.zero_()
        epoch.failed_at.fill_(NEVER)
        slot.draw(epoch)
        if self.merges:
            slot.merge(self._merged, self._pairs)
        torch.cat([slot.needed, *slot.new_list_starts()], out=self._counted)


class DrawnSizes(NamedTuple):
    """The sizes of a batch that was drawn."""

    needed: list[int]
    """Edges and rows after each hop, hop by hop (`Room.sizes`)."""
    starts: list[int]
    """Where in each hop's edges the lists begin of vertices that the hop before has not drawn for."""

    def bounds(self) -> list[tuple[int, int]]:
        """For each hop, the places of the edges that are in the one list of all hops."""
        return list(zip(self.starts, self.needed[::2], strict=True))


def draws_ahead(placed: Placed, job: Job, inputs: Inputs) -> bool:
    """Whether the thread that computes can launch the draws: where the host has no part in them."""
    carrier = inputs.carrier
    assert isinstance(carrier, DeviceCarrier)
    alone = job.sample_on != "hybrid" and not job.reuse_batches and job.groups == 1 and not carrier.reads_on_host
    return alone and not placed.program.finds_seeds


def steps_draw_ahead(session: Session, placed: Placed) -> bool:
    """Whether the thread that launches steps one by one launches the draws too; those of several types have threads."""
    one_type, threads = not isinstance(placed.topology, TypedTopology), session.job.drawing_threads
    return one_type and threads == 1 and draws_ahead(placed, session.job, session.inputs)


def ahead_sampler(session: Session, placed: Placed, expected: DrawnSizes | None = None) -> DrawnAhead:
    """The sampler of a run whose steps are launched one by one; `expected`: sizes of batches that are only traced."""
    merging = threading.Event()
    if not getattr(session.model, "layerwise", False):
        # A module of the user's reads the edges of all layers as one list.
        merging.set()
    task = session.task
    return DrawnAhead(placed, task.batch_size, getattr(task, "node_type", "node"), merging, expected)


@dataclass(frozen=True)
class BatchParts:
    """A loader's parts, as placement reads them (`Placeable`)."""

    job: Job
    graph: Graph
    inputs: Inputs
    task: Any
    model: None = None


class ReservedMemory:
    """The `MemoryModel` of a loader: what the user's model takes is unknown, so a share of the device's memory is left
    for it.
    """

    method, untraced = "reserved", ""

    def __init__(self, job: Job, vertices: int, device: torch.device, share: float, positions: bool) -> None:
        """`positions`: samplers keep the numbers of drawn edges."""
        if not 0 <= share < 1:
            raise PenstockError(f"reserve is {share}: give a share from 0 to 1.", code="value-out-of-range")
        self._job, self._vertices, self._reserved = job, vertices, int(share * device_memory_of(device)[1])
        self._positions = positions

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        job = self._job
        ahead = job.transfer_depth + 1
        slots = max(job.drawing_threads, DrawnAhead.slots)
        own = loaded_working(
            NOTHING, room, self._vertices, ahead, 0, row_type(job), slots, self._positions, merges=True
        )
        return Working(own.bytes + self._reserved, own.row_type, {**own.parts, "model": self._reserved})

    def predicted(self, decision: PlacementDecision) -> int:
        return decision.residence.device_bytes


@dataclass(frozen=True)
class PlacedBatches:
    """How a loader draws its batches, and how it brings them to the device."""

    draw: Callable[[Planned], Batch]
    carrier: DeviceCarrier
    make_sampler: Callable[[threading.Event], DrawnAhead] | None
    """Makes a sampler that draws ahead in the thread that computes. None where the host draws batches or reads rows:
    threads of the host do that ahead.
    """


def place_batches(parts: BatchParts, plan: BatchPlan, reserve: float, progress: Progress = SILENT) -> PlacedBatches:
    """Put topology and features where they fit, as for training."""
    job, device = parts.job, parts.inputs.device
    memory = ReservedMemory(job, parts.graph.num_nodes, device, reserve, True)
    decision = decide(parts, plan, memory)
    placed = place_as_decided(parts, decision, plan, progress)
    parts.inputs.sources.update(placed.tables)
    bring_batches(parts, placed)
    carrier = parts.inputs.carrier
    assert isinstance(carrier, DeviceCarrier)
    if decision.residence.topology == "host":
        return PlacedBatches(parts.task.sample, carrier, None)
    if not draws_ahead(placed, job, parts.inputs):
        draw, _ = drawing_on_device(placed, job, parts.task, plan)
        return PlacedBatches(draw, carrier, None)
    make_sampler = partial(DrawnAhead, placed, plan.batch_size, getattr(parts.task, "node_type", "node"))
    return PlacedBatches(parts.task.sample, carrier, make_sampler)
