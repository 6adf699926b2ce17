"""How a batch's stored features are read on the host: as they are, or with a part of the first layer done already."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from penstock.graph.arrays import Array
from penstock.sampling.block import MiniBatch
from penstock.store.source import RowSource

Move = Callable[[Array], torch.Tensor]
"""Brings an array to the device that computes, as the type that it computes with."""


class Reading(Protocol):
    """What one batch reads of one source."""

    @property
    def shapes(self) -> Sequence[tuple[tuple[int, ...], Any]]:
        """Shape and type of each array on the host that it fills."""

    def fill(self, arrays: Sequence[Array]) -> None:
        """Read the rows; called in the pipeline's stage `gather`."""

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> Any:
        """What the model is given, on the device: the arrays, or what stands for them."""


class RowReader(Protocol):
    """Says what batches read."""

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """What a batch that was sampled reads of the features of a node type."""


class PlainReading:
    """The rows of all vertices that a batch needs."""

    def __init__(self, ids: Any, source: RowSource) -> None:
        self._ids, self._source = ids, source
        self.shapes = [((len(ids), *source.row_shape()), source.dtype)]

    def fill(self, arrays: Sequence[Array]) -> None:
        """See `Reading.fill`."""
        self._source.read(self._ids, arrays[0])

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> Any:
        """See `Reading.arrived`."""
        return move(arrays[0])


class PlainRows:
    """Batches read the rows of all vertices that they need."""

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        return PlainReading(batch.vertices[node_type], source)


PLAIN_ROWS = PlainRows()
