"""Which rows of a table to keep on the device: those that were or will be asked for most.

Equally hot rows are taken by their number, so that a choice can be repeated; it comes in ascending order.
"""

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array


def by_counts(counts: Array, rows: int) -> Array:
    """The `rows` vertices with the highest counts, int64: of reads in a presampling pass, or of lists they are in."""
    rows = max(0, min(rows, len(counts)))
    if not rows:
        return np.empty(0, np.int64)
    # The lowest count that is taken is found without ordering the others.
    lowest = np.partition(counts, len(counts) - rows)[len(counts) - rows]
    taken = counts > lowest
    taken[np.flatnonzero(counts == lowest)[: rows - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


def by_device_counts(counts: Tensor, rows: int) -> Tensor:
    """`by_counts` where the counts are on a device; the answer is there too. Waits for the device."""
    rows = max(0, min(rows, len(counts)))
    if not rows:
        return torch.empty(0, dtype=torch.int64, device=counts.device)
    lowest = counts.topk(rows, sorted=False).values.amin()
    taken = counts > lowest
    taken[(counts == lowest).nonzero().view(-1)[: rows - int(taken.sum())]] = True
    return taken.nonzero().view(-1)
