"""Neighbour sampling of several node types on a device: relation by relation, with the CPU's numbering.

A batch is a list of draws, hop by hop and in a hop by relation in stored order. Each reads the rows that its
destination type had at the start of the hop, and numbers its new sources after the rows that its source type has by
then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.block import Block, MiniBatch, Purpose
from penstock.sampling.device.block import DrawnRows, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import EDGES, BatchMemory, Excluded, Topology, blocks, fill_totals, hop_kernels
from penstock.sampling.device.program import DeviceProgram, Seeds, neighbour_rules
from penstock.sampling.device.slot import Slot
from penstock.sampling.neighbours import Fanout, fanouts_by_relation


class RelationDraw(NamedTuple):
    """What a hop draws along one relation."""

    hop: int
    kind: EdgeType
    fanout: int

    @property
    def purpose(self) -> str:
        """The name of its random stream in a batch (`BatchKey.hop`)."""
        return f"{self.hop}/{edge_key(self.kind)}"


def relation_draws(
    edge_types: Sequence[EdgeType], fanouts: Sequence[Fanout], seed_types: Sequence[str]
) -> list[RelationDraw]:
    """The draws of a batch in order, without relations whose destinations no hop can have reached."""
    reached, found = set(seed_types), list[RelationDraw]()
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

    def along(self, kind: EdgeType) -> Topology | None:
        """The lists of a relation; None where no batch reads them."""
        return self.lists.get(kind)

    @property
    def entries(self) -> int:
        """The number of edges of all relations."""
        return sum(each.entries for each in self.lists.values())


@dataclass(frozen=True)
class TypedProgram(DeviceProgram):
    """How a device draws batches of several types: by one draw after the other."""

    draws: tuple[RelationDraw, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of vertices of every type."""
    entries: Mapping[EdgeType, int] = field(default_factory=dict)
    """The number of edges of every relation."""

    @property
    def purposes(self) -> list[Purpose]:
        return self.seeds.purposes([Purpose(draw.purpose, self.shared_draws) for draw in self.draws])

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        begun = self.seeds.room(batch_size, self.counts)
        known, hop = dict(zip(begun.types, begun.rows, strict=True)), -1
        rows, edges = list(begun.rows), list(begun.edges)
        for draw, rule in zip(self.draws, self.rules, strict=True):
            source, _, target = draw.kind
            if draw.hop != hop:
                before, hop = dict(known), draw.hop
            edges.append(rule.most(before[target], self.entries[draw.kind]))
            known[source] = min(self.counts[source], known.get(source, 0) + edges[-1])
            rows.append(known[source])
        return Room(tuple(rows), tuple(edges), (*begun.types, *(draw.kind[0] for draw in self.draws)))

    def sizes(self, batch: MiniBatch) -> list[int]:
        """The rows after a hop stand for those after each of its draws."""
        found = self.seeds.sizes(batch)
        for draw in self.draws:
            block = batch.blocks[len(batch.blocks) - 1 - draw.hop]
            part = block.relations.get(draw.kind)
            found += [0 if part is None else part.num_edges, block.src_counts[draw.kind[0]]]
        return found

    def rows_by_hop(self, room: Room) -> list[dict[str, int]]:
        """The rows of each type before each hop, and after the last, of a batch of these sizes."""
        known, found = dict(zip(self.seeds.types, room.rows, strict=False)), list[dict[str, int]]()
        known.pop("", None)
        for number, draw in enumerate(self.draws):
            if not number or draw.hop != self.draws[number - 1].hop:
                found.append(dict(known))
            known[draw.kind[0]] = room.rows[self.stages + number + 1]
        return [*found, known]


def typed_program(
    graph: Graph,
    fanouts: Sequence[Fanout],
    seeds: Seeds,
    with_replacement: bool = False,
    by_weight: bool = False,
    scales: bool = False,
) -> TypedProgram:
    """The program of draws from some seeds, uniform or by weight (`neighbour_rules`)."""
    draws = tuple(relation_draws(list(graph.edges), fanouts, seeds.types))
    rules = neighbour_rules([draw.fanout for draw in draws], with_replacement, by_weight, scales)
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    entries = {kind: edges.count for kind, edges in graph.edges.items()}
    return TypedProgram(rules, draws, counts, entries, seeds=seeds, totals=by_weight or scales)


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

    program: TypedProgram

    def _make_hops(self, program: TypedProgram, totals: bool) -> None:
        memory, self._draws, types = self._memory, program.draws, program.seeds.types
        # The numbers of rows: of the items, of a type's after each stage and draw, and a zero.
        zero = program.stages + len(self._draws) + 1
        memory.known, self._topology = memory.empty(zero + 1), cast(TypedTopology, memory.topology)
        places = torch.split(memory.place, list(self._topology.counts.values()))
        self._places = dict(zip(self._topology.counts, places, strict=True))
        self._rows = program.rows_by_hop(self.room)
        self.vertices = {name: memory.empty(size) for name, size in self._rows[-1].items()}
        begun = [
            self._of_type(max(0, number - 1), name, (0, 0), (0, size)) if name else memory
            for number, (name, size) in enumerate(zip(types, self.room.rows, strict=False))
        ]
        self.beginning = program.seeds.begin(begun)
        cells = {name: cell for cell, name in enumerate(types) if name}
        self._hops, self._begun = [], list[dict[str, int]]()
        """The draws, and before each hop the cell of each type's number of rows."""
        for number, (draw, rule) in enumerate(zip(self._draws, program.rules, strict=True)):
            if not number or draw.hop != self._draws[number - 1].hop:
                self._begun.append(at_start := dict(cells))
            source, _, target = draw.kind
            rows = self._rows[draw.hop][target], self._rows[draw.hop + 1][source]
            stage = program.stages + number
            drawn = self._of_type(stage, source, (at_start[target], cells.get(source, zero)), rows)
            drawn.topology, drawn.vertices = self._topology.lists[draw.kind], self.vertices[target]
            drawn.excluded = self._excluded(draw.kind)
            self._hops.append(rule.make(drawn, stage))
            cells[source] = stage + 1
        self.known = {name: memory.known[cell : cell + 1] for name, cell in cells.items()}
        last, kinds = self._rows[-1], dict.fromkeys(draw.kind for draw in self._draws)
        self._totals = {kind: memory.empty(last[kind[2]], torch.float32) for kind in kinds} if totals else None

    def _of_type(self, number: int, name: str, cells: tuple[int, int], rows: tuple[int, int]) -> RelationMemory:
        """The memory with which a stage or draw numbers rows of a type."""
        memory = RelationMemory(self._memory, number, cells, rows)
        memory.place, memory.vertices = self._places[name], self.vertices[name]
        memory.numbered = memory.vertices
        return memory

    def _excluded(self, kind: EdgeType) -> Excluded:
        return self.beginning.excluded.get(kind, Excluded())

    def _finish(self, epoch: DeviceEpoch) -> None:
        kernels, seeds = hop_kernels(), next(iter(self.vertices))
        for kind, totals in (self._totals or {}).items():
            rows = self.vertices[kind[2]], self.known[kind[2]]
            fill_totals(self._topology.lists[kind], *rows, totals, self._excluded(kind))
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

    def copied_blocks(self, seeds: int, sizes: Sequence[int]) -> list[Block]:
        """Copies of the batch's blocks, cut to their sizes, without relations that have no edges. `sizes` are the
        device's counts (`needed`).
        """
        drawn = replace(self.room, rows=(seeds, *sizes[1::2]), edges=tuple(sizes[::2]))
        return self._by_hop(self.program.rows_by_hop(drawn), drawn.edges, True)

    def new_list_starts(self) -> list[Tensor]:
        """For every draw, where in its lists those begin of vertices that had no rows when the hop before began."""
        known, found = self._memory.known, list[Tensor]()
        for (hop, kind, _), drawn in zip(self._draws, self._hops, strict=True):
            cell = self._begun[hop - 1].get(kind[2], -1) if hop else -1
            found.append(drawn.indptr.index_select(0, known[cell:][:1]))
        return found

    def with_new_rows(self, blocks: list[Block]) -> list[tuple[Block | None, int]]:
        found = list[tuple[Block | None, int]]()
        for hop, kind, _ in self._draws:
            known = blocks[-hop].dst_counts[kind[2]] if hop else 0
            found.append((blocks[-1 - hop].relations.get(kind), known))
        return found

    def copied_vertices(self, node_type: str, seeds: int, sizes: Sequence[int]) -> dict[str, Tensor]:
        """Copies of the batch's vertices by type, cut to their numbers; types that were not reached have none."""
        drawn = replace(self.room, rows=(seeds, *sizes[1::2]))
        known, none = self.program.rows_by_hop(drawn)[-1], next(iter(self.vertices.values()))[:0]
        return {name: self.vertices.get(name, none)[: known.get(name, 0)].clone() for name in self._topology.counts}

    def seeds(self, node_type: str) -> dict[str, Tensor]:
        """The room for the batch's seeds by type."""
        return {name: self.vertices[name][:size] for name, size in self._rows[0].items()}

    def by_type(self, node_type: str) -> dict[str, DrawnRows]:
        """The batch's vertices of every type that it can reach."""
        return {name: DrawnRows(vertices, self.known[name]) for name, vertices in self.vertices.items()}

    def _by_hop(self, rows: Sequence[Mapping[str, int]], edges: Sequence[int], copies: bool) -> list[Block]:
        """The blocks of the hops, outermost first, of so many rows and edges; copies lack relations without edges."""
        made = []
        for hop in reversed(range(len(rows) - 1)):
            before, after = ({name: at.get(name, 0) for name in self._topology.counts} for at in rows[hop : hop + 2])
            found: dict[EdgeType, Block] = {}
            for (at, kind, _), drawn, size in zip(self._draws, self._hops, edges[self.program.stages :], strict=True):
                if at == hop and (size or not copies):
                    totals = None if self._totals is None else self._totals[kind][: after[kind[2]]]
                    found[kind] = block = drawn.block(before[kind[2]], after[kind[0]], size, None, copies)
                    block.totals = cast(Any, totals.clone() if totals is not None and copies else totals)
            made.append(Block.of_relations(found, after, before))
        return made


def drawn_relations(program: DeviceProgram, graph: Graph) -> list[EdgeType]:
    """The relations whose lists a program reads."""
    if isinstance(program, TypedProgram):
        return list(dict.fromkeys([*(draw.kind for draw in program.draws), *program.seeds.reads]))
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
