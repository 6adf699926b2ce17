"""Edges on disk in order of arrival, until all vertices are known and they can be sorted."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.compute as pc

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
from penstock.graph.tables.vocabulary import as_text


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
        self.words = dict[str, int]()
        """The relations met so far, where a column names them, in order of first appearance."""
        named = ("train", *held_out) if spec.relation is not None else ()
        self.relations = {name: self._writer(f"relations.{name}", np.int64) for name in named}
        """By split, the relation of each row."""
        self._kept = 0

    def append(self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None) -> None:
        """Write the rows of a chunk that are marked in `keep` (None: all)."""
        self._check_width()
        codes = None if self.spec.relation is None else self._codes(chunk, self.spec.relation)
        if self.spec.split:
            keep = self._hold_out(chunk, sources, destinations, keep, codes)
        self.fields.append(chunk, keep)
        if codes is not None:
            self.relations["train"].append(codes if keep is None else codes[keep])
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

    def _codes(self, chunk: TableChunk, column: str) -> Array:
        """The relation of each row, as a number."""
        encoded = pc.dictionary_encode(as_text(chunk.column(column)))
        if encoded.null_count:
            row = pc.index(pc.is_null(encoded), True).as_py()
            raise PenstockError(
                f"{chunk.place(row, column)}: the relation is missing: fill it in, or remove the row.",
                code="missing-data",
            )
        codes = [self.words.setdefault(word, len(self.words)) for word in encoded.dictionary.to_pylist()]
        found: Array = np.array(codes, np.int64)[encoded.indices.to_numpy(zero_copy_only=False)]
        return found

    def _hold_out(
        self, chunk: TableChunk, sources: Array, destinations: Array, keep: Array | None, codes: Array | None
    ) -> Array:
        folds = fold_codes(chunk, str(self.spec.split and self.spec.split.column))
        keep = np.ones(len(chunk), np.bool_) if keep is None else keep
        for code, name in enumerate(SPLITS):
            if name in self.held_out:
                out = keep & (folds == code)
                self.held_out[name].append(np.stack([sources[out], destinations[out]], axis=1))
                if codes is not None:
                    self.relations[name].append(codes[out])
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
