"""Metrics of ranks: the place of true links among candidates, from 1; ties have mean ranks."""

from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.train.metrics.metric import refuse_empty_or_nan


def mrr(ranks: Any) -> float:
    """Mean of 1 / rank."""
    return float(np.mean(1 / _checked(ranks, "mrr")))


def hits_at(ranks: Any, k: int) -> float:
    """Share of ranks up to k."""
    return float(np.mean(_checked(ranks, f"hits@{k}") <= k))


def _checked(ranks: Any, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    ranks = np.asarray(ranks, np.float64)
    refuse_empty_or_nan(ranks, name)
    if ranks.min() < 1:
        raise PenstockError(
            f"{name} was given the rank {ranks.min():g}: ranks count from 1.", code="value-out-of-range"
        )
    return np.asarray(ranks)
