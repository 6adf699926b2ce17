"""Rows of a batch: features and fields of its edges, read on the host into reused buffers."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.stages import Batch
from penstock.sampling.block import Block, MiniBatch
from penstock.store.source import RowSource
from penstock.traced import is_traced, stand_in

# Buffers for batches, allocated once and reused.

_SLACK = 1.25
"""Buffers are made this much larger than needed, so that they soon stop growing."""


class BufferPool:
    """Flat buffers lent out as arrays of any shape and dtype. There are never more than are in use at once."""

    def __init__(self, page_locked: bool = False) -> None:
        """`page_locked` selects memory that a device can copy from asynchronously."""
        self._free: list[Array] = []
        self._page_locked = page_locked
        self._lock = threading.Lock()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """An array of the shape, and the buffer to give back."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        buffer = self._fitting(size)
        return buffer[:size].view(dtype).reshape(shape), buffer

    def give(self, buffer: Array) -> None:
        """Return a buffer for reuse."""
        with self._lock:
            self._free.append(buffer)

    def release(self) -> None:
        """Free the buffers that nobody uses."""
        with self._lock:
            self._free.clear()

    def _fitting(self, size: int) -> Array:
        with self._lock:
            for place, buffer in enumerate(self._free):
                if buffer.nbytes >= size:
                    return self._free.pop(place)
            if self._free:
                # All are too small: one is replaced by a larger one.
                self._free.pop(0)
        room = int(size * _SLACK) + 64
        if self._page_locked:
            return torch.empty(room, dtype=torch.uint8, pin_memory=True).numpy()
        return np.empty(room, np.uint8)


class ReclaimedBuffers(BufferPool):
    """Buffers for batches that their reader may keep: each is reclaimed when the last tensor over its array is gone.

    A tensor may be released by any thread, and by Python's garbage collector while the pool is in use, so reclaimed
    buffers are put in a queue that needs no lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._returned: deque[Array] = deque()

    def take(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> tuple[Array, Array]:
        """As `BufferPool.take`, but the buffer need not be given back."""
        while self._returned:
            super().give(self._returned.popleft())
        array, buffer = super().take(shape, dtype)
        weakref.finalize(array, self._returned.append, buffer).atexit = False
        return array, buffer

    def give(self, buffer: Array) -> None:
        """Do nothing: the batch may still be in use."""

    def release(self) -> None:
        """Free the buffers whose readers are gone."""
        self._returned.clear()
        super().release()


# Rows of edge fields, read for a batch's blocks as features are for its vertices.

MoveRows = Callable[[Any], Tensor]
"""Makes a float32 tensor of an array that was read."""


class EdgeFields(NamedTuple):
    """The rows of one relation's edges: `features` side by side are `edge_attr`, and `weight` is `edge_weight`."""

    features: tuple[RowSource, ...] = ()
    weight: RowSource | None = None

    @property
    def width(self) -> int:
        """The numbers that an edge has in `edge_attr`, over all of its fields."""
        return sum(int(np.prod(source.row_shape())) for source in self.features)

    @property
    def sources(self) -> list[RowSource]:
        """All sources that are read, features first."""
        return [*self.features, *(() if self.weight is None else (self.weight,))]


class EdgeReading:
    """The rows that some blocks of one relation read, in one call for each field: a row that
    several read is sent once.
    """

    def __init__(self, kind: EdgeType, parts: Sequence[Block], fields: EdgeFields) -> None:
        if any(part.edges is None for part in parts):
            raise PenstockError(
                f"A block of {edge_key(kind)} has no edge positions to read rows by: sample with edges.",
                code="mismatched-inputs",
            )
        self._parts, self._fields = parts, fields
        ids: list[Any] = [part.edges for part in parts]
        join = torch.cat if isinstance(ids[0], Tensor) else np.concatenate
        self._ids = ids[0] if len(ids) == 1 else join(ids)
        self.shapes: list[tuple[tuple[int, ...], Any]] = [
            ((len(self._ids), *source.row_shape()), source.dtype) for source in fields.sources
        ]

    def fill(self, arrays: Sequence[Array]) -> None:
        """Read the rows into the arrays."""
        for source, array in zip(self._fields.sources, arrays, strict=True):
            source.read(self._ids, array)

    def read_by(self, device: torch.device) -> list[Tensor]:
        """Rows of sources that a device reads by itself, as float32."""
        return [source.read(self._ids, device, dtype=torch.float32) for source in self._fields.sources]

    def attached(self, arrays: Sequence[Any], move: MoveRows) -> dict[int, Block]:
        """The blocks with their edge fields, by the identities of the original blocks."""
        rows = [move(array) for array in arrays]
        columns = [each.reshape(len(each), math.prod(each.shape[1:])) for each in rows[: len(self._fields.features)]]
        features = None if not columns else columns[0] if len(columns) == 1 else torch.cat(columns, dim=1)
        weight = None if self._fields.weight is None else rows[-1].reshape(-1)
        found, start = {}, 0
        for part in self._parts:
            some = slice(start, start + part.num_edges)
            found[id(part)] = replace(
                part,
                edge_attr=None if features is None else features[some],
                edge_weight=None if weight is None else weight[some],
            )
            start = some.stop
        return found


class EdgeRows:
    """Reads edge fields by relation; relations that are not named have none."""

    def __init__(self, fields: Mapping[EdgeType, EdgeFields]) -> None:
        self.fields = {kind: each for kind, each in fields.items() if each.sources}

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def on_device(self) -> bool:
        """Whether a device reads the rows by itself."""
        return bool(self) and all(source.on_device for each in self.fields.values() for source in each.sources)

    def readings(self, blocks: Sequence[Any]) -> list[EdgeReading]:
        """The readings of a batch's blocks."""
        found: dict[EdgeType, list[Block]] = {}
        for block in blocks:
            for kind, part in self._relations(block):
                if kind in self.fields and all(part is not other for other in found.get(kind, ())):
                    found.setdefault(kind, []).append(part)
        return [EdgeReading(kind, parts, self.fields[kind]) for kind, parts in found.items()]

    def read(self, batch: MiniBatch, pool: BufferPool) -> list[Array]:
        """Read the rows of a batch's edges; returns the buffers that they occupy."""
        batch.edge_rows, buffers = [], []
        for reading in self.readings(batch.blocks):
            taken = [pool.take(*each) for each in reading.shapes]
            arrays = [array for array, _ in taken]
            if not is_traced():
                reading.fill(arrays)
            batch.edge_rows.append((reading, arrays))
            buffers += [buffer for _, buffer in taken]
        return buffers

    def arrive(self, batch: MiniBatch, move: MoveRows | None = None) -> None:
        """Put the rows that were read into the batch's blocks."""
        batch.blocks, batch.edge_rows = _with_rows(batch.blocks, batch.edge_rows, move or as_floats), None

    def arrive_by(self, batch: MiniBatch, device: torch.device) -> None:
        """Have a device read the rows of a batch's edges, and put them into its blocks."""
        read = [(reading, reading.read_by(device)) for reading in self.readings(batch.blocks)]
        batch.blocks = _with_rows(batch.blocks, read, lambda rows: rows)

    def attached(self, blocks: Sequence[Any]) -> list[Any]:
        """The blocks with their edge fields, read in one call."""
        if not self.fields:
            return list(blocks)
        readings = self.readings(blocks)
        if is_traced():
            stood_for = [(reading, [stand_in(*each) for each in reading.shapes]) for reading in readings]
            return _with_rows(blocks, stood_for, lambda rows: torch.empty(rows.shape, device="meta"))
        read = [(reading, [np.empty(*each) for each in reading.shapes]) for reading in readings]
        for reading, arrays in read:
            reading.fill(arrays)
        return _with_rows(blocks, read, as_floats)

    def _relations(self, block: Block) -> list[tuple[EdgeType, Block]]:
        return list(block.named(self.fields).relations.items()) if self.fields else []


NO_EDGE_ROWS = EdgeRows({})
"""No edge fields are read."""


def as_floats(rows: Array) -> Tensor:
    """Rows as float32 tensors, without a copy if they are float32 already."""
    return torch.from_numpy(rows).to(torch.float32)


def _with_rows(blocks: Sequence[Any], read: Sequence[tuple[EdgeReading, Sequence[Any]]], move: MoveRows) -> list[Any]:
    made: dict[int, Any] = {}
    for reading, arrays in read:
        made |= reading.attached(arrays, move)
    return [block.changed(lambda part: made.get(id(part), part)) for block in blocks]


# How a batch's stored features are read on the host: unchanged, or with a part of the first layer computed already.

Move = Callable[[Array], torch.Tensor]
"""Moves an array to the device that computes, in the type of the computation."""


class RowReading(Protocol):
    """The reading of one batch from one source."""

    @property
    def shapes(self) -> Sequence[tuple[tuple[int, ...], Any]]:
        """The shape and dtype of each host array that it fills."""

    def fill(self, arrays: Sequence[Array]) -> None:
        """Read the rows; called in the pipeline's stage `gather`."""

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> Any:
        """The model's input on the device: the arrays, or what replaces them."""


class RowReader(Protocol):
    """Decides which rows batches read."""

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        """The reading of a sampled batch of the features of a node type."""


class PlainReading:
    """A `RowReading` of the rows of all vertices that a batch needs."""

    def __init__(self, ids: Any, source: RowSource) -> None:
        self._ids, self._source = ids, source
        self.shapes = [((len(ids), *source.row_shape()), source.dtype)]

    def fill(self, arrays: Sequence[Array]) -> None:
        self._source.read(self._ids, arrays[0])

    def arrived(self, arrays: Sequence[Array], move: Move, device: torch.device) -> Any:
        return move(arrays[0])


class PlainRows:
    """The `RowReader` whose batches read the rows of all vertices that they need."""

    def reading(self, batch: MiniBatch, node_type: str, source: RowSource) -> RowReading:
        return PlainReading(batch.vertices[node_type], source)


PLAIN_ROWS = PlainRows()


# Features of a batch that is computed on the host, gathered into reused buffers.

Scale = Callable[[torch.Tensor], torch.Tensor]


class HostCarrier:
    """`sources` has the stored features of each node type that has any; `scale` changes gathered rows in place.

    `edges` reads the batch's edge fields.
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
        buffers = read_features(batch, self._sources, self._reader, self._pool)
        return [*buffers, *self._edges.read(batch, self._pool)] if self._edges else buffers

    def transfer(self, batch: Batch) -> None:
        """Wrap what was read in tensors."""
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
        """Return the buffer for reuse."""
        self._pool.give(buffer)

    def release(self) -> None:
        """Free the buffers that no batch uses."""
        self._pool.release()


def read_features(batch: Batch, sources: Mapping[str, RowSource], reader: RowReader, pool: BufferPool) -> list[Array]:
    """Read the features of the batch's vertices, by node type: (reading, arrays); returns the buffers."""
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
