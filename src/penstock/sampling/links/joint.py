"""Negatives shared by a group of positives, so that few vertices are sampled and scores are a matrix product."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, mix
from penstock.kernels import njit
from penstock.sampling.links.known import End, KnownEdges
from penstock.sampling.links.negatives import Corrupt, DrawnNegatives, Positives, check_policy
from penstock.sampling.links.true_edge_mask import mask_true_edges
from penstock.sampling.links.uniform import STEP, TRIES


@dataclass(frozen=True)
class Joint:
    """`k` vertices for every `group` positives (None: for the whole batch), drawn evenly with repeats.

    A vertex is masked for the positives whose own end it is and, with `filtered`, for those with which it makes a true
    edge. What is masked for the whole group is drawn again. Drawing again whatever clashes with any positive would
    leave hubs out of the negatives, and the model would learn that hubs are always right; so it is not done. Of what
    counts for a positive, every vertex that makes no true edge is equally likely.
    """

    shared: ClassVar[bool] = True

    k: int = 64
    group: int | None = None
    corrupt: Corrupt = "destination"
    filtered: bool = False

    def __post_init__(self) -> None:
        check_policy(self.k, self.corrupt)
        if self.group is not None and self.group < 1:
            raise PenstockError(
                f"group is {self.group}: give 1 or more positives that share negatives.", code="value-out-of-range"
            )

    def per_positive(self, positives: int) -> int:
        """As many as were asked for."""
        return self.k

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Negatives of shape [groups, k]."""
        count = known.candidates(end)
        if count < 2:
            raise PenstockError(
                f"There is only one vertex that can be the {end}: negatives need at least two.", code="missing-data"
            )
        group = max(1, min(self.group or len(positives), len(positives)))
        starts = np.arange(0, len(positives), group)
        vertices = np.empty((len(starts), self.k), np.int64)
        useless = np.ones(vertices.shape, np.bool_)
        for attempt in range(TRIES):
            _draw_joint(key, count, attempt, useless, vertices)
            mask = np.repeat(vertices, group, axis=0)[: len(positives)] != positives.at(end)[:, None]
            clashes = mask_true_edges(known, positives, end, vertices, group, mask) if self.filtered else 0
            useless = ~np.logical_or.reduceat(mask, starts) if len(starts) else np.empty_like(useless)
            if not useless.any():
                break
        return DrawnNegatives(vertices, group, None if mask.all() else mask, clashes)


@njit(nogil=True, cache=True)
def _draw_joint(key: np.uint64, count: int, attempt: int, useless: Array, vertices: Array) -> None:
    """Draw those vertices that count for nobody."""
    for g in range(vertices.shape[0]):
        stream = mix(key ^ np.uint64(g))
        for j in range(vertices.shape[1]):
            if useless[g, j]:
                vertices[g, j] = below(draw(stream, np.uint64(j) * STEP + np.uint64(attempt)), count)
