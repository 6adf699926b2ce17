"""How the seeds of a batch are split among workers: equal shares, each as close to the worker's parts as possible."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from penstock.graph.arrays import Array
from penstock.pipeline.schedule import Planned
from penstock.sampling.links import EdgeBatch
from penstock.sampling.triples import TripleBatch


class SeedSplit:
    """Splits batches of `items` (ascending). `new` are their numbers in the cut graph, where parts are ranges.

    The seeds of a batch, ordered by these, are cut into ranges of the workers' shares, in the order of their ranks,
    which is that of their machines' parts. Every worker can tell its share without asking another.
    """

    def __init__(self, items: Array, new: Array, shares: Sequence[float], rank: int) -> None:
        self._items, self._new, self._alone = items, new, len(shares) == 1
        self._range = _range_of(shares, rank)

    @property
    def part(self) -> float:
        """How much of a batch `share` leaves."""
        return 1.0 if self._alone else self._range[1] - self._range[0]

    def share(self, planned: Planned) -> Planned:
        """One worker's part of a batch."""
        count = len(planned.seeds)
        if self._alone:
            return planned._replace(whole=count)
        return planned._replace(seeds=planned.seeds[self.places(planned)], whole=count)

    def places(self, planned: Planned) -> Array:
        """Where one worker's seeds stand in a batch, in the order of its share."""
        if self._alone:
            return np.arange(len(planned.seeds))
        return _within(self._new[np.searchsorted(self._items, planned.seeds)], self._range)


def whole_batches(items: Array) -> SeedSplit:
    """Leaves batches as they are, for those who take their share when they draw: on edges, with the negatives; by time,
    with the seeds' places, by which they draw apart; and those who draw a batch as a whole."""
    return SeedSplit(items, items, [1.0], 0)


def vertex_share(shares: Sequence[float], rank: int) -> Callable[[Array], Array] | None:
    """Of vertices by their numbers in the cut graph, the places of one worker's, as `SeedSplit` has it; None: of all.

    For batches that are drawn as a whole, and are known to have these vertices only then.
    """
    return None if len(shares) == 1 else partial(_within, share=_range_of(shares, rank))


class EdgeSplit:
    """Splits batches of edges by their destinations, whose numbers in the cut graph are `new`, as `SeedSplit` does."""

    def __init__(self, new: Array, shares: Sequence[float], rank: int) -> None:
        self._new, self._range = new, _range_of(shares, rank)

    def __call__(self, links: EdgeBatch | TripleBatch) -> Array:
        """The places of one worker's positives, ascending."""
        return np.sort(_within(self._new[links.destination], self._range))


def _range_of(shares: Sequence[float], rank: int) -> tuple[float, float]:
    """From where to where a worker's share goes, where all shares are 1."""
    ends = np.cumsum([0.0, *shares])
    return float(ends[rank]), 1.0 if rank == len(shares) - 1 else float(ends[rank + 1])


def _within(new: Array, share: tuple[float, float]) -> Array:
    """The places of what lies within a share, in ascending order of the numbers."""
    order = np.argsort(new, kind="stable")
    return order[round(share[0] * len(new)) : round(share[1] * len(new))]
