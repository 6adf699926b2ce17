"""How much vertices matter as sources, and drawing them by it.

The importance of u is the squared norm of its column in the row-normalised adjacency: the sum of (1 / d_v)^2 over the
edges u -> v, d_v being the length of v's list. One pass over the lists finds it for all, eight bytes a vertex.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import unit_draws
from penstock.kernels import njit
from penstock.sampling.homogeneous import Homogeneous


def importance(graph: Homogeneous, self_loops: bool = False) -> Array:
    """Squared column norms (float64) of every vertex; with `self_loops` every list has its own vertex as well."""
    mass = np.zeros(graph.count)
    for vertices, lists in graph.in_order():
        _add_squares(vertices, *lists, self_loops, mass)
    return mass


class Distribution:
    """Vertices drawn with repeats in proportion to their mass: running sums and a search, eight bytes a vertex."""

    def __init__(self, mass: Array, order: Array) -> None:
        self._order = order
        self._running = np.cumsum(mass[order] if len(order) else mass)
        self.total = float(self._running[-1]) if len(mass) else 0.0
        # Rounding may carry a draw to the total itself; it then belongs to the last vertex that has any mass.
        self._last = int(np.searchsorted(self._running, self.total, "left"))

    def draw(self, key: np.uint64, amount: int) -> tuple[Array, Array]:
        """`amount` vertices, and the chance that each had in a single draw. None if there is no mass at all."""
        points = np.empty(amount if self.total > 0 else 0)
        unit_draws(key, 0, points)
        places = np.minimum(np.searchsorted(self._running, points * self.total, "right"), self._last)
        below = np.where(places > 0, self._running[places - 1], 0.0)
        chances = (self._running[places] - below) / self.total if self.total > 0 else points
        return self._order[places] if len(self._order) else places, chances


@njit(nogil=True, cache=True)
def _add_squares(vertices: Array, indptr: Array, indices: Array, rows: Array, self_loops: bool, mass: Array) -> None:
    for i in range(vertices.shape[0] if vertices.shape[0] else mass.shape[0]):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        length = indptr[row + 1] - indptr[row] + self_loops
        if length == 0:
            continue
        share = (1.0 / length) ** 2
        for k in range(indptr[row], indptr[row + 1]):
            mass[indices[k]] += share
        if self_loops:
            mass[v] += share
