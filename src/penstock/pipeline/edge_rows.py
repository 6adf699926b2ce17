"""What the edges of a batch carry: rows of edge fields, read for its blocks as features are for its vertices."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.buffers import BufferPool
from penstock.sampling.block import Block, MiniBatch, TypedBlock
from penstock.store.source import RowSource
from penstock.traced import is_traced, stand_in

Move = Callable[[Any], Tensor]
"""Makes a tensor of float32 of an array that was read."""


class EdgeFields(NamedTuple):
    """The rows of one relation's edges: `features` side by side are `edge_attr`, and `weight` is `edge_weight`."""

    features: tuple[RowSource, ...] = ()
    weight: RowSource | None = None

    @property
    def width(self) -> int:
        """Numbers of an edge in `edge_attr`."""
        return sum(int(np.prod(source.row_shape())) for source in self.features)

    @property
    def sources(self) -> list[RowSource]:
        """All rows that are read, features first."""
        return [*self.features, *(() if self.weight is None else (self.weight,))]


class EdgeReading:
    """What some blocks of one relation read, in one call for each field: a row that several read travels once."""

    def __init__(self, kind: EdgeType, parts: Sequence[Block], fields: EdgeFields) -> None:
        if any(part.edges is None for part in parts):
            raise PenstockError(
                f"A block of {edge_key(kind)} does not name its edges, whose rows are to be read: sample with edges.",
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
        """Read the rows."""
        for source, array in zip(self._fields.sources, arrays, strict=True):
            source.read(self._ids, array)

    def read_by(self, device: torch.device) -> list[Tensor]:
        """Rows of sources that a device reads by itself, as float32."""
        return [source.read(self._ids, device, dtype=torch.float32) for source in self._fields.sources]

    def attached(self, arrays: Sequence[Any], move: Move) -> dict[int, Block]:
        """By the blocks' identities, the same blocks with what their edges carry."""
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
    """Reads what edges carry, by relation; relations that are not named carry nothing."""

    def __init__(self, fields: Mapping[EdgeType, EdgeFields]) -> None:
        self.fields = {kind: each for kind, each in fields.items() if each.sources}

    def __bool__(self) -> bool:
        return bool(self.fields)

    @property
    def on_device(self) -> bool:
        """Whether a device reads the rows by itself."""
        return bool(self) and all(source.on_device for each in self.fields.values() for source in each.sources)

    def readings(self, blocks: Sequence[Any]) -> list[EdgeReading]:
        """What the blocks of a batch read."""
        found: dict[EdgeType, list[Block]] = {}
        for block in blocks:
            for kind, part in self._relations(block):
                if kind in self.fields and all(part is not other for other in found.get(kind, ())):
                    found.setdefault(kind, []).append(part)
        return [EdgeReading(kind, parts, self.fields[kind]) for kind, parts in found.items()]

    def read(self, batch: MiniBatch[Any], pool: BufferPool) -> list[Array]:
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

    def arrive(self, batch: MiniBatch[Any], move: Move | None = None) -> None:
        """Put what was read into the batch's blocks."""
        batch.blocks, batch.edge_rows = _with_rows(batch.blocks, batch.edge_rows, move or as_floats), None

    def arrive_by(self, batch: MiniBatch[Any], device: torch.device) -> None:
        """Have a device read the rows of a batch's edges, and put them into its blocks."""
        read = [(reading, reading.read_by(device)) for reading in self.readings(batch.blocks)]
        batch.blocks = _with_rows(batch.blocks, read, lambda rows: rows)

    def attached(self, blocks: Sequence[Any]) -> list[Any]:
        """Blocks with what their edges carry, read at once."""
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

    def _relations(self, block: Any) -> list[tuple[EdgeType, Block]]:
        if isinstance(block, TypedBlock):
            return list(block.relations.items())
        # A graph of one relation need not be asked which.
        return [(kind, block) for kind in list(self.fields)[:1]]


NO_EDGE_ROWS = EdgeRows({})
"""Edges carry nothing."""


def as_floats(rows: Array) -> Tensor:
    """Rows as tensors of float32, without a copy where they are that already."""
    return torch.from_numpy(rows).to(torch.float32)


def _with_rows(blocks: Sequence[Any], read: Sequence[tuple[EdgeReading, Sequence[Any]]], move: Move) -> list[Any]:
    made: dict[int, Any] = {}
    for reading, arrays in read:
        made |= reading.attached(arrays, move)
    return [_replaced(block, made) for block in blocks]


def _replaced(block: Any, made: dict[int, Any]) -> Any:
    if isinstance(block, TypedBlock):
        relations = {kind: made.get(id(part), part) for kind, part in block.relations.items()}
        return TypedBlock(relations, block.num_src, block.num_dst)
    return made.get(id(block), block)
