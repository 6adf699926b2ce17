"""What a sampler gives: blocks, one a layer, and the vertices they stand on."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.graph.arrays import Array


@dataclass(eq=False)
class Block:
    """One layer of one batch. Destination rows are the first `num_dst` source rows.

    `indices[indptr[i]:indptr[i + 1]]` are the source rows that destination row i reads; `weights`, where an estimator
    needs them, multiply what each of them contributes.
    """

    indptr: Array
    indices: Array
    num_src: int
    weights: Array | None = None

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
class MiniBatch:
    """Seeds, the vertices whose features the batch needs, and its blocks, outermost first.

    `vertices` start with the seeds; block i reads the first `blocks[i].num_src` and writes the first
    `blocks[i].num_dst`.
    """

    seeds: Array
    vertices: Array
    blocks: list[Block]
    features: dict[str, Any] = field(default_factory=dict)
    labels: Any = None

    @property
    def num_edges(self) -> int:
        """Sampled edges of all layers."""
        return sum(block.num_edges for block in self.blocks)

    def to_pyg(self) -> Any:
        """As the object a PyG module expects: `x`, `edge_index`, `batch_size`, `n_id`."""
        try:
            from torch_geometric.data import Data
        except ImportError:
            from penstock.errors import PenstockError

            raise PenstockError("PyG is not installed: install it with `pip install 'penstock[pyg]'`.") from None
        import torch

        # PyG's loader samples a vertex once, where it first appears; a layer's rows before that repeat inner vertices.
        sources, targets, known = [], [], 0
        for block in reversed(self.blocks):
            start = block.indptr[known]
            sources.append(block.indices[start:])
            targets.append(block.destinations()[start:])
            known = block.num_dst
        rows, columns = np.concatenate(sources).astype(np.int64), np.concatenate(targets).astype(np.int64)
        data = Data(edge_index=torch.from_numpy(np.stack([rows, columns])), batch_size=len(self.seeds))
        data.n_id = torch.from_numpy(np.asarray(self.vertices, np.int64))
        data.num_nodes = len(self.vertices)
        if "x" in self.features:
            data.x = torch.as_tensor(self.features["x"])
        if self.labels is not None:
            data.y = torch.as_tensor(self.labels)
        return data
