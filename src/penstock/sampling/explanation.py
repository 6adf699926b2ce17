"""What an explanation says to samplers and stores: how much remote vertices matter, and which columns do."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

FLOOR = 0.2
"""The score of the vertex that matters least, where that of the one that matters most is 1: without a floor, a vertex
that is hardly ever drawn would have an enormous weight when it is."""
_LEVELS = 255


class Scores(NamedTuple):
    """How much the remote vertices of one node type matter to one reader. A score is its level / 255.

    Levels are what travels and what is drawn by, so that every process has the same numbers.
    """

    vertices: Array
    """Ascending, in the cut graph's numbers."""
    levels: Array
    """uint8, from 1."""
    other: int
    """The level of all remote vertices that were not explained."""

    def values(self) -> Array:
        """The scores of the vertices, as float64."""
        return self.levels.astype(np.float64) / _LEVELS

    @property
    def other_value(self) -> float:
        """The score of all remote vertices that were not explained."""
        return self.other / _LEVELS


@dataclass(frozen=True, eq=False)
class Explanation:
    """What is in force from some step on. Versions count from 1; a batch carries the one that it was drawn by."""

    version: int
    scores: Mapping[str, Scores]
    """By node type."""
    columns: Mapping[str, Array]
    """By node type, the columns that remote rows are sent with, ascending."""


def scores_of(vertices: Array, mask: Array) -> Scores:
    """Scores of some vertices, ascending, from a mask over them: from `FLOOR` to 1 between its least and largest value.

    A mask that is the same everywhere gives equal scores. Vertices that were not explained count as the mean does.
    """
    low, high = (float(mask.min()), float(mask.max())) if len(mask) else (0.0, 0.0)
    share = (mask.astype(np.float64) - low) / (high - low) if high > low else np.ones(len(mask))
    levels = np.rint(_LEVELS * (FLOOR + (1 - FLOOR) * share)).astype(np.uint8)
    other = int(np.rint(levels.mean())) if len(levels) else _LEVELS
    return Scores(vertices, levels, other)


def largest_columns(mask: Array, share: float) -> Array:
    """The columns with the largest values of a mask, so many that they are `share` of all, at least one; ascending."""
    count = min(len(mask), max(1, int(np.ceil(share * len(mask) - 1e-9))))
    return np.sort(np.argsort(-mask, kind="stable")[:count])


def check_scores(scores: Scores, sources: int, who: str) -> None:
    """Refuse what cannot be the scores of `sources` vertices: kernels search in them."""
    vertices, levels, other = scores
    if (
        vertices.ndim != 1
        or vertices.dtype not in (np.int32, np.int64)
        or levels.shape != vertices.shape
        or levels.dtype != np.uint8
        or not 1 <= other <= _LEVELS
        or (len(vertices) and (vertices[0] < 0 or vertices[-1] >= sources or levels.min() < 1))
        or (np.diff(vertices) <= 0).any()
    ):
        raise PenstockError(
            f"{who} sent scores that are not those of remote vertices: run the same release on all machines.",
            code="malformed-message",
        )
