"""Features of a batch that is computed on the host, gathered into buffers that are allocated once and used again."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.pipeline.loader import Batch
from penstock.store.source import RowSource
from penstock.traced import is_traced

_SLACK = 1.25
"""Room for somewhat larger batches than the first, so that buffers soon stop growing."""


class BufferPool:
    """Flat buffers lent out as arrays of any shape and type. There are as many as are out at once, never more."""

    def __init__(self, page_locked: bool = False) -> None:
        """`page_locked`: memory that a device copies from while the processor goes on."""
        self._free: list[Array] = []
        self._page_locked = page_locked
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """(an array of the shape, the buffer to give back)."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        buffer = self._fitting(size)
        return buffer[:size].view(dtype).reshape(shape), buffer

    def give(self, buffer: Array) -> None:
        """The buffer may be used again."""
        with self._lock:
            self._free.append(buffer)

    def _fitting(self, size: int) -> Array:
        with self._lock:
            for place, buffer in enumerate(self._free):
                if buffer.nbytes >= size:
                    return self._free.pop(place)
            if self._free:
                # Too small, all of them: one makes way for a larger one.
                self._free.pop(0)
        room = int(size * _SLACK) + 64
        if self._page_locked:
            return torch.empty(room, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(room, np.uint8)


Scale = Callable[[torch.Tensor], torch.Tensor]


class HostCarrier:
    """`sources` has the stored features of each node type that has any; `scale` changes gathered rows in place."""

    def __init__(self, sources: Mapping[str, RowSource], scale: Scale | None = None) -> None:
        self._sources, self._scale, self._pool = sources, scale, BufferPool()

    def gather(self, batch: Batch) -> list[Array]:
        """Copy the rows of the batch's vertices."""
        return gather_rows(batch, batch.vertices, self._sources, self._pool)

    def transfer(self, batch: Batch) -> None:
        """Make tensors of what was gathered."""
        for node_type, rows in batch.features.items():
            x = torch.from_numpy(rows).to(torch.float32)
            batch.features[node_type] = x if self._scale is None else self._scale(x)
        if batch.labels is not None:
            batch.labels = as_tensors(batch.labels)

    def arrive(self, batch: Batch) -> None:
        """Do nothing: a batch in host memory needs no transfer."""

    def give_back(self, buffer: Array) -> None:
        """Lend the buffer to another batch."""
        self._pool.give(buffer)


def gather_rows(
    batch: Batch, vertices: Mapping[str, Any], sources: Mapping[str, RowSource], pool: BufferPool
) -> list[Array]:
    """Rows of the sources that the host reads into buffers of the pool, by node type; returns the buffers."""
    buffers = []
    for node_type, ids in vertices.items():
        if node_type in sources:
            source = sources[node_type]
            rows, buffer = pool.take((len(ids), *source.row_shape()), source.dtype)
            buffers.append(buffer)
            batch.features[node_type] = rows if is_traced() else source.read(ids, rows)
    return buffers


def as_tensors(values: Any) -> Any:
    """An array, or a mapping of arrays, as tensors."""
    if isinstance(values, dict):
        return {name: as_tensors(each) for name, each in values.items()}
    return torch.as_tensor(values)
