"""Batches whose remote rows are rounded at random, anew in every epoch."""

from typing import Any

from penstock.pipeline.row_reader import Reading, RowReader
from penstock.sampling.block import MiniBatch
from penstock.store.parts import PartedRowSource
from penstock.store.source import RowSource


class RowsOfEpoch:
    """Batches read rows as another reader does, in the rounding of their own epoch."""

    def __init__(self, reader: RowReader) -> None:
        self._reader = reader

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        if batch.key is not None and isinstance(source, PartedRowSource):
            source = source.in_epoch(batch.key.epoch)
        return self._reader.reading(batch, node_type, source)
