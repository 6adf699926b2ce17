"""LABOR-0 (Balin and Çatalyürek, NeurIPS 2023): neighbours chosen so that destinations share them.

All destinations of a hop see the same uniform number r_u of a source vertex u, and v takes u if r_u < min(1, k / d_v).
Every edge is as likely as with k neighbours a vertex, but destinations agree on their choice, so that a batch has fewer
vertices. The number drawn varies: k in the mean for lists longer than k, the whole list for others.

Estimator: Horvitz and Thompson's. An edge's weight is 1 / min(1, k / d_v), so that the weighted sum is unbiased for the
list's sum and, divided by `totals`, for its mean. (The plain mean of what was drawn would vary less and be biased.)
"""

from collections.abc import Sequence

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.homogeneous import whole_graph
from penstock.sampling.key import BatchKey
from penstock.sampling.labor_kernels import draw_shared
from penstock.sampling.neighbours import ALL
from penstock.sampling.relabel import PerThread, Rows, rows_for


class Labor:
    """Draws `fanouts[h]` in-neighbours in the mean of every vertex known at hop h, counted from the seeds.

    `sample` may be called from several threads at once.
    """

    def __init__(self, graph: Graph, fanouts: Sequence[int], original: Array | None = None) -> None:
        self._graph = whole_graph(graph, "Labor", original)
        if not fanouts or any(fanout == 0 or fanout < ALL for fanout in fanouts):
            raise PenstockError(f"Fan-outs {list(fanouts)} cannot be sampled: give positive numbers, or -1 for all.")
        self.fanouts = list(fanouts)
        self._rows: PerThread[Rows] = PerThread(lambda: rows_for(graph.num_nodes))

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        seeds = self._graph.seeds(seeds)
        rows, blocks = self._rows.get(), []
        rows.start(seeds)
        try:
            for hop, fanout in enumerate(self.fanouts):
                blocks.append(self._hop(rows, fanout, key.hop(hop)))
            vertices = rows.vertices[: rows.known].copy()
        finally:
            rows.forget()
        return MiniBatch(seeds, vertices, blocks[::-1], node_type=self._graph.node_type, key=key)

    def _hop(self, rows: Rows, fanout: int, key: np.uint64) -> Block:
        graph, readers = self._graph, rows.vertices[: rows.known]
        most = np.iinfo(np.int64).max if fanout == ALL else fanout
        indptr, positions = draw_shared(graph.indptr, graph.indices, graph.names, key, most, readers)
        row_weights = np.maximum(graph.totals(readers) / np.float32(most), np.float32(1))
        weights = np.repeat(row_weights, np.diff(indptr))
        indices = rows.number(graph.indices[positions], indptr)
        return Block(indptr, indices, rows.known, weights, graph.totals(rows.vertices[: rows.known]))
