"""Edges on disk in order of arrival, until all vertices are known and they can be sorted."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter
from penstock.graph.csr import index_dtype
from penstock.graph.data import SPLITS
from penstock.graph.schema import edge_key
from penstock.graph.tables.columns import FieldWriters
from penstock.graph.tables.fields import Field
from penstock.graph.tables.nodes import NodeTable
from penstock.graph.tables.reader import TableChunk
from penstock.graph.tables.spec import EdgeSpec
from penstock.graph.tables.split_columns import fold_codes


class Spool:
    """Sources, destinations and fields of the edges of one type, and the pairs held out."""

    def __init__(self, spec: EdgeSpec, fields: list[Field], ends: tuple[NodeTable, NodeTable], folder: Path) -> None:
        self.spec, self.ends, self.folder, self._stack = spec, ends, folder, ExitStack()
        self._dtype = index_dtype(max(nodes.count for nodes in ends))
        self.sources, self.destinations = self._writer("sources"), self._writer("destinations")
        # Where an undirected edge stands twice, both need the row their fields are in.
        self.rows = self._writer("rows", np.int64) if spec.undirected and fields else None
        self.fields = self._stack.enter_context(FieldWriters(fields, folder))
        held_out = SPLITS[1:] if spec.split else ()
        self.held_out = {name: self._writer(f"held_out.{name}", np.int64, (2,)) for name in held_out}
        self._kept = 0

    def append(self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None) -> None:
        """Write the rows of a chunk that are marked in `keep` (None: all)."""
        self._check_width()
        if self.spec.split:
            keep = self._hold_out(chunk, sources, destinations, keep)
        self.fields.append(chunk, keep)
        if keep is not None:
            sources, destinations = sources[keep], destinations[keep]
        rows = len(sources)
        if self.spec.undirected:
            sources, destinations, order = _both_ways(sources, destinations)
            if self.rows is not None:
                self.rows.append(self._kept + order)
        self.sources.append(sources)
        self.destinations.append(destinations)
        self._kept += rows

    def _hold_out(self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None) -> Array:
        folds = fold_codes(chunk, str(self.spec.split and self.spec.split.column))
        keep = np.ones(len(chunk), np.bool_) if keep is None else keep
        for code, name in enumerate(SPLITS):
            if name in self.held_out:
                out = keep & (folds == code)
                self.held_out[name].append(np.stack([sources[out], destinations[out]], axis=1))
        kept: Array = keep & (folds <= 0)
        return kept

    def _check_width(self) -> None:
        """Vertices that edges create may outgrow the numbers chosen when the table was opened."""
        for nodes in self.ends:
            if index_dtype(nodes.count).itemsize > self._dtype.itemsize:
                raise PenstockError(
                    f"{edge_key(self.spec.type)} creates more than 2,147,483,647 vertices of type {nodes.spec.type}:"
                    " give them a node table.",
                    code="too-large",
                )

    def _writer(self, name: str, dtype: Any = None, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        return self._stack.enter_context(ArrayWriter(self.folder / f"{name}.npy", dtype or self._dtype, row_shape))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stack.__exit__(*failure)


def _both_ways(sources: Array, destinations: Array) -> tuple[Array, Array, Array]:
    """Each edge and right after it its opposite, loops once; and the row each came from."""
    starts, ends = np.empty(2 * len(sources), np.int64), np.empty(2 * len(sources), np.int64)
    starts[0::2], starts[1::2] = sources, destinations
    ends[0::2], ends[1::2] = destinations, sources
    rows = np.arange(len(starts)) // 2
    loops = sources == destinations
    if not loops.any():
        return starts, ends, rows
    keep = np.ones(len(starts), np.bool_)
    keep[1::2] = ~loops
    return starts[keep], ends[keep], rows[keep]
