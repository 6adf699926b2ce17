"""Batches that are drawn once and used again in every epoch that has the order of the first."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from penstock.graph.arrays import Array
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned, Schedule

Draw = Callable[[Planned], Batch]
_MB = 1 << 20
_DERIVED = 4
"""A block that is kept keeps what layers derive of it (`nn.derived`): its transpose, or itself with self loops. Those
are up to three times its size."""


class ReusedBatches:
    """Keeps the batches of a schedule's unshuffled epochs as the first epoch draws them.

    A batch is the same whether it was kept or, for lack of room, is drawn again: its key is that of the first epoch.
    """

    def __init__(self, schedule: Schedule, megabytes: int) -> None:
        self._schedule = schedule
        self._kept: dict[int, Batch] = {}
        self._room = megabytes * _MB
        self._lock = threading.Lock()

    def drawn_by(self, draw: Draw) -> Draw:
        """What draws the batches that are not kept yet; several that draw share what is kept."""
        return partial(self._batch, draw)

    def _batch(self, draw: Draw, planned: Planned) -> Batch:
        """The batch of some seeds, without features and labels."""
        epoch, number = planned.position
        drawn_in = self._schedule.ordered_as(epoch)
        if drawn_in == epoch and epoch:
            return draw(planned)
        with self._lock:
            batch = self._kept.get(number)
        if batch is None:
            batch = draw(planned._replace(key=planned.key._replace(epoch=drawn_in)))
            self._keep(number, batch)
        # Carriers put features, labels and blocks of a device into the batch that they are given.
        return replace(batch, features={}, blocks=list(batch.blocks))  # type: ignore[arg-type]

    def _keep(self, number: int, batch: Batch) -> None:
        size = kept_bytes(batch)
        with self._lock:
            if size <= self._room and number not in self._kept:
                self._kept[number] = batch
                self._room -= size


def kept_bytes(batch: Batch) -> int:
    """Bytes that a batch takes for as long as it is kept, with what layers derive of its blocks."""
    return _DERIVED * sum(array.nbytes for array in _arrays(batch))


def _arrays(batch: Batch) -> Iterator[Array]:
    yield from batch.vertices.values()
    for block in batch.blocks:
        for part in block.parts:
            arrays = part.indptr, part.indices, part.weights, part.totals, part.edges
            yield from (array for array in arrays if array is not None)
