"""Layer-wise sampling: a hop draws a fixed number of source vertices for all its destinations together.

Drawn with repeats in proportion to chances q: a vertex u drawn c times of `size` becomes one row, and all its edges to
destinations have the weight c / (size * q_u). Its mean is 1, so weighted sums are unbiased for the lists' sums, exactly
and for any q that is positive wherever there is an edge. Destinations keep their own rows, which are exact; one whose
neighbours were not drawn gets an empty row.

`fastgcn` and `ladies` differ in q alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numba import njit

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.homogeneous import Homogeneous
from penstock.sampling.key import BatchKey
from penstock.sampling.relabel import PerThread, Rows, rows_for


class LayerwiseSampler(ABC):
    """Draws `sizes[h]` source vertices for the vertices known at hop h, counted from the seeds.

    `sample` may be called from several threads at once; each keeps eight bytes a vertex beside its rows.
    """

    def __init__(self, graph: Graph, sizes: Sequence[int], original: Array | None = None) -> None:
        self._graph = Homogeneous(graph, type(self).__name__, original)
        if not sizes or any(size < 1 for size in sizes):
            raise PenstockError(f"Layer sizes {list(sizes)} cannot be sampled: give a positive number for every layer.")
        self.sizes = list(sizes)
        self._rows: PerThread[Rows] = PerThread(lambda: rows_for(graph.num_nodes))
        self._scales: PerThread[Array] = PerThread(lambda: np.zeros(graph.num_nodes))

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        seeds = self._graph.seeds(seeds)
        rows, blocks = self._rows.get(), []
        rows.start(seeds)
        try:
            for hop, size in enumerate(self.sizes):
                blocks.append(self._hop(rows, size, key.hop(hop)))
            vertices = rows.vertices[: rows.known].copy()
        finally:
            rows.forget()
        return MiniBatch(seeds, vertices, blocks[::-1], node_type=self._graph.node_type, key=key)

    def _hop(self, rows: Rows, size: int, key: np.uint64) -> Block:
        graph, readers, scale = self._graph, rows.vertices[: rows.known], self._scales.get()
        touched = self._draw(readers, size, key, scale)
        indptr, positions, weights = _link(graph.indptr, graph.indices, scale, readers)
        scale[touched] = 0
        indices = rows.number(graph.indices[positions], indptr)
        return Block(indptr, indices, rows.known, weights, graph.totals(rows.vertices[: rows.known]))

    @abstractmethod
    def _draw(self, readers: Array, size: int, key: np.uint64, scale: Array) -> Array:
        """Set `scale`, all 0, of the vertices drawn to their edges' weight; returns the vertices that were touched."""


@njit(nogil=True, cache=True)
def _link(indptr: Array, indices: Array, scale: Array, readers: Array) -> tuple[Array, Array, Array]:
    """The readers' edges from drawn vertices: offsets, positions in the lists, weights."""
    out_indptr = np.zeros(readers.shape[0] + 1, np.int64)
    for row in range(readers.shape[0]):
        linked = 0
        for k in range(indptr[readers[row]], indptr[readers[row] + 1]):
            linked += scale[indices[k]] > 0
        out_indptr[row + 1] = out_indptr[row] + linked
    positions = np.empty(out_indptr[-1], np.int64)
    weights = np.empty(out_indptr[-1], np.float32)
    used = 0
    for v in readers:
        for k in range(indptr[v], indptr[v + 1]):
            if scale[indices[k]] > 0:
                positions[used] = k
                weights[used] = scale[indices[k]]
                used += 1
    return out_indptr, positions, weights
