"""Train, validation and test vertices, drawn by ratio from a hash of the vertex number."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.hashing import key_of, unit_draws


def splits_by_ratio(eligible: Array, ratios: tuple[float, float, float], seed: int) -> dict[str, Array]:
    """Cut the eligible vertices (ascending numbers) into exact shares, in an order drawn per vertex number."""
    if min(ratios) < 0 or sum(ratios) > 1 + 1e-9:
        raise PenstockError(
            f"Split ratios {list(ratios)} must be at least 0 and sum to at most 1.", code="value-out-of-range"
        )
    if len(eligible) == 0:
        return {name: np.empty(0, np.int64) for name in SPLITS}
    draws = np.empty(int(eligible[-1]) + 1)
    unit_draws(key_of(seed, "split"), 0, draws)
    shuffled = eligible[np.argsort(draws[eligible], kind="stable")]
    ends = np.round(np.cumsum(ratios) * len(eligible)).astype(np.int64)
    starts = [0, *ends[:-1]]
    return {name: np.sort(shuffled[a:b]).astype(np.int64) for name, a, b in zip(SPLITS, starts, ends, strict=True)}
