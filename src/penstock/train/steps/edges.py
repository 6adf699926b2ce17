"""A source of batches of edges for bursts, at fixed addresses: the device draws edges, negatives and neighbourhoods."""

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from penstock.sampling.block import MiniBatch
from penstock.sampling.device.links import EdgeSeeds
from penstock.sampling.device.slot import Slot
from penstock.sampling.links.batcher import WholeEdgeBatch
from penstock.traced import launches
from penstock.train.session import Session
from penstock.train.steps.sources import VertexSlot, VertexSource


class FixedLinks(NamedTuple):
    """What a loss reads of a batch's edges beside its labels: how many there are, on the device."""

    whole: WholeEdgeBatch


class EdgeSource(VertexSource):
    """Batches of edges and their negatives, whose ends are the seeds. An epoch's order has the positions of its edges
    among the schedule's items.
    """

    def _bring_items(self, session: Session, device: torch.device) -> None:
        self._task = cast(Any, session.task)
        values = self._task.labels_of(self._schedule.items)
        self._values = None if values is None else torch.from_numpy(values).to(device)
        """The labels of the items; None where only their edges are learned."""

    def _arrange(self, places: Tensor) -> None:
        self.epoch.order.copy_(places)

    def _add_labels(self, batch: MiniBatch, slot: Slot) -> None:
        pairs, values, size = slot.beginning, self._values, slot.room.rows[0]
        assert isinstance(pairs, EdgeSeeds)
        of_batch = None
        if values is not None:
            of_batch = torch.zeros(size, dtype=values.dtype, device=values.device)
        batch.labels = self._task.fixed_labels(pairs, of_batch)
        whole: Any = pairs.sizes[0], pairs.sizes[1]
        batch.links = FixedLinks(WholeEdgeBatch(*whole))

    def draw(self, slot: VertexSlot) -> None:
        """Launch the draw of the batch, and the copy of its edges' labels."""
        slot.slot.draw(self.epoch)
        pairs = slot.slot.beginning
        assert isinstance(pairs, EdgeSeeds)
        if self._values is not None and launches(pairs.items, rows=len(pairs.items), of=self._values[:, None]):
            torch.index_select(self._values, 0, pairs.items, out=slot.batch.labels["values"])
