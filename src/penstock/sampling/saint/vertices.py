"""Draws of single vertices by importance: squared column norms of the row-normalised adjacency with self-loops.

With self-loops every vertex has a chance, also those that nobody reads.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.sampling.homogeneous import Homogeneous, Reader
from penstock.sampling.importance import Distribution, importance
from penstock.sampling.induced import Induced
from penstock.sampling.key import BatchKey


class VertexDraws:
    """A draw visits one vertex, so two vertices are together only by different draws."""

    def __init__(self, graph: Homogeneous) -> None:
        mass = importance(graph, self_loops=True)
        self._distribution = Distribution(mass, graph.natural_order())
        self.mass = mass / self._distribution.total

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices drawn, in order, with repeats."""
        return self._distribution.draw(key.purpose("vertices"), amount)[0]

    def joint(self, inside: Induced) -> Array:
        """No draw visits two vertices."""
        return np.zeros(len(inside.indices))
