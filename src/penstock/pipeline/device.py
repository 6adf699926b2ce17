"""Moves batches to a device: sampled there or on the host, with features that lie there, or are copied."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.pipeline.batch_rows import NO_EDGE_ROWS, PLAIN_ROWS, BufferPool, EdgeRows, RowReader, Scale, read_features
from penstock.pipeline.stages import Batch
from penstock.sampling.device.block import on_device
from penstock.sampling.device.streams import on_stream, stream_maker
from penstock.sampling.lists import PerThread
from penstock.store.source import RowSource


class DeviceCarrier:
    """Copies and gathers on streams of their own, beside the one that computes.

    `sources` has the stored features of each node type that has any: the device reads some by itself, others the host
    gathers and copies. Features arrive as `dtype`.
    """

    finish: Callable[[Batch], None] | None = None
    """A further step on a batch that has reached the device, on the stream that moves it."""

    def __init__(
        self,
        device: torch.device,
        sources: Mapping[str, RowSource],
        dtype: torch.dtype = torch.float32,
        scale: Scale | None = None,
        reader: RowReader = PLAIN_ROWS,
        edges: EdgeRows = NO_EDGE_ROWS,
    ) -> None:
        self._device, self._dtype, self._scale, self._reader = device, dtype, scale, reader
        self._read_there = {name: source for name, source in sources.items() if source.on_device}
        self._read_here = {name: source for name, source in sources.items() if name not in self._read_there}
        self._edges, self._reads_edges = edges, bool(edges) and not edges.on_device
        self._pool = BufferPool(page_locked=device.type == "cuda")
        self._streams = PerThread(stream_maker(device))

    @property
    def reads_on_host(self) -> bool:
        """Whether anything of a batch is read on the host."""
        return bool(self._read_here) or self._reads_edges

    def gather(self, batch: Batch) -> list[Array]:
        """Read what the host reads into page-locked buffers."""
        if not self.reads_on_host:
            return []
        if batch.ready is not None:
            batch.ready.synchronize()
        buffers = read_features(batch, self._read_here, self._reader, self._pool)
        return [*buffers, *self._edges.read(batch, self._pool)] if self._reads_edges else buffers

    def transfer(self, batch: Batch) -> None:
        """Start the copies and the device's own gathers; `arrive` waits for them."""
        stream = self._streams.get()
        with on_stream(stream):
            if stream is not None and batch.ready is not None:
                stream.wait_event(batch.ready)
            if self._reads_edges:
                self._edges.arrive(batch, self._edge_rows)
            elif self._edges:
                self._edges.arrive_by(batch, self._device)
            batch.blocks = [on_device(block, self._device) for block in batch.blocks]
            for node_type, (reading, arrays) in batch.features.items():
                batch.features[node_type] = reading.arrived(arrays, self._brought, self._device)
            for node_type, ids in batch.vertices.items():
                if node_type in self._read_there:
                    batch.features[node_type] = self._read(self._read_there[node_type], ids)
            batch.labels = self._moved(batch.labels)
            if batch.seed_weights is not None:
                batch.seed_weights = self._moved(batch.seed_weights)
            if self.finish is not None:
                self.finish(batch)
            batch.ready = None if stream is None else stream.record_event()

    def arrive(self, batch: Batch) -> None:
        """Make the computing stream wait for the batch, and keep the batch's memory until the
        stream is done with it.
        """
        if batch.ready is None:
            return
        computing = torch.cuda.current_stream(self._device)
        computing.wait_event(batch.ready)
        for tensor in _tensors(batch):
            tensor.record_stream(computing)

    def give_back(self, buffer: Array) -> None:
        """Return the buffer for reuse: the loss of its batch was read, so the copy is over."""
        self._pool.give(buffer)

    def release(self) -> None:
        """Do nothing: copies from page-locked buffers may be under way."""

    def _brought(self, rows: Array) -> Tensor:
        x = torch.from_numpy(rows).to(self._device, non_blocking=True).to(self._dtype)
        return x if self._scale is None else self._scale(x)

    def _edge_rows(self, rows: Array) -> Tensor:
        return torch.from_numpy(rows).to(self._device, non_blocking=True).to(torch.float32)

    def _read(self, source: RowSource, ids: Any) -> Tensor:
        x: Tensor = source.read(ids, self._device, dtype=self._dtype)
        return x if self._scale is None else self._scale(x)

    def _moved(self, values: Any) -> Any:
        """Arrays, and mappings of them, on the device; other values stay unchanged."""
        if isinstance(values, dict):
            return {name: self._moved(each) for name, each in values.items()}
        if values is None:
            return None
        return torch.as_tensor(values).to(self._device, non_blocking=True)


def _tensors(batch: Batch) -> Iterator[Tensor]:
    """Every tensor of a batch that a kernel may read."""
    waiting: list[Any] = [batch.features, batch.labels, batch.seed_weights, batch.vertices, batch.merged]
    for part in (part for block in batch.blocks for part in block.parts):
        waiting += [part.indptr, part.indices, part.weights, part.totals, part.edges]
        waiting += [part.edge_attr, part.edge_weight, part.ages]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Tensor):
            if value.is_cuda:
                yield value
        elif isinstance(value, dict):
            waiting += value.values()
        elif is_dataclass(value):
            # Inputs that the host has prepared.
            waiting += vars(value).values()
