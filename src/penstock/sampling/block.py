"""What a sampler gives: blocks, one a layer, and the vertices they stand on.

Estimators. A block says how its edges stand for the whole neighbourhood. With `weights`, the sum of weights[e] *
h[source of e] over a destination's edges estimates the sum over its whole list (of edge weight * h, where the graph's
edges have weights). Without `weights` every drawn edge of a row counts the same, so that their mean estimates the
list's mean. `totals` is the number (or weight) of each row's whole list: sum = mean * totals, mean = sum / totals.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.sampling.key import BatchKey


@dataclass(eq=False)
class Block:
    """One layer of one batch. Destination rows are the first `num_dst` source rows.

    `indices[indptr[i]:indptr[i + 1]]` are the source rows that destination row i reads. `edges`, where asked for, are
    the positions of the drawn edges in the graph's lists, for edge fields. `totals` covers the destination rows at
    least, and the source rows where a layer normalises by both ends.
    """

    indptr: Array
    indices: Array
    num_src: int
    weights: Array | None = None
    totals: Array | None = None
    edges: Array | None = None

    @property
    def num_dst(self) -> int:
        """Rows that the layer computes."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """Edges that the layer reads."""
        return len(self.indices)

    def destinations(self) -> Array:
        """The destination row of every edge."""
        return np.repeat(np.arange(self.num_dst, dtype=self.indices.dtype), np.diff(self.indptr))


@dataclass(eq=False)
class TypedBlock:
    """One layer of one batch of a heterogeneous graph: a block for every relation that has edges in it.

    Of node type t the first `num_dst[t]` of `num_src[t]` rows are computed. In a relation's block, `indices` are rows
    of its source type and destination rows are those of its destination type.
    """

    relations: dict[EdgeType, Block]
    num_src: dict[str, int]
    num_dst: dict[str, int]

    @property
    def num_edges(self) -> int:
        """Edges of all relations."""
        return sum(block.num_edges for block in self.relations.values())


@dataclass(eq=False)
class MiniBatch:
    """Seeds, the vertices whose features the batch needs, and its blocks, outermost first.

    `vertices` start with the seeds; block i reads the first `blocks[i].num_src` and writes the first
    `blocks[i].num_dst`. `seed_weights`, where the sampler draws seeds unevenly, multiply the seeds' losses.
    `features` are by node type; `links` is what a task on edges adds. `names` are the original numbers of `vertices`
    where the graph was cut; None: they are their own names. `whole`, where the batch is one worker's share of one that
    was drawn whole, is how many seeds that has. On a device arrays are tensors, and `ready` is the event after which
    they are there.
    """

    seeds: Array
    vertices: Array
    blocks: list[Block]
    features: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    seed_weights: Array | None = None
    links: Any = None
    node_type: str = "node"
    key: BatchKey | None = None
    ready: Any = None
    names: Array | None = None
    whole: int | None = None

    @property
    def num_edges(self) -> int:
        """Sampled edges of all layers."""
        return sum(block.num_edges for block in self.blocks)

    @property
    def row_names(self) -> Array:
        """Original numbers of the vertices in every layer's rows, however the graph was cut."""
        return self.vertices if self.names is None else self.names

    @property
    def inputs(self) -> dict[str, Array]:
        """Vertices whose features the batch needs, by node type."""
        return {self.node_type: self.vertices}

    def merged_edges(self) -> Array:
        """[2, edges] source rows above destination rows of all layers, each vertex's list once."""
        return merge_edges(self.blocks)

    def to_pyg(self) -> Any:
        """As the object a PyG module expects: `x`, `edge_index`, `batch_size`, `n_id`."""
        try:
            from torch_geometric.data import Data
        except ImportError:
            raise PenstockError(
                "PyG is not installed: install it with `pip install 'penstock[pyg]'`.", code="not-installed"
            ) from None
        import torch

        data = Data(edge_index=torch.from_numpy(self.merged_edges()), batch_size=len(self.seeds))
        data.n_id = torch.from_numpy(np.asarray(self.vertices, np.int64))
        data.num_nodes = len(self.vertices)
        if self.node_type in self.features:
            data.x = torch.as_tensor(self.features[self.node_type])
        if self.labels is not None:
            data.y = torch.as_tensor(self.labels)
        return data


@dataclass(eq=False)
class TypedBatch:
    """`MiniBatch` of a heterogeneous graph: seeds and vertices by node type, blocks outermost first."""

    seeds: dict[str, Array]
    vertices: dict[str, Array]
    blocks: list[TypedBlock]
    features: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    seed_weights: Array | None = None
    links: Any = None
    key: BatchKey | None = None
    ready: Any = None
    names: dict[str, Array] | None = None
    whole: int | None = None

    @property
    def num_edges(self) -> int:
        """Sampled edges of all layers and relations."""
        return sum(block.num_edges for block in self.blocks)

    @property
    def row_names(self) -> dict[str, Array]:
        """By node type, original numbers of the vertices in every layer's rows, however the graph was cut."""
        return self.vertices if self.names is None else self.names

    @property
    def inputs(self) -> dict[str, Array]:
        """Vertices whose features the batch needs, by node type."""
        return self.vertices

    def merged_edges(self) -> dict[EdgeType, Array]:
        """[2, edges] of every relation that has any in some layer."""
        kinds = dict.fromkeys(kind for block in self.blocks for kind in block.relations)
        return {
            kind: merge_edges([block.relations[kind] for block in self.blocks if kind in block.relations])
            for kind in kinds
        }


def merge_edges(blocks: Sequence[Block]) -> Array:
    """[2, edges] of blocks that are outermost first, as int64.

    A vertex has its list in every layer from its own on; PyG's loader keeps the list of the layer where it first
    appears, and so does this.
    """
    sources, targets, known = [], [], 0
    for block in reversed(blocks):
        start = block.indptr[known]
        sources.append(block.indices[start:])
        targets.append(block.destinations()[start:])
        known = block.num_dst
    pair = np.concatenate(sources).astype(np.int64), np.concatenate(targets).astype(np.int64)
    return np.stack(pair)
