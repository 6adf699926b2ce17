"""The host aggregates the first layer's inputs of a loaded batch: all destinations, or a share of them."""

import time
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.cost.model import BlockSizes, machine_model
from penstock.graph.arrays import Array
from penstock.nn.aggregation import AggregatedRows, Aggregation, aggregate, normalised_sum
from penstock.nn.layer_table import LAYERS
from penstock.nn.table_aggregation import READ_IN_PLACE, aggregate_table, widened_rows
from penstock.pipeline.batch_rows import Move, PlainReading, RowReader, RowReading
from penstock.plan.execution.first_layer import DivisionRates, balanced_share, predicted_rates
from penstock.sampling.block import Block, MiniBatch
from penstock.sampling.device.block import host_block, on_device
from penstock.store.device.moments import Moment, current_stream
from penstock.store.device.tables import SharedTable
from penstock.store.disk_rows import DiskRows
from penstock.store.source import ArraySource, RowSource, host_ids
from penstock.traced import is_traced
from penstock.train.job import Job

# The host aggregates the first layer's inputs while it reads them, straight from their table.
#
# Sums of rows are fewer than the rows, and the rows are not written anywhere in between.


class AggregatedReading:
    """A `RowReading` of what the first layer aggregates, and of the destinations' own rows where the aggregate does not
    include them.
    """

    def __init__(self, block: Block, what: Aggregation, ids: Any, source: RowSource) -> None:
        self._block, self._what, self._ids, self._source = block, what, ids, source
        # One array of both, so that a device gets them by one copy.
        matrices = 1 if what == "normalised" else 2
        self.shapes = [((matrices, block.num_dst, *source.row_shape()), np.dtype(np.float32))]

    def fill(self, arrays: Sequence[Array]) -> None:
        block = host_block(self._block) if self._block.on_device else self._block
        ids = host_ids(self._ids)
        table = table_of(self._source)
        if table is None:
            table, ids = self._source.read(ids).astype(np.float32, copy=False), np.arange(len(ids))
        aggregate_table(block, self._what, table, ids, arrays[0][0])
        for own in arrays[0][1:]:
            widened_rows(table, ids[: block.num_dst], own)

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> AggregatedRows:
        return AggregatedRows(self._what, *move(arrays[0]))


class AggregatedInputs:
    """The `RowReader` under which every batch is aggregated on the host."""

    def __init__(self, what: Aggregation) -> None:
        self._what = what

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        return AggregatedReading(batch.blocks[0], self._what, batch.vertices[node_type], source)


class CheaperInputs:
    """The `RowReader` under which a batch is aggregated on the host if its first layer would aggregate before it
    transforms, and the table can be read in place, or comes from the disk in any way: the numbers are the same, and
    fewer bytes are kept for the step.
    """

    def __init__(self, what: Aggregation, layer: Any) -> None:
        self._aggregated, self._layer = AggregatedInputs(what), layer

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        here = table_of(source) is not None or _is_matrix_on_disk(source)
        if here and self._layer.aggregates_inputs(batch.blocks[0]):
            return self._aggregated.reading(batch, node_type, source)
        return PlainReading(batch.vertices[node_type], source)


def table_of(source: RowSource) -> Array | None:
    """The table that the host can read in place; None where rows come from elsewhere or have another type."""
    if isinstance(source, ArraySource) and source.table.ndim == 2 and source.table.dtype.type in READ_IN_PLACE:
        return source.table if source.table.flags.c_contiguous else None
    return None


def _is_matrix_on_disk(source: RowSource) -> bool:
    return isinstance(source, DiskRows) and len(source.shape) == 2 and source.dtype.type in READ_IN_PLACE


def aggregated_inputs(model: Any, job: Job) -> RowReader:
    """The reader for a job whose first layer accepts aggregates."""
    what = LAYERS[job.model].aggregates(job)
    assert what is not None, "the way was refused"
    return AggregatedInputs(what)


def cheaper_inputs(model: Any, job: Job) -> RowReader:
    """The reader for a job whose first layer accepts aggregates and would otherwise compute them itself."""
    what = LAYERS[job.model].aggregates(job)
    assert what is not None, "the way was refused"
    return CheaperInputs(what, model.convolutions[0])


# The host's share of a batch's destinations: chosen from measured times so that host and device finish together.

_REMEMBERED = 9
"""Batches over which the median time is taken."""
_UNKNOWN = 0.5
"""The host's share in the first batches, unless a prediction gives another."""
_LEAST = 0.02
"""The least share of each batch that either side gets, so that both stay measured."""


class HostShare:
    """The host's share of a batch's edges, corrected by the times of the last batches; or a fixed share."""

    def __init__(self, fixed: float | None, threads: int = 1) -> None:
        """`threads` threads of the host aggregate batches at the same time."""
        self._fixed, self._threads = fixed, threads
        self._host: deque[float] = deque(maxlen=_REMEMBERED)
        self._device: deque[float] = deque(maxlen=_REMEMBERED)
        self._reads: deque[tuple[Moment, Moment, int]] = deque()
        self._predicted: DivisionRates | None = None
        self._asked = False
        self.last = 0.0
        """The share in the last batch."""

    def of_device(self, block: Block, width: int, table_rows: int) -> int:
        """How many of the block's first destinations the device takes."""
        sizes = BlockSizes(block.num_src, block.num_dst, block.num_edges)
        self.last = self._fixed if self._fixed is not None else self._balanced(sizes, width, table_rows)
        wanted = (1 - self.last) * block.num_edges
        # Lists are not cut: the list that crosses the boundary goes to the device.
        return min(block.num_dst, int(block.indptr.searchsorted(wanted, side="left")))

    def host_took(self, edges: int, seconds: float) -> None:
        """Record that the host took `seconds` to aggregate so many edges."""
        if edges:
            self._host.append(seconds / edges)

    def device_reads(self, rows: int, device: torch.device) -> "DeviceRead":
        """Times a read of so many rows on the current stream, as a context manager."""
        return DeviceRead(self._reads, rows, device)

    def _balanced(self, block: BlockSizes, width: int, table_rows: int) -> float:
        if not self._asked:
            self._asked, self._predicted = True, predicted_rates(machine_model(), block, width, table_rows)
        while self._reads and self._reads[0][1].has_passed():
            before, after, rows = self._reads.popleft()
            self._device.append(before.seconds_to(after) / max(1, rows))
        known = self._predicted
        if self._host and self._device:
            known = DivisionRates(median(self._host), median(self._device))
        if known is None:
            return _UNKNOWN
        share = balanced_share(block, known._replace(host=known.host / self._threads))
        return min(1 - _LEAST, max(_LEAST, share))


class DeviceRead:
    """The time between two CUDA events, read when both have passed."""

    def __init__(self, reads: deque[tuple[Moment, Moment, int]], rows: int, device: torch.device) -> None:
        self._reads, self._rows, self._device = reads, rows, device
        self._before, self._after = Moment(device, True), Moment(device, True)

    def __enter__(self) -> None:
        self._before.mark_on(self._stream())

    def __exit__(self, kind: object, *_: object) -> None:
        self._after.mark_on(self._stream())
        if kind is None:
            self._reads.append((self._before, self._after, self._rows))

    def _stream(self) -> Any:
        return current_stream(self._device)


# A batch's destinations are divided: the host aggregates the lists of some, a device reads the rows of the others.
#
# Both read one table in page-locked memory. Of a block the device has the first destinations and the host the others.
# Rows are numbered as a block's edges meet them, so what the device reads are the batch's first rows: the destinations'
# own, and neighbours that its lists meet first.


class DividedReading:
    """A `RowReading` of what the first layer aggregates: the first destinations by the device, the
    others by the host.
    """

    def __init__(self, block: Block, what: Aggregation, ids: Any, source: SharedTable, share: HostShare) -> None:
        self._block, self._what, self._ids, self._source, self._share = block, what, ids, source, share
        # A trace has lists without values: assume the largest share for the device, all of it.
        self._on_host = block if is_traced() else host_block(block)
        width, rows = source.shape[1], source.shape[0]
        self._first = block.num_dst if is_traced() else share.of_device(self._on_host, width, rows)
        self.shapes = [((block.num_dst - self._first, width), np.dtype(np.float32))]

    def fill(self, arrays: Sequence[Array]) -> None:
        began, block = time.perf_counter(), self._on_host
        aggregate_table(block, self._what, self._source.table, host_ids(self._ids), arrays[0], self._first)
        self._share.host_took(block.num_edges - self._edges, time.perf_counter() - began)

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> AggregatedRows:
        """The device's part, computed now, joined with the host's."""
        of_host, count = move(arrays[0]), self._rows
        with self._share.device_reads(count, device):
            rows: Tensor = self._source.by_device.read(self._ids[:count], device, dtype=of_host.dtype)
        lists = on_device(self._of_device(count), device)
        of_device = normalised_sum(lists, rows) if self._what == "normalised" else aggregate(lists, rows, self._what)
        # A copy, so that the neighbours' rows can be freed.
        own = None if self._what == "normalised" else rows[: self._block.num_dst].clone()
        return AggregatedRows(self._what, torch.cat([of_device, of_host]), own)

    @property
    def _edges(self) -> int:
        """Edges of the device's destinations."""
        return self._block.num_edges if is_traced() else int(self._on_host.indptr[self._first])

    @property
    def _rows(self) -> int:
        """Rows that the device reads: all up to the last that one of its lists refers to, and the destinations' own."""
        if is_traced():
            return self._block.num_src
        return max(self._block.num_dst, int(self._on_host.indices[: self._edges].max(initial=-1)) + 1)

    def _of_device(self, rows: int) -> Block:
        """The block of the device's destinations, on the device where the batch was drawn."""
        block, edges = self._block, self._edges
        return type(block)(
            block.indptr[: self._first + 1],
            block.indices[:edges],
            rows,
            None if block.weights is None else block.weights[:edges],
            None if block.totals is None else block.totals[:rows],
        )


class DividedInputs:
    """The `RowReader` under which batches are divided between host and device; rows that a device cannot read are
    aggregated by the host.
    """

    def __init__(self, what: Aggregation, share: HostShare) -> None:
        self._what, self.share = what, share

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        block, ids = batch.blocks[0], batch.vertices[node_type]
        if isinstance(source, SharedTable):
            return DividedReading(block, self._what, ids, source, self.share)
        return AggregatedReading(block, self._what, ids, source)


def divided_inputs(model: Any, job: Job) -> RowReader:
    """The reader for a job whose first layer accepts aggregates."""
    what = LAYERS[job.model].aggregates(job)
    assert what is not None, "the way was refused"
    return DividedInputs(what, HostShare(job.host_share, job.reading_threads))
