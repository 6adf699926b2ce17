"""Features of a batch that is computed on the host: gathered into buffers that are used again."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.graph.arrays import Array
from penstock.pipeline.buffers import BufferPool
from penstock.pipeline.loader import Batch
from penstock.store.source import RowSource

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
            batch.features[node_type] = source.read(ids, rows)
    return buffers


def as_tensors(values: Any) -> Any:
    """An array, or a mapping of arrays, as tensors."""
    if isinstance(values, dict):
        return {name: as_tensors(each) for name, each in values.items()}
    return torch.as_tensor(values)
