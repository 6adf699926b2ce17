"""Rows on disk in buckets: what an import in bounded memory divides, so that one bucket at a time fits into memory.

Rows are written in blocks, and the rows of each block stand ordered by bucket. A bucket is then one piece of every
block. However many buckets there are, a column is one file, which is written from its beginning to its end.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, open_array
from penstock.graph.ids import StringIds
from penstock.kernels import njit
from penstock.memory import anonymous_mb

# How much memory what may take. Python, the kernels and the readers of tables take some before any of it.

READING_MB = 220
"""Batches of the readers, two at a time, and what pyarrow keeps of them."""
_LEAST_MB = 64


class MemoryBound:
    """The bytes of memory that parts of an import may take; the graph that is made does not depend on them."""

    def __init__(self, memory_gb: float) -> None:
        used = anonymous_mb() + READING_MB
        left = memory_gb * 1e9 / (1 << 20) - used
        if left < _LEAST_MB:
            least = (used + _LEAST_MB) * (1 << 20) / 1e9
            raise PenstockError(
                f"--memory-gb {memory_gb:g} is too little for an import: give {least + 0.05:.1f} or more.",
                code="value-out-of-range",
            )
        self.total = int(left) << 20
        self._held: dict[str, int] = {}

    @property
    def block_bytes(self) -> int:
        """Rows that are gathered before they are written to buckets."""
        return max(1 << 20, self.total // 12)

    @property
    def group_bytes(self) -> int:
        """The ids of the buckets that are looked up together."""
        return self.total // 2

    @property
    def list_bytes(self) -> int:
        """Edges that are sorted in memory."""
        return self.total * 3 // 4

    def holds(self, name: str, size: int) -> bool:
        """Whether the id index of a node type may have `size` bytes beside those of the others.

        An index that grows is copied, so together they may take a third.
        """
        self._held[name] = size
        return sum(self._held.values()) <= self.total // 3


class Piece(NamedTuple):
    """The rows of some buckets in one block."""

    start: int
    """Rows of the file before these."""
    block: int
    """Rows of the file before their block."""
    columns: dict[str, Array]
    texts: StringIds | None


class BucketFile:
    """Columns of rows, and if wanted a column of strings, in blocks that are ordered by bucket.

    It is written by `append` and complete after `close`; then it can be read as often as needed. One that is `known`
    was completed by another process.
    """

    def __init__(
        self,
        folder: Path,
        buckets: int,
        columns: Mapping[str, tuple[Any, tuple[int, ...]]],
        texts: bool = False,
        known: bool = False,
    ) -> None:
        self.folder, self.buckets, self._known = folder, buckets, known
        self._stack = ExitStack()
        self._writers = {name: self._writer(name, *kind) for name, kind in columns.items()}
        self._bounds = self._writer("bounds", np.int64, (buckets + 1,))
        kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
            "lengths": (np.uint32, ()),
            "bytes": (np.uint8, ()),
            "bounds": (np.int64, (buckets + 1,)),
        }
        self._texts = [self._writer(f"text.{name}", *kind) for name, kind in kinds.items() if texts]
        self._columns: dict[str, Array] = {}
        self.rows = next(iter(self._writers.values())).rows
        if known:
            self.close()

    def append(self, buckets: Array, columns: Mapping[str, Array], texts: StringIds | None = None) -> None:
        """Add a block of rows; row i belongs to bucket `buckets[i]`, and rows of one bucket keep their order."""
        order, bounds = order_by_bucket(buckets, self.buckets)
        for name, writer in self._writers.items():
            writer.append(columns[name][order])
        self._bounds.append((bounds + self.rows)[None])
        self.rows += len(buckets)
        if texts is not None:
            lengths, bytes_, text_bounds = self._texts
            ordered = texts.take(order)
            text_bounds.append((ordered.offsets[bounds] + bytes_.rows)[None])
            lengths.append(np.diff(ordered.offsets))
            bytes_.append(ordered.data)

    def close(self) -> None:
        """Complete the files and map them."""
        self._stack.close()
        self._columns = {writer.path.stem: open_array(writer.path) for writer in self.files}

    def more(self) -> None:
        """Add to the complete files."""
        self._stack = ExitStack()
        for writer in self.files:
            self._stack.enter_context(writer.reopen())

    @property
    def files(self) -> list[ArrayWriter]:
        """The files of all columns."""
        return [*self._writers.values(), self._bounds, *self._texts]

    @property
    def blocks(self) -> int:
        """The number of blocks that were written."""
        return self._bounds.rows

    def rows_of(self, block: int) -> tuple[int, int]:
        """The first row of a block, and the one behind its last."""
        bounds = self._columns["bounds"][block]
        return int(bounds[0]), int(bounds[-1])

    def counts(self) -> Array:
        """The number of rows of every bucket."""
        found = np.zeros(self.buckets, np.int64)
        for block in range(self.blocks):
            found += np.diff(self._columns["bounds"][block])
        return found

    def text_bytes(self) -> int:
        """The bytes of all strings."""
        return self._texts[1].rows if self._texts else 0

    def column(self, name: str) -> Array:
        """A whole column, mapped; `bounds` are where the buckets of every block begin."""
        return self._columns[name]

    def columns(self) -> dict[str, Array]:
        """All columns that were given, mapped."""
        return {name: self._columns[name] for name in self._writers}

    def pieces(self, first: int, last: int) -> Iterator[Piece]:
        """The rows of buckets [first, last), block by block; mapped."""
        for block in range(self.blocks):
            start, stop = (int(self._columns["bounds"][block][bucket]) for bucket in (first, last))
            if start < stop:
                columns = {name: self._columns[name][start:stop] for name in self._writers}
                yield Piece(
                    start, int(self._columns["bounds"][block, 0]), columns, self._text(block, first, last, start, stop)
                )

    def release(self) -> None:
        """Close the files that are still written, where they are not needed any more."""
        self._stack.close()

    def remove(self) -> None:
        """Delete the files of all buckets."""
        self.release()
        self._columns = {}
        shutil.rmtree(self.folder, ignore_errors=True)

    def _text(self, block: int, first: int, last: int, start: int, stop: int) -> StringIds | None:
        if not self._texts:
            return None
        begin, end = (int(self._columns["text.bounds"][block][bucket]) for bucket in (first, last))
        offsets = np.zeros(stop - start + 1, np.int64)
        np.cumsum(self._columns["text.lengths"][start:stop], out=offsets[1:])
        return StringIds(offsets, self._columns["text.bytes"][begin:end])

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.npy"

    def _writer(self, name: str, dtype: Any, row_shape: tuple[int, ...] = ()) -> ArrayWriter:
        if self._known:
            return ArrayWriter.existing(self._path(name))
        return self._stack.enter_context(ArrayWriter(self._path(name), dtype, row_shape))


def groups_of(sizes: Array, most: int) -> list[tuple[int, int]]:
    """Consecutive buckets that have at most `most` bytes together; one that has more is a group of its own."""
    groups: list[tuple[int, int]] = []
    first, held = 0, 0
    for bucket, size in enumerate(sizes.tolist()):
        if bucket > first and held + size > most:
            groups.append((first, bucket))
            first, held = bucket, 0
        held += size
    return [*groups, (first, len(sizes))]


class NumberFile:
    """int64 values of known length that are written in any order, piece by piece, and read mapped."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        with ArrayWriter(path, np.int64) as writer:
            self._begin = writer.extend(rows)
        self._file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, start: int, values: Array) -> None:
        """Write values from row `start` on."""
        data = np.ascontiguousarray(values, np.int64).data.cast("B")
        position = self._begin + 8 * start
        while data:
            written = os.pwrite(self._file, data, position)
            data, position = data[written:], position + written

    def read(self) -> Array:
        """All values that were written, mapped from the file."""
        return open_array(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # It stays readable.
        os.close(self._file)


@njit(nogil=True, cache=True, writes=())
def order_by_bucket(buckets: Array, count: int) -> tuple[Array, Array]:
    """The rows ordered by bucket, and where every bucket begins among them."""
    bounds = np.zeros(count + 1, np.int64)
    for i in range(buckets.shape[0]):
        bounds[buckets[i] + 1] += 1
    for bucket in range(count):
        bounds[bucket + 1] += bounds[bucket]
    fill = bounds[:-1].copy()
    order = np.empty(buckets.shape[0], np.int64)
    for i in range(buckets.shape[0]):
        order[fill[buckets[i]]] = i
        fill[buckets[i]] += 1
    return order, bounds
