"""Negatives of each positive's own: k vertices drawn evenly, never its own end."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, mix
from penstock.kernels import njit
from penstock.sampling.links.known import End, KnownEdges, is_edge, is_edge_by
from penstock.sampling.links.negatives import Corrupt, DrawnNegatives, Positives, check_policy

TRIES = 32
"""Draws of a filtered negative before a true edge is let stand (and masked)."""
STEP = np.uint64(64)
"""Counters kept for the tries of one negative."""


@dataclass(frozen=True)
class Uniform:
    """`k` vertices a positive, drawn evenly with repeats from all but its own end.

    With `filtered`, a draw that makes a true edge is drawn again. The draws of a positive follow from the batch's key
    and from the edge itself, not from its place in the batch.
    """

    shared: ClassVar[bool] = False

    k: int = 1
    corrupt: Corrupt = "destination"
    filtered: bool = False

    def __post_init__(self) -> None:
        check_policy(self.k, self.corrupt)

    def per_positive(self, positives: int) -> int:
        """As many as were asked for."""
        return self.k

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Negatives of shape [positives, k]."""
        count = known.candidates(end)
        if count < 2:
            raise PenstockError(
                f"There is only one vertex that can be the {end}: negatives need at least two.", code="missing-data"
            )
        out = np.empty((len(positives), self.k), np.int64)
        mask = np.ones(out.shape, np.bool_)
        clashes = _draw_uniform(
            key,
            positives.source,
            positives.destination,
            positives.copy,
            end == "destination",
            count,
            TRIES if self.filtered else 0,
            known.indptr,
            known.indices,
            known.kept_out,
            known.num_sources,
            known.times,
            positives.time,
            out,
            mask,
        )
        return DrawnNegatives(out, 1, mask if clashes else None, clashes)


@njit(nogil=True, cache=True)
def _draw_uniform(
    key: np.uint64,
    sources: Array,
    destinations: Array,
    copies: Array,
    at_destination: bool,
    count: int,
    tries: int,
    indptr: Array,
    indices: Array,
    kept_out: Array,
    num_sources: int,
    times: Array,
    limits: Array,
    out: Array,
    mask: Array,
) -> int:
    """With `times` of the lists' edges, a vertex clashes where it makes an edge that is not later than the limit."""
    clashes = 0
    for i in range(out.shape[0]):
        source, destination = sources[i], destinations[i]
        own = destination if at_destination else source
        stream = mix(mix(mix(key ^ np.uint64(source)) ^ np.uint64(destination)) ^ np.uint64(copies[i]))
        for j in range(out.shape[1]):
            counter = np.uint64(j) * STEP
            vertex, clash, attempt = 0, True, 0
            while clash and attempt < max(tries, 1):
                # One of the other count - 1 vertices.
                vertex = below(draw(stream, counter + np.uint64(attempt)), count - 1)
                vertex += vertex >= own
                attempt += 1
                left, right = (source, vertex) if at_destination else (vertex, destination)
                if tries == 0:
                    clash = False
                elif len(times):
                    clash = is_edge_by(indptr, indices, times, left, right, limits[i])
                else:
                    clash = is_edge(indptr, indices, kept_out, num_sources, left, right)
            out[i, j] = vertex
            mask[i, j] = not clash
            clashes += clash
    return clashes
