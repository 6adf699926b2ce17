"""What a device does to draw a sampler's batches: a stage that begins a batch, and a rule for each hop.

A sampler's entry makes its program (`SamplerEntry.device`); nothing here knows of samplers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.sampling.block import MiniBatch, Purpose
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import (
    BatchMemory,
    Excluded,
    FilterHop,
    Hop,
    ImportanceHop,
    ListedHop,
    LoadRule,
    TableDrawHop,
    Tables,
    Topology,
    UniformHop,
    WeightedHop,
    blocks,
    fresh_place,
    hop_kernels,
    power,
)
from penstock.sampling.draws import SCANNED
from penstock.sampling.neighbours import check_fanouts


class HopRule(Protocol):
    """How the rows of one hop choose neighbours."""

    @property
    def longest(self) -> int | None:
        """A bound on what a row chooses; None: the length of its list."""

    def most(self, rows: int, entries: int) -> int:
        """The most edges that so many rows choose in a graph of so many edges."""
        return entries if self.longest is None else rows * self.longest

    def make(self, memory: BatchMemory, number: int) -> Hop:
        """The hop of a batch, with its memory."""


@dataclass(frozen=True)
class UniformRule(HopRule):
    """Each row draws `fanout` neighbours, all equally likely."""

    fanout: int
    replace: bool = False
    scales: bool = False
    """Whether edges have weights, which decide no draw."""

    @property
    def longest(self) -> int:
        return self.fanout

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return UniformHop(memory, number, self.fanout, self.replace, self.scales)


@dataclass(frozen=True)
class ListedRule(HopRule):
    """Each row takes its whole list (`fanout` -1), or draws many neighbours, all equally likely."""

    fanout: int
    replace: bool = False
    scales: bool = False

    @property
    def longest(self) -> int | None:
        return None if self.fanout < 0 else self.fanout

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return ListedHop(memory, number, self.fanout, self.replace, scales=self.scales)


@dataclass(frozen=True)
class WeightedRule(HopRule):
    """Each row draws `fanout` neighbours by weight, or takes all that have one (-1)."""

    fanout: int
    replace: bool = False

    @property
    def longest(self) -> int | None:
        return None if self.fanout < 0 else self.fanout

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return WeightedHop(memory, number, self.fanout, self.replace)


@dataclass(frozen=True)
class TogetherRule(HopRule):
    """All rows together draw `size` vertices, by a table or by importance, and keep the edges from them; `hop` is
    `TableDrawHop` or `ImportanceHop`.
    """

    hop: type[TableDrawHop] | type[ImportanceHop]
    size: int
    keep: LoadRule
    weigh: LoadRule

    @property
    def longest(self) -> None:
        return None

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return self.hop(memory, number, self.size, self.keep, self.weigh)


@dataclass(frozen=True)
class FilterRule(HopRule):
    """Each row keeps some entries of its list, by a rule; see `FilterHop`."""

    fanout: int
    keep: LoadRule
    weigh: LoadRule | None = None
    tables: tuple[str, ...] = ()

    @property
    def longest(self) -> None:
        return None

    def make(self, memory: BatchMemory, number: int) -> Hop:
        return FilterHop(memory, number, self.fanout, self.keep, self.weigh, list(self.tables))


def neighbour_rules(
    fanouts: Sequence[int], replace: bool = False, by_weight: bool = False, scales: bool = False
) -> tuple[HopRule, ...]:
    """The rules of draws by weight, or uniform ones, whose edges have weights all the same where `scales`; -1 is the
    whole list.
    """
    check_fanouts(fanouts)
    if by_weight:
        return tuple(WeightedRule(fanout, replace) for fanout in fanouts)
    return tuple((UniformRule if 0 < fanout <= SCANNED else ListedRule)(fanout, replace, scales) for fanout in fanouts)


class Beginning(Protocol):
    """The stage that begins a batch: it gives the first rows and copies the batch's keys."""

    excluded: Mapping[EdgeType, Excluded] = {}
    """By relation, the edges that the batch must not draw."""

    def launch(self, epoch: DeviceEpoch) -> None:
        """Launch the beginning of the epoch's next batch."""


class GivenSeeds(Beginning):
    """A batch begins with some vertices of the epoch's order."""

    def __init__(self, memory: BatchMemory) -> None:
        self._memory = memory

    def launch(self, epoch: DeviceEpoch) -> None:
        memory, size = self._memory, min(1024, power(epoch.batch_size))
        hop_kernels().start[(blocks(epoch.batch_size, size),)](
            epoch.order, epoch.cursor, epoch.counts, epoch.batch_size, memory.vertices, memory.known, memory.place,
            memory.keys, epoch.keys, KEYS=epoch.keys.shape[1], B=size,
        )  # fmt: skip


class Seeds(Protocol):
    """What the batches of a program begin with: vertices, or the ends of edges that are drawn first."""

    @property
    def types(self) -> tuple[str, ...]:
        """The node types of its rows: those of the epoch's items, which may be no vertices (""), and those that each of
        its stages numbers.
        """

    @property
    def stages(self) -> int:
        """Stages before the first hop whose vertices are drawn and numbered as those of a hop are."""
        return len(self.types) - 1

    @property
    def reads(self) -> tuple[EdgeType, ...]:
        """The relations whose lists it reads, whether hops draw from them or not."""
        return ()

    def purposes(self, hops: list[Purpose]) -> list[Purpose]:
        """What a batch has keys for: as many as there are stages come before those of the hops."""
        return hops

    def room(self, batch_size: int, counts: Mapping[str, int]) -> Room:
        """The room that no batch can exceed in the stages, in a graph of so many vertices by type."""
        return Room((batch_size,), (), self.types)

    def sizes(self, batch: MiniBatch) -> list[int]:
        """The sizes that a batch of the host's needs in the stages, in the order of `Room.sizes`."""
        return []

    def tables(self, device: torch.device) -> Tables:
        """Tables on the device that all slots of a program share."""
        return {}

    def begin(self, memories: Sequence[BatchMemory]) -> Beginning:
        """The stage that begins a batch, with the memory of the rows of each of `types`."""


@dataclass(frozen=True)
class VertexSeeds(Seeds):
    """Batches begin with vertices of the epoch's order, of one node type."""

    node_type: str = ""

    @property
    def types(self) -> tuple[str, ...]:
        return (self.node_type,)

    def begin(self, memories: Sequence[BatchMemory]) -> Beginning:
        return GivenSeeds(memories[0])


@dataclass(frozen=True)
class DeviceProgram:
    """How a device draws batches: from the seeds on, hop by hop."""

    rules: tuple[HopRule, ...]
    _: KW_ONLY
    seeds: Seeds = VertexSeeds()
    totals: bool = False
    """Whether blocks have the lengths of the rows' whole lists even where the model does not ask for them: estimators
    that weigh edges need them.
    """
    seed_weights: Array | None = None
    """The weight of every vertex, as a seed, in the loss; None: seeds count the same."""
    shared_draws: int = 1
    """How many neighbouring batches of an epoch draw neighbours by the same random numbers."""
    make_tables: Callable[[Topology], Tables] | None = None
    """Makes the tables that its hops read, anywhere; they are moved to the device."""

    finds_seeds: ClassVar[bool] = False
    """Whether a batch finds its seeds, rather than beginning with the epoch's items."""

    @property
    def stages(self) -> int:
        """Stages before the first hop."""
        return self.seeds.stages

    @property
    def hops(self) -> int:
        """The number of hops."""
        return len(self.rules)

    @property
    def is_plain(self) -> bool:
        """Whether a batch begins with given vertices and its blocks have lists alone."""
        return not self.totals

    def items(self, items: Array) -> Array:
        """Some items as the beginning of a batch reads them."""
        return items

    def seeds_room(self, room: Room) -> int:
        """The room for the seeds of a batch."""
        return room.rows[self.stages]

    @property
    def purposes(self) -> list[Purpose]:
        """What a batch has keys for, in the order in which stages and hops read them."""
        return self.seeds.purposes([Purpose(str(hop), self.shared_draws) for hop in range(self.hops)])

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        """The room that no batch can exceed, in a graph of so many vertices and edges."""
        begun = self.seeds.room(batch_size, dict.fromkeys(self.seeds.types, vertices))
        rows, edges = list(begun.rows), list(begun.edges)
        for rule in self.rules:
            edges.append(rule.most(rows[-1], entries))
            rows.append(min(vertices, rows[-1] + edges[-1]))
        return Room(tuple(rows), tuple(edges))

    def sizes(self, batch: MiniBatch) -> list[int]:
        """The sizes that a batch of the host's needs, in the order of `Room.sizes`."""
        drawn = [size for block in batch.blocks[::-1] for size in (block.num_edges, block.num_src)]
        return [*self.seeds.sizes(batch), *drawn]

    def tables(self, topology: Topology, device: torch.device) -> Tables:
        """Tables on the device that all slots of a program share."""
        made = {} if self.make_tables is None else self.make_tables(topology)
        own = {name: table.to(device) for name, table in made.items()}
        return {"place": fresh_place(topology.count, device), **own, **self.seeds.tables(device)}

    def blocks(
        self, hops: Sequence[Hop], rows: Sequence[int], edges: Sequence[int], totals: Tensor | None, copy: bool
    ) -> list[DeviceBlock]:
        """The blocks of a batch of some sizes, outermost first, in the hops' memory or in copies."""
        return [
            hop.block(rows[hop.number], rows[hop.number + 1], edges[hop.number], totals, copy) for hop in reversed(hops)
        ]

    def begin(self, memory: BatchMemory) -> Beginning:
        """The stage that begins a batch."""
        return self.seeds.begin([memory] * len(self.seeds.types))
