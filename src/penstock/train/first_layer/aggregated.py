"""The host aggregates the first layer's inputs while it reads them, straight from their table.

Sums of rows are fewer than the rows, and the rows are not written anywhere in between.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.nn.first_rows import AggregatedRows, Aggregation
from penstock.nn.layer_table import layer_entry
from penstock.nn.stored_numbers import READ_IN_PLACE
from penstock.nn.table_aggregation import aggregate_table, widened_rows
from penstock.pipeline.row_reader import Move, PlainReading, Reading, RowReader
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import host_block
from penstock.store.source import ArraySource, RowSource, host_ids
from penstock.train.job import Job


class AggregatedReading:
    """What the first layer aggregates, and the destinations' own rows where that does not have them in it."""

    def __init__(self, block: Block, what: Aggregation, ids: Any, source: RowSource) -> None:
        self._block, self._what, self._ids, self._source = block, what, ids, source
        # One array of both, so that a device gets them by one copy.
        matrices = 1 if what == "normalised" else 2
        self.shapes = [((matrices, block.num_dst, *source.row_shape()), np.dtype(np.float32))]

    def fill(self, arrays: Sequence[Array]) -> None:
        """See `Reading.fill`."""
        block, ids = host_block(self._block), host_ids(self._ids)
        table = table_of(self._source)
        if table is None:
            table, ids = self._source.read(ids).astype(np.float32, copy=False), np.arange(len(ids))
        aggregate_table(block, self._what, table, ids, arrays[0][0])
        for own in arrays[0][1:]:
            widened_rows(table, ids[: block.num_dst], own)

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> AggregatedRows:
        """See `Reading.arrived`."""
        return AggregatedRows(self._what, *move(arrays[0]))


class AggregatedInputs:
    """Every batch is aggregated on the host."""

    def __init__(self, what: Aggregation) -> None:
        self._what = what

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        return AggregatedReading(batch.blocks[0], self._what, batch.vertices[node_type], source)


class CheaperInputs:
    """Batches are aggregated on the host where their first layer would aggregate before it transforms, and their table
    can be read in place: the numbers are the same, and there is less to write."""

    def __init__(self, what: Aggregation, layer: Any) -> None:
        self._aggregated, self._layer = AggregatedInputs(what), layer

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        if table_of(source) is not None and self._layer.aggregates_inputs(batch.blocks[0]):
            return self._aggregated.reading(batch, node_type, source)
        return PlainReading(batch.vertices[node_type], source)


def table_of(source: RowSource) -> Array | None:
    """The table that the host can read in place; None where rows come from elsewhere or have another type."""
    if isinstance(source, ArraySource) and source.table.ndim == 2 and source.table.dtype.type in READ_IN_PLACE:
        return source.table if source.table.flags.c_contiguous else None
    return None


def aggregated_inputs(model: Any, job: Job) -> RowReader:
    """Of a job whose layer can be given aggregates."""
    what = layer_entry(job.model).aggregates(job)
    assert what is not None, "the way was refused"
    return AggregatedInputs(what)


def cheaper_inputs(model: Any, job: Job) -> RowReader:
    """Of a job whose layer can be given aggregates, where it would make them itself."""
    what = layer_entry(job.model).aggregates(job)
    assert what is not None, "the way was refused"
    return CheaperInputs(what, model.convolutions[0])
