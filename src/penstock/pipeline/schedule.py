"""Which seeds form which batch: shuffled by hash anew each epoch, endless, and startable anywhere."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, mix
from penstock.kernels import njit
from penstock.sampling.key import BatchKey


class Position(NamedTuple):
    """A batch of a run: epochs and batches from 0."""

    epoch: int
    batch: int


START = Position(0, 0)


class Planned(NamedTuple):
    """A batch before anything was sampled."""

    key: BatchKey
    seeds: Array
    last: bool
    """Whether its epoch ends with it."""
    whole: int | None = None
    """How many seeds the batch has where these are one worker's share of them."""

    @property
    def position(self) -> Position:
        """Where in the run it stands."""
        return Position(self.key.epoch, self.key.batch)


class BatchPlan(Protocol):
    """The batches of a run, or one worker's shares of them."""

    batch_size: int
    """The most seeds that a batch has."""

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every batch from `start` on."""


class Schedule:
    """Epoch after epoch over `items`, in an order hashed from (seed, epoch, original number), cut into batches.

    The order belongs to the items' original numbers, so that it is the same however the graph is cut.
    """

    def __init__(
        self, items: Array, batch_size: int, seed: int, epochs: int | None = None, original: Array | None = None
    ) -> None:
        if len(items) == 0:
            raise PenstockError(
                "The training split is empty: give the graph training vertices, or set `split`.", code="missing-data"
            )
        if batch_size < 1:
            raise PenstockError(f"batch_size is {batch_size}: give 1 or more.", code="value-out-of-range")
        self.items, self.batch_size, self.seed, self.epochs = np.asarray(items), batch_size, seed, epochs
        self.names = self.items if original is None else np.asarray(original)[self.items]

    @property
    def batches(self) -> int:
        """Batches of an epoch; the last may be smaller."""
        return -(-len(self.items) // self.batch_size)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every batch from `start` on; without end unless `epochs` is given."""
        epoch, batch = start
        while self.epochs is None or epoch < self.epochs:
            order = self._order(epoch)
            for number in range(batch, self.batches):
                seeds = self.items[order[number * self.batch_size : (number + 1) * self.batch_size]]
                yield Planned(BatchKey(self.seed, epoch, number), seeds, number == self.batches - 1)
            epoch, batch = epoch + 1, 0

    def _order(self, epoch: int) -> Array:
        draws = np.empty(len(self.items), np.uint64)
        _hash_names(key_of(self.seed, f"{epoch}/order"), self.names.astype(np.int64, copy=False), draws)
        return np.argsort(draws, kind="stable")


@njit(nogil=True, cache=True)
def _hash_names(key: np.uint64, names: Array, out: Array) -> None:
    for i in range(len(names)):
        out[i] = mix(key ^ mix(np.uint64(names[i])))
