"""What an explanation tells samplers and stores: the scores of remote vertices, and the columns that matter."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array

FLOOR = 0.2
"""The score of the least important vertex, where the most important one has 1. Without a floor, a vertex that is hardly
ever drawn would have an enormous weight when it is.
"""
_LEVELS = 255


class Scores(NamedTuple):
    """The scores of the remote vertices of one node type for one reader. A score is its level / 255.

    Levels are sent and drawn by, so that every process has exactly the same numbers.
    """

    vertices: Array
    """Ascending, as numbers in the partitioned graph."""
    levels: Array
    """uint8, at least 1."""
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
class SamplingExplanation:
    """An explanation that applies from some step on. Versions count from 1; a batch holds the one
    that it was drawn by.
    """

    version: int
    scores: Mapping[str, Scores]
    """By node type."""
    columns: Mapping[str, Array]
    """By node type, the columns that remote rows are sent with, ascending."""


def scores_of(vertices: Array, mask: Array) -> Scores:
    """Scores of some ascending vertices, from a mask over them: `FLOOR` to 1 between its least and largest value.

    A constant mask gives equal scores. Vertices that were not explained get the mean.
    """
    low, high = (float(mask.min()), float(mask.max())) if len(mask) else (0.0, 0.0)
    share = (mask.astype(np.float64) - low) / (high - low) if high > low else np.ones(len(mask))
    levels = np.rint(_LEVELS * (FLOOR + (1 - FLOOR) * share)).astype(np.uint8)
    other = int(np.rint(levels.mean())) if len(levels) else _LEVELS
    return Scores(vertices, levels, other)


def largest_columns(mask: Array, share: float) -> Array:
    """The columns with the largest values of a mask, `share` of all of them but at least one; ascending."""
    count = min(len(mask), max(1, int(np.ceil(share * len(mask) - 1e-9))))
    return np.sort(np.argsort(-mask, kind="stable")[:count])


def check_scores(scores: Scores, sources: int, who: str) -> None:
    """Refuse values that cannot be the scores of `sources` vertices: kernels search in them."""
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


# How often the model is explained, chosen so that explaining takes a small share of training time. An explanation takes
# `explain_steps` forward and backward passes through the model over its rows; a training step takes one over the rows
# that a worker's batch computes at the first layer, which are nearly all of its products. The model's widths and layers
# count alike on both sides, so CPU time is counted in rows. For a few hundred rows a pass is mostly call overhead,
# which takes as long as a training step needs for 110 to 260 rows, and a row of a pass takes at most as long as one of
# a step (two and three layers, 32 and 128 wide): more rows cost little, and fewer save little.

SHARE = 0.03
"""The estimated share of a worker's CPU time that explaining may take; drawing by scores comes on top."""
_CALLS = 250
"""The overhead of one pass, as rows of a training step that take as long."""
_LEAST = 30
"""The least number of steps between two explanations."""


def steps_between(
    seeds: float,
    fanouts: Sequence[int | Mapping[str, int]],
    relations: int,
    degree: float,
    vertices: int,
    rows: int,
    passes: int,
) -> int:
    """Training steps between two explanations, each of `passes` passes over `rows` rows.

    `seeds` are those of a worker's share of a batch; `degree` is the mean length of a vertex's lists of all `relations`
    together, in a graph with so many `vertices`.
    """
    computed = float(seeds)
    for fanout in fanouts[:-1]:
        computed *= 1 + _drawn(fanout, relations, degree)
    # The expected number of different vertices among so many draws.
    computed = max(1.0, -vertices * math.expm1(-computed / max(1, vertices)))
    return max(_LEAST, math.ceil(passes * (_CALLS + rows) / (SHARE * computed)))


def _drawn(fanout: int | Mapping[str, int], relations: int, degree: float) -> float:
    """The mean number of neighbours that a vertex draws at a hop."""
    wanted = list(fanout.values()) if isinstance(fanout, Mapping) else [fanout] * relations
    return degree if any(each < 0 for each in wanted) else min(degree, float(sum(wanted)))
