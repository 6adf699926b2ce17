"""A batch's destinations are divided: the host aggregates the lists of some, a device reads the rows of the others.

Both read one table in page-locked memory. Of a block the device has the first destinations and the host the others.
Rows are numbered as a block's edges meet them, so what the device reads are the batch's first rows: the destinations'
own, and neighbours that its lists meet first.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.aggregation import aggregate, normalised_sum
from penstock.nn.first_rows import AggregatedRows, Aggregation
from penstock.nn.layer_table import layer_entry
from penstock.nn.table_aggregation import aggregate_table
from penstock.pipeline.row_reader import Move, Reading, RowReader
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import DeviceBlock, host_block, on_device
from penstock.store.device.shared_table import SharedTable
from penstock.store.source import RowSource, host_ids
from penstock.traced import is_traced
from penstock.train.first_layer.aggregated import AggregatedReading
from penstock.train.first_layer.share import HostShare
from penstock.train.job import Job


class DividedReading:
    """What the first layer aggregates: of the last destinations by the host, of the first by the device."""

    def __init__(self, block: Block, what: Aggregation, ids: Any, source: SharedTable, share: HostShare) -> None:
        self._block, self._what, self._ids, self._source, self._share = block, what, ids, source, share
        # A trace has lists without numbers: the device then takes everything, which is the most that it can.
        self._on_host = block if is_traced() else host_block(block)
        width, rows = source.shape[1], source.shape[0]
        self._first = block.num_dst if is_traced() else share.of_device(self._on_host, width, rows)
        self.shapes = [((block.num_dst - self._first, width), np.dtype(np.float32))]

    def fill(self, arrays: Sequence[Array]) -> None:
        """See `Reading.fill`: the host's part."""
        began, block = time.perf_counter(), self._on_host
        aggregate_table(block, self._what, self._source.table, host_ids(self._ids), arrays[0], self._first)
        self._share.host_took(block.num_edges - self._edges, time.perf_counter() - began)

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> AggregatedRows:
        """See `Reading.arrived`: the device's part, and both parts joined."""
        of_host, count = move(arrays[0]), self._rows
        with self._share.device_reads(count, device):
            rows: Tensor = self._source.by_device.read(self._ids[:count], device, dtype=of_host.dtype)
        lists = on_device(self._of_device(count), device)
        of_device = normalised_sum(lists, rows) if self._what == "normalised" else aggregate(lists, rows, self._what)
        # A copy of their own, so that the neighbours' rows need not be kept.
        own = None if self._what == "normalised" else rows[: self._block.num_dst].clone()
        return AggregatedRows(self._what, torch.cat([of_device, of_host]), own)

    @property
    def _edges(self) -> int:
        """Edges of the device's destinations."""
        return self._block.num_edges if is_traced() else int(self._on_host.indptr[self._first])

    @property
    def _rows(self) -> int:
        """Rows that the device reads: all up to the last that one of its lists names, and the destinations' own."""
        if is_traced():
            return self._block.num_src
        return max(self._block.num_dst, int(self._on_host.indices[: self._edges].max(initial=-1)) + 1)

    def _of_device(self, rows: int) -> Block:
        """The block of the device's destinations, where the batch was drawn."""
        block, edges = self._block, self._edges
        kind = DeviceBlock if isinstance(block, DeviceBlock) else Block
        return kind(
            block.indptr[: self._first + 1],
            block.indices[:edges],
            rows,
            None if block.weights is None else block.weights[:edges],
            None if block.totals is None else block.totals[:rows],
        )


class DividedInputs:
    """Batches are divided between host and device; rows that a device cannot read are aggregated by the host."""

    def __init__(self, what: Aggregation, share: HostShare) -> None:
        self._what, self.share = what, share

    def reading(self, batch: MiniBatch[Any], node_type: str, source: RowSource) -> Reading:
        """See `RowReader.reading`."""
        block, ids = batch.blocks[0], batch.vertices[node_type]
        if isinstance(source, SharedTable):
            return DividedReading(block, self._what, ids, source, self.share)
        return AggregatedReading(block, self._what, ids, source)


def divided_inputs(model: Any, job: Job) -> RowReader:
    """Of a job whose layer can be given aggregates."""
    what = layer_entry(job.model).aggregates(job)
    assert what is not None, "the way was refused"
    return DividedInputs(what, HostShare(job.host_share, job.gather_threads))
