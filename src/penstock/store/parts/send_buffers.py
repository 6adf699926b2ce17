"""Rows on their way between parts: requested all at once, and sent from buffers that are used again."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.partition.owners import Split
from penstock.store.parts.row_encoding import PartRows, RowEncoding
from penstock.wire.channel import Channel
from penstock.wire.message import Message
from penstock.wire.pending_call import PendingCall

PART_BYTES = 1 << 20
"""Of a part of an answer, and of a buffer; a single row may be larger."""
_KEPT = 32
"""Buffers that wait for use; the wire's back-pressure bounds how many are out."""


class SendBuffers:
    """Flat buffers of at least PART_BYTES. Any thread takes and gives."""

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
    """Rows in parts of about a megabyte, each gathered straight into the memory that is sent, when its turn comes."""
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
    """Put rows of a part's table here in their places with the bits that they would have had from the wire."""
    start = 0
    for message in pack_rows(way, table, wanted.rows, PartRows(wanted.part, wanted.rows), buffers):
        count = len(message.arrays[0])
        way.unpack(message.arrays, wanted.places[start : start + count], out)
        start += count
        if message.done is not None:
            message.done()


Channels = Callable[[int], Channel]
"""The way to the owner of a part."""


class RowRequest(NamedTuple):
    """Rows on their way from one part."""

    part: int
    places: Array
    answer: PendingCall


class FarRows(NamedTuple):
    """Rows of one part by their numbers in it, and where each belongs."""

    part: int
    rows: Array
    places: Array


def far_rows(split: Split, parts: Iterable[int]) -> list[FarRows]:
    """The rows of some parts in a split, where there are any."""
    found = [FarRows(part, *split.of(part)) for part in parts]
    return [each for each in found if len(each.rows)]


def ask_rows(channels: Channels, wanted: Iterable[FarRows], request: Callable[[int], Message]) -> list[RowRequest]:
    """Ask parts for rows; `request` makes the message to a part, less the row numbers."""
    asked = []
    for part, rows, places in wanted:
        message = request(part)
        message.arrays = (rows,)
        asked.append(RowRequest(part, places, channels(part).start(message)))
    return asked


def receive_rows(asked: RowRequest, way: RowEncoding, out: Array) -> int:
    """Put the rows in their places as they arrive; returns the bytes they came in."""
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
