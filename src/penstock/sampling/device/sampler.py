"""Sampling on a device for a pipeline that draws one batch at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.device.block import Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import Topology
from penstock.sampling.device.program import DeviceProgram
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.streams import on_stream, stream_maker
from penstock.sampling.device.typed import new_slot
from penstock.sampling.lists import PerThread, check_seeds

_FIRST_ROOM = 1 << 22
"""Upper bound on the rows and edges of a hop that a sampler starts with; it grows when a batch lacks room."""


class DeviceSampler:
    """A sampler with lists and batches on a device, which draws by a program.

    `sample` may be called from several threads at once, each of which has a stream and memory of its own.
    """

    def __init__(
        self,
        topology: Topology,
        program: DeviceProgram,
        device: torch.device,
        node_type: str = "node",
        totals: bool = False,
        edges: bool = False,
        room: Room | None = None,
        expected: Sequence[int] | None = None,
    ) -> None:
        """`room`: what most batches need, if known; it grows when one needs more. `expected`: the sizes of batches that
        are only traced.
        """
        check_count(topology.count)
        self.node_type, self._topology, self._program, self._device = node_type, topology, program, device
        self._totals, self._edges, self._expected = totals, edges, expected
        side_stream = stream_maker(device)
        self._thread_states: PerThread[_ThreadState] = PerThread(lambda: _ThreadState(side_stream(), room))

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds, equal to the CPU's; waits for the device once."""
        program = self._program
        if program.finds_seeds:
            seeds = program.items(np.atleast_1d(seeds))
        else:
            seeds = check_seeds(seeds, self._topology.count_of(self.node_type), self.node_type, np.dtype(np.int32))
        state = self._thread_states.get()
        with on_stream(state.stream):
            epoch = self._epoch(seeds, key)
            largest = self._program.largest_room(len(seeds), self._topology.count, self._topology.entries)
            room = state.room_for(largest)
            while True:
                slot = self._slot(state, room)
                slot.draw(epoch)
                sizes = self._sizes(slot)
                if room.holds_sizes(sizes):
                    break
                # The batch was cut short: draw it again with more room, from a cleared table.
                room, state.slot = room.enlarged(sizes, largest), None
                epoch.cursor.zero_()
            blocks = slot.copied_blocks(len(seeds), sizes)
            # Tensors, where batches of the host have arrays.
            vertices: dict[str, Any] = slot.copied_vertices(self.node_type, len(seeds), sizes)
            if program.finds_seeds:
                # On the stream of the draw: another one would read the copy before it is made.
                seeds = vertices[self.node_type][: sizes[1]].cpu().numpy()
        batch = MiniBatch({self.node_type: seeds}, vertices, blocks, key=key)
        if program.seed_weights is not None:
            batch.seed_weights = program.seed_weights[seeds]
        if state.stream is not None:
            batch.ready = state.stream.record_event()
        return batch

    def _epoch(self, seeds: Array, key: BatchKey) -> DeviceEpoch:
        purposes = self._program.purposes
        epoch = DeviceEpoch(len(seeds), max(1, len(seeds)), len(purposes), self._device)
        epoch.order.copy_(torch.from_numpy(np.ascontiguousarray(seeds, np.int32)))
        keys = np.array([purpose.key(key) for purpose in purposes], np.uint64)
        epoch.keys[0].copy_(torch.from_numpy(keys.view(np.int64)))
        return epoch

    def _sizes(self, slot: Slot) -> list[int]:
        """The sizes that the batch just drawn needs; waits for the device."""
        sizes: list[int] = slot.needed.tolist() if self._expected is None else list(self._expected)
        return sizes

    def _slot(self, state: "_ThreadState", room: Room) -> Slot:
        if state.slot is None or state.slot.room != room:
            tables = None if state.slot is None else state.slot.tables
            given = self._topology, self._program, room, self._device, len(self._program.purposes)
            state.slot = new_slot(*given, self._totals, self._edges, tables)
        return state.slot


@dataclass
class _ThreadState:
    """A thread's stream and memory."""

    stream: "torch.cuda.Stream | None"
    first: Room | None = None
    slot: Slot | None = None

    def room_for(self, largest: Room) -> Room:
        """The current room; at first the one given, or the largest one within a moderate bound."""
        room = self.first if self.slot is None else self.slot.room
        if room is not None and room.rows[0] >= largest.rows[0]:
            return room
        rows = tuple(min(rows, max(_FIRST_ROOM, largest.rows[0])) for rows in largest.rows)
        return Room(rows, tuple(min(edges, _FIRST_ROOM) for edges in largest.edges), largest.types)


def check_count(vertices: int) -> None:
    """Refuse graphs whose vertex numbers exceed 32 bits."""
    if vertices >= 1 << 31:
        raise PenstockError(
            f"A device can sample graphs of up to 2^31 vertices, not {vertices:,}: sample on the host.",
            code="too-large",
        )
