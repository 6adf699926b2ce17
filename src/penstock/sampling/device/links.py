"""Batches of edges made on a device without the host: the same as on the host, negatives and exclusions included.

Shapes never change, so that launches can be captured: the last batch of an epoch is padded with edges that do not
count. The ends of a batch's edges and negatives are the seeds of its hops, each vertex once. Their number is bounded as
that of a hop's vertices: a batch of edges has a stage more than it has hops, or two where the ends are of two types.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType
from penstock.sampling.block import MiniBatch, Purpose
from penstock.sampling.device.block import Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import BatchMemory, Excluded, Tables, Topology, blocks, hop_kernels, power
from penstock.sampling.device.program import Beginning, Seeds
from penstock.sampling.links import EdgeBatcher, InBatch, Joint, Uniform
from penstock.sampling.links.known import End
from penstock.sampling.links.negatives import STEP, TRIES

_BLOCK = 256
"""Edges, ends and pairs that a program handles."""
_ENDS: tuple[End, ...] = ("destination", "source")
"""The ends that may be replaced, in the order in which they are drawn."""


@dataclass(frozen=True, eq=False)
class DrawnLinks(Seeds):
    """Batches begin with edges of an epoch, by their positions `items`, and with negatives that a device draws."""

    batcher: EdgeBatcher
    items: Array
    batch_size: int

    @cached_property
    def policy(self) -> Any:
        """How negatives are chosen; None where there are none."""
        policy = self.batcher.negatives
        assert policy is None or isinstance(policy, Uniform | Joint | InBatch)
        return policy

    @property
    def ends(self) -> tuple[End, ...]:
        """The ends that are replaced."""
        return tuple(end for end in _ENDS if self.policy is not None and self.policy.corrupt in (end, "both"))

    @property
    def is_own(self) -> bool:
        """Whether each edge has negatives of its own."""
        return isinstance(self.policy, Uniform)

    @property
    def in_batch(self) -> bool:
        """Whether the ends of other edges are the negatives."""
        return isinstance(self.policy, InBatch)

    @property
    def k(self) -> int:
        """The number of negatives at one end of each edge of a whole batch."""
        return 0 if self.policy is None else int(self.policy.per_positive(self.batch_size))

    @property
    def group(self) -> int:
        """The number of edges that share negatives."""
        shared = 1 if self.is_own or self.policy is None else getattr(self.policy, "group", None) or self.batch_size
        return min(shared, self.batch_size)

    @property
    def filtered(self) -> bool:
        """Whether true edges do not count as negatives."""
        return self.policy is not None and bool(self.policy.filtered)

    @property
    def reverses(self) -> bool:
        """Whether the reverses of a batch's edges, which are of the same relation, are excluded as well."""
        return self.batcher.reverse == "same"

    @property
    def types(self) -> tuple[str, ...]:
        source, _, destination = self.batcher.edge_type
        return "", *dict.fromkeys((source, destination))

    @property
    def reads(self) -> tuple[EdgeType, ...]:
        return (self.batcher.edge_type,) if self.filtered else ()

    def ends_of(self, stage: int) -> list[End]:
        """The ends that are drawn, of the type that a stage numbers."""
        types = {"source": self.types[1], "destination": self.types[-1]}
        return [] if self.in_batch else [end for end in self.ends if types[end] == self.types[1 + stage]]

    def drawn(self, stage: int) -> int:
        """The number of vertices that are drawn for a group of edges, of the type that a stage numbers."""
        return self.k * len(self.ends_of(stage))

    @property
    def own(self) -> int:
        """The ends of an edge that a stage numbers: 1 where they are of two types, else both."""
        return 3 - self.stages

    def most_ends(self, stage: int) -> int:
        """The number of ends of a whole batch that a stage numbers, drawn ones included."""
        return self.own * self.batch_size + -(-self.batch_size // self.group) * self.drawn(stage)

    def purposes(self, hops: list[Purpose]) -> list[Purpose]:
        negatives = [Purpose(f"negatives/{end}") for end in _ENDS]
        return [*negatives[: self.stages], *hops, *negatives[self.stages :]]

    def room(self, batch_size: int, counts: Mapping[str, int]) -> Room:
        edges = [self.most_ends(stage) for stage in range(self.stages)]
        rows = [min(counts[name], ends) for name, ends in zip(self.types[1:], edges, strict=True)]
        return Room((batch_size, *rows), tuple(edges), self.types)

    def sizes(self, batch: MiniBatch) -> list[int]:
        links, found = batch.links, list[int]()
        drawn = {"source": links.negative_source.size, "destination": links.negative_destination.size}
        for stage, name in enumerate(self.types[1:]):
            ends = self.own * len(links) + sum(drawn[end] for end in self.ends_of(stage))
            found += [ends, len(links.nodes[name])]
        return found

    @cached_property
    def depth(self) -> int:
        """The most steps of a search in a list, or among the edges that are held out."""
        return max(*map(_longest, self.batcher.left_out.values()), len(self.batcher.known.kept_out)).bit_length() + 1

    def tables(self, device: torch.device) -> Tables:
        """By item, the ends of the edges and which copy of parallel ones each is; and true edges beside the lists."""

        def there(values: Array, dtype: Any) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values if len(values) else np.zeros(1), dtype)).to(device)

        edges = self.batcher.positives(np.asarray(self.items, np.int64))
        return {
            "sources": there(edges.source, np.int32),
            "destinations": there(edges.destination, np.int32),
            "copies": there(edges.copy if self.is_own else edges.copy[:1], np.int32),
            "kept_out": there(self.batcher.known.kept_out if self.filtered else edges.copy[:1], np.int64),
        }

    def begin(self, memories: Sequence[BatchMemory]) -> "EdgeSeeds":
        return EdgeSeeds(memories, self)


def _longest(edges: EdgeSet) -> int:
    return int(np.diff(edges.indptr).max(initial=0))


class NumberedEnds:
    """The ends of a batch's edges and negatives that one stage numbers, as vertices with repeats."""

    def __init__(self, memory: BatchMemory, edges: DrawnLinks, stage: int) -> None:
        most = edges.most_ends(stage)
        self.memory, self._stage, self.room = memory, stage, memory.room.rows[stage + 1]
        self.ends, self._sums = memory.empty(most), memory.empty(blocks(most, _BLOCK))
        self.needed = memory.needed[2 * stage :]

    @property
    def known(self) -> Tensor:
        """The number of their rows."""
        return self.memory.known[self._stage + 1 :]

    def number(self) -> None:
        """Launch the numbering of different vertices in the order in which they appear."""
        memory, programs = self.memory, len(self._sums)
        read = self.ends, self.needed, memory.place, self._sums, memory.is_new
        hop_kernels().count_new[(programs,)](*read, B=_BLOCK)
        hop_kernels().number_new[(programs,)](
            *read, memory.vertices, *memory.known_around(self._stage), self.needed[1:], self.room,
            BLOCKS=power(programs), B=_BLOCK,
        )  # fmt: skip


class EdgeSeeds(Beginning):
    """A batch begins with edges of the epoch's order and their negatives, whose ends are numbered.

    `rows` and `columns` [edges, 1 + negatives] are the rows of the pairs' ends; `counts` says which pairs count, where
    an edge itself always does; `weights` has 1 for those of real edges that count, and 0 for all others. `sizes` are
    the numbers of edges and of pairs that count, and `items` the positions of the edges among the epoch's items.
    """

    def __init__(self, memories: Sequence[BatchMemory], edges: DrawnLinks) -> None:
        size, width, memory = edges.batch_size, 1 + edges.k * len(edges.ends), memories[0]
        known = edges.batcher.known
        for end in () if edges.in_batch else edges.ends:
            if known.candidates(end) < 2:
                raise PenstockError(
                    f"There is only one vertex that can be the {end}: negatives need at least two.",
                    code="missing-data",
                )
        self._memory, self._edges = memory, edges
        self._stages = [NumberedEnds(each, edges, stage) for stage, each in enumerate(memories[1:])]
        self._sources, self._destinations = self._stages[0], self._stages[-1]
        self.items, self.sizes = memory.empty(size, torch.int64), memory.empty(2)

        def pairs(dtype: torch.dtype) -> Tensor:
            return memory.empty(size * width, dtype).view(size, width)

        self.rows, self.columns = pairs(torch.int64), pairs(torch.int64)
        self.counts, self.weights = pairs(torch.bool), pairs(torch.float32)
        self._exclusions = {
            kind: DeviceExclusion(self, edges, kind, topology)
            for kind in edges.batcher.left_out
            if (topology := memory.topology.along(kind)) is not None
        }
        self.excluded = {kind: exclusion.excluded for kind, exclusion in self._exclusions.items()}

    def at(self, end: End) -> tuple[NumberedEnds, int]:
        """The ends of the edges there, and how many times the number of edges precede them."""
        return (self._sources, 0) if end == "source" else (self._destinations, self._edges.own - 1)

    def launch(self, epoch: DeviceEpoch) -> None:
        """Take the epoch's next edges, draw their negatives, and number the ends as the first rows."""
        from penstock.sampling.device import link_kernels

        memory, edges, sources, destinations = self._memory, self._edges, self._sources, self._destinations
        ends = sources.ends, destinations.ends
        places = sources.memory.place, destinations.memory.place
        link_kernels.take_edges[(blocks(edges.batch_size, _BLOCK),)](
            epoch.order, epoch.cursor, epoch.counts, edges.batch_size, memory.tables["sources"],
            memory.tables["destinations"], *ends, self.items, self.sizes, memory.known, sources.needed,
            destinations.needed, *places, memory.keys, epoch.keys, edges.group, edges.drawn(0),
            edges.drawn(edges.stages - 1), OWN=edges.own, KEYS=epoch.keys.shape[1], B=_BLOCK,
        )  # fmt: skip
        if not edges.in_batch:
            self._draw_negatives()
        for stage in self._stages:
            stage.number()
        link_kernels.pair_rows[(blocks(self.rows.numel(), _BLOCK),)](
            self.sizes, *ends, *places, *self._lists(), self.rows, self.columns, self.counts.view(torch.int8),
            self.weights, edges.batch_size, sources.room, destinations.room, edges.group, edges.k, OWN=edges.own,
            AT_DESTINATION="destination" in edges.ends, AT_SOURCE="source" in edges.ends, IN_BATCH=edges.in_batch,
            FILTERED=edges.filtered, DEPTH=edges.depth, B=_BLOCK,
        )  # fmt: skip
        for exclusion in self._exclusions.values():
            exclusion.fill()

    def _draw_negatives(self) -> None:
        from penstock.sampling.device import link_kernels

        edges, memory = self._edges, self._memory
        for number, end in enumerate(edges.ends):
            rows = self.at(end)[0]
            options: dict[str, Any] = {
                "OWN": edges.own, "AT_DESTINATION": end == "destination", "FILTERED": edges.filtered, "TRIES": TRIES,
                "COUNTERS": int(STEP), "DEPTH": edges.depth, "B": _BLOCK,
            }  # fmt: skip
            # Keys of the stages come before those of the hops, and the other one behind them.
            place = _ENDS.index(end)
            key = memory.keys[place if place < edges.stages else len(memory.room.edges) :]
            before = number * edges.k if edges.own == 2 else 0
            both = self._sources.ends, self._destinations.ends, rows.ends, before, rows.memory.place
            given = *both, *self._lists(), edges.batcher.known.candidates(end)
            if edges.is_own:
                link_kernels.draw_own_negatives[(blocks(edges.batch_size * edges.k, _BLOCK),)](
                    key, self.sizes, self.items, memory.tables["copies"], *given, edges.k, **options
                )
            else:
                link_kernels.draw_joint_negatives[(blocks(edges.batch_size, edges.group), blocks(edges.k, _BLOCK))](
                    key, self.sizes, *given, edges.group, edges.k, **options
                )

    def _lists(self) -> tuple[Any, ...]:
        """What true edges are looked up in, and the number of vertices that can be sources."""
        batcher, kept_out = self._edges.batcher, self._memory.tables["kept_out"]
        lists: tuple[Tensor | None, Tensor | None] = None, None
        if self._edges.filtered:
            topology = self._memory.topology.along(batcher.edge_type)
            assert topology is not None
            lists = topology.indptr, topology.indices
        held_out = len(batcher.known.kept_out) if self._edges.filtered else 0
        return *lists, kept_out, held_out, batcher.known.num_sources


class DeviceExclusion:
    """Edges of a relation that a batch must not draw, by seed: the entries of seed r are [bounds[r], bounds[r + 1]).

    Entry e leaves out `behind[e + 1] - behind[e]` neighbours that follow one another in the seed's list, from position
    `starts[e]` of the list on. They are the batch's edges, or the reverses, or both; their destinations are seeds.
    """

    def __init__(self, seeds: EdgeSeeds, edges: DrawnLinks, kind: EdgeType, topology: Topology) -> None:
        forward = kind == edges.batcher.edge_type
        ends: tuple[End, ...] = ("source", "destination") if forward else ("destination", "source")
        self._sources, self._targets = (seeds.at(end) for end in ends)
        self._sizes, self._edges, self._topology = seeds.sizes, edges, topology
        rows, memory = self._targets[0].room, self._targets[0].memory
        self._entries = entries = edges.batch_size * (1 + edges.reverses)

        def empty(size: int) -> Tensor:
            return memory.empty(size, torch.int64)

        self._keys, self._sorted, self._order, self._lengths = (empty(entries) for _ in range(4))
        self._bounds, self._starts, self._behind = memory.empty(rows + 1), empty(entries), empty(entries + 1)
        self.excluded = Excluded(self._bounds, self._starts, self._behind, self._targets[0].known)

    def fill(self) -> None:
        """Launch what finds the edges of the batch in the lists, once its seeds have rows."""
        from penstock.sampling.device import link_kernels

        entries, programs = self._entries, (blocks(self._entries, _BLOCK),)
        (sources, source_at), (targets, target_at) = self._sources, self._targets
        memory, topology = targets.memory, self._topology
        link_kernels.excluded_keys[programs](
            self._sizes, sources.ends, targets.ends, memory.place, self._keys, entries, targets.room,
            SOURCE_AT=source_at, TARGET_AT=target_at, REVERSED=self._edges.reverses, B=_BLOCK,
        )  # fmt: skip
        torch.sort(self._keys, out=(self._sorted, self._order))
        link_kernels.excluded_ranges[programs](
            self._sorted, memory.vertices, topology.indptr, topology.indices, self._starts, self._lengths, entries,
            DEPTH=self._edges.depth, B=_BLOCK,
        )  # fmt: skip
        torch.cumsum(self._lengths, 0, out=self._behind[1:])
        link_kernels.bound_excluded[(blocks(targets.room + 1, _BLOCK),)](
            self._sorted, self._bounds, entries, targets.room, DEPTH=entries.bit_length() + 1, B=_BLOCK
        )
