"""Memory of one batch at fixed addresses, and the launches of its draw one after the other on a stream."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock, DrawnRows, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import (
    EDGES,
    BatchMemory,
    Hop,
    Tables,
    Topology,
    blocks,
    fill_totals,
    hop_kernels,
    list_kernels,
)
from penstock.sampling.device.program import Beginning, DeviceProgram
from penstock.traced import launches, skips_kernels


class Slot:
    """Memory of one batch: its vertices, its blocks and what is needed while they are drawn."""

    is_drawn_by_host = False

    def __init__(
        self,
        topology: Topology,
        program: DeviceProgram,
        room: Room,
        device: torch.device,
        keys: int,
        totals: bool = False,
        edges: bool = False,
        tables: Tables | None = None,
        numbers_last: bool = True,
        turns: bool = False,
        turns_last: bool = False,
        vertex_totals: Tensor | None = None,
    ) -> None:
        """`tables` may be shared by slots that are filled one after the other on one stream. `numbers_last`, `turns`
        and `turns_last` as for `BatchMemory`. `vertex_totals`: those of all vertices, for a layer that needs them of
        neighbours without rows.
        """
        self.program, self.room, self.numbers_last = program, room, numbers_last
        self._vertex_totals = vertex_totals
        self.tables = program.tables(topology, device) if tables is None else tables
        how = edges, numbers_last, turns, turns_last
        memory = self._memory = BatchMemory(topology, room, device, keys, self.tables, *how)
        self.keys, self.needed = memory.keys, memory.needed
        self.number, self.skip = memory.empty(1), memory.empty(1, torch.float32)
        self._rooms = torch.tensor(room.sizes, dtype=torch.int32, device=device)
        self._make_hops(program, totals or program.totals)

    def _make_hops(self, program: Any, totals: bool) -> None:
        """Set the batch's vertices, their numbers, the stage that begins it, its hops and its lists' lengths."""
        memory = self._memory
        self.vertices, self.known = memory.vertices, memory.known
        self.beginning: Beginning = program.begin(memory)
        memory.excluded = next(iter(self.beginning.excluded.values()), memory.excluded)
        self._hops: list[Hop] = [rule.make(memory, hop) for hop, rule in enumerate(program.rules, program.stages)]
        self.totals = memory.empty(self.room.rows[-1], torch.float32) if totals else None

    def draw(self, epoch: DeviceEpoch) -> None:
        """Draw the epoch's next batch into this slot."""
        if skips_kernels():
            # A few kernels for each hop, of which one reads lists.
            for hop in self._hops:
                launches(hop.indptr, hop.indices, rows=len(hop.indices), of=hop.indices[:, None])
            return
        self.beginning.launch(epoch)
        waiting: Hop | None = None
        for hop in self._hops:
            hop.choose(waiting)
            waiting = hop if hop.is_numbered else None
            if hop.is_numbered:
                hop.number_chosen()
        if waiting is not None:
            waiting.look_up()
        for hop in self._hops:
            hop.turn()
        self._finish(epoch)

    def _finish(self, epoch: DeviceEpoch) -> None:
        """Launch what comes after all hops: totals, and the check whether the batch had room."""
        kernels, rows, memory = hop_kernels(), self.room.rows[-1], self._memory
        known = self.known[len(self.room.edges) - (not self.numbers_last) :]
        if self.totals is not None:
            fill_totals(memory.topology, self.vertices, known, self.totals, memory.excluded)
        kernels.finish[(blocks(rows, EDGES),)](
            self.vertices, known, memory.place, self.needed, self._rooms, epoch.cursor, self.number,
            epoch.failed_at, self.skip, SIZES=len(self.room.sizes), B=EDGES,
        )  # fmt: skip

    def blocks(self) -> list[DeviceBlock]:
        """The batch's blocks with all their room, outermost first. The next draw overwrites them."""
        rows = list(self.room.rows)
        if not self.numbers_last:
            rows[-1] = rows[-2]
        made = self.program.blocks(self._hops, rows, self.room.edges, self.totals, False)
        if self._vertex_totals is not None:
            made[0].derived["vertex_totals"] = self._vertex_totals
        return made

    def by_type(self, node_type: str) -> dict[str, DrawnRows]:
        """The batch's vertices, of a graph whose only type has this name."""
        return {node_type: DrawnRows(self.vertices, self.known[-1:])}

    def seeds(self, node_type: str) -> dict[str, Tensor]:
        """The room for the batch's seeds, of a graph whose only type has this name."""
        return {node_type: self.vertices[: self.room.rows[self.program.stages]]}

    def copied_vertices(self, node_type: str, seeds: int, sizes: Sequence[int]) -> dict[str, Tensor]:
        """A copy of the batch's vertices, of a graph whose only type has this name."""
        return {node_type: self.vertices[: sizes[-1]].clone()}

    def on_host(self) -> dict[str, Tensor]:
        """The first layer's lists, where the host has drawn them."""
        raise NotImplementedError("the device has drawn the batch")

    def copied_blocks(self, seeds: int, sizes: Sequence[int]) -> list[Block]:
        """Copies of the batch's blocks, cut to their sizes. `sizes` are the device's counts (`needed`)."""
        return [*self.program.blocks(self._hops, [seeds, *sizes[1::2]], sizes[::2], self.totals, True)]

    def merge(self, merged: Tensor, counts: Tensor) -> None:
        """Write the edges of all hops as pairs, each vertex's list once (`nn.adapter.merged_edges`), into `merged`,
        int64 [2, room of all edges]. `counts` has one entry more than there are hops: 0, and the number of pairs after
        each hop.
        """
        if skips_kernels():
            return
        for number, hop in enumerate(self._hops):
            list_kernels().merge_listed[(blocks(hop.edges_room, EDGES),)](
                hop.indptr, hop.indices, self.known[max(0, number - 1) :], hop.known, counts[number:],
                counts[number + 1 :], merged, merged.shape[1], hop.rows_room, hop.edges_room, FIRST=number == 0,
                DEPTH=(hop.rows_room + 1).bit_length(), B=EDGES,
            )  # fmt: skip

    def new_list_starts(self) -> list[Tensor]:
        """For every hop, where in its block the lists begin of vertices for which the hop before has not drawn; int32
        on the device.
        """
        first, *others = self._hops
        behind = [hop.indptr.index_select(0, self.known[number : number + 1]) for number, hop in enumerate(others)]
        return [first.indptr[:1], *behind]

    def with_new_rows(self, blocks: list[Block]) -> list[tuple[Block | None, int]]:
        """The copied block of each hop, and how many of its rows the hop before has drawn for."""
        return list(zip(blocks[::-1], [0, *(block.num_dst for block in blocks[:0:-1])], strict=True))
