"""Which seeds form which batch: in an order that is hashed, shuffled or fixed, and that can be started anywhere."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import key_of, mix
from penstock.kernels import njit
from penstock.sampling.block import BatchKey


class Position(NamedTuple):
    """A batch of a run: epochs and batches from 0."""

    epoch: int
    batch: int


START = Position(0, 0)


class Planned(NamedTuple):
    """A batch before it is sampled."""

    key: BatchKey
    seeds: Array
    last: bool
    """Whether it is the last one of its epoch."""
    whole: int | None = None
    """The number of the batch's seeds where these are one worker's share of them."""

    @property
    def position(self) -> Position:
        """The batch's position in the run."""
        return Position(self.key.epoch, self.key.batch)


class BatchPlan(Protocol):
    """The batches of a run, or one worker's shares of them."""

    batch_size: int
    """The most seeds that a batch has."""

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every batch from `start` on."""


class Schedule:
    """Epoch after epoch over `items`, in an order hashed from (seed, epoch, original number), cut into batches.

    The order depends on the items' original numbers, so that it is the same however the graph is partitioned. Epochs
    before `shuffled_from` (None: all epochs) have the order of the first one, which with `as_given` is that of `items`.
    """

    def __init__(
        self,
        items: Array,
        batch_size: int,
        seed: int,
        epochs: int | None = None,
        original: Array | None = None,
        shuffled_from: int | None = 0,
        as_given: bool = False,
    ) -> None:
        if len(items) == 0:
            raise PenstockError(
                "The training split is empty: give the graph training vertices, or set `split`.", code="missing-data"
            )
        if batch_size < 1:
            raise PenstockError(f"batch_size is {batch_size}: give 1 or more.", code="value-out-of-range")
        self.items, self.batch_size, self.seed, self.epochs = np.asarray(items), batch_size, seed, epochs
        self.names = self.items if original is None else np.asarray(original)[self.items]
        self.shuffled_from, self._as_given = shuffled_from, as_given

    @property
    def batches(self) -> int:
        """The number of batches in an epoch; the last may be smaller."""
        return -(-len(self.items) // self.batch_size)

    def from_position(self, start: Position = START) -> Iterator[Planned]:
        """Every batch from `start` on; without end unless `epochs` is given."""
        epoch, batch = start
        order, ordered_as = self.items[:0], -1
        while self.epochs is None or epoch < self.epochs:
            if ordered_as != self.ordered_as(epoch):
                order, ordered_as = self._order(epoch), self.ordered_as(epoch)
            for number in range(batch, self.batches):
                seeds = self.items[order[number * self.batch_size : (number + 1) * self.batch_size]]
                yield Planned(BatchKey(self.seed, epoch, number), seeds, number == self.batches - 1)
            epoch, batch = epoch + 1, 0

    def ordered_as(self, epoch: int) -> int:
        """The epoch whose order an epoch has: its own, or the first one's where seeds are not shuffled yet."""
        return epoch if self.shuffled_from is not None and epoch >= self.shuffled_from else 0

    def order_key(self, epoch: int) -> np.uint64:
        """The key of the hash that orders an epoch."""
        return key_of(self.seed, "{}/order", self.ordered_as(epoch))

    def _order(self, epoch: int) -> Array:
        if self._as_given and self.ordered_as(epoch) == 0:
            return np.arange(len(self.items))
        draws = np.empty(len(self.items), np.uint64)
        _hash_names(self.order_key(epoch), self.names.astype(np.int64, copy=False), draws)
        return np.argsort(draws, kind="stable")


@njit(nogil=True, cache=True, writes=("out",))
def _hash_names(key: np.uint64, names: Array, out: Array) -> None:
    for i in range(len(names)):
        out[i] = mix(key ^ mix(np.uint64(names[i])))
