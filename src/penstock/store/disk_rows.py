"""Rows of a table read from its file by direct I/O, many requests at once, and cached in a bounded share of memory."""

import fcntl
import mmap
import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.store.rows import LINE_BYTES, Span, prefetch, take_turn
from penstock.store.source import RowSource, check_ids, check_room

# A row that a mapped file provides costs a page fault: a request of one page for every thread that waits for one. Here
# the rows that several threads ask for at the same time are read together. The first thread reads for all that wait;
# those that come while it reads wait for the next round. As the pipeline's threads gather batches that are drawn ahead,
# a round has the rows of several batches: each page of them is read once, in the order of the file, with pages side by
# side in one request. While batches are computed more slowly than they are read, rounds are of one batch.

_PAGE = 4096
"""Alignment of requests and of memory that direct I/O needs, in bytes."""
_IN_FLIGHT = 32
"""Requests at a time: on SSDs more do not add to the pages read in a second."""
_REQUEST_BYTES = 256 << 10
"""Upper bound on a request, unless one row is larger: larger ones are not faster."""
_GAP = 8 << 10
"""Bytes between two pages up to which one request for both takes no longer than two (60,000 pages a second)."""
_WAITED_SHARE = 0.1
"""The next round waits for further threads for at most this share of the last round's time."""
_NEVER = 1 << 60


class DiskRows(RowSource):
    """The rows of an array that is mapped from a file (`is_on_disk`), read past the system's page cache.

    Up to `cache_rows` rows are kept in memory, those that SIEVE keeps. Rows are the same with any cache.
    """

    def __init__(self, table: Array, cache_rows: int = 0) -> None:
        base: Any = table.base
        self.shape, self.dtype = table.shape, table.dtype
        self.path = os.fspath(base.filename)
        self.row_bytes = table.nbytes // len(table)
        self._offset = base.offset + table.ctypes.data - base.ctypes.data
        self.cache = SieveCache(len(table), min(cache_rows, len(table)), self.row_bytes)
        self.bytes_read = self.requests = self.rounds = 0
        self.read_seconds = 0.0
        self._asked: list[_Request] = []
        self._is_reading = False
        self._callers, self._in_round, self._round_seconds = 1, 0, 0.0
        self._lock, self._all_ask = threading.Lock(), threading.Event()
        self._file: _DirectFile | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that the cache and the requests' buffers take."""
        return self.cache.memory_bytes + _IN_FLIGHT * _request_room(self.row_bytes)

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        check_ids(ids, self.shape[0])
        if places is None:
            check_room(out, len(ids), self.dtype, self.row_shape(span))
        if not (len(ids) and out.size):
            return
        asked = _Request.of(ids, out, places, span)
        if together := self._joined(asked):
            self._read_for(together)
        if asked.error is not None:
            raise asked.error

    def hit_rate(self) -> float:
        """The share of rows asked for that were cached; 0 before the first."""
        return self.cache.hits / self.cache.reads if self.cache.reads else 0.0

    def _joined(self, asked: "_Request") -> "list[_Request]":
        """Wait until another thread has read the rows; else the requests that the caller reads for in the next round.

        A round begins when as many threads wait as have been here at the same time, or a short time after the last
        round: a thread that began at once would read its own batch alone, while the others copy what the last round
        has read.
        """
        with self._lock:
            self._asked.append(asked)
            self._callers = max(self._callers, len(self._asked) + self._in_round)
            if len(self._asked) >= self._callers:
                self._all_ask.set()
            leads, self._is_reading = not self._is_reading, True
        try:
            if not leads:
                # Each thread is woken once: by the one that has read its rows, or that hands the next round to it.
                asked.woken.wait()
            if not asked.done:
                self._all_ask.wait(_WAITED_SHARE * self._round_seconds)
        except BaseException:
            with self._lock:
                if asked in self._asked:
                    self._asked.remove(asked)
                if leads or (asked.woken.is_set() and not asked.done):
                    self._hand_over()
            raise
        if asked.done:
            return []
        with self._lock:
            together, self._asked = self._asked, []
            self._callers = self._in_round = len(together)
            self._all_ask.clear()
        return together

    def _hand_over(self) -> None:
        """Have the thread that has waited longest, if any, read in the next round."""
        self._is_reading = bool(self._asked)
        if self._asked:
            self._asked[0].woken.set()

    def _read_for(self, together: "list[_Request]") -> None:
        """Do a round, and tell the threads that wait for it that it is done, or why it failed."""
        began = time.perf_counter()
        failed: BaseException | None = PenstockError(f"Reading {self.path} was interrupted.", code="interrupted")
        try:
            self._round(_Copies.of(together))
            failed = None
        except PenstockError as error:
            failed = error
        finally:
            if failed is not None:
                # What was admitted may not have been read.
                self.cache.clear()
            with self._lock:
                self._in_round, self._round_seconds = 0, time.perf_counter() - began
                for each in together:
                    each.done, each.error = True, failed
                    each.woken.set()
                self._hand_over()

    def _round(self, copies: "_Copies") -> None:
        """Copy all rows: those in the cache, and the others from the file."""
        if self._file is None:
            self._file = _DirectFile(self.path, _request_room(self.row_bytes))
        cache, self.rounds = self.cache, self.rounds + 1
        slots = cache.admit(copies.ids)
        missing = np.flatnonzero(slots == MISSING)
        _copy_cached(cache.rows, slots, copies.to, copies.which, copies.begins, copies.sizes)
        if not len(missing):
            return
        order = missing[np.argsort(copies.ids[missing])]
        requests, rows = np.empty((len(order), 5), np.int64), (self.row_bytes, self._offset)
        requests = requests[: _join(copies.ids[order], *rows, _GAP, _request_room(self.row_bytes), requests)]
        began = time.perf_counter()
        self._file.read(requests, (order, *rows, *copies, *cache.written))
        self.read_seconds += time.perf_counter() - began
        self.bytes_read += int(requests[:, _LENGTH].sum())
        self.requests += len(requests)


def cached_rows(table: Array, size: int) -> int:
    """The rows of a table that a cache of so many bytes has room for, with what it keeps for each row of the table."""
    left = size - len(table) * _SLOT_BYTES - _IN_FLIGHT * _request_room(table.nbytes // len(table))
    return min(len(table), max(0, left // (table.nbytes // len(table) + _KEPT_BYTES)))


def _request_room(row_bytes: int) -> int:
    """Upper bound on the bytes of a request: one that has a row must have all of it."""
    return max(_REQUEST_BYTES, (row_bytes // _PAGE + 2) * _PAGE)


class _Request:
    """The rows that one thread asks for, and the addresses that it wants them at."""

    done = False
    error: BaseException | None = None

    def __init__(self, ids: Array, to: Array, begin: int, size: int, out: Array) -> None:
        self.ids, self.to, self.begin, self.size = ids, to, begin, size
        self._kept, self.woken = out, threading.Event()

    @classmethod
    def of(cls, ids: Array, out: Array, places: Array | None, span: Span | None) -> "_Request":
        """A request for rows, or the columns in `span`, in `out` at `places`."""
        at = np.arange(len(ids)) if places is None else places.astype(np.int64, copy=False)
        size = out.nbytes // len(out)
        begin = 0 if span is None else span[0] * out.itemsize
        return cls(ids.astype(np.int64, copy=False), out.ctypes.data + at * size, begin, size, out)


class _Copies(NamedTuple):
    """Row numbers, and the address that each is copied to; `which` request each is of, and which of a row's bytes the
    requests want.
    """

    ids: Array
    to: Array
    which: Array
    begins: Array
    sizes: Array

    @classmethod
    def of(cls, requests: Sequence[_Request]) -> "_Copies":
        """All copies of some requests."""
        which = np.repeat(np.arange(len(requests)), [len(each.ids) for each in requests])
        ids, to = (np.concatenate([getattr(each, name) for each in requests]) for name in ("ids", "to"))
        return cls(ids, to, which, np.array([r.begin for r in requests]), np.array([r.size for r in requests]))


# The cache: which rows stay is decided by SIEVE (Zhang et al., NSDI 2024). Rows are in a queue, the newest at its head.
# A row that is read again is marked. Where room is needed, a hand moves from the tail towards the head, takes away the
# marks that it meets, and removes the first row that has none; from the head it goes on at the tail.

MISSING = -1
_COPIED = -2
_SLOT_BYTES, _KEPT_BYTES = 4, 8 + 4 + 4 + 4 + 1
"""Bytes for each row of the table, and for each cached row beside the row itself."""
_COUNT, _HEAD, _TAIL, _HAND, _ROUND = range(5)
_AHEAD = 12


class SieveCache:
    """Rows of a table by number, up to `most`; `rows` has their bytes, by slot."""

    def __init__(self, table_rows: int, most: int, row_bytes: int) -> None:
        most = min(most, np.iinfo(np.int32).max - 1)
        # Pages that nothing is written to do not exist, so memory is taken as the cache fills.
        self._slots = np.zeros((table_rows if most else 1, 1), np.int32)
        self.rows = np.empty((most, row_bytes), np.uint8)
        self._owners, self._rounds = np.empty(most, np.int64), np.zeros(most, np.int32)
        self._newer, self._older = np.empty(most, np.int32), np.empty(most, np.int32)
        self._marked = np.zeros(most, np.uint8)
        self._state = np.array([0, MISSING, MISSING, MISSING, 0])
        self.memory_bytes = most * (row_bytes + _KEPT_BYTES) + self._slots.nbytes
        self.hits = self.reads = 0

    def __len__(self) -> int:
        return int(self._state[_COUNT])

    @property
    def cached(self) -> set[int]:
        """The numbers of the rows that are cached."""
        return {int(row) for row in self._owners[: len(self)] if self._slots[row, 0]}

    @property
    def written(self) -> tuple[Array, Array]:
        """What the kernel that reads rows needs: each row's slot + 1, or 0, and the slots."""
        return self._slots, self.rows

    def admit(self, ids: Array) -> Array:
        """Read rows one after the other, and admit those that are not cached; returns the slots where their bytes are.

        The slot of a row whose bytes have yet to be read is MISSING, also where it was admitted by an earlier `id`.
        """
        slots = np.full(len(ids), MISSING, np.int32)
        self.reads += len(ids)
        if len(self.rows):
            self._state[_ROUND] += 1
            links = self._owners, self._rounds, self._newer, self._older, self._marked
            _admit(ids, slots, self._slots, *links, self._state)
            self.hits += int(np.count_nonzero(slots != MISSING))
        return slots

    def clear(self) -> None:
        """Forget all rows; the memory stays."""
        self._slots[:] = 0
        self._marked[:] = 0
        self._state[:_ROUND] = 0, MISSING, MISSING, MISSING


@njit(nogil=True, cache=True, writes=("found", "slots", "owners", "rounds", "newer", "older", "marked", "state"))
def _admit(
    ids: Array, found: Array, slots: Array, owners: Array, rounds: Array, newer: Array, older: Array, marked: Array,
    state: Array,
) -> None:  # fmt: skip
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            prefetch(slots, np.int64(ids[i + _AHEAD]), np.int64(0))
        slot = np.int64(slots[ids[i], 0]) - 1
        if slot >= 0:
            marked[slot] = 1
            if rounds[slot] != state[_ROUND]:
                found[i] = slot
            continue
        if state[_COUNT] < len(owners):
            slot = state[_COUNT]
            state[_COUNT] += 1
        else:
            slot = np.int64(_removed(slots, owners, newer, older, marked, state))
        owners[slot], rounds[slot], marked[slot] = ids[i], state[_ROUND], 0
        slots[ids[i], 0] = slot + 1
        older[slot], newer[slot] = state[_HEAD], MISSING
        if state[_HEAD] >= 0:
            newer[state[_HEAD]] = slot
        else:
            state[_TAIL] = slot
        state[_HEAD] = slot


@njit(nogil=True, cache=True, writes=("slots", "newer", "older", "marked", "state"))
def _removed(slots: Array, owners: Array, newer: Array, older: Array, marked: Array, state: Array) -> int:
    """The slot of the row that the hand removes."""
    slot = state[_HAND] if state[_HAND] >= 0 else state[_TAIL]
    while marked[slot]:
        marked[slot] = 0
        slot = newer[slot] if newer[slot] >= 0 else state[_TAIL]
    state[_HAND] = newer[slot]
    if newer[slot] >= 0:
        older[newer[slot]] = older[slot]
    else:
        state[_HEAD] = older[slot]
    if older[slot] >= 0:
        newer[older[slot]] = newer[slot]
    else:
        state[_TAIL] = newer[slot]
    slots[owners[slot], 0] = 0
    return int(slot)


# The file, and the kernels that read it without the interpreter lock.

_NO_CACHE = 48
"""F_NOCACHE of macOS, which has no O_DIRECT."""
_START, _LENGTH, _NEEDED, _FIRST, _LAST = range(5)
"""Columns of requests: where in the file, how many bytes, how many of these at least, and [first, last) of the rows."""


class _DirectFile:
    """A file that is read past the page cache where its file system allows that; else its pages are dropped again."""

    def __init__(self, path: str, room: int) -> None:
        """`room`: upper bound on the bytes of a request."""
        self._path, self._room = path, room
        # Anonymous mappings begin at a page, as direct I/O needs it.
        self._buffer = np.frombuffer(mmap.mmap(-1, _IN_FLIGHT * room), np.uint8)
        try:
            self._file, self._is_direct = _opened(path, self._buffer[:_PAGE])
        except OSError as error:
            raise self._unreadable(0, error) from error
        weakref.finalize(self, os.close, self._file)
        self._threads = ThreadPoolExecutor(_IN_FLIGHT, "disk-rows")

    def read(self, requests: Array, copied: tuple[Any, ...]) -> None:
        """Read what requests ask for, all of it, and copy rows to where they belong; `copied` as `_serve` takes it."""
        turn = np.zeros(1, np.int64)

        def serve(thread: int) -> None:
            address = self._buffer.ctypes.data + thread * self._room
            while (failed := _serve(self._file, address, turn, requests, *copied)) >= 0:
                some = requests[failed : failed + 1]
                self._raise_if_unreadable(*map(int, some[0, [_START, _LENGTH, _NEEDED]]))
                _serve(self._file, address, np.zeros(1, np.int64), some, *copied)

        working = [self._threads.submit(serve, thread) for thread in range(min(_IN_FLIGHT, len(requests)))]
        try:
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            # The rows' memory is the caller's: no thread may write to it once this has returned.
            turn[0] = _NEVER
            wait(working)
        for each in working:
            each.result()
        if not self._is_direct:
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def _raise_if_unreadable(self, position: int, length: int, needed: int) -> None:
        with mmap.mmap(-1, length) as room:
            try:
                got = os.preadv(self._file, [room], position)
            except OSError as error:
                raise self._unreadable(position, error) from error
        if got < needed:
            raise PenstockError(
                f"{self._path} ends at byte {position + got:,}, where rows of the table should be: it was shortened"
                " while it was read; copy it again.",
                code="damaged-file",
            )

    def _unreadable(self, position: int, error: OSError) -> PenstockError:
        return PenstockError(
            f"{self._path} cannot be read at byte {position:,} ({error.strerror or error}): check the disk, and copy"
            " the file again.",
            code="damaged-file",
        )


def _opened(path: str, page: Array) -> tuple[int, bool]:
    """An open file, and whether it is read past the page cache. `page` is room to try it."""
    plain = os.O_RDONLY | os.O_CLOEXEC
    if hasattr(os, "O_DIRECT"):
        with suppress(OSError):
            file = os.open(path, plain | os.O_DIRECT)
            try:
                os.preadv(file, [page.data], 0)
                return file, True
            except OSError:
                os.close(file)
    file = os.open(path, plain)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
        return file, False
    fcntl.fcntl(file, _NO_CACHE, 1)
    return file, True


def _read_at(typing: Any, file: Any, address: Any, count: Any, position: Any) -> Any:
    """`pread` of the C library: the bytes that were read; -1 for an error."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, size, byte = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
        takes = ir.FunctionType(size, [number, byte, size, size])
        function = cgutils.get_or_insert_function(builder.module, takes, "pread")  # type: ignore[no-untyped-call]
        return builder.call(function, [builder.trunc(args[0], number), builder.inttoptr(args[1], byte), *args[2:]])

    return types.int64(types.int64, types.int64, types.int64, types.int64), generate


def _copy_bytes(typing: Any, to: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes between two addresses."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to, source = (builder.inttoptr(each, ir.IntType(8).as_pointer()) for each in args[:2])
        cgutils.raw_memcpy(builder, to, source, args[2], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


read_at: Any = intrinsic(_read_at)
copy_bytes: Any = intrinsic(_copy_bytes)


@njit(nogil=True, cache=True, writes=("requests",))
def _join(rows: Array, row_bytes: int, offset: int, gap: int, room: int, requests: Array) -> int:
    """Write the requests for sorted rows of a file, in which they begin at `offset`; returns how many there are."""
    count, end = 0, np.int64(0)
    for i in range(len(rows)):
        begin, behind = offset + rows[i] * row_bytes, offset + (rows[i] + 1) * row_bytes
        page, next_page = begin // _PAGE * _PAGE, (behind + _PAGE - 1) // _PAGE * _PAGE
        if not count or page > end + gap or next_page - requests[count - 1, _START] > room:
            requests[count, _START], requests[count, _FIRST] = page, i
            count += 1
        end = max(next_page, requests[count - 1, _START])
        one = requests[count - 1]
        one[_LENGTH], one[_NEEDED], one[_LAST] = end - one[_START], behind - one[_START], i + 1
    return count


@njit(nogil=True, cache=True, writes=("turn", "cached"))
def _serve(
    file: int, address: int, turn: Array, requests: Array, order: Array, row_bytes: int, offset: int, ids: Array,
    to: Array, which: Array, begins: Array, sizes: Array, slots: Array, cached: Array,
) -> int:  # fmt: skip
    """Do requests as long as there are any, and copy the rows of each; returns the number of one that failed, or -1.

    Several threads call it with one `turn`. `order` has the copies in the order of the file.
    """
    while True:
        number = take_turn(turn)
        if number >= len(requests):
            return -1
        one, got = requests[number], np.int64(0)
        while got < one[_NEEDED]:
            more = read_at(np.int64(file), np.int64(address + got), one[_LENGTH] - got, one[_START] + got)
            if more <= 0:
                return int(number)
            got += more
        before = np.int64(-1)
        for k in range(one[_FIRST], one[_LAST]):
            i = order[k]
            row, request = ids[i], which[i]
            source = address + offset + row * row_bytes - one[_START]
            copy_bytes(to[i], np.int64(source + begins[request]), sizes[request])
            if len(cached) and row != before and slots[row, 0]:
                copy_bytes(np.int64(cached[slots[row, 0] - 1].ctypes.data), np.int64(source), np.int64(row_bytes))
            before = row


@njit(nogil=True, cache=True)
def _copy_cached(cached: Array, found: Array, to: Array, which: Array, begins: Array, sizes: Array) -> None:
    """Copy the rows that were found in the cache."""
    for i in range(len(found)):
        if i + _AHEAD < len(found) and found[i + _AHEAD] >= 0:
            for k in range(0, cached.shape[1], LINE_BYTES):
                prefetch(cached, np.int64(found[i + _AHEAD]), np.int64(k))
        if found[i] >= 0:
            source = cached[found[i]].ctypes.data + begins[which[i]]
            copy_bytes(to[i], np.int64(source), sizes[which[i]])
