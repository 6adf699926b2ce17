"""Hops that draw vertices for all their rows together, and keep the edges from those: by a table, or by importance.

Both draw `fanout` vertices with repeats, count in table `times` how often each was drawn, filter the rows' lists by it,
and clear it again, so that slots can share it.
"""

import torch

from penstock.sampling.device.hops import EDGES, BatchMemory, FilterHop, Hop, LoadRule, blocks, list_kernels


class TableDrawHop(FilterHop):
    """Draws vertices in proportion to the steps of running sums (table `running`, whose total is in `total`)."""

    def __init__(self, memory: BatchMemory, number: int, size: int, keep: LoadRule, weigh: LoadRule) -> None:
        super().__init__(memory, number, size, keep, weigh, ["times", "running", "total"])
        self._drawn = memory.empty(size)

    def choose(self, waiting: Hop | None) -> None:
        if waiting is not None:
            waiting.look_up()
        tables, kernels, count = self.memory.tables, list_kernels(), self.memory.topology.count
        grid = (blocks(self.fanout, EDGES),)
        kernels.draw_by_sums[grid](
            self.key, tables["running"], tables["total"], tables["times"], self._drawn, count,
            SIZE=self.fanout, DEPTH=(count + 1).bit_length(), B=EDGES,
        )  # fmt: skip
        self.measure(-1)
        self.filter()
        kernels.clear_drawn[grid](self._drawn, tables["total"], tables["times"], SIZE=self.fanout, B=EDGES)


class ImportanceHop(FilterHop):
    """Draws vertices among the rows' neighbours in proportion to the sum, over the lists they are in, of one over the
    squared length: in whole numbers, so that sums do not depend on their order. Where there are no more neighbours than
    are drawn, all are kept.
    """

    def __init__(self, memory: BatchMemory, number: int, size: int, keep: LoadRule, weigh: LoadRule) -> None:
        super().__init__(memory, number, size, keep, weigh, ["times", "mass", "layer"])
        self._masses = memory.empty(self.rows_room, torch.int64)
        self._running = memory.empty(self.rows_room, torch.int64)

    def choose(self, waiting: Hop | None) -> None:
        if waiting is not None:
            waiting.look_up()
        memory, kernels, tables = self.memory, list_kernels(), self.memory.tables
        lists = memory.topology.indptr, memory.topology.indices, memory.vertices
        self.measure(-1)
        kernels.measure_masses[(blocks(self.rows_room, EDGES),)](
            self.lengths, self.known, self._masses, tables["layer"], self.rows_room, B=EDGES
        )
        torch.cumsum(self._masses, 0, out=self._running)
        entries = *lists, self.starts, self.known, tables["mass"]
        kernels.add_masses[self.programs](*entries, tables["layer"], self.rows_room, DEPTH=self.depth, B=EDGES)
        kernels.draw_entries[(blocks(self.fanout, EDGES),)](
            *lists, self.key, self.lengths, self._running, self.known, tables["times"], tables["layer"],
            self.rows_room, SIZE=self.fanout, DEPTH=self.depth, B=EDGES,
        )  # fmt: skip
        self.filter()
        kernels.clear_masses[self.programs](*entries, tables["times"], self.rows_room, DEPTH=self.depth, B=EDGES)
