"""Numeric columns as NumPy rows: plain ones [n], lists [n, width]; what is missing or ragged is refused."""

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as kinds

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.tables.reader import TableChunk


class NumberColumn:
    """One numeric column; remembers how long its lists are."""

    def __init__(self, column: str) -> None:
        self.column = column
        self._width: int | None = None
        self._temporal: pa.DataType | None = None

    def read(self, chunk: TableChunk) -> Array:
        """The rows of a chunk in the column's own type; times and dates as the integers stored for them."""
        values = chunk.column(self.column)
        if kinds.is_fixed_size_list(values.type) or kinds.is_list(values.type) or kinds.is_large_list(values.type):
            return self._read_lists(chunk, values)
        refuse_nulls(values, chunk, self.column)
        if kinds.is_temporal(values.type):
            # Another file may count in another unit.
            self._temporal = self._temporal or values.type
            values = values.cast(self._temporal)
        return _plain(values, chunk, self.column)

    def _read_lists(self, chunk: TableChunk, lists: pa.Array) -> Array:
        refuse_nulls(lists, chunk, self.column)
        self._check_lengths(chunk, lists)
        width = self._width or 0
        flat = lists.flatten()
        if flat.null_count:
            row = flat.is_null().index(True).as_py() // width
            raise PenstockError(
                f"{chunk.place(row, self.column)}: the list contains a null: fill it in.", code="missing-data"
            )
        return _plain(flat, chunk, self.column).reshape(len(lists), width)

    def _check_lengths(self, chunk: TableChunk, lists: pa.Array) -> None:
        fixed = kinds.is_fixed_size_list(lists.type)
        if self._width is None and (fixed or len(lists)):
            self._width = lists.type.list_size if fixed else len(lists[0])
        if fixed and lists.type.list_size == self._width:
            return
        lengths = np.full(len(lists), lists.type.list_size) if fixed else lists.value_lengths().to_numpy()
        wrong = np.flatnonzero(lengths != self._width)
        if len(wrong):
            raise PenstockError(
                f"{chunk.place(wrong[0], self.column)}: the list has {lengths[wrong[0]]} values where the"
                f" rows before it have {self._width}: make all lists equally long.",
                code="shape-mismatch",
            )


def refuse_nulls(values: pa.Array, chunk: TableChunk, column: str) -> None:
    """Every row must have a value."""
    if values.null_count:
        row = values.is_null().index(True).as_py()
        raise PenstockError(
            f"{chunk.place(row, column)}: the value is missing: fill it in or remove the row.", code="missing-data"
        )


def refuse_infinite(values: Array, chunk: TableChunk, column: str) -> None:
    """No NaN and no infinity in any row."""
    finite = np.isfinite(values)
    if not finite.all():
        rows, *inner = np.nonzero(~finite)
        value = values[(rows[0], *(positions[0] for positions in inner))]
        where = chunk.place(rows[0], column)
        raise PenstockError(
            f"{where}: the value is {value}: fill in a finite number or remove the row.", code="not-finite"
        )


def _plain(values: pa.Array, chunk: TableChunk, column: str) -> Array:
    kind = values.type
    if kinds.is_timestamp(kind) or kinds.is_duration(kind) or kinds.is_time64(kind) or kinds.is_date64(kind):
        values = values.cast(pa.int64())
    elif kinds.is_date32(kind) or kinds.is_time32(kind):
        values = values.cast(pa.int32())
    elif kinds.is_decimal(kind) or (kinds.is_null(kind) and len(values) == 0):
        values = values.cast(pa.float64())
    elif not (kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_boolean(kind)):
        shown = f", in row {chunk.start + 1} {values[0].as_py()!r}" if len(values) else ""
        raise PenstockError(
            f"Column {column!r} of {chunk.file} is not numeric (it is {kind}{shown}): convert, or use 'categorical'.",
            code="wrong-type",
        )
    array: np.ndarray[Any, np.dtype[Any]] = values.to_numpy(zero_copy_only=False)
    return array
