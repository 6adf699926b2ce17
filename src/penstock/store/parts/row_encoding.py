"""How rows are encoded on the wire: as stored, or narrowed."""

import math
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.store.parts import narrow, stochastic_rounding
from penstock.store.rows import Span, gather_rows, spread_rows

WireType = Literal["stored", "float16", "int8"]
WireRounding = Literal["nearest", "stochastic"]
Expected = tuple[tuple[int, ...], np.dtype[Any]]
"""The shape and dtype of an array."""


class PartRows(NamedTuple):
    """Rows by their part and their numbers in it, which identify them for stochastic rounding."""

    part: int
    numbers: Array

    def some(self, first: int, last: int) -> "PartRows":
        """Those in a range of positions."""
        return PartRows(self.part, self.numbers[first:last])


class Rounding(NamedTuple):
    """Stochastic rounding: the key of its random numbers, and the numbers of the columns that are sent."""

    key: np.uint64
    columns: Array


class RowEncoding(Protocol):
    """How rows of one field are sent. The caller has validated row numbers and positions."""

    row_bytes: int
    """Bytes of a row on the wire."""
    columns_alike: bool
    """Whether columns that are sent alone have the same bits as in a whole row."""

    def pack(self, table: Array, rows: Array, buffer: Array, names: PartRows) -> tuple[Array, ...]:
        """Gather rows directly into a buffer (flat uint8 with room for them); returns the arrays to be sent.

        `rows` are positions in the table and `names` identify the same rows, wherever they lie.
        """

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Copy the rows that arrived to their positions."""


def encoding_for(
    wire_type: WireType,
    dtype: np.dtype[Any],
    row_shape: tuple[int, ...],
    span: Span | None,
    key: int | None = None,
    columns: Array | None = None,
) -> RowEncoding:
    """The encoding of a field's rows, or of some columns of them. Types that are not wide floats are always sent as
    stored.

    With a `key` values are rounded at random, otherwise to the nearest. `columns` are the numbers of the columns that
    are sent, if these are not the columns of `span` or all.
    """
    if wire_type not in get_args(WireType):
        raise PenstockError(
            f"Rows cannot be sent as {wire_type!r}{nearest(wire_type, get_args(WireType))}", code="unknown-name"
        )
    if dtype.kind != "f" or dtype.itemsize <= 2 or wire_type == "stored":
        return StoredEncoding(dtype, row_shape, span)
    first, width = _columns(row_shape, span)
    if columns is None:
        columns = np.arange(first, first + width)
    rounding = None if key is None else Rounding(np.uint64(key), columns)
    if wire_type == "float16":
        return HalfEncoding(first, width, rounding)
    return ScaledEncoding(first, width, rounding, whole=span is None)


class StoredEncoding:
    """Sends rows in the type in which they are stored."""

    def __init__(self, dtype: np.dtype[Any], row_shape: tuple[int, ...], span: Span | None) -> None:
        self._dtype, self._span = dtype, span
        self._shape = row_shape if span is None else (span[1] - span[0],)
        self.row_bytes, self.columns_alike = math.prod(self._shape) * dtype.itemsize, True

    def pack(self, table: Array, rows: Array, buffer: Array, names: PartRows) -> tuple[Array, ...]:
        out = buffer[: len(rows) * self.row_bytes].view(self._dtype).reshape(len(rows), *self._shape)
        return (gather_rows(table, rows, out, self._span),)

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        (frame,) = arrived(arrays, [((len(places), *self._shape), self._dtype)])
        spread_rows(frame, places, out)


class HalfEncoding:
    """float16: rounded to the nearest within 2**-11 of a value's magnitude, or 2**-25; at random within twice that."""

    def __init__(self, first: int, width: int, rounding: Rounding | None) -> None:
        self._first, self._width, self._rounding = first, width, rounding
        self.row_bytes, self.columns_alike = 2 * width, True

    def pack(self, table: Array, rows: Array, buffer: Array, names: PartRows) -> tuple[Array, ...]:
        """Gather and narrow rows into the buffer; an error for values beyond float16."""
        out = buffer[: len(rows) * self.row_bytes].view(np.uint16).reshape(len(rows), self._width)
        given = _flat(table), self._first, rows
        if self._rounding is None:
            fits = narrow.gather_half(*given, out)
        else:
            key, columns = self._rounding
            fits = stochastic_rounding.gather_half(*given, key, *names, columns, out)
        if not fits:
            raise PenstockError(
                "A row has numbers beyond 65504, which float16 cannot hold: send the field as stored.",
                code="value-out-of-range",
            )
        return (out.view(np.float16),)

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Widen the rows that arrived into their positions."""
        (frame,) = arrived(arrays, [((len(places), self._width), np.dtype(np.float16))])
        narrow.place_half(frame.view(np.uint16), narrow.WIDE, places, _flat(out))


class ScaledEncoding:
    """int8 with a float32 scale for each row.

    Values are rounded to the nearest within 1/254 of the row's largest, or at random within twice that.
    """

    def __init__(self, first: int, width: int, rounding: Rounding | None, whole: bool) -> None:
        """Sends `width` columns from `first` on; `whole`: these are all columns."""
        self._first, self._width, self._rounding = first, width, rounding
        # The scale is that of the columns that are sent.
        self.row_bytes, self.columns_alike = 4 + width, whole

    def pack(self, table: Array, rows: Array, buffer: Array, names: PartRows) -> tuple[Array, ...]:
        """Gather and narrow rows into the buffer; an error for values that are not finite."""
        scales = buffer[: 4 * len(rows)].view(np.float32)
        out = buffer[4 * len(rows) : len(rows) * self.row_bytes].view(np.int8).reshape(len(rows), self._width)
        given = _flat(table), self._first, rows
        if self._rounding is None:
            finite = narrow.gather_scaled(*given, scales, out)
        else:
            key, columns = self._rounding
            finite = stochastic_rounding.gather_scaled(*given, key, *names, columns, scales, out)
        if not finite:
            raise PenstockError(
                "A row has numbers that are not finite, which int8 cannot hold: send the field as stored.",
                code="not-finite",
            )
        return out, scales

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Widen the rows that arrived into their positions."""
        shapes: list[Expected] = [
            ((len(places), self._width), np.dtype(np.int8)),
            ((len(places),), np.dtype(np.float32)),
        ]
        frame, scales = arrived(arrays, shapes)
        narrow.place_scaled(frame, scales, places, _flat(out))


def arrived(arrays: tuple[Array, ...], expected: list[Expected]) -> tuple[Array, ...]:
    """The arrays of a message, validated, since kernels rely on shapes."""
    found = [(array.shape, array.dtype) for array in arrays]
    if found != expected:
        raise PenstockError(
            f"Rows arrived as {found} where {expected} were requested: run the same release on all machines.",
            code="malformed-message",
        )
    return arrays


def _columns(row_shape: tuple[int, ...], span: Span | None) -> tuple[int, int]:
    first, last = (0, math.prod(row_shape)) if span is None else span
    return first, last - first


def _flat(table: Array) -> Array:
    return cast(Array, table.reshape(len(table), math.prod(table.shape[1:])))
