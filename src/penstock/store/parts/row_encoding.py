"""How rows are encoded on the wire: as they are stored, or narrowed. From table to send buffer, and back."""

import math
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.store.parts import narrow
from penstock.store.rows import Span, gather_rows, spread_rows

WireType = Literal["stored", "float16", "int8"]
Expected = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and type of an array."""


class RowEncoding(Protocol):
    """How rows of one field are sent. Row numbers and places are checked by the caller."""

    row_bytes: int
    """Bytes of a row on the wire."""
    columns_alike: bool
    """Whether columns that are sent alone have the bits that they have in a whole row."""

    def pack(self, table: Array, rows: Array, buffer: Array) -> tuple[Array, ...]:
        """Gather rows straight into a buffer (flat uint8 with room for them): the arrays to be sent."""

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Put the rows that arrived in their places."""


def encoding_for(
    wire_type: WireType, dtype: np.dtype[Any], row_shape: tuple[int, ...], span: Span | None
) -> RowEncoding:
    """The encoding of a field's rows, or of some columns of them. What is no wide float is always sent as stored."""
    if wire_type not in get_args(WireType):
        raise PenstockError(
            f"Rows cannot be sent as {wire_type!r}{nearest(wire_type, get_args(WireType))}", code="unknown-name"
        )
    if dtype.kind == "f" and wire_type == "float16" and dtype.itemsize > 2:
        return HalfEncoding(row_shape, span)
    if dtype.kind == "f" and wire_type == "int8" and dtype.itemsize > 2:
        return ScaledEncoding(row_shape, span)
    return StoredEncoding(dtype, row_shape, span)


class StoredEncoding:
    """Sends rows in the type in which they are stored."""

    def __init__(self, dtype: np.dtype[Any], row_shape: tuple[int, ...], span: Span | None) -> None:
        self._dtype, self._span = dtype, span
        self._shape = row_shape if span is None else (span[1] - span[0],)
        self.row_bytes, self.columns_alike = math.prod(self._shape) * dtype.itemsize, True

    def pack(self, table: Array, rows: Array, buffer: Array) -> tuple[Array, ...]:
        """Gather rows into the buffer."""
        out = buffer[: len(rows) * self.row_bytes].view(self._dtype).reshape(len(rows), *self._shape)
        return (gather_rows(table, rows, out, self._span),)

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Put the rows that arrived in their places."""
        (frame,) = arrived(arrays, [((len(places), *self._shape), self._dtype)])
        spread_rows(frame, places, out)


class HalfEncoding:
    """float16: within 2**-11 of a number's size, or 2**-25."""

    def __init__(self, row_shape: tuple[int, ...], span: Span | None) -> None:
        self._first, self._width = _columns(row_shape, span)
        self.row_bytes, self.columns_alike = 2 * self._width, True

    def pack(self, table: Array, rows: Array, buffer: Array) -> tuple[Array, ...]:
        """Gather and narrow rows into the buffer; refuses numbers beyond float16."""
        out = buffer[: len(rows) * self.row_bytes].view(np.uint16).reshape(len(rows), self._width)
        if not narrow.gather_half(_flat(table), self._first, rows, out):
            raise PenstockError(
                "A row has numbers beyond 65504, which float16 cannot hold: send the field as stored.",
                code="value-out-of-range",
            )
        return (out.view(np.float16),)

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Widen the rows that arrived into their places."""
        (frame,) = arrived(arrays, [((len(places), self._width), np.dtype(np.float16))])
        narrow.place_half(frame.view(np.uint16), narrow.WIDE, places, _flat(out))


class ScaledEncoding:
    """int8 with a float32 a row that says what one is worth: within 1/254 of the row's largest number."""

    def __init__(self, row_shape: tuple[int, ...], span: Span | None) -> None:
        self._first, self._width = _columns(row_shape, span)
        # The scale is that of the columns that are sent.
        self.row_bytes, self.columns_alike = 4 + self._width, span is None

    def pack(self, table: Array, rows: Array, buffer: Array) -> tuple[Array, ...]:
        """Gather and narrow rows into the buffer; refuses numbers that are not finite."""
        scales = buffer[: 4 * len(rows)].view(np.float32)
        out = buffer[4 * len(rows) : len(rows) * self.row_bytes].view(np.int8).reshape(len(rows), self._width)
        if not narrow.gather_scaled(_flat(table), self._first, rows, scales, out):
            raise PenstockError(
                "A row has numbers that are not finite, which int8 cannot hold: send the field as stored.",
                code="not-finite",
            )
        return out, scales

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Widen the rows that arrived into their places."""
        shapes: list[Expected] = [
            ((len(places), self._width), np.dtype(np.int8)),
            ((len(places),), np.dtype(np.float32)),
        ]
        frame, scales = arrived(arrays, shapes)
        narrow.place_scaled(frame, scales, places, _flat(out))


def arrived(arrays: tuple[Array, ...], expected: list[Expected]) -> tuple[Array, ...]:
    """The arrays of a message, if they are what they should be: kernels trust shapes."""
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
