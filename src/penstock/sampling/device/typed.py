"""Neighbour sampling of several node types on a device: relation by relation, with the CPU's numbering.

A batch is a list of draws, hop by hop and in a hop by relation in stored order. Each reads the rows that its
destination type had at the start of the hop, and numbers its new sources after the rows that its source type has by
then.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import DrawnRows, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import EDGES, BatchMemory, Hop, Tables, Topology, blocks, hop_kernels
from penstock.sampling.device.program import DeviceProgram, HopRule, uniform_rules
from penstock.sampling.device.slot import Slot
from penstock.sampling.relations import Fanout, fanouts_by_relation


class RelationDraw(NamedTuple):
    """What a hop draws along one relation."""

    hop: int
    kind: EdgeType
    fanout: int

    @property
    def purpose(self) -> str:
        """The name of its random stream in a batch (`BatchKey.hop`)."""
        return f"{self.hop}/{edge_key(self.kind)}"


def relation_draws(edge_types: Sequence[EdgeType], fanouts: Sequence[Fanout], seed_type: str) -> list[RelationDraw]:
    """The draws of a batch in order, without relations whose destinations no hop can have reached."""
    reached, found = {seed_type}, list[RelationDraw]()
    for hop, followed in enumerate(fanouts_by_relation(edge_types, fanouts)):
        drawn = [
            RelationDraw(hop, kind, followed[kind]) for kind in edge_types if kind in followed and kind[2] in reached
        ]
        reached |= {each.kind[0] for each in drawn}
        found += drawn
    return found


class TypedTopology(Topology):
    """The in-neighbour lists of the relations that batches read, and the number of vertices of every type."""

    def __init__(self, lists: Mapping[EdgeType, Topology], counts: Mapping[str, int]) -> None:
        self.lists, self.counts = dict(lists), dict(counts)

    @property
    def count(self) -> int:
        """The number of vertices of all types."""
        return sum(self.counts.values())

    def count_of(self, node_type: str) -> int:
        """The number of vertices of a type."""
        return self.counts[node_type]

    @property
    def entries(self) -> int:
        """The number of edges of all relations."""
        return sum(each.entries for each in self.lists.values())


@dataclass(frozen=True)
class TypedProgram(DeviceProgram):
    """How a device draws batches of several types, from seeds of one: by one draw after the other."""

    draws: tuple[RelationDraw, ...] = ()
    seed_type: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of vertices of every type."""

    @property
    def purposes(self) -> list[str]:
        return [draw.purpose for draw in self.draws]

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        known, before, hop = {self.seed_type: batch_size}, {self.seed_type: batch_size}, 0
        rows, edges = [batch_size], list[int]()
        for draw in self.draws:
            source, _, target = draw.kind
            if draw.hop != hop:
                before, hop = dict(known), draw.hop
            edges.append(before[target] * draw.fanout)
            known[source] = min(self.counts[source], known.get(source, 0) + edges[-1])
            rows.append(known[source])
        return Room(tuple(rows), tuple(edges), (self.seed_type, *(draw.kind[0] for draw in self.draws)))

    def sizes(self, batch: MiniBatch) -> list[int]:
        """The rows after a hop stand for those after each of its draws."""
        found = []
        for draw in self.draws:
            block = batch.blocks[len(batch.blocks) - 1 - draw.hop]
            part = block.relations.get(draw.kind)
            found += [0 if part is None else part.num_edges, block.src_counts[draw.kind[0]]]
        return found


def typed_program(
    edge_types: Sequence[EdgeType],
    fanouts: Sequence[Fanout],
    seed_type: str,
    counts: Mapping[str, int],
    with_replacement: bool = False,
) -> TypedProgram:
    """The program of uniform draws from seeds of a type; refuses fan-outs that only the host draws."""
    draws = tuple(relation_draws(edge_types, fanouts, seed_type))
    rules: tuple[HopRule, ...] = uniform_rules([draw.fanout for draw in draws], with_replacement)
    return TypedProgram(rules, draws, seed_type, counts)


class RelationMemory(BatchMemory):
    """What one draw uses of a batch's memory: rows of its destination type draw, and those of its source type grow."""

    def __init__(self, shared: BatchMemory, number: int, cells: tuple[int, int], rows: tuple[int, int]) -> None:
        """`cells` are those, among the numbers of rows, of the rows that draw and of the source type's before the draw.
        `rows` is the room for both types' rows: those that draw, and the source type's after the whole hop.
        """
        vars(self).update(vars(shared))
        self._cells, held = cells, list(shared.room.rows)
        held[number : number + 2] = rows
        self.room = replace(shared.room, rows=tuple(held))

    def known_at(self, hop: int) -> Tensor:
        return self.known[self._cells[0] :]

    def known_around(self, hop: int) -> tuple[Tensor, Tensor]:
        return self.known[self._cells[1] :], self.known[hop + 1 :]


class TypedSlot(Slot):
    """Memory of one batch of several types: its vertices by type, its blocks, and what drawing them needs."""

    vertices: dict[str, Tensor]  # type: ignore[assignment]
    known: dict[str, Tensor]  # type: ignore[assignment]
    """The number of the batch's rows by type."""

    def __init__(
        self,
        topology: TypedTopology,
        program: "TypedProgram",
        room: Room,
        device: torch.device,
        keys: int,
        totals: bool = False,
        edges: bool = False,
        tables: Tables | None = None,
        turns: bool = False,
    ) -> None:
        """`tables` may be shared by slots that are filled one after the other on one stream. With `turns` all blocks
        come with their transposed lists, along which gradients flow.
        """
        self.room, self.numbers_last, self._topology, self._draws = room, True, topology, program.draws
        self._seed_type = program.seed_type
        self.tables = program.tables(topology, device) if tables is None else tables
        memory = BatchMemory(topology, room, device, keys, self.tables, edges, True, turns, True)
        # The numbers of rows: of the seeds, of each draw's source type after it, and a zero.
        memory.known = memory.empty(len(self._draws) + 2)
        places = torch.split(memory.place, list(topology.counts.values()))
        self._places = dict(zip(topology.counts, places, strict=True))
        self._rows = _rows_by_hop(self._draws, room)
        self.vertices = {name: memory.empty(size) for name, size in self._rows[-1].items()}
        self.keys, self.needed, self._memory = memory.keys, memory.needed, memory
        self.number, self.skip = memory.empty(1), memory.empty(1, torch.float32)
        self._rooms = torch.tensor(room.sizes, dtype=torch.int32, device=device)
        seeds = copy(memory)
        seeds.vertices, seeds.place = self.vertices[self._seed_type], self._places[self._seed_type]
        self.beginning = program.begin(seeds)
        self._hops, cells = self._made_hops(program)
        self.known = {name: memory.known[cell : cell + 1] for name, cell in cells.items()}
        last, kinds = self._rows[-1], dict.fromkeys(draw.kind for draw in self._draws)
        self._totals = {kind: memory.empty(last[kind[2]], torch.float32) for kind in kinds} if totals else None

    def _made_hops(self, program: "TypedProgram") -> tuple[list[Hop], dict[str, int]]:
        """The draws with their memory, and the cell of each type's number of rows at the end."""
        cells, made, zero = {self._seed_type: 0}, list[Hop](), len(self._draws) + 1
        for number, (draw, rule) in enumerate(zip(self._draws, program.rules, strict=True)):
            if not number or draw.hop != self._draws[number - 1].hop:
                at_start = dict(cells)
            source, _, target = draw.kind
            rows = self._rows[draw.hop][target], self._rows[draw.hop + 1][source]
            memory = RelationMemory(self._memory, number, (at_start[target], cells.get(source, zero)), rows)
            memory.topology, memory.place = self._topology.lists[draw.kind], self._places[source]
            memory.vertices, memory.numbered = self.vertices[target], self.vertices[source]
            made.append(rule.make(memory, number))
            cells[source] = number + 1
        return made, cells

    def _finish(self, epoch: DeviceEpoch) -> None:
        kernels, seeds = hop_kernels(), self._seed_type
        for kind, totals in (self._totals or {}).items():
            kernels.list_lengths[(blocks(len(totals), EDGES),)](
                self._topology.lists[kind].indptr, self.vertices[kind[2]], self.known[kind[2]], totals, len(totals),
                *self._memory.excluded, EXCLUDES=False, B=EDGES,
            )  # fmt: skip
        for name in self.vertices.keys() - {seeds}:
            vertices, place = self.vertices[name], self._places[name]
            kernels.forget[(blocks(len(vertices), EDGES),)](vertices, self.known[name], place, B=EDGES)
        kernels.finish[(blocks(len(self.vertices[seeds]), EDGES),)](
            self.vertices[seeds], self.known[seeds], self._places[seeds], self.needed, self._rooms, epoch.cursor,
            self.number, epoch.failed_at, self.skip, SIZES=len(self.needed), B=EDGES,
        )  # fmt: skip

    def blocks(self) -> list[Block]:  # type: ignore[override]
        """The batch's blocks with all their room, outermost first. The next draw overwrites them."""
        return self._by_hop(self._rows, self.room.edges, False)

    def copied_blocks(self, seeds: int, sizes: Sequence[int]) -> list[Block]:  # type: ignore[override]
        """Copies of the batch's blocks, cut to their sizes, without relations that have no edges. `sizes` are the
        device's counts (`needed`).
        """
        drawn = replace(self.room, rows=(seeds, *sizes[1::2]), edges=tuple(sizes[::2]))
        return self._by_hop(_rows_by_hop(self._draws, drawn), drawn.edges, True)

    def copied_vertices(self, node_type: str, seeds: int, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Copies of the batch's vertices by type, cut to their numbers; types that were not reached have none."""
        known = {self._seed_type: seeds}
        known |= {draw.kind[0]: sizes[2 * number + 1] for number, draw in enumerate(self._draws)}
        none = self.vertices[self._seed_type][:0]
        return {name: self.vertices.get(name, none)[: known.get(name, 0)].clone() for name in self._topology.counts}

    def by_type(self, node_type: str) -> dict[str, DrawnRows]:
        """The batch's vertices of every type that it can reach."""
        return {name: DrawnRows(vertices, self.known[name]) for name, vertices in self.vertices.items()}

    def _by_hop(self, rows: Sequence[Mapping[str, int]], edges: Sequence[int], copies: bool) -> list[Block]:
        """The blocks of the hops, outermost first, of so many rows and edges; copies lack relations without edges."""
        made = []
        for hop in reversed(range(len(rows) - 1)):
            before, after = ({name: at.get(name, 0) for name in self._topology.counts} for at in rows[hop : hop + 2])
            found: dict[EdgeType, Block] = {}
            for number, (_, kind, _) in enumerate(self._draws):
                if self._draws[number].hop == hop and (edges[number] or not copies):
                    totals = None if self._totals is None else self._totals[kind][: after[kind[2]]]
                    sizes = before[kind[2]], after[kind[0]], edges[number]
                    found[kind] = block = self._hops[number].block(*sizes, None, copies)
                    block.totals = cast(Any, totals.clone() if totals is not None and copies else totals)
            made.append(Block.of_relations(found, after, before))
        return made


def _rows_by_hop(draws: Sequence[RelationDraw], room: Room) -> list[dict[str, int]]:
    """The rows of each type before each hop, and after the last, of a batch of these sizes."""
    known, found = {room.types[0]: room.rows[0]}, list[dict[str, int]]()
    for number, draw in enumerate(draws):
        if not number or draw.hop != draws[number - 1].hop:
            found.append(dict(known))
        known[draw.kind[0]] = room.rows[number + 1]
    return [*found, known]


def drawn_relations(program: DeviceProgram, graph: Graph) -> list[EdgeType]:
    """The relations whose lists a program reads."""
    if isinstance(program, TypedProgram):
        return list(dict.fromkeys(draw.kind for draw in program.draws))
    return list(graph.edges)


def new_slot(topology: Any, program: DeviceProgram, *how: Any, **options: Any) -> Slot:
    """The memory of one batch, of one type or of several; the rest is as for `Slot`."""
    if not isinstance(program, TypedProgram):
        return Slot(topology, program, *how, **options)
    # Several types are projected first, so that gradients always flow to the last hop's rows.
    options = {
        name: value for name, value in options.items() if name not in ("numbers_last", "turns_last", "vertex_totals")
    }
    return TypedSlot(topology, program, *how, **options)
