"""The files of an embedding at its owner: mapped tables, a lock, and the records of its journal."""

import os
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.closed_on_exit import ClosedOnExit
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, rows_in_file
from penstock.graph.files import claimed, open_lock, open_private, open_regular, unfinished
from penstock.wire.message import Limits, Malformed, Message, decode, encode

# A file of records, each of which is complete or absent, whenever the process that writes it is killed.

_MAGIC = b"psj1"
_HEAD = struct.Struct("<4sIIQ")
"""Magic, checksum of all that follows, frames, bytes of the frames. Then each frame's size in 8 bytes, then frames."""
_LIMITS = Limits(array_bytes=1 << 40)


class UnreadableRecord(PenstockError):  # noqa: N818
    """A record with a valid checksum that this release cannot read."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


class Journal(ClosedOnExit):
    """Appending returns when the operating system has the bytes: a killed process loses no appended record.

    An incomplete record that a kill left is dropped when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        """Open a journal that `write_journal` made."""
        self.path = path
        self.records, self.size = read_records(path)
        """Its records, oldest first, and the number of valid bytes."""
        self._file = open_private(path, os.O_WRONLY)
        os.ftruncate(self._file, self.size)

    def append(self, record: Message) -> None:
        """Append a record to the file."""
        try:
            self.size += _write(self._file, self.size, record)
        except OSError as error:
            os.ftruncate(self._file, self.size)
            raise PenstockError(
                f"{self.path} cannot be extended ({error.strerror or error}): free space.", code="write-failed"
            ) from error

    def replace(self, records: Iterable[Message]) -> None:
        """Replace all records atomically: a process that is killed leaves the old file or the new one."""
        file, size = _written(self.path, records)
        os.close(self._file)
        self._file, self.size = file, size

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_journal(path: Path, records: Iterable[Message]) -> None:
    """Make a journal of these records."""
    os.close(_written(path, records)[0])


def read_records(path: Path) -> tuple[list[Message], int]:
    """The complete records at the beginning of a file, and their number of bytes."""
    with open_regular(path) as file:
        content, at = memoryview(file.read()), 0
    records = []
    while (found := _record(content[at:])) is not None:
        record, size = found
        records.append(record)
        at += size
    return records, at


def _written(path: Path, records: Iterable[Message]) -> tuple[int, int]:
    """Write a journal to a temporary file and rename it into place; returns the open file, and its bytes."""
    temporary, size = unfinished(path), 0
    file = -1
    try:
        file = open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with claimed(temporary):
            for record in records:
                size += _write(file, size, record)
            temporary.replace(path)
    except OSError as error:
        if file >= 0:
            os.close(file)
        temporary.unlink(missing_ok=True)
        raise PenstockError(
            f"{path} cannot be written ({error.strerror or error}): free space.", code="write-failed"
        ) from error
    return file, size


def _write(file: int, at: int, record: Message) -> int:
    frames = encode(record, 0, "answer", limits=_LIMITS)
    views = [frame.data if isinstance(frame, np.ndarray) else memoryview(frame) for frame in frames]
    sizes = struct.pack(f"<{len(views)}Q", *(view.nbytes for view in views))
    total = sum(view.nbytes for view in views)
    check = _checksum(struct.pack("<IQ", len(views), total), sizes, *views)
    written = 0
    pieces: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, check, len(views), total), sizes, *views]
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            count = os.pwrite(file, rest, at + written)
            written, rest = written + count, rest[count:]
    return written


def _record(content: memoryview) -> tuple[Message, int] | None:
    """The record at the beginning of some bytes and its size; None if it is incomplete."""
    if len(content) < _HEAD.size:
        return None
    magic, check, count, total = _HEAD.unpack(content[: _HEAD.size])
    begin = _HEAD.size + 8 * count
    if magic != _MAGIC or len(content) < begin + total:
        return None
    sizes = struct.unpack(f"<{count}Q", content[_HEAD.size : begin])
    if sum(sizes) != total:
        return None
    if _checksum(struct.pack("<IQ", count, total), content[_HEAD.size : begin + total]) != check:
        return None
    frames: list[Any] = []
    at = begin
    for size in sizes:
        frames.append(content[at : at + size])
        at += size
    try:
        return decode(frames, _LIMITS, former=True).message, at
    except Malformed as error:
        raise UnreadableRecord(f"a record cannot be read: {error}") from None


def _checksum(*pieces: Any) -> int:
    check = 0
    for piece in pieces:
        check = zlib.crc32(piece, check)
    return check


JOURNAL = "journal"


class DamagedEmbedding(PenstockError):  # noqa: N818
    """The files of an embedding are damaged: its rows must be restored from a checkpoint."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="damaged-file")


class Push(NamedTuple):
    """The gradients of one rank in one step."""

    step: int
    rank: int
    world: int
    learned: bool
    """Whether the rank's batch had vertices of this type, in any part."""
    ids: Array
    gradients: Array
    clipped: bool = False
    """Whether the step waits for a factor by which all ranks' gradients are multiplied."""

    def record(self) -> Message:
        """The push as a journal record."""
        body = {"step": self.step, "rank": self.rank, "world": self.world, "learned": self.learned}
        body["clipped"] = self.clipped
        return Message("staged", body, (self.ids, self.gradients))

    @staticmethod
    def of(record: Message) -> "Push":
        """The push of a journal record."""
        body = record.body
        who = body["step"], body["rank"], body["world"], body["learned"]
        return Push(*who, record.arrays[0], record.arrays[1], body.get("clipped", False))


class Undo(NamedTuple):
    """The rows that a step touches and their moments, and the number of optimiser steps, as they were before it."""

    step: int
    steps: int
    ids: Array
    tables: list[Array]

    def record(self) -> Message:
        """The undo information as a journal record."""
        return Message("undo", {"step": self.step, "steps": self.steps}, (self.ids, *self.tables))

    @staticmethod
    def of(record: Message) -> "Undo":
        """The undo information of a journal record."""
        return Undo(record.body["step"], record.body["steps"], record.arrays[0], list(record.arrays[1:]))


def shrunk_record(step: int, factor: float) -> Message:
    """A journal record of the factor that a step's gradients are multiplied by."""
    return Message("shrunk", {"step": step, "factor": factor})


def open_tables(folder: Path, shape: tuple[int, int], moments: int, decays: bool, new: bool) -> list[Array]:
    """Rows and moments; and, where rows decay, the step that each is up to date with."""
    shapes = {"rows": shape, **{f"moment{i}": shape for i in range(moments)}}
    if decays:
        shapes["last"] = (shape[0], 1)
    tables = {}
    for name, (rows, columns) in shapes.items():
        file, size = folder / f"{name}.f32", rows * columns * 4
        # A shorter file would be extended with zeros.
        if not new and (not file.exists() or file.stat().st_size != size):
            raise DamagedEmbedding(f"{file} is damaged (it does not have {size:,} bytes)")
        tables[name] = rows_in_file(file, (rows, columns))
    if decays:
        tables["last"] = tables["last"].view(np.int32)
    return list(tables.values())


def open_journal(path: Path) -> Journal:
    """The journal at `path`; an error that it is damaged if it cannot be read."""
    try:
        return Journal(path)
    except UnreadableRecord as error:
        raise DamagedEmbedding(f"{path} is damaged ({error})") from None


def clear_tables(folder: Path) -> None:
    """Remove what a process left that was killed before its tables were complete."""
    for path in folder.glob("*.f32"):
        path.unlink()


def lock_folder(folder: Path) -> int:
    """Take a lock that ends with the process: two processes must never write one journal."""
    try:
        return open_lock(folder / "lock")
    except BlockingIOError:
        raise PenstockError(
            f"{folder} is in use by another process: end that one, or name another folder.", code="in-use"
        ) from None
