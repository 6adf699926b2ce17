"""What a batch of edges is: the edges, what stands against them, and the vertices they all need."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.sampling.key import BatchKey

Exclude = Array | dict[EdgeType, Array]
"""[2, m] sources above destinations; by edge type where the graph has several types."""


class WholeEdgeBatch(NamedTuple):
    """How large a batch is of which this is a worker's share: its positives, and all its pairs that count."""

    positives: int
    pairs: int


@dataclass(eq=False)
class EdgeBatch:
    """Positives, negatives, and the vertices of both as seeds for a node sampler.

    `edges` are positions in the lists of `edge_type`, or -1 for pairs that are in none. `negative_destination`
    [groups, k] stand in the place of the positives' destinations: row g against each of the positives
    [g * group, (g + 1) * group). `negative_source` likewise in the place of sources. k is 0 where an end is not
    replaced. A mask [positives, k] is False where a negative must not count against a positive; None: all count.

    `nodes` are the different vertices of each node type in order of first appearance (sources, destinations, negative
    destinations, negative sources); the `_rows` arrays, shaped like what they index, point into `nodes` of the end's
    type. `exclude` are the pairs a sampler must not draw: the positives and their reverses. `clashes` counts masked
    negatives that are true edges. `whole` is of the batch that this one is a share of, if it is one, and `places` are
    then the places of `nodes` among that one's, types one behind the other.

    Where edges have times, `times` are those of the positives, which their negatives have too. A vertex is in `nodes`
    once for each time at which it is needed, and `node_times` has these. Where positives share no vertices, it is in
    `nodes` once for each positive that needs it, and `examples` has their places.
    """

    edge_type: EdgeType
    edges: Array
    source: Array
    destination: Array
    negative_source: Array
    negative_destination: Array
    nodes: dict[str, Array]
    source_rows: Array
    destination_rows: Array
    negative_source_rows: Array
    negative_destination_rows: Array
    exclude: Exclude
    group: int = 1
    negative_source_mask: Array | None = None
    negative_destination_mask: Array | None = None
    clashes: int = 0
    labels: Any = None
    key: BatchKey | None = None
    whole: WholeEdgeBatch | None = None
    times: Array | None = None
    node_times: dict[str, Array] | None = None
    places: dict[str, Array] | None = None
    examples: dict[str, Array] | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def num_pairs(self) -> int:
        """How many pairs count: positives, and for each what stands against it."""
        wide = self.negative_destination_mask, self.negative_destination
        other = self.negative_source_mask, self.negative_source
        return len(self) + sum(
            len(self) * negatives.shape[1] if mask is None else int(np.count_nonzero(mask))
            for mask, negatives in (wide, other)
        )

    @property
    def seeds(self) -> Array | dict[str, Array]:
        """What the node sampler is given: an array, or one a node type where the graph has several types."""
        return self.nodes if isinstance(self.exclude, dict) else next(iter(self.nodes.values()))

    def pairs(self) -> tuple[Array, Array, Array]:
        """(source rows, destination rows, labels) of all pairs that count, positives first; labels float32 1 or 0."""
        sources, destinations, counts = self.ranking()
        counts[:, 0] = False
        rows = np.concatenate([self.source_rows, sources[counts]])
        columns = np.concatenate([self.destination_rows, destinations[counts]])
        labels = np.zeros(len(rows), np.float32)
        labels[: len(self)] = 1
        return rows, columns, labels

    def ranking(self) -> tuple[Array, Array, Array]:
        """(source rows, destination rows, what counts), each [positives, 1 + k] with the positive in column 0."""
        groups = np.arange(len(self)) // self.group
        other_destinations, other_sources = self.negative_destination_rows[groups], self.negative_source_rows[groups]
        own_source, own_destination = self.source_rows[:, None], self.destination_rows[:, None]
        sources = [own_source, np.broadcast_to(own_source, other_destinations.shape), other_sources]
        destinations = [own_destination, other_destinations, np.broadcast_to(own_destination, other_sources.shape)]
        counts = [
            np.ones(own_source.shape, np.bool_),
            _mask(self.negative_destination_mask, other_destinations),
            _mask(self.negative_source_mask, other_sources),
        ]
        return np.concatenate(sources, 1), np.concatenate(destinations, 1), np.concatenate(counts, 1)


def _mask(mask: Array | None, like: Array) -> Array:
    return np.ones(like.shape, np.bool_) if mask is None else mask
