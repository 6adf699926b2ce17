"""The other positives' ends as negatives: nothing more is sampled, and scores are one square matrix."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from penstock.sampling.links.known import End, KnownEdges
from penstock.sampling.links.negatives import Corrupt, DrawnNegatives, Positives, check_corrupt
from penstock.sampling.links.true_edge_mask import mask_true_edges


@dataclass(frozen=True)
class InBatch:
    """Every positive's end stands against all other positives of the batch.

    Vertices come as often as they have edges, so popular ones are negatives more often: the usual bias of the method.
    With `filtered`, true edges are masked.
    """

    shared: ClassVar[bool] = True

    corrupt: Corrupt = "destination"
    filtered: bool = False

    def __post_init__(self) -> None:
        check_corrupt(self.corrupt)

    def per_positive(self, positives: int) -> int:
        """The ends of all positives of the batch."""
        return positives

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """[1, positives] vertices; a positive's own end is masked wherever it stands."""
        count, vertices = len(positives), positives.at(end)
        mask = vertices[:, None] != vertices[None, :]
        clashes = 0
        groups = vertices[None, :].copy() if count else np.empty((0, 0), np.int64)
        if self.filtered:
            clashes = mask_true_edges(known, positives, end, groups, max(count, 1), mask)
        return DrawnNegatives(groups, max(count, 1), mask, clashes)
