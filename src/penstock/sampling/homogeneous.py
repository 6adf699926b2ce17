"""Whole graphs with one node type and one edge type, as the samplers see them that take no others."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.graph import Graph
from penstock.sampling.lists import check_seeds


class Homogeneous:
    """The lists, the names of vertices in the hash (empty: their own numbers), and what samplers ask about them."""

    def __init__(self, graph: Graph, sampler: str, original: Array | None = None) -> None:
        if not graph.is_homogeneous or not graph.edges:
            raise PenstockError(
                f"{sampler} takes graphs with one node type and one edge type; {graph.name!r} has"
                f" {len(graph.nodes)} and {len(graph.edges)}: use the neighbour sampler, or make one type of them."
            )
        if graph.is_part:
            raise PenstockError(f"{sampler} takes whole graphs, and {graph.name!r} is a part: open the whole graph.")
        if original is not None and len(original) != graph.num_nodes:
            raise PenstockError(
                f"There are {len(original):,} original numbers for {graph.num_nodes:,} vertices: give one for each."
            )
        self.count, self.node_type = graph.num_nodes, graph.node_types[0]
        self.indptr, self.indices = graph.indptr, graph.indices
        self.names = np.empty(0, np.int64) if original is None else np.ascontiguousarray(original, np.int64)

    def natural_order(self) -> Array:
        """Vertices by ascending name; empty: as they are. Sums in this order do not depend on the numbering."""
        return np.argsort(self.names, kind="stable")

    def degrees(self, vertices: Array) -> Array:
        """Lengths of the whole lists of some vertices."""
        lengths: Array = self.indptr[1:][vertices] - self.indptr[:-1][vertices]
        return lengths

    def totals(self, vertices: Array) -> Array:
        """The same as a block has them."""
        return self.degrees(vertices).astype(np.float32)

    def seeds(self, seeds: Array) -> Array:
        """Seeds as kernels take them."""
        return check_seeds(seeds, self.count, self.node_type, index_dtype(self.count))

    def train_mask(self, train: Array) -> Array:
        """Whether each vertex is a training vertex, for samplers that find their seeds in subgraphs."""
        if not len(train):
            raise PenstockError("There are no training vertices: give their numbers, such as graph.split('train').")
        mask = np.zeros(self.count, np.bool_)
        mask[self.seeds(train)] = True
        return mask
