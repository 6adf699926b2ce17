"""FastGCN (Chen, Ma and Xiao, ICLR 2018): every layer's vertices drawn from the whole graph by importance.

q_u is in proportion to the squared norm of u's column in the row-normalised adjacency (entries 1 / d_v), found once.
Many drawn vertices have no edge to a small batch's destinations: rows are often empty, and `sizes` should be generous.
"""

from collections.abc import Sequence

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling.homogeneous import Homogeneous, Reading
from penstock.sampling.importance import Distribution, importance
from penstock.sampling.layerwise import LayerwiseSampler
from penstock.sampling.registry import SamplerEntry


class FastGCN(LayerwiseSampler):
    """Layer-wise sampling by importance in the whole graph; eight bytes a vertex for all threads."""

    def __init__(
        self, graph: Graph | Homogeneous, sizes: Sequence[int], original: Array | None = None, edges: bool = False
    ) -> None:
        super().__init__(graph, sizes, original, edges)
        self._distribution = Distribution(importance(self._graph), self._graph.natural_order())

    def _draw(self, lists: Reading, size: int, key: np.uint64, scale: Array) -> Array:
        drawn, chances = self._distribution.draw(key, size)
        np.add.at(scale, drawn, 1 / (size * chances))
        return drawn


FASTGCN = SamplerEntry(
    "fastgcn",
    lambda source, settings: FastGCN(source.whole_lists("fastgcn"), settings.options.layer_sizes, edges=settings.edges),
    per_layer="layer_sizes",
    joint=True,
)
