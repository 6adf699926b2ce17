"""Batches that are subgraphs: draws visit vertices, and one hop of all edges among them serves every layer.

The room of such a batch is that of two hops: from its items to its seeds, with the visits as edges, and from the seeds
to all its vertices, with the subgraph's edges.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.sampling.block import MiniBatch, Purpose
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import EDGES, BatchMemory, Excluded, FilterHop, Hop, blocks, list_kernels, power
from penstock.sampling.device.program import Beginning, DeviceProgram, FilterRule


class Visits(Protocol):
    """What the draws of a batch visit."""

    @property
    def purposes(self) -> list[Purpose]:
        """What they have keys for."""

    def most(self, items: int, vertices: int) -> int:
        """The most visits of a batch of so many items."""

    def of_batch(self, vertices: int) -> int:
        """The visits of a batch of so many vertices."""

    def launch(self, memory: BatchMemory, items: Tensor, visited: Tensor) -> None:
        """Launch what writes the visited vertices, in order and with repeats; `edge_counts` and `needed` begin with how
        many.
        """


class FoundSeeds(Beginning):
    """A batch begins with all vertices that its draws visit: rows in order of appearance, training vertices first.

    Table `is_train` says which these are.
    """

    def __init__(self, memory: BatchMemory, visits: Visits) -> None:
        self._memory, self._visits, room = memory, visits, memory.room
        most = max(room.edges[0], visits.of_batch(0))
        self._items, self._visited = memory.empty(room.rows[0]), memory.empty(most)
        self._kinds = memory.empty(most, torch.int8)
        self._programs = blocks(most, EDGES)
        self._sums = memory.empty(self._programs), memory.empty(self._programs)

    def launch(self, epoch: DeviceEpoch) -> None:
        memory, kernels, room = self._memory, subgraph_kernels(), self._memory.room
        kernels.take_items[(blocks(epoch.batch_size, EDGES),)](
            epoch.order, epoch.cursor, epoch.counts, epoch.batch_size, self._items, memory.known, memory.keys,
            epoch.keys, KEYS=epoch.keys.shape[1], B=EDGES,
        )  # fmt: skip
        self._visits.launch(memory, self._items, self._visited)
        grid, visited = (self._programs,), (self._visited, memory.edge_counts, memory.place)
        kernels.mark_visited[grid](*visited, B=EDGES)
        kernels.count_visited[grid](*visited, memory.tables["is_train"], self._kinds, *self._sums, B=EDGES)
        kernels.number_visited[grid](
            *visited, self._kinds, *self._sums, memory.vertices, memory.known, memory.needed, room.rows[1],
            room.rows[2], BLOCKS=power(self._programs), B=EDGES,
        )  # fmt: skip


class InducedHop(FilterHop):
    """All edges among the vertices of a batch, which have rows already."""

    reads_behind = True

    def __init__(self, memory: BatchMemory, number: int, rule: FilterRule) -> None:
        super().__init__(memory, number, rule.fanout, rule.keep, rule.weigh, list(rule.tables))
        self.seed_indptr = memory.empty(memory.room.rows[1] + 1)

    def choose(self, waiting: Hop | None) -> None:
        super().choose(waiting)
        self.look_up()
        rows = self.memory.room.rows[1]
        subgraph_kernels().bound_seeds[(blocks(rows + 1, EDGES),)](
            self.indptr, self.memory.known, self.seed_indptr, rows, B=EDGES
        )

    @property
    def key(self) -> Tensor:
        return self.memory.keys

    @property
    def chosen(self) -> Tensor:
        return self.memory.sources[1]

    def seed_block(self, rows: Sequence[int], edges: int, totals: Tensor | None, copy: bool) -> DeviceBlock:
        """The block of the last layer, from all rows to the seeds."""
        block = self.block(rows[1], rows[2], edges, totals, copy)
        if not copy:
            lists: Any = self.seed_indptr
            block.indptr = lists
        return block


@dataclass(frozen=True)
class InducedRule(FilterRule):
    """Rows keep the entries of their lists that are in the batch."""

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return InducedHop(memory, number, self)


@dataclass(frozen=True)
class SubgraphProgram(DeviceProgram):
    """How a device draws subgraphs of some visits, for so many layers."""

    visits: Visits
    layers: int
    positions: Callable[[Array], Array] = lambda items: items
    """Positions of some items in the tables of the visits."""
    finds_seeds: ClassVar[bool] = True

    @property
    def stages(self) -> int:
        return 1

    @property
    def is_plain(self) -> bool:
        return False

    @property
    def purposes(self) -> list[Purpose]:
        return self.visits.purposes

    def items(self, items: Array) -> Array:
        return self.positions(items)

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        visits = self.visits.most(batch_size, vertices)
        rows = max(batch_size, min(vertices, visits))
        return Room((batch_size, rows, rows), (visits, max(1, entries)))

    def sizes(self, batch: MiniBatch) -> list[int]:
        ((seeds,), (vertices,)) = batch.seeds.values(), batch.vertices.values()
        visits = self.visits.of_batch(len(vertices))
        # With one layer a batch of the host's has the seeds' edges alone: the room grows where that is too little.
        return [visits, len(seeds), batch.blocks[0].num_edges, len(vertices)]

    def begin(self, memory: BatchMemory) -> Beginning:
        return FoundSeeds(memory, self.visits)

    def blocks(
        self, hops: Sequence[Hop], rows: Sequence[int], edges: Sequence[int], totals: Tensor | None, copy: bool
    ) -> list[DeviceBlock]:
        (hop,) = hops
        assert isinstance(hop, InducedHop)
        whole = hop.block(rows[2], rows[2], edges[1], totals, copy)
        last = int(hop.indptr[rows[1]]) if copy else edges[1]
        return [*[whole] * (self.layers - 1), hop.seed_block(rows, last, totals, copy)]


@dataclass(frozen=True)
class Members(Visits):
    """Visits all members of the batch's items: lists in tables `member_starts` and `members`."""

    largest: tuple[int, ...]
    """The items' numbers of members, the largest first."""

    @property
    def purposes(self) -> list[Purpose]:
        return []

    def most(self, items: int, vertices: int) -> int:
        return min(vertices, sum(self.largest[:items]))

    def of_batch(self, vertices: int) -> int:
        return vertices

    def launch(self, memory: BatchMemory, items: Tensor, visited: Tensor) -> None:
        kernels, rows, room = list_kernels(), memory.room.rows[0], memory.room.edges[0]
        starts, members = memory.tables["member_starts"], memory.tables["members"]
        lengths, ends = memory.empty(rows, torch.int64), memory.empty(rows + 1, torch.int64)
        bounds = memory.empty(rows + 1)
        grid, depth = (blocks(rows + 1, EDGES),), (rows + 1).bit_length()
        kernels.measure_lists[grid](
            starts, items, memory.known, lengths, rows, *Excluded(), FANOUT=-1, REPLACE=False, EXCLUDES=False, B=EDGES
        )
        torch.cumsum(lengths, 0, out=ends[1:])
        kernels.bound_lists[grid](ends, bounds, memory.edge_counts, memory.needed, rows, room, B=EDGES)
        kernels.fetch_listed[(blocks(room, EDGES),)](
            starts, members, items, ends, memory.keys, visited, visited, None, memory.place, rows, room, *Excluded(),
            FANOUT=-1, REPLACE=False, EXCLUDES=False, KEEPS_POSITIONS=False, KEEPS_TARGETS=False, NUMBERS=False,
            DEPTH=depth, B=EDGES,
        )  # fmt: skip


@dataclass(frozen=True)
class Drawn(Visits):
    """Visits a fixed number of vertices: `amount` draws of `width` vertices each, by a launch of kernels."""

    amount: int
    width: int
    keyed: tuple[str, ...]
    draw: Callable[[Any, BatchMemory, Tensor, int], None]
    """`draw(kernels, memory, visited, amount)`."""

    @property
    def purposes(self) -> list[Purpose]:
        return list(map(Purpose, self.keyed))

    def most(self, items: int, vertices: int) -> int:
        return self.amount * self.width

    def of_batch(self, vertices: int) -> int:
        return self.amount * self.width

    def launch(self, memory: BatchMemory, items: Tensor, visited: Tensor) -> None:
        visits = self.amount * self.width
        self.draw(subgraph_kernels(), memory, visited, self.amount)
        memory.edge_counts[:1].fill_(visits)
        memory.needed[:1].fill_(visits)


def by_sums(kernels: Any, memory: BatchMemory, visited: Tensor, amount: int) -> None:
    """Draws of vertices in proportion to the steps of table `running`."""
    _visit_by_sums(kernels, memory, visited, amount, 1)


def by_edges(kernels: Any, memory: BatchMemory, visited: Tensor, amount: int) -> None:
    """Draws of edges: of a list by table `running`, and of an entry by both ends' degrees."""
    _visit_by_sums(kernels, memory, visited, amount, 2)
    topology = memory.topology
    kernels.visit_sources[(amount,)](topology.indptr, topology.indices, memory.keys[1:], visited, B=256)


def by_walks(length: int) -> Callable[[Any, BatchMemory, Tensor, int], None]:
    """Walks of so many steps from uniform roots."""

    def draw(kernels: Any, memory: BatchMemory, visited: Tensor, amount: int) -> None:
        topology = memory.topology
        kernels.visit_walks[(blocks(amount, 128),)](
            topology.indptr, topology.indices, memory.keys, visited, topology.count, amount, LENGTH=length, B=128
        )

    return draw


def _visit_by_sums(kernels: Any, memory: BatchMemory, visited: Tensor, amount: int, width: int) -> None:
    count, tables = memory.topology.count, memory.tables
    kernels.visit_by_sums[(blocks(amount, EDGES),)](
        memory.keys, tables["running"], tables["total"], visited, width, width - 1, count, amount,
        DEPTH=(count + 1).bit_length(), B=EDGES,
    )  # fmt: skip


def subgraph_kernels() -> Any:
    """Import Triton at the first launch."""
    from penstock.sampling.device import subgraph_kernels as kernels

    return kernels
