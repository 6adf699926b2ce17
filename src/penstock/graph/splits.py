"""Train, validation and test vertices: drawn by ratio from a hash of the vertex number, or given as Boolean masks."""

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.data import SPLITS
from penstock.graph.hashing import document_key, unit_draws


def splits_by_ratio(eligible: Array, ratios: tuple[float, float, float], seed: int) -> dict[str, Array]:
    """Cut the eligible vertices (ascending numbers) into exact shares, in an order drawn per vertex number."""
    if min(ratios) < 0 or sum(ratios) > 1 + 1e-9:
        raise PenstockError(
            f"Split ratios {list(ratios)} must be at least 0 and sum to at most 1.", code="value-out-of-range"
        )
    if len(eligible) == 0:
        return {name: np.empty(0, np.int64) for name in SPLITS}
    draws = np.empty(int(eligible[-1]) + 1)
    unit_draws(document_key(seed, "split"), 0, draws)
    shuffled = eligible[np.argsort(draws[eligible], kind="stable")]
    ends = np.round(np.cumsum(ratios) * len(eligible)).astype(np.int64)
    starts = [0, *ends[:-1]]
    return {name: np.sort(shuffled[a:b]).astype(np.int64) for name, a, b in zip(SPLITS, starts, ends, strict=True)}


_SUFFIX = "_mask"


def take_masks(fields: dict[str, Array], split: int = 0) -> dict[str, Array]:
    """Remove the masks from `fields` and return them as splits.

    `train_mask`, `val_mask` and `test_mask` may be of any type, other names that end in `_mask` must be
    boolean. Of masks with a column for each of several splits, column `split` counts.
    """
    splits = {}
    for key in [key for key, values in fields.items() if _is_mask(key, values)]:
        splits[key.removesuffix(_SUFFIX)] = np.flatnonzero(_column(fields.pop(key), key, split))
    return splits


def mask_of(rows: Array, count: int) -> Array:
    """A split as a boolean mask."""
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def mask_name(split: str) -> str:
    """What other libraries call a split's mask."""
    return split + _SUFFIX


def _is_mask(key: str, values: Array) -> bool:
    name = key.removesuffix(_SUFFIX)
    return name != key and name != "" and (name in SPLITS or values.dtype == np.bool_) and values.ndim <= 2


def _column(mask: Array, key: str, split: int) -> Array:
    if mask.ndim == 1:
        return mask
    if not 0 <= split < mask.shape[1]:
        raise PenstockError(
            f"{key} holds {mask.shape[1]} splits, not number {split}: choose 0 to {mask.shape[1] - 1}.",
            code="value-out-of-range",
        )
    column: Array = mask[:, split]
    return column
