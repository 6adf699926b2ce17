"""What each of several processes gets of every batch, in a loop that the user distributes."""

from collections.abc import Iterator

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.pipeline.schedule import START, Planned, Position, Schedule


class RankShares:
    """One rank's shares of a schedule's batches, which are `world` times as large as a share.

    Every rank has as many batches as the others, and all shares of a batch together are the batch that one process with
    so many seeds would have. The last batch of an epoch is divided evenly; where it has fewer seeds than there are
    ranks, it is filled up with seeds of its own, so that no rank is without.
    """

    def __init__(self, schedule: Schedule, rank: int, world: int) -> None:
        if world < 1 or not 0 <= rank < world:
            raise PenstockError(
                f"rank is {rank} and world is {world}: give a rank from 0 to world - 1.", code="value-out-of-range"
            )
        self._schedule, self._rank, self._world = schedule, rank, world
        self.batch_size = -(-schedule.batch_size // world)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """See `BatchPlan.from_position`."""
        return map(self.share, self._schedule.from_position(start))

    def share(self, planned: Planned) -> Planned:
        """This rank's seeds of a batch."""
        if self._world == 1:
            return planned
        seeds: Array = planned.seeds
        if len(seeds) < self._world:
            seeds = np.resize(seeds, self._world)
        first, last = (len(seeds) * rank // self._world for rank in (self._rank, self._rank + 1))
        return planned._replace(seeds=seeds[first:last], whole=len(seeds))
