"""The hops of a batch: each has its memory, and launches its passes on a stream without waiting for the device.

A hop chooses positions in its rows' lists, numbers the vertices found there, and looks up the rows of all that were
chosen. Hops differ in how they choose.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType
from penstock.sampling.device.block import CHUNK, DeviceBlock, Room, SourceLists
from penstock.sampling.device.epoch import NEVER
from penstock.sampling.draws import SCANNED
from penstock.sampling.weighted_draws import FEW, SPACING, running_masses, weights_of

EDGES = 1024
"""Edges that a program handles."""
_FEWEST = 32
_CELLS = 1024
_ORDERED = 256
"""Entries of transposed lists that a program orders."""


LoadRule = Callable[[], Any]
"""Gives a function of `triton.jit`; called when it is launched, as Triton may not be installed."""


class Topology:
    """In-neighbour lists that kernels read: on the device, or in page-locked memory of the host."""

    def __init__(self, indptr: Tensor, indices: Tensor, weighed: "Weighed | None" = None) -> None:
        self.indptr, self.indices, self.weighed = indptr, indices, weighed
        self._totals: Tensor | None = None

    @property
    def count(self) -> int:
        """The number of vertices."""
        return len(self.indptr) - 1

    def count_of(self, node_type: str) -> int:
        """The number of vertices of a type, which is the only one."""
        return self.count

    def along(self, kind: EdgeType) -> "Topology | None":
        """The lists of a relation, which is the only one; None where they were not placed."""
        return self

    @property
    def entries(self) -> int:
        """The number of edges."""
        return len(self.indices)

    def totals_on(self, device: torch.device) -> Tensor:
        """The lengths of all lists on a device, or their sums of weights, float32; computed once."""
        if self._totals is None:
            lengths = self.indptr.diff() if self.weighed is None else self.weighed.sums
            self._totals = lengths.to(device, torch.float32)
        return self._totals


Move = Callable[[Array], Tensor]
"""Copies an array to where kernels read it."""


class Weighed(NamedTuple):
    """The weights of a relation's edges, as kernels read them."""

    weights: Tensor
    """float32 or float64, beside the lists."""
    sums: Tensor
    """Those of the lists."""
    running: Tensor | None = None
    """`weighted_draws.running_masses`, where weights decide draws."""
    positives: Tensor | None = None
    """The number of edges with a weight in each list; None: all have one, or weights decide no draw."""

    @classmethod
    def of(cls, edges: EdgeSet, field: str, by_weight: bool, beside: Move, there: Move) -> "Weighed":
        """The weights that a field gives: `beside` moves an array to where the lists are, `there` to the device."""
        weights, sums = weights_of(edges, field, "the graph")
        kernels_read = weights.astype(kernel_weight_type(weights), copy=False)
        running, positives = (None, None) if not by_weight else _deciding(edges, weights, sums)
        return cls(
            beside(kernels_read), there(sums), None if running is None else beside(running),
            None if positives is None else there(positives),
        )  # fmt: skip

    @staticmethod
    def bytes_of(edges: EdgeSet, field: str, by_weight: bool) -> tuple[int, int]:
        """The most bytes that they take beside the lists, and on the device."""
        weights, lists = edges.fields[field], len(edges.indptr) - 1
        running = 8 * (len(weights) // SPACING + 1) if by_weight else 0
        return len(weights) * kernel_weight_type(weights).itemsize + running, (8 if by_weight else 4) * lists


def kernel_weight_type(weights: Array) -> Any:
    """The type in which kernels read a field's weights, without rounding those of floating point."""
    return np.dtype(np.float32 if weights.dtype in (np.float16, np.float32) else np.float64)


def _deciding(edges: EdgeSet, weights: Array, sums: Array) -> tuple[Array, Array | None]:
    """Running masses, and the number of edges with a weight in each list if some edge has none."""
    running = running_masses(edges.indptr, weights, sums)
    if (weights > 0).all():
        return running, None
    before = np.concatenate([[0], np.cumsum(weights > 0)])
    return running, np.diff(before[edges.indptr]).astype(np.int32)


Tables = dict[str, Tensor]
"""Tables with an entry for each vertex or edge of the graph, by name. Slots that are filled one after the other on one
stream share them. All have `place`: the row of each vertex in the batch that is being drawn.
"""


def fresh_place(vertices: int, device: torch.device) -> Tensor:
    """The table of all vertices' rows, with no vertex in a batch."""
    return torch.full((vertices,), NEVER, dtype=torch.int32, device=device)


class Excluded(NamedTuple):
    """Edges that must not be drawn, as kernels read them (`links.DeviceExclusion`); None: every edge may be drawn."""

    bounds: Tensor | None = None
    starts: Tensor | None = None
    behind: Tensor | None = None
    seeds: Tensor | None = None
    """The number of seeds: no other row's list has such edges."""


class BatchMemory:
    """What the hops of a batch share: its vertices, how many are known before each hop, its keys, and scratch memory.

    Without `numbers_last` the last hop's neighbours get no rows: `indices` of its block are vertices, for a layer that
    reads their features in place. With `turns` the other blocks come with their transposed lists, along which gradients
    flow; with `turns_last` the last one too, as gradients of learned or transformed inputs flow along it.
    """

    def __init__(
        self,
        topology: Topology,
        room: Room,
        device: torch.device,
        keys: int,
        tables: Tables,
        positions: bool = False,
        numbers_last: bool = True,
        turns: bool = False,
        turns_last: bool = False,
    ) -> None:
        self.topology, self.room, self.device, self.tables = topology, room, device, tables
        self.keeps_positions, self.numbers_last = positions, numbers_last
        self.turns, self.turns_last = turns, turns_last
        hops = len(room.edges)
        self.place, self.excluded = tables["place"], Excluded()
        self.vertices, self.known = self.empty(room.rows[-1]), self.empty(hops + 1)
        self.numbered = self.vertices
        """Where new vertices get their rows: of several types, those of another type than the rows that draw."""
        self.keys = self.empty(keys, torch.int64)
        self.needed, self.edge_counts = self.empty(2 * hops), self.empty(hops)
        # Two, as one hop's are still looked up while the next one's are drawn.
        self.sources = [self.empty(max(room.edges[place::2], default=1)) for place in (0, 1)]
        self.edge_sums = self.empty(max(blocks(size, EDGES) for size in room.edges))
        self.is_new = self.empty(max(room.edges), torch.int8)

    def empty(self, size: int, dtype: torch.dtype = torch.int32) -> Tensor:
        """Zeros on the device: one at least, as kernels need an address."""
        return torch.zeros(max(1, size), dtype=dtype, device=self.device)

    def known_at(self, hop: int) -> Tensor:
        """The number of rows that draw in a hop."""
        return self.known[hop:]

    def known_around(self, hop: int) -> tuple[Tensor, Tensor]:
        """The numbers of rows before and after a hop numbers new vertices."""
        return self.known[hop:], self.known[hop + 1 :]


class Hop(ABC):
    """One hop of a batch: the lists that its rows have drawn, in memory of its own."""

    longest: int | None = None
    """A bound on the length of its lists; None: there is none."""
    reads_behind = False
    """Whether its rows are those after it: all vertices of the batch have rows before it begins."""
    turns = False
    """Whether it makes transposed lists, where they are asked for; else the step sorts edges by source. Slots among a
    source's readers are ordered by comparing all of them, which suits lists of few readers.
    """

    def __init__(self, memory: BatchMemory, number: int, weighted: bool = False, scales: bool = False) -> None:
        """`weighted`: its edges have weights; `scales`: those of edges that are drawn whatever they weigh."""
        room, self.scales = memory.room, scales
        self.keeps_positions = memory.keeps_positions or scales
        self.memory, self.number, self.edges_room = memory, number, room.edges[number]
        self.rows_room, self.rows_behind = room.rows[number + self.reads_behind], room.rows[number + 1]
        self.is_last = number == len(room.edges) - 1
        self.is_numbered = (memory.numbers_last or not self.is_last) and not self.reads_behind
        self.indptr, self.indices = memory.empty(self.rows_room + 1), memory.empty(self.edges_room)
        self.positions = memory.empty(self.edges_room if self.keeps_positions else 1, torch.int64)
        self.weights = memory.empty(self.edges_room, torch.float32) if weighted or scales else None
        turns = memory.turns and self.turns and (memory.turns_last or not self.is_last)
        self.turned = Turned(self.rows_behind, self.edges_room, memory.device) if turns else None

    @abstractmethod
    def choose(self, waiting: "Hop | None") -> None:
        """Launch the choice: write `indptr`, the chosen vertices to `chosen`, and where asked for their positions,
        targets and weights. Mark the vertices in `place` if they are numbered. `waiting` is the hop before, whose rows
        are still to be looked up.
        """

    @property
    def known(self) -> Tensor:
        """The number of rows that draw in this hop."""
        return self.memory.known_at(self.number + self.reads_behind)

    @property
    def edges(self) -> Tensor:
        """The number of this hop's edges, as far as there is room."""
        return self.memory.edge_counts[self.number :]

    @property
    def needed(self) -> Tensor:
        """Where the hop writes how many edges, and then rows, it needs."""
        return self.memory.needed[2 * self.number :]

    @property
    def chosen(self) -> Tensor:
        """Where the hop writes the vertices that it has chosen."""
        return self.memory.sources[self.number % 2] if self.is_numbered else self.indices

    @property
    def targets(self) -> Tensor | None:
        """Where the hop writes the row of each edge; None where nobody asks for it."""
        return None if self.turned is None else self.turned.targets

    def scale_weights(self) -> None:
        """Launch what weighs edges that were drawn whatever they weigh, if that is asked for."""
        memory, topology = self.memory, self.memory.topology
        if self.scales and topology.weighed is not None:
            admissible_kernels().scale_weights[(blocks(self.edges_room, EDGES),)](
                topology.indptr, memory.vertices, self.indptr, self.edges, self.positions, topology.weighed.weights,
                self.weights, self.rows_room, *memory.excluded, EXCLUDES=memory.excluded.seeds is not None,
                DEPTH=(self.rows_room + 1).bit_length(), B=EDGES,
            )  # fmt: skip

    def number_chosen(self) -> None:
        """Launch the numbering of the vertices that are new."""
        memory, programs = self.memory, blocks(self.edges_room, EDGES)
        read = self.chosen, self.edges, memory.place, memory.edge_sums, memory.is_new
        kernels = hop_kernels()
        kernels.count_new[(programs,)](*read, B=EDGES)
        kernels.number_new[(programs,)](
            *read, memory.numbered, *memory.known_around(self.number), self.needed[1:], self.rows_behind,
            BLOCKS=power(programs), B=EDGES,
        )  # fmt: skip

    def look_up(self) -> None:
        """Launch the search for the rows of the chosen vertices."""
        count_and_look_up(self, None, 1, False)

    def turn(self) -> None:
        """Launch what makes the transposed lists, if they are asked for."""
        if self.turned is not None:
            self.turned.fill(self.indices, self.edges)

    def block(self, num_dst: int, num_src: int, edges: int, totals: Tensor | None, copy: bool) -> DeviceBlock:
        """The block of some of the hop's memory, or of a copy of it."""

        def cut(tensor: Tensor | None, size: int) -> Any:
            return None if tensor is None else tensor[:size].clone() if copy else tensor[:size]

        derived: dict[str, Any] = {} if self.longest is None else {"longest": self.longest}
        if self.turned is not None:
            derived |= {"sources": self.turned.lists, "source_chunks": self.turned.chunks}
        return DeviceBlock(
            cut(self.indptr, num_dst + 1),
            cut(self.indices, edges),
            num_src,
            cut(self.weights, edges),
            cut(totals, num_src),
            cut(self.positions, edges) if self.memory.keeps_positions else None,
            derived=derived,
        )


class UniformHop(Hop):
    """Draws up to `fanout` neighbours of each row, all equally likely, by as many columns of a program."""

    turns = True

    def __init__(self, memory: BatchMemory, number: int, fanout: int, replace: bool, scales: bool = False) -> None:
        super().__init__(memory, number, scales=scales)
        self.longest, self.fanout, self.replace = fanout, fanout, replace
        self.row_sums = memory.empty(blocks(self.rows_room, rows_of(fanout)))

    def choose(self, waiting: Hop | None) -> None:
        memory, rows = self.memory, rows_of(self.fanout)
        programs, topology = blocks(self.rows_room, rows), memory.topology
        count_and_look_up(waiting, self, self.fanout, self.replace)
        hop_kernels().draw[(programs,)](
            topology.indptr, topology.indices, memory.vertices, self.known, self.row_sums, memory.keys[self.number :],
            self.indptr, self.chosen, self.edges, self.positions, self.targets, memory.place, self.needed,
            self.rows_room, self.edges_room, *memory.excluded, FANOUT=self.fanout, COLUMNS=power(self.fanout),
            REPLACE=self.replace, EXCLUDES=memory.excluded.seeds is not None,
            KEEPS_POSITIONS=self.keeps_positions, KEEPS_TARGETS=self.turned is not None, NUMBERS=self.is_numbered,
            BLOCKS=power(programs), ROWS=rows,
        )  # fmt: skip
        self.scale_weights()


def count_and_look_up(waiting: Hop | None, hop: UniformHop | None, fanout: int, replace: bool) -> None:
    """Count a hop's edges and look up the rows of the one before it, in one launch as neither waits for the other."""
    own = hop or waiting
    assert own is not None
    memory, rows, last, turned = own.memory, rows_of(fanout), waiting or own, None
    count_programs = 0 if hop is None else blocks(hop.rows_room, rows)
    look_programs = 0
    if waiting is not None:
        look_programs, turned = blocks(waiting.edges_room, EDGES), waiting.turned
    room = own.rows_room if waiting is None else waiting.rows_behind
    hop_kernels().count_and_look_up[(count_programs + look_programs,)](
        memory.topology.indptr, memory.vertices, own.known, memory.edge_sums if hop is None else hop.row_sums,
        last.chosen, last.edges, last.memory.place, last.indices, None if turned is None else turned.readers,
        None if turned is None else turned.slots, room, count_programs, *memory.excluded, FANOUT=fanout,
        REPLACE=replace, EXCLUDES=memory.excluded.seeds is not None, COUNTS=hop is not None,
        LOOKS_UP=waiting is not None, TURNS=turned is not None, ROWS=rows, B=EDGES,
    )  # fmt: skip


_PROGRAMS = 2048
"""Programs that share the entries of a hop's lists."""


class ListHop(Hop):
    """A hop whose edges, or entries of lists, are shared out evenly among programs, however long lists are."""

    def __init__(
        self,
        memory: BatchMemory,
        number: int,
        fanout: int,
        replace: bool = False,
        weighted: bool = False,
        scales: bool = False,
    ) -> None:
        super().__init__(memory, number, weighted, scales)
        self.fanout, self.replace = fanout, replace
        self.longest = None if fanout < 0 or weighted else fanout
        self.lengths = memory.empty(self.rows_room, torch.int64)
        self.starts = memory.empty(self.rows_room + 1, torch.int64)
        self.depth = (self.rows_room + 1).bit_length()

    def measure(self, fanout: int) -> None:
        """Launch what finds where the rows' parts begin, if each takes up to `fanout` entries; negative: all."""
        memory = self.memory
        list_kernels().measure_lists[(blocks(self.rows_room, EDGES),)](
            memory.topology.indptr, memory.vertices, self.known, self.lengths, self.rows_room, *memory.excluded,
            FANOUT=fanout, REPLACE=self.replace, EXCLUDES=memory.excluded.seeds is not None, B=EDGES,
        )  # fmt: skip
        self.add_lengths()

    def add_lengths(self) -> None:
        """Launch what finds where the rows' parts begin by their lengths."""
        torch.cumsum(self.lengths[: self.rows_room], 0, out=self.starts[1 : self.rows_room + 1])

    def bound(self) -> None:
        """Launch what writes the bounds of lists that begin where it was found."""
        list_kernels().bound_lists[(blocks(self.rows_room + 1, EDGES),)](
            self.starts, self.indptr, self.edges, self.needed, self.rows_room, self.edges_room, B=EDGES
        )

    @property
    def key(self) -> Tensor:
        """The key of the hop's draws."""
        return self.memory.keys[self.number :]


class ListedHop(ListHop):
    """Takes whole lists, or draws `fanout` neighbours by a permutation of each list: a position for every edge."""

    def choose(self, waiting: Hop | None) -> None:
        if waiting is not None:
            waiting.look_up()
        memory, kernels, topology = self.memory, list_kernels(), self.memory.topology
        self.measure(self.fanout)
        self.bound()
        kernels.fetch_listed[(min(_PROGRAMS, blocks(self.edges_room, EDGES)),)](
            topology.indptr, topology.indices, memory.vertices, self.starts, self.key, self.chosen, self.positions,
            self.targets, memory.place, self.rows_room, self.edges_room, *memory.excluded, FANOUT=self.fanout,
            REPLACE=self.replace, EXCLUDES=memory.excluded.seeds is not None,
            KEEPS_POSITIONS=self.keeps_positions, KEEPS_TARGETS=self.turned is not None, NUMBERS=self.is_numbered,
            DEPTH=self.depth, B=EDGES,
        )  # fmt: skip
        self.scale_weights()


class WeightedHop(ListHop):
    """Draws up to `fanout` neighbours of each row by weight, or takes all that have one (-1)."""

    def __init__(self, memory: BatchMemory, number: int, fanout: int, replace: bool) -> None:
        self.turns = 0 < fanout <= SCANNED
        super().__init__(memory, number, fanout, replace, weighted=fanout < 0 or not replace)
        self.longest = None if fanout < 0 else fanout
        self._counts = memory.empty(self.rows_room, torch.int64)

    def choose(self, waiting: Hop | None) -> None:
        if waiting is not None:
            waiting.look_up()
        memory, kernels, topology, weighed = self.memory, admissible_kernels(), *_weighed(self.memory.topology)
        excludes, rows = memory.excluded.seeds is not None, self.rows_room
        sums = 0 < self.fanout <= FEW
        kernels.count_admissible[(rows,)](
            topology.indptr, memory.vertices, self.known, weighed.weights, weighed.positives, self._counts,
            self.lengths, *memory.excluded, FANOUT=self.fanout, REPLACE=self.replace, WEIGHTED=True,
            HAS_ZEROS=weighed.positives is not None, EXCLUDES=excludes, B=_PIECE,
        )  # fmt: skip
        self.add_lengths()
        self.bound()
        columns = power(self.fanout)
        written = self.chosen, self.positions, self.targets, self.weights, memory.place, self.edges_room
        keeps: dict[str, Any] = {
            "FANOUT": self.fanout, "COLUMNS": columns, "REPLACE": self.replace, "EXCLUDES": excludes,
            "KEEPS_POSITIONS": self.keeps_positions, "KEEPS_TARGETS": self.turned is not None,
            "NUMBERS": self.is_numbered,
        }  # fmt: skip
        lists = topology.indptr, topology.indices, memory.vertices, self.known, self.starts
        kernels.draw_admissible[(rows,)](
            *lists, self._counts, self.key, weighed.weights, weighed.sums, *written, *memory.excluded, WEIGHTED=True,
            SUMS=sums, KEEPS_WEIGHTS=self.weights is not None, B=_PIECE, num_warps=1, **keeps,
        )  # fmt: skip
        if sums:
            # Series are rounded as on the host only if products and sums are not fused.
            kernels.draw_summed[(blocks(rows, _SUMMED_ROWS),)](
                *lists, self.key, weighed.weights, weighed.sums, weighed.running, *written, *memory.excluded,
                DEPTH=len(weighed.weights).bit_length(), ROWS=_SUMMED_ROWS, num_warps=1,
                enable_fp_fusion=False, **keeps,
            )  # fmt: skip


_PIECE = 128
"""Entries of a list that a program passes over at once."""
_SUMMED_ROWS = 32
"""Rows of long lists that a program draws for."""


def _weighed(topology: Topology) -> tuple[Topology, Weighed]:
    assert topology.weighed is not None
    return topology, topology.weighed


class FilterHop(ListHop):
    """Keeps some entries of its rows' lists, by a rule: counted piece by piece, and then written one behind the other.

    `keep` and `weigh` give functions of `triton.jit` (see `sampling.triton_rules`), which read some tables.
    """

    def __init__(
        self, memory: BatchMemory, number: int, fanout: int, keep: LoadRule, weigh: LoadRule | None, tables: list[str]
    ) -> None:
        super().__init__(memory, number, fanout, weighted=weigh is not None)
        self._keep, self._weigh = keep, weigh
        given = [memory.tables[name] for name in tables]
        self.read = *given, *[None] * (3 - len(given))
        # No vertex is in a batch twice, so that the graph's lists are a bound on all entries.
        pieces = blocks(memory.topology.entries, EDGES)
        self.programs = (min(_PROGRAMS, pieces),)
        self._sums, self._behind = (memory.empty(pieces, torch.int64) for _ in range(2))
        self._firsts = memory.empty(self.rows_room + 1, torch.int64)

    def choose(self, waiting: Hop | None) -> None:
        if waiting is not None:
            waiting.look_up()
        self.measure(-1)
        self.filter()

    def filter(self) -> None:
        """Launch the counting and writing of what is kept."""
        memory, kernels, topology = self.memory, list_kernels(), self.memory.topology
        lists = topology.indptr, topology.indices, memory.vertices, self.starts, self.key, self._sums
        keep, weigh = self._keep(), None if self._weigh is None else self._weigh()
        sizes = {"FANOUT": self.fanout, "DEPTH": self.depth, "B": EDGES}
        kernels.count_kept[self.programs](*lists, *self.read, self.rows_room, KEEP=keep, **sizes)
        torch.cumsum(self._sums, 0, out=self._behind)
        kernels.write_kept[self.programs](
            *lists, self._behind, self._firsts, self.chosen, self.positions, self.targets, self.weights, memory.place,
            *self.read, self.rows_room, self.edges_room, KEEP=keep, WEIGH=weigh,
            WEIGHTED=weigh is not None, KEEPS_POSITIONS=memory.keeps_positions,
            KEEPS_TARGETS=self.turned is not None, NUMBERS=self.is_numbered, **sizes,
        )  # fmt: skip
        kernels.bound_kept[(blocks(self.rows_room + 1, EDGES),)](
            self.starts, self._firsts, self._behind, self.indptr, self.edges, self.needed, self.rows_room,
            self.edges_room, DEPTH=self.depth, PIECE=EDGES, B=EDGES,
        )  # fmt: skip


# Hops that draw vertices for all their rows together, and keep the edges from those: by a table, or by importance.
# Both draw `fanout` vertices with repeats, count in table `times` how often each was drawn, filter the rows' lists by
# it, and clear it again, so that slots can share it.


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


class Turned:
    """A block's transposed lists, made without a sort: counted, placed, and each ordered."""

    def __init__(self, rows: int, edges: int, device: torch.device) -> None:
        def empty(size: int) -> Tensor:
            return torch.zeros(max(1, size), dtype=torch.int32, device=device)

        self._rows, self._edges = rows, edges
        self.readers, self.slots, self.targets = empty(rows), empty(edges), empty(edges)
        self._unordered, self._sums = empty(edges), empty(blocks(rows, EDGES))
        self.lists = SourceLists(empty(rows + 1), empty(edges), empty(edges))
        self.chunks = empty(edges // CHUNK) if edges > 2 * CHUNK else None
        self._chunks = empty(1) if self.chunks is None else self.chunks

    def fill(self, indices: Tensor, edges: Tensor) -> None:
        """Fill the reversed lists from edges whose positions are known."""
        kernels, rows, lists = hop_kernels(), self._rows, self.lists
        programs = blocks(rows, EDGES)
        count = 0 if self.chunks is None else len(self.chunks)
        kernels.count_readers[(programs,)](
            self.readers, self._sums, self._chunks, rows, count, B=EDGES, CHUNKS=power(-(-count // programs))
        )
        kernels.bound_readers[(programs,)](
            self.readers, self._sums, lists.indptr, self._chunks, rows, CHUNK=CHUNK, BLOCKS=power(programs), B=EDGES
        )
        kernels.place_readers[(blocks(self._edges, EDGES),)](
            indices, self.slots, lists.indptr, edges, self._unordered, B=EDGES
        )
        kernels.order_readers[(blocks(self._edges, _ORDERED),)](
            lists.indptr, indices, self._unordered, self.targets, edges, lists.edges, lists.indices, B=_ORDERED, E=8
        )


def fill_totals(topology: Topology, vertices: Tensor, known: Tensor, totals: Tensor, excluded: Excluded) -> None:
    """Launch what writes the number, or the weight, of the edges that each row may draw."""
    read, excludes = (topology.indptr, vertices, known), excluded.seeds is not None
    if topology.weighed is None:
        hop_kernels().list_lengths[(blocks(len(totals), EDGES),)](
            *read, totals, len(totals), *excluded, EXCLUDES=excludes, B=EDGES
        )
    else:
        admissible_kernels().total_admissible[(len(totals),)](
            *read, topology.weighed.weights, topology.weighed.sums, totals, *excluded, EXCLUDES=excludes, B=_PIECE
        )


def rows_of(fanout: int) -> int:
    """Rows that a program draws for."""
    return max(_FEWEST, _CELLS // power(fanout))


def blocks(size: int, block: int) -> int:
    return max(1, -(-size // block))


def power(size: int) -> int:
    return 1 << max(0, size - 1).bit_length()


def list_kernels() -> Any:
    """As `hop_kernels`, for hops that share out work by edge."""
    from penstock.sampling.device import list_kernels as kernels

    return kernels


def admissible_kernels() -> Any:
    """As `hop_kernels`, for lists of which only some edges may be drawn, or some are likelier."""
    from penstock.sampling.device import admissible_kernels as kernels

    return kernels


def hop_kernels() -> Any:
    """Import Triton at the first launch: where memory is only predicted it may not be installed."""
    from penstock.sampling.device import kernels

    return kernels
