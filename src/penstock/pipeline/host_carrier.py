"""Features of a batch that is computed on the host: gathered into buffers that are used again."""

from collections.abc import Callable
from typing import Any

import torch

from penstock.graph.arrays import Array
from penstock.pipeline.buffers import BufferPool
from penstock.pipeline.loader import Batch
from penstock.store.local import Store

Scale = Callable[[torch.Tensor], torch.Tensor]


class HostCarrier:
    """`fields` names the stored features of each node type that has any; `scale` changes gathered rows in place."""

    def __init__(self, store: Store, fields: dict[str, str], scale: Scale | None = None) -> None:
        self._store, self._fields, self._scale, self._pool = store, fields, scale, BufferPool()

    def gather(self, batch: Batch) -> list[Array]:
        """Copy the rows of the batch's vertices."""
        return gather_fields(batch, batch.vertices, self._store, self._fields, self._pool)

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


def gather_fields(
    batch: Batch, vertices: dict[str, Array], store: Store, fields: dict[str, str], pool: BufferPool
) -> list[Array]:
    """Rows of the host's fields into buffers of the pool, by node type; returns the buffers."""
    buffers = []
    for node_type, ids in vertices.items():
        if node_type in fields:
            name = f"{node_type}/{fields[node_type]}"
            rows, buffer = pool.take((len(ids), *store.row_shape(name)), store.dtype(name))
            buffers.append(buffer)
            batch.features[node_type] = store.pull(name, ids, out=rows)
    return buffers


def as_tensors(values: Any) -> Any:
    """An array, or a mapping of arrays, as tensors."""
    if isinstance(values, dict):
        return {name: as_tensors(each) for name, each in values.items()}
    return torch.as_tensor(values)
