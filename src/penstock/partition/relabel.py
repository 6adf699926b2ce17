"""New IDs: part after part, trainer after trainer, original order inside."""

from dataclasses import dataclass

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.partition.whole import WholeAdjacency


@dataclass(frozen=True)
class Relabelling:
    """Maps of one node type between new and original IDs, and the bounds of every sub-part."""

    original: Array
    """New ID to original."""
    new: Array
    """Original to new ID."""
    bounds: Array
    """parts * trainers + 1 first new IDs."""


def relabel(
    whole: WholeAdjacency, assignment: Array, trainer: Array, parts: int, trainers: int
) -> dict[str, Relabelling]:
    """The maps of every node type. Small keys sort by radix, in one or two passes."""
    groups = parts * trainers
    dtype = np.min_scalar_type(groups)
    keys = assignment.astype(dtype) * dtype.type(trainers) + trainer.astype(dtype)
    return {name: _relabel_type(view, groups) for name, view in whole.by_type(keys).items()}


def _relabel_type(keys: Array, groups: int) -> Relabelling:
    original = np.argsort(keys, kind="stable")
    bounds = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=groups), out=bounds[1:])
    new = np.empty(len(keys), index_dtype(len(keys)))
    new[original] = np.arange(len(keys))
    return Relabelling(original, new, bounds)
