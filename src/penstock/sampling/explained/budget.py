"""How often the model may be explained, chosen beforehand so that explaining takes a small share of training.

An explanation takes `explain_steps` passes, forward and backward, through the model over its rows; a training step
takes one over the rows that a worker's batch computes at the first layer, which are nearly all of its products. The
model's widths and layers count alike on both sides, so that processor time is counted in rows. For a few hundred rows a
pass is mostly calls, which take as long as a training step needs for 110 to 260 rows, and a row of a pass takes at most
as long as one of a step (two and three layers, 32 and 128 wide): more rows cost little, and fewer save little.
"""

import math
from collections.abc import Mapping, Sequence

SHARE = 0.03
"""The share of a worker's processor time that explaining may take, by estimate; drawing by scores comes on top."""
_CALLS = 250
"""Rows of a training step that take as long as the calls of one pass."""
_LEAST = 30
"""Steps between two explanations where more of them would be allowed."""


def steps_between(
    seeds: float,
    fanouts: Sequence[int | Mapping[str, int]],
    relations: int,
    degree: float,
    vertices: int,
    rows: int,
    passes: int,
) -> int:
    """Training steps between two explanations that take so many `passes` over so many `rows`.

    `seeds` are those of a worker's share of a batch; `degree` is the mean length of a vertex's lists of all `relations`
    together, in a graph with so many `vertices`.
    """
    computed = float(seeds)
    for fanout in fanouts[:-1]:
        computed *= 1 + _drawn(fanout, relations, degree)
    # The number of different vertices among so many draws.
    computed = max(1.0, -vertices * math.expm1(-computed / max(1, vertices)))
    return max(_LEAST, math.ceil(passes * (_CALLS + rows) / (SHARE * computed)))


def _drawn(fanout: int | Mapping[str, int], relations: int, degree: float) -> float:
    """Neighbours that a vertex draws at a hop, in the mean."""
    wanted = list(fanout.values()) if isinstance(fanout, Mapping) else [fanout] * relations
    return degree if any(each < 0 for each in wanted) else min(degree, float(sum(wanted)))
