"""Which seeds of a batch are whose: equal shares, each as near to a worker's own parts as can be."""

from collections.abc import Sequence

import numpy as np

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned


class SeedSplit:
    """Splits batches of `items` (ascending). `new` are their numbers in the cut graph, where parts are ranges.

    The seeds of a batch, ordered by these, are cut into ranges of the workers' shares, in the order of their ranks,
    which is that of their machines' parts. Every worker can tell its share without asking another.
    """

    def __init__(self, items: Array, new: Array, shares: Sequence[float], rank: int) -> None:
        self._items, self._new, self._alone = items, new, len(shares) == 1
        ends = np.cumsum([0.0, *shares])
        self._from, self._to = float(ends[rank]), 1.0 if rank == len(shares) - 1 else float(ends[rank + 1])

    def share(self, planned: Planned) -> Planned:
        """One worker's part of a batch."""
        count = len(planned.seeds)
        if self._alone:
            return planned._replace(whole=count)
        new = self._new[np.searchsorted(self._items, planned.seeds)]
        order = np.argsort(new, kind="stable")
        mine = order[round(self._from * count) : round(self._to * count)]
        return planned._replace(seeds=planned.seeds[mine], whole=count)
