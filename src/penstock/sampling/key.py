"""What names a batch in the hash, so that its draws are the same on any thread, process, part or machine."""

from typing import NamedTuple

import numpy as np

from penstock.graph.hashing import key_of

BATCH = "{}/{}/{}"
"""What the streams of a batch are named by: epoch, batch, purpose."""


class BatchKey(NamedTuple):
    """A batch: the run's seed, the epoch, and the batch's number in it."""

    seed: int
    epoch: int
    batch: int

    def hop(self, number: int, relation: str = "") -> np.uint64:
        """The key of one hop's draws; relations of one hop draw apart."""
        return self.purpose(f"{number}/{relation}" if relation else str(number))

    def purpose(self, what: str) -> np.uint64:
        """A stream of draws of its own within the batch: roots, negatives, dropout."""
        return key_of(self.seed, BATCH, self.epoch, self.batch, what)
