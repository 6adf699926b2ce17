"""FastGCN (Chen, Ma and Xiao, ICLR 2018): every layer's vertices drawn from the whole graph by importance.

q_u is in proportion to the squared norm of u's column in the row-normalised adjacency (entries 1 / d_v), found once.
Many drawn vertices have no edge to a small batch's destinations: rows are often empty, and `sizes` should be generous.
"""

from collections.abc import Sequence

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling.importance import Distribution, importance
from penstock.sampling.layerwise import LayerwiseSampler


class FastGCN(LayerwiseSampler):
    """Layer-wise sampling by importance in the whole graph; eight bytes a vertex for all threads."""

    def __init__(self, graph: Graph, sizes: Sequence[int], original: Array | None = None) -> None:
        super().__init__(graph, sizes, original)
        order = self._graph.natural_order()
        self._distribution = Distribution(importance(self._graph.indptr, self._graph.indices, order), order)

    def _draw(self, readers: Array, size: int, key: np.uint64, scale: Array) -> Array:
        drawn, chances = self._distribution.draw(key, size)
        np.add.at(scale, drawn, 1 / (size * chances))
        return drawn
