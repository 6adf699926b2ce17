"""Tables in host memory whose rows reach the device along several paths at once.

A batch's rows that are in no cache are sorted by number. The device reads the first of them by itself, in the table's
order; the host's threads gather the others into page-locked memory, from where one copy brings them to the device,
which scatters them to their positions. How many take which path is decided for each batch (`host_paths`).
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.store.device.copies import page_locked
from penstock.store.device.host_paths import CACHE, GATHERED, PATHS, PINNED, HostPaths, HostTask, Span
from penstock.store.device.moments import Moment, current_stream
from penstock.store.device.tables import PinnedTable
from penstock.store.rows import Span as Columns
from penstock.store.rows import shared_gather
from penstock.traced import is_traced

CHUNK_BYTES = 1 << 19
"""Bytes of the rows that one decision is made for: some tens of microseconds of a path's time."""
_ALIGNED = 16
"""Chunks begin at multiples of this many rows, so that kernels are compiled once, for aligned addresses."""
_MOST_BYTES = 1 << 30
"""Reads larger than this, as in exact inference, are left to the device alone: they need no buffers."""
_STEP_BYTES = 1 << 16
"""Bytes that a thread gathers at a time: a fraction of a millisecond, so that all threads finish together."""
_SLACK = 1.25
"""Buffers are made this much larger than needed, so that they soon stop growing."""
_READERS = 4
"""Programs on each multiprocessor that read rows over the bus. They mostly wait, so few of them keep the bus busy, and
kernels of other streams can run beside them.
"""


class HostTable(NamedTuple):
    """A table in host memory, as the device and the host read its rows."""

    lines: Tensor
    """For the device: rows of one dimension; where it reads none of them, one row of their type and width."""
    flat: Array
    """For the host: rows as bytes, whatever their type."""
    cache: tuple[Tensor, Tensor, Tensor] | None
    """Rows that are on the device as well: see `DeviceSource`."""
    row_bytes: int
    chunk_rows: int
    """Rows that one decision is made for."""
    row_shape: tuple[int, ...]


def host_rows(table: Array, dtype: torch.dtype, device: torch.device) -> HostTable:
    """The `HostTable` of a matrix that only the host reads; `dtype` is the type of its values."""
    size, chunk_bytes = table.shape[1] * table.itemsize, CHUNK_BYTES
    none = torch.zeros((1, table.shape[1]), dtype=dtype, device=device)
    return HostTable(none, table.view(np.uint8), None, size, _chunk_rows(size, chunk_bytes), tuple(table.shape[1:]))


def _chunk_rows(row_bytes: int, chunk_bytes: int) -> int:
    """Rows that one decision is made for."""
    return -(-max(1, chunk_bytes // max(1, row_bytes)) // _ALIGNED) * _ALIGNED


class DividedTable(PinnedTable):
    """A pinned table, cached or not, whose uncached rows come along the paths of `HostPaths`."""

    def __init__(self, below: PinnedTable, paths: HostPaths, chunk_bytes: int = CHUNK_BYTES) -> None:
        super().__init__(below.table, below.device)
        self.below, self.paths, self.where = below, paths, below.where
        self._cache = below._cache
        size = self._lines.shape[1] * self.dtype.itemsize
        flat: Array = self._lines.view(torch.uint8).numpy() if size else np.empty((len(self.table), 0), np.uint8)
        self.rows = HostTable(
            self._lines, flat, self._cache, size, _chunk_rows(size, chunk_bytes), tuple(self.table.shape[1:])
        )
        self.readings = ReadingPool(self.rows, paths)

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory: the cache."""
        return self.below.device_bytes

    def gather(
        self,
        ids: Tensor,
        out: Tensor | None = None,
        count: Tensor | None = None,
        places: Tensor | None = None,
        span: Columns | None = None,
    ) -> Tensor:
        """Gather rows: given ids alone, they come along both paths, and the host waits for the ids.

        With a count, places or columns, as captured gathers have, the device reads all rows by itself.
        """
        plain = count is not None or places is not None or span is not None
        if plain or not 0 < len(ids) * self.rows.row_bytes <= _MOST_BYTES:
            return super().gather(ids, out, count, places, span)
        out = self._checked(ids, out, places, span)
        with self.reading(len(ids), ids.dtype) as reading:
            if is_traced():
                return out
            stream = current_stream(self.device)
            # Earlier users of this memory may still be reading it on other streams.
            reading.hold(stream)
            reading.list(ids)
            reading.fetch(stream)
            reading.begin(ids, out.view(len(out), -1))
            reading.finish()
            reading.hold(stream)
        return out

    @contextmanager
    def reading(self, room: int, ids: torch.dtype) -> "Iterator[HostTableReading]":
        """Buffers to read so many rows; concurrent readers have their own."""
        reading = self.readings.take()
        reading.make_room(room, ids, _SLACK)
        try:
            yield reading
        except BaseException:
            reading.abandon()
            raise
        finally:
            self.readings.give_back(reading)


class ReadingPool:
    """Lends out buffers for reading a table's rows."""

    def __init__(self, rows: HostTable, paths: HostPaths) -> None:
        self._rows, self.paths = rows, paths
        self._idle: list[HostTableReading] = []
        self._lock = threading.Lock()

    def take(self) -> "HostTableReading":
        """Buffers for exclusive use, until they are given back."""
        with self._lock:
            return self._idle.pop() if self._idle else HostTableReading(self._rows, self.paths)

    def give_back(self, reading: "HostTableReading") -> None:
        """Return buffers for reuse. Launches that use them may still be in progress."""
        with self._lock:
            self._idle.append(reading)

    def release(self) -> None:
        """Free the memory that nobody uses."""
        with self._lock:
            self._idle.clear()
        self.paths.release()


class HostTableReading:
    """The buffers with which one batch's rows are read. For each batch: list, fetch, begin, finish."""

    def __init__(self, rows: HostTable, paths: HostPaths) -> None:
        self._table, self._paths = rows, paths
        self._room, self._count = 0, 0
        device = self._paths.device
        self._listed, self._read, self._placed = (Moment(device) for _ in range(3))
        self._task: HostTask | None = None
        self._keys = self._sorted = self._order = self._steps = torch.empty(0, device=device)
        self._ids = self._staged = torch.empty(0)
        self._out, self._split, self._cold = self._keys, 0, 0
        self._turn = torch.zeros(1, dtype=torch.int32, device=device)
        self.row_shape = rows.row_shape

    def make_room(self, rows: int, ids: torch.dtype, slack: float = 1.0) -> None:
        """Ensure buffers for so many rows, with ids of this type. Waits for work in progress if they must grow."""
        if rows <= self._room and ids == self._keys.dtype:
            return
        rows = int(rows * slack)
        self._read.settle()
        self._placed.settle()
        table, device = self._table, self._paths.device
        self._room = rows
        self._keys = torch.empty(rows, dtype=ids, device=device)
        self._sorted, self._order = torch.empty_like(self._keys), torch.empty(rows, dtype=torch.int64, device=device)
        self._steps = torch.arange(rows, dtype=torch.int32, device=device)
        self._ids = page_locked((rows,), ids, device)
        self._staged = page_locked((rows, table.row_bytes), torch.uint8, device)
        with self._paths.copy_lock, _on(self._paths.copying):
            self._paths.staging(rows * table.row_bytes)

    def list(self, ids: Tensor, count: Tensor | None = None) -> None:
        """Sort the rows that are to be read from the table. Can be captured; `ids` and `count` as in `gather`."""
        size = len(ids)
        keys = self._keys[:size]
        if not is_traced():
            from penstock.store.device.kernels import list_cold

            list_cold(ids, keys, count, None if self._table.cache is None else self._table.cache[1])
        torch.sort(keys, out=(self._sorted[:size], self._order[:size]))
        self._count = size

    def fetch(self, stream: Any) -> None:
        """Start copying the sorted numbers to the host, on the stream that has listed them."""
        with _on(stream):
            self._ids[: self._count].copy_(self._sorted[: self._count], non_blocking=True)
        self._listed.mark_on(stream)

    def begin(self, ids: Tensor, out: Tensor, count: Tensor | None = None) -> None:
        """Wait for the listed numbers, divide them, and start both paths to `out`, a matrix.

        `ids` and `count` are those that were listed.
        """
        paths, table = self._paths, self._table
        self._listed.settle()
        paths.count_arrived()
        listed = self._ids[: self._count].numpy()
        self._cold = int(np.searchsorted(listed, np.iinfo(listed.dtype).max))
        divided = paths.division.divide(-(-self._cold // table.chunk_rows))
        self._split = min(self._cold, divided.pinned * table.chunk_rows)
        self._out = out
        if self._split < self._cold:
            # Wait for the last batch's copy from the same memory.
            self._placed.settle()
            wanted = listed[self._split : self._cold]
            step = max(1, _STEP_BYTES // max(1, table.row_bytes))
            gather = shared_gather(table.flat, wanted, self._staged[: len(wanted)].numpy(), step)
            self._task = paths.threads.start([gather], -(-len(wanted) // step))
        with _on(paths.reading):
            self._listed.hold(paths.reading)
            self._read_near(ids, count)
            self._read_pinned()
        self._read.mark_on(paths.reading)

    def finish(self) -> None:
        """Wait until the host has gathered its rows, and launch their copy."""
        task, paths, self._task = self._task, self._paths, None
        if task is not None:
            seconds = task.wait()
            with paths.copy_lock, _on(paths.copying):
                self._listed.hold(paths.copying)
                span = self._copy(self._cold - self._split)
            paths.launched(span, seconds)
        self._placed.mark_on(paths.copying)

    def hold(self, stream: Any) -> None:
        """Make later launches on a stream wait for all rows."""
        self._read.hold(stream)
        self._placed.hold(stream)

    def abandon(self) -> None:
        """Discard the batch that was begun."""
        if self._task is not None:
            self._task.wait()
        self._task = None

    def _read_near(self, ids: Tensor, count: Tensor | None) -> None:
        """Read the cached rows, and write zeros for negative ids."""
        from penstock.store.device.kernels import launch_gather

        table, paths = self._table, self._paths
        span = self._span(CACHE, 0)
        launch_gather(table.lines, ids, self._out, count, None, table.cache, near=True)
        span.after.mark_on(paths.reading)
        if table.cache is not None:
            paths.launched(span)

    def _read_pinned(self) -> None:
        """Read the device's share of the rows over the bus."""
        from penstock.store.device.kernels import launch_gather

        paths, rows = self._paths, self._split
        if not rows:
            return
        span = self._span(PATHS[PINNED], rows)
        self._turn.zero_()
        launch_gather(
            self._table.lines, self._sorted[:rows], self._out, None,
            places=self._order[:rows], turn=self._turn, programs=_programs(paths.device),
        )  # fmt: skip
        span.after.mark_on(paths.reading)
        paths.launched(span)

    def _copy(self, rows: int) -> Span:
        """Copy the rows that the host has gathered, and scatter them to their positions."""
        from penstock.store.device.kernels import launch_gather

        table, paths = self._table, self._paths
        span = self._span(PATHS[GATHERED], rows)
        brought = paths.staging(rows * table.row_bytes)
        brought.view(rows, -1).copy_(self._staged[:rows], non_blocking=True)
        launch_gather(
            brought.view(table.lines.dtype).view(rows, -1), self._steps[:rows], self._out, None,
            places=self._order[self._split : self._cold],
        )  # fmt: skip
        span.after.mark_on(paths.copying)
        return span

    def _span(self, path: str, rows: int) -> Span:
        paths = self._paths
        before, after = (Moment(paths.device, timed=True) for _ in range(2))
        before.mark_on(paths.copying if path == PATHS[GATHERED] else paths.reading)
        return Span(path, rows, rows * self._table.row_bytes, before, after)


def read_beside(table: PinnedTable, ids: Tensor, out: Tensor, turn: Tensor) -> None:
    """`out[i] = table[ids[i]]` in the table's order, by few programs, so that kernels of other streams run beside them.

    `turn` is one int32 of the reader's own, on the device.
    """
    from penstock.store.device.kernels import launch_gather

    turn.zero_()
    order, programs = torch.sort(ids).indices, _programs(table.device)
    launch_gather(table._lines, ids, out, None, order, table._cache, turn=turn, programs=programs)


def _programs(device: torch.device) -> int:
    """The number of programs that read rows over the bus."""
    if device.type != "cuda":
        return _READERS
    return _READERS * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(stream: Any) -> AbstractContextManager[Any]:
    """Launch on a stream within the context, if there is one."""
    if stream is None:
        return nullcontext()
    return stream.entered() if is_traced() else torch.cuda.stream(stream)
