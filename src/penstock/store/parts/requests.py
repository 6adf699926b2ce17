"""Rows of parts on the wire: how they are encoded (as stored, or narrowed), the form of requests, the buffers that
answers are sent from, and traffic counts.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

import numpy as np
from pydantic import AfterValidator, ConfigDict, Field

from penstock.errors import PenstockError, nearest
from penstock.graph.arrays import Array
from penstock.graph.documents import StrictDocument, validated
from penstock.partition.owners import Split
from penstock.store.parts import narrow, stochastic_rounding
from penstock.store.rows import Span, gather_rows, spread_rows
from penstock.wire.channel import Channel, PendingCall
from penstock.wire.message import Message

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


# The form of requests to a store, validated before use.

Count = Annotated[int, Field(ge=0)]


def _shrinks(factor: float) -> float:
    """Validate a clipping factor. NaN is allowed: as in torch, non-finite gradients make all of them NaN."""
    if not (math.isnan(factor) or 0.0 <= factor <= 1.0):
        raise ValueError(f"{factor} is outside 0..1")
    return factor


Factor = Annotated[float, AfterValidator(_shrinks)]
"""The factor of clipped gradients."""


class StoreRequest(StrictDocument):
    """A body in which numbers must be numbers, not strings that look like them."""

    model_config = ConfigDict(extra="forbid", strict=True)


Body = TypeVar("Body", bound=StoreRequest)


class PartRequest(StoreRequest):
    """A request about one part."""

    part: Count


class FieldRequest(PartRequest):
    """Something about a field of a part."""

    field: str


class MemoryRequest(StoreRequest):
    """Some bytes of memory that the tasks of a machine map together."""

    name: str
    bytes: Annotated[int, Field(ge=1)]


class RankRequest(StoreRequest):
    """Something about a worker's shares of tables."""

    rank: Count


class ShareRequest(RankRequest):
    """A worker's share of a table that lies in the memories of several GPUs."""

    name: str


class Pull(FieldRequest):
    """Rows of a field, by their numbers in the part."""

    columns: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    wire_type: WireType = "stored"
    rounding: Annotated[int, Field(ge=0, lt=1 << 64)] | None = None
    """The key of stochastic rounding where values are narrowed; None: to the nearest."""
    selected: Count | None = None
    """The version of a selection of columns that the reader has sent before (`Select`); None: all columns."""


class Select(FieldRequest):
    """Array: the columns, ascending, that later pulls of the reader refer to by a version. The answer has the mean row
    of the part if `means` asks for it.
    """

    version: Count
    means: bool


class Make(FieldRequest):
    """A field of `width` float32 for every vertex of its type."""

    width: Annotated[int, Field(ge=1, le=1 << 20)]


class TableRequest(PartRequest):
    """A request about a part's share of an embedding table, before a step."""

    table: str
    step: Count


class Staged(TableRequest):
    """A rank's gradients of a step."""

    rank: Count
    world: Annotated[int, Field(ge=1)]
    learned: bool
    """Whether the rank's batch had vertices of the table's type, in any part."""
    clipped: bool = False
    """Whether the step waits for a factor."""


class Shrink(TableRequest):
    """The factor of a step's gradients."""

    factor: Factor


class RoundRequest(TableRequest):
    """Says that the ranks have met for the round of this number."""

    round: Count


class Restore(TableRequest):
    """Rows from `start` on, of a state after `steps` optimiser steps; `token` identifies the restore."""

    token: Annotated[str, Field(min_length=1, max_length=64)]
    start: Count
    steps: Count


def checked(request: Message, model: type[Body]) -> Body:
    """The body of a request, validated; a sender's mistake is an error with the kind of request."""
    return validated(model, request.body, f"A {request.kind!r} request is not valid", "malformed-message")


def row_numbers(request: Message, arrays: int = 1) -> Array:
    """The first of `arrays` arrays, validated to be row numbers."""
    if len(request.arrays) != arrays:
        raise PenstockError(
            f"A {request.kind!r} request needs {arrays} arrays and has {len(request.arrays)}.", code="malformed-message"
        )
    rows = request.arrays[0]
    if rows.ndim != 1 or rows.dtype not in (np.int32, np.int64):
        raise PenstockError(
            f"A {request.kind!r} request needs row numbers of int32 or int64, not {rows.dtype}.",
            code="malformed-message",
        )
    return rows


# Rows in flight between parts: requested all at once, and sent from reused buffers.

PART_BYTES = 1 << 20
"""The size of a part of an answer, and of a buffer; a single row may be larger."""
_KEPT = 32
"""Free buffers that are kept; the wire's back-pressure bounds how many are in use."""


class SendBuffers:
    """Flat buffers of at least PART_BYTES, for any thread."""

    def __init__(self) -> None:
        self._free: list[Array] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> Array:
        """A buffer of `size` bytes or more."""
        if size <= PART_BYTES:
            with self._lock:
                if self._free:
                    return self._free.pop()
        return np.empty(max(size, PART_BYTES), np.uint8)

    def give(self, buffer: Array) -> None:
        """Return a buffer whose bytes were sent."""
        with self._lock:
            if len(self._free) < _KEPT and buffer.nbytes == PART_BYTES:
                self._free.append(buffer)

    @property
    def waiting(self) -> int:
        """The number of free buffers."""
        with self._lock:
            return len(self._free)


def rows_a_part(row_bytes: int) -> int:
    """Rows in a part of an answer: the same in every process, as an answer's parts may come from two of them."""
    return max(1, PART_BYTES // max(1, row_bytes))


def pack_rows(way: RowEncoding, table: Array, rows: Array, names: PartRows, buffers: SendBuffers) -> Iterator[Message]:
    """Rows in parts of about a megabyte, each gathered directly into the memory that is sent, when it is sent."""
    step = rows_a_part(way.row_bytes)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        buffer = buffers.take(len(some) * way.row_bytes)
        try:
            arrays = way.pack(table, some, buffer, names.some(start, start + step))
        except PenstockError:
            buffers.give(buffer)
            raise
        yield Message("rows", {}, arrays, done=lambda buffer=buffer: buffers.give(buffer))  # type: ignore[misc]


def copy_rows(way: RowEncoding, table: Array, wanted: "FarRows", out: Array, buffers: SendBuffers) -> None:
    """Copy local rows to their positions with the bits that they would have had from the wire."""
    start = 0
    for message in pack_rows(way, table, wanted.rows, PartRows(wanted.part, wanted.rows), buffers):
        count = len(message.arrays[0])
        way.unpack(message.arrays, wanted.places[start : start + count], out)
        start += count
        if message.done is not None:
            message.done()


Channels = Callable[[int], Channel]
"""The channel to the owner of a part."""


class RowRequest(NamedTuple):
    """Rows in flight from one part."""

    part: int
    places: Array
    answer: PendingCall


class FarRows(NamedTuple):
    """Rows of one part by number in it, and the position of each in the result."""

    part: int
    rows: Array
    places: Array


def far_rows(split: Split, parts: Iterable[int]) -> list[FarRows]:
    """The rows of some parts in a split; parts without rows are left out."""
    found = [FarRows(part, *split.of(part)) for part in parts]
    return [each for each in found if len(each.rows)]


def ask_rows(channels: Channels, wanted: Iterable[FarRows], request: Callable[[int], Message]) -> list[RowRequest]:
    """Request rows from parts; `request` makes the message to a part, without the row numbers."""
    asked = []
    for part, rows, places in wanted:
        message = request(part)
        message.arrays = (rows,)
        asked.append(RowRequest(part, places, channels(part).start(message)))
    return asked


def receive_rows(asked: RowRequest, way: RowEncoding, out: Array) -> int:
    """Copy the rows to their positions as they arrive; returns the bytes received."""
    step, start, size = rows_a_part(way.row_bytes), 0, 0
    for part in asked.answer.parts():
        places = asked.places[start : start + step]
        way.unpack(part.arrays, places, out)
        start += len(places)
        size += sum(array.nbytes for array in part.arrays)
    if start != len(asked.places):
        raise PenstockError(
            f"Part {asked.part} sent only {start:,} of {len(asked.places):,} rows: ask again.", code="malformed-message"
        )
    return size


# Counts of what pulls transferred over the wire.


@dataclass(frozen=True)
class Traffic:
    """What pulls of one field transferred over the wire."""

    rows: int = 0
    bytes: int = 0
    minimum: int = 0
    """The least possible bytes: distinct rows of other machines per call, as stored."""

    def plus(self, rows: int, size: int, minimum: int) -> "Traffic":
        """The counts with one more answer."""
        return Traffic(self.rows + rows, self.bytes + size, self.minimum + minimum)
