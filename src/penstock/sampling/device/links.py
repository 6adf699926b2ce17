"""Batches of edges made on a device without the host: the same as on the host, negatives and exclusions included.

Shapes never change, so that launches can be captured: the last batch of an epoch is padded with edges that do not
count. The ends of a batch's edges and negatives are the seeds of its hops, each vertex once. Their number is bounded as
that of a hop's vertices: a batch of edges has one stage more than it has hops. Vertices are of one node type.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.sampling.block import MiniBatch
from penstock.sampling.device.block import Room
from penstock.sampling.device.epoch import DeviceEpoch
from penstock.sampling.device.hops import BatchMemory, Excluded, Tables, Topology, blocks, hop_kernels, power
from penstock.sampling.device.program import Beginning, DeviceProgram
from penstock.sampling.links import EdgeBatcher, InBatch, Joint, Uniform
from penstock.sampling.links.known import End
from penstock.sampling.links.negatives import STEP, TRIES

_BLOCK = 256
"""Edges, ends and pairs that a program handles."""
_ENDS: tuple[End, ...] = ("destination", "source")
"""The ends that may be replaced, in the order in which they are drawn."""


@dataclass(frozen=True, eq=False)
class DrawnLinks:
    """The edges of an epoch, by their positions `items`, and how a device draws their negatives."""

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
    def drawn(self) -> int:
        """The number of vertices that are drawn for a group of edges."""
        return 0 if self.in_batch else self.k * len(self.ends)

    @property
    def most_ends(self) -> int:
        """The number of ends of a whole batch, drawn ones included."""
        return 2 * self.batch_size + -(-self.batch_size // self.group) * self.drawn

    @property
    def excluded(self) -> int:
        """The most edges that a batch excludes: its own, and in a symmetric relation their reverses."""
        return self.batch_size * (1 + self.reverses)

    @property
    def reverses(self) -> bool:
        """Whether the reverses of a batch's edges are excluded as well."""
        return self.batcher.reverse == "same"

    @cached_property
    def depth(self) -> int:
        """The most steps of a search in a list, or among the edges that are held out."""
        known = self.batcher.known
        return max(int(np.diff(known.indptr).max(initial=0)), len(known.kept_out)).bit_length() + 1

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


@dataclass(frozen=True)
class EdgeProgram(DeviceProgram):
    """How a device draws batches of edges: from the ends of its edges and negatives, hop by hop."""

    edges: DrawnLinks
    stages = 1

    @property
    def purposes(self) -> list[str]:
        return ["negatives/destination", *super().purposes, "negatives/source"]

    def largest_room(self, batch_size: int, vertices: int, entries: int) -> Room:
        ends = self.edges.most_ends
        hops = super().largest_room(min(vertices, ends), vertices, entries)
        return Room((batch_size, *hops.rows), (ends, *hops.edges))

    def sizes(self, batch: MiniBatch) -> list[int]:
        links = batch.links
        drawn = 0 if self.edges.in_batch else links.negative_destination.size + links.negative_source.size
        return [2 * len(links) + drawn, len(batch.seeds[batch.node_type]), *super().sizes(batch)]

    def tables(self, topology: Topology, device: torch.device) -> Tables:
        return {**super().tables(topology, device), **self.edges.tables(device)}

    def begin(self, memory: BatchMemory) -> "EdgeSeeds":
        return EdgeSeeds(memory, self.edges)


class EdgeSeeds(Beginning):
    """A batch begins with edges of the epoch's order and their negatives, whose ends are numbered.

    `rows` and `columns` [edges, 1 + negatives] are the rows of the pairs' ends; `counts` says which pairs count, where
    an edge itself always does; `weights` has 1 for those of real edges that count, and 0 for all others. `sizes` are
    the numbers of edges and of pairs that count, and `items` the positions of the edges among the epoch's items.
    """

    def __init__(self, memory: BatchMemory, edges: DrawnLinks) -> None:
        size, width = edges.batch_size, 1 + edges.k * len(edges.ends)
        if edges.drawn and memory.topology.count < 2:
            raise PenstockError(
                f"There is only one vertex that can be the {edges.ends[0]}: negatives need at least two.",
                code="missing-data",
            )
        self._memory, self._edges, self._ends = memory, edges, memory.empty(edges.most_ends)
        self._room, self._sums = memory.room.rows[1], memory.empty(blocks(edges.most_ends, _BLOCK))
        self.items, self.sizes = memory.empty(size, torch.int64), memory.empty(2)

        def pairs(dtype: torch.dtype) -> Tensor:
            return memory.empty(size * width, dtype).view(size, width)

        self.rows, self.columns = pairs(torch.int64), pairs(torch.int64)
        self.counts, self.weights = pairs(torch.bool), pairs(torch.float32)
        self._exclusion = DeviceExclusion(edges.excluded, self._room, memory)
        memory.excluded = self._exclusion.excluded

    def launch(self, epoch: DeviceEpoch) -> None:
        """Take the epoch's next edges, draw their negatives, and number the ends as the first rows."""
        from penstock.sampling.device import link_kernels

        memory, edges = self._memory, self._edges
        known, needed, place, tables = memory.known, memory.needed, memory.place, memory.tables
        link_kernels.take_edges[(blocks(edges.batch_size, _BLOCK),)](
            epoch.order, epoch.cursor, epoch.counts, edges.batch_size, tables["sources"], tables["destinations"],
            self._ends, self.items, self.sizes, known, needed, place, memory.keys, epoch.keys, edges.group,
            edges.drawn, KEYS=epoch.keys.shape[1], B=_BLOCK,
        )  # fmt: skip
        if edges.drawn:
            self._draw_negatives()
        programs = len(self._sums)
        read = self._ends, needed, place, self._sums, memory.is_new
        hop_kernels().count_new[(programs,)](*read, B=_BLOCK)
        hop_kernels().number_new[(programs,)](
            *read, memory.vertices, known, known[1:], needed[1:], self._room, BLOCKS=power(programs), B=_BLOCK
        )
        link_kernels.pair_rows[(blocks(self.rows.numel(), _BLOCK),)](
            self.sizes, self._ends, place, *self._lists(), self.rows, self.columns, self.counts.view(torch.int8),
            self.weights, edges.batch_size, self._room, edges.group, edges.k,
            AT_DESTINATION="destination" in edges.ends, AT_SOURCE="source" in edges.ends, IN_BATCH=edges.in_batch,
            FILTERED=edges.filtered, DEPTH=edges.depth, B=_BLOCK,
        )  # fmt: skip
        self._exclusion.fill(self.sizes, self._ends, edges)

    def _draw_negatives(self) -> None:
        from penstock.sampling.device import link_kernels

        edges, memory = self._edges, self._memory
        for number, end in enumerate(edges.ends):
            at_destination = end == "destination"
            options: dict[str, Any] = {
                "AT_DESTINATION": at_destination, "FILTERED": edges.filtered, "TRIES": TRIES,
                "COUNTERS": int(STEP), "DEPTH": edges.depth, "B": _BLOCK,
            }  # fmt: skip
            key, before = memory.keys[0 if at_destination else len(memory.room.edges) :], number * edges.k
            if edges.is_own:
                link_kernels.draw_own_negatives[(blocks(edges.batch_size * edges.k, _BLOCK),)](
                    key, self.sizes, self.items, memory.tables["copies"], self._ends, before, memory.place,
                    *self._lists(), edges.k, **options,
                )  # fmt: skip
            else:
                link_kernels.draw_joint_negatives[(blocks(edges.batch_size, edges.group), blocks(edges.k, _BLOCK))](
                    key, self.sizes, self._ends, before, memory.place, *self._lists(), edges.group, edges.k, **options
                )

    def _lists(self) -> tuple[Any, ...]:
        """What true edges are looked up in, and the number of vertices."""
        topology, kept_out = self._memory.topology, self._memory.tables["kept_out"]
        held_out = len(self._edges.batcher.known.kept_out) if self._edges.filtered else 0
        return topology.indptr, topology.indices, kept_out, held_out, topology.count


class DeviceExclusion:
    """Edges that a batch must not draw, by seed: the entries of seed r are [bounds[r], bounds[r + 1]).

    Entry e leaves out `behind[e + 1] - behind[e]` neighbours that follow one another in the seed's list, from position
    `starts[e]` of the list on.
    """

    def __init__(self, entries: int, rows: int, memory: BatchMemory) -> None:
        def empty(size: int) -> Tensor:
            return memory.empty(size, torch.int64)

        self._entries, self._rows, self._memory = entries, rows, memory
        self._keys, self._sorted, self._order, self._lengths = (empty(entries) for _ in range(4))
        self._bounds, self._starts, self._behind = memory.empty(rows + 1), empty(entries), empty(entries + 1)
        self.excluded = Excluded(self._bounds, self._starts, self._behind, memory.known[1:])

    def fill(self, sizes: Tensor, ends: Tensor, edges: DrawnLinks) -> None:
        """Exclude `sizes[0]` edges whose sources and then destinations are `ends`, and their reverses.

        Destinations of excluded edges are seeds, whose rows are known.
        """
        from penstock.sampling.device import link_kernels

        memory, entries, programs = self._memory, self._entries, (blocks(self._entries, _BLOCK),)
        link_kernels.excluded_keys[programs](
            sizes, ends, memory.place, self._keys, entries, self._rows, REVERSED=edges.reverses, B=_BLOCK
        )
        torch.sort(self._keys, out=(self._sorted, self._order))
        link_kernels.excluded_ranges[programs](
            self._sorted, memory.vertices, memory.topology.indptr, memory.topology.indices, self._starts,
            self._lengths, entries, DEPTH=edges.depth, B=_BLOCK,
        )  # fmt: skip
        torch.cumsum(self._lengths, 0, out=self._behind[1:])
        link_kernels.bound_excluded[(blocks(self._rows + 1, _BLOCK),)](
            self._sorted, self._bounds, entries, self._rows, DEPTH=entries.bit_length() + 1, B=_BLOCK
        )
