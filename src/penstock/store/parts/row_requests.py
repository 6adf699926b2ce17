"""Asking parts for rows, all at once, and putting what arrives where it belongs."""

from collections.abc import Callable
from typing import NamedTuple

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.partition.owners import Split
from penstock.store.parts.send_buffers import rows_a_part
from penstock.store.parts.transit import Transit
from penstock.wire.channel import Channel
from penstock.wire.message import Message
from penstock.wire.pending_call import PendingCall

Channels = Callable[[int], Channel]
"""The way to the owner of a part."""


class RowRequest(NamedTuple):
    """Rows on their way from one part."""

    part: int
    places: Array
    answer: PendingCall


def ask_rows(channels: Channels, split: Split, parts: list[int], request: Callable[[int], Message]) -> list[RowRequest]:
    """Ask some parts for their rows of a split; `request` makes the message to a part, less the row numbers."""
    asked = []
    for part in parts:
        rows, places = split.of(part)
        if len(rows):
            message = request(part)
            message.arrays = (rows,)
            asked.append(RowRequest(part, places, channels(part).start(message)))
    return asked


def receive_rows(asked: RowRequest, way: Transit, out: Array) -> int:
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
