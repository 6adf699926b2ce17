"""LADIES (Zou et al., NeurIPS 2019): every layer's vertices drawn by importance among the destinations' neighbours.

q_u is in proportion to the sum of (1 / d_v)^2 over the edges from u to this hop's destinations v: the squared norm of
u's column in their rows of the row-normalised adjacency. Where there are no more neighbours than asked for, all are
taken with weight 1, and the layer is exact.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit
from penstock.sampling.homogeneous import Reading
from penstock.sampling.layerwise import LayerwiseSampler
from penstock.sampling.registry import SamplerEntry


class Ladies(LayerwiseSampler):
    """Layer-wise sampling by importance for the destinations at hand."""

    def _draw(self, lists: Reading, size: int, key: np.uint64, scale: Array) -> Array:
        candidates = _weigh(*lists, scale)
        _scale_drawn(candidates, key, size, scale)
        return candidates


LADIES = SamplerEntry(
    "ladies",
    lambda source, settings: Ladies(source.whole_lists("ladies"), settings.options.layer_sizes, edges=settings.edges),
    per_layer="layer_sizes",
    joint=True,
)


@njit(nogil=True, cache=True)
def _weigh(indptr: Array, indices: Array, rows: Array, mass: Array) -> Array:
    """Add up the importance of every neighbour; returns the neighbours, each once, in order of appearance."""
    most = 0
    for row in rows:
        most += indptr[row + 1] - indptr[row]
    candidates = np.empty(min(most, mass.shape[0]), np.int64)
    found = 0
    for row in rows:
        share = (1.0 / max(1, indptr[row + 1] - indptr[row])) ** 2
        for k in range(indptr[row], indptr[row + 1]):
            u = indices[k]
            if mass[u] == 0:
                candidates[found] = u
                found += 1
            mass[u] += share
    return candidates[:found].copy()


@njit(nogil=True, cache=True)
def _scale_drawn(candidates: Array, key: np.uint64, size: int, scale: Array) -> None:
    """Draw `size` candidates by their mass in `scale`, and put times drawn / times expected in its place."""
    if candidates.shape[0] <= size:
        scale[candidates] = 1.0
        return
    running = np.cumsum(scale[candidates])
    times = np.zeros(candidates.shape[0], np.int64)
    for j in range(size):
        point = unit(draw(key, np.uint64(j))) * running[-1]
        times[min(np.searchsorted(running, point, side="right"), candidates.shape[0] - 1)] += 1
    for i in range(candidates.shape[0]):
        expected = size * scale[candidates[i]] / running[-1]
        scale[candidates[i]] = times[i] / expected
