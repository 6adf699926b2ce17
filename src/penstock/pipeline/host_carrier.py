"""Features of a batch that is computed on the host, gathered into buffers that are allocated once and used again."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from penstock.graph.arrays import Array
from penstock.pipeline.buffers import BufferPool
from penstock.pipeline.edge_rows import NO_EDGE_ROWS, EdgeRows
from penstock.pipeline.loader import Batch
from penstock.pipeline.row_reader import PLAIN_ROWS, RowReader
from penstock.store.source import RowSource
from penstock.traced import is_traced

Scale = Callable[[torch.Tensor], torch.Tensor]


class HostCarrier:
    """`sources` has the stored features of each node type that has any; `scale` changes gathered rows in place.

    `edges` reads what the batch's edges carry.
    """

    def __init__(
        self,
        sources: Mapping[str, RowSource],
        scale: Scale | None = None,
        reader: RowReader = PLAIN_ROWS,
        edges: EdgeRows = NO_EDGE_ROWS,
        pool: BufferPool | None = None,
    ) -> None:
        self._sources, self._scale, self._reader, self._edges = sources, scale, reader, edges
        self._pool = BufferPool() if pool is None else pool

    def gather(self, batch: Batch) -> list[Array]:
        """Read the features of the batch's vertices."""
        buffers = read_features(batch, self._sources, self._reader, self._pool)
        return [*buffers, *self._edges.read(batch, self._pool)] if self._edges else buffers

    def transfer(self, batch: Batch) -> None:
        """Make tensors of what was read."""
        if self._edges:
            self._edges.arrive(batch)
        for node_type, (reading, arrays) in batch.features.items():
            batch.features[node_type] = reading.arrived(arrays, self._scaled, torch.device("cpu"))
        if batch.labels is not None:
            batch.labels = as_tensors(batch.labels)

    def _scaled(self, rows: Array) -> torch.Tensor:
        x = torch.from_numpy(rows).to(torch.float32)
        return x if self._scale is None else self._scale(x)

    def arrive(self, batch: Batch) -> None:
        """Do nothing: a batch in host memory needs no transfer."""

    def give_back(self, buffer: Array) -> None:
        """Lend the buffer to another batch."""
        self._pool.give(buffer)


def read_features(batch: Batch, sources: Mapping[str, RowSource], reader: RowReader, pool: BufferPool) -> list[Array]:
    """Read what the sources have of the batch's vertices, by node type: (reading, arrays); returns the buffers."""
    buffers = []
    for node_type in batch.vertices:
        if node_type in sources:
            reading = reader.reading(batch, node_type, sources[node_type])
            taken = [pool.take(*each) for each in reading.shapes]
            arrays = [array for array, _ in taken]
            if not is_traced():
                reading.fill(arrays)
            batch.features[node_type] = reading, arrays
            buffers += [buffer for _, buffer in taken]
    return buffers


def as_tensors(values: Any) -> Any:
    """An array, or a mapping of arrays, as tensors."""
    if isinstance(values, dict):
        return {name: as_tensors(each) for name, each in values.items()}
    return torch.as_tensor(values)
