"""Kernels that move rows: many short copies without the interpreter lock."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit

LINE_BYTES = 64
"""Bytes of a cache line."""


def _prefetch(typing: Any, table: Any, row: Any, column: Any) -> Any:
    """Prefetch `table[row, column]` to the cache. As a hint, it may be outside the table."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made, kind = context.make_array(signature.args[0])(context, builder, args[0]), signature.args[0]
        place = cgutils.get_item_pointer(context, builder, kind, made, list(args[1:]), wraparound=False)  # type: ignore[no-untyped-call]
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        takes = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, takes, "llvm.prefetch.p0")  # type: ignore[no-untyped-call]
        # For reading, soon, as data.
        builder.call(function, [builder.bitcast(place, byte), *(ir.Constant(number, each) for each in (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(table, row, column), generate


prefetch: Any = intrinsic(_prefetch)
"""Called from kernels with an array of two dimensions and two int64."""


def _take_turn(typing: Any, turn: Any) -> Any:
    """Atomically increment `turn[0]` and return its former value, so that threads get different numbers."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.atomic_rmw("add", made.data, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(turn), generate


take_turn: Any = intrinsic(_take_turn)
"""Called from kernels with an int64 array of one number."""


def _store_once(typing: Any, out: Any, row: Any, column: Any, value: Any) -> Any:
    """`out[row, column] = value`, past the CPU's caches: a device reads it next."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        made, kind = context.make_array(signature.args[0])(context, builder, args[0]), signature.args[0]
        place = cgutils.get_item_pointer(context, builder, kind, made, list(args[1:3]), wraparound=False)  # type: ignore[no-untyped-call]
        stored = builder.store(args[3], place)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(out, row, column, value), generate


store_once: Any = intrinsic(_store_once)
"""Called from kernels with an array of two dimensions, two int64 and a value of the array's type."""


Span = tuple[int, int]
"""[first, last) columns of a table."""
Columns = slice | Sequence[int] | Array | None
"""Which columns of rows: a slice, or their numbers in any order; None: all."""
_AHEAD = 12
"""Rows between the one that is copied and the one that is prefetched: about the duration of a cache miss."""


def gather_rows(table: Array, ids: Array, out: Array | None = None, span: Span | None = None) -> Array:
    """`table[ids]`, or some columns of it, into `out` where given; ids outside the table are refused."""
    shape = (len(ids), *(table.shape[1:] if span is None else (span[1] - span[0],)))
    if out is None:
        out = np.empty(shape, table.dtype)
    elif out.shape != shape or out.dtype != table.dtype:
        raise PenstockError(
            f"Rows of {table.dtype} {shape[1:]} do not fit a buffer of {out.dtype} {out.shape}.", code="shape-mismatch"
        )
    if out.size and not _gather(*_words(table, out, span), ids):
        raise outside(table)
    if not out.size:
        check_rows(table, ids)
    return out


def shared_gather(table: Array, ids: Array, out: Array, step: int) -> Callable[[], None]:
    """`gather_rows` as a function for several threads: each call takes `step` rows at a time.

    A call returns when all rows are taken, while other threads may still copy. Rows are written past the caches: `out`
    is what a device copies from.
    """
    if not out.size:
        return lambda: check_rows(table, ids)
    words, turn = _words(table, out, None), np.zeros(1, np.int64)

    def gather() -> None:
        if not _gather_in_turns(*words, ids, turn, step):
            raise outside(table)

    return gather


def place_rows(table: Array, ids: Array, places: Array, out: Array, span: Span | None = None) -> None:
    """`out[places] = table[ids]`, without an intermediate copy; `places` are not checked, ids outside the table are an
    error.
    """
    # One kernel for all kinds of numbers: they take little beside the rows.
    numbers = ids.astype(np.int64, copy=False), places.astype(np.int64, copy=False)
    if out.size and len(ids) and not _place(*_words(table, out, span), *numbers):
        raise outside(table)


def spread_rows(values: Array, places: Array, out: Array) -> None:
    """`out[places] = values`, both of the same row shape; `places` are not checked."""
    if values.size:
        words, _, rows = _words(values, out, None)
        _spread(words, rows, places)


def check_rows(table: Array, ids: Array) -> None:
    """Refuse row numbers outside the table."""
    if len(ids) and (ids.min() < 0 or ids.max() >= len(table)):
        raise outside(table)


def span_of(columns: Columns, row_shape: tuple[int, ...]) -> tuple[Span | None, Array | None]:
    """([first, last) around the columns, and the columns' positions in it) for rows of a shape; None: all."""
    if columns is None:
        return None, None
    if len(row_shape) != 1:
        raise PenstockError(
            f"Columns can only be selected from rows with one dimension, not from rows of shape {row_shape}.",
            code="shape-mismatch",
        )
    width = row_shape[0]
    if isinstance(columns, slice):
        first, last, step = columns.indices(width)
        if step == 1:
            return (first, max(first, last)), None
        columns = range(first, last, step)
    numbers = np.asarray(columns, np.int64)
    if not len(numbers):
        return (0, 0), None
    first, last = int(numbers.min()), int(numbers.max()) + 1
    if first < 0 or last > width:
        raise PenstockError(f"A requested column is outside 0..{width - 1}.", code="id-out-of-range")
    side_by_side = last - first == len(numbers) and bool((np.diff(numbers) == 1).all())
    return (first, last), None if side_by_side else numbers - first


def outside(table: Array) -> PenstockError:
    """The error for a row number outside the table."""
    return PenstockError(f"A requested row is outside 0..{len(table) - 1}.", code="id-out-of-range")


def _words(table: Array, out: Array, span: Span | None) -> tuple[Array, int, Array]:
    """Rows as whole machine words, and the word at which each begins: one compiled kernel for every dtype, and copies
    that vectorise.
    """
    row = math.prod(table.shape[1:])
    first, last = (0, row) if span is None else span
    if not (table.flags.c_contiguous and out.flags.c_contiguous):
        raise PenstockError("Rows can be gathered only from a contiguous table: copy it first.", code="wrong-type")
    size = table.itemsize
    common = math.gcd(row * size, first * size, (last - first) * size)
    word = next(word for word in (np.uint64, np.uint32, np.uint8) if common % np.dtype(word).itemsize == 0)
    flat = [each.reshape(len(each), width).view(word) for each, width in ((table, row), (out, last - first))]
    return flat[0], first * size // np.dtype(word).itemsize, flat[1]


@njit(nogil=True, cache=True, writes=("out",))
def _gather(table: Array, first: int, out: Array, ids: Array) -> bool:
    line = max(1, LINE_BYTES // table.itemsize)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            for k in range(0, out.shape[1], line):
                prefetch(table, np.int64(ids[i + _AHEAD]), np.int64(first + k))
        row = ids[i]
        if row < 0 or row >= table.shape[0]:
            return False
        for k in range(out.shape[1]):
            out[i, k] = table[row, first + k]
    return True


@njit(nogil=True, cache=True, writes=("out", "turn"))
def _gather_in_turns(table: Array, first: int, out: Array, ids: Array, turn: Array, step: int) -> bool:
    line = max(1, LINE_BYTES // table.itemsize)
    while True:
        start = take_turn(turn) * step
        if start >= len(ids):
            return True
        for i in range(start, min(start + step, len(ids))):
            if i + _AHEAD < len(ids):
                for k in range(0, out.shape[1], line):
                    prefetch(table, np.int64(ids[i + _AHEAD]), np.int64(first + k))
            row = ids[i]
            if row < 0 or row >= table.shape[0]:
                return False
            for k in range(out.shape[1]):
                store_once(out, np.int64(i), np.int64(k), table[row, first + k])


@njit(nogil=True, cache=True, writes=("out",))
def _place(table: Array, first: int, out: Array, ids: Array, places: Array) -> bool:
    line = max(1, LINE_BYTES // table.itemsize)
    for i in range(len(ids)):
        if i + _AHEAD < len(ids):
            for k in range(0, out.shape[1], line):
                prefetch(table, np.int64(ids[i + _AHEAD]), np.int64(first + k))
        row, place = ids[i], places[i]
        if row < 0 or row >= table.shape[0]:
            return False
        for k in range(out.shape[1]):
            out[place, k] = table[row, first + k]
    return True


@njit(nogil=True, cache=True, writes=("out",))
def _spread(values: Array, out: Array, places: Array) -> None:
    for i in range(len(places)):
        place = places[i]
        for k in range(out.shape[1]):
            out[place, k] = values[i, k]


# Which rows of a table are read most.


def by_counts(counts: Array, rows: int) -> Array:
    """The `rows` vertices with the highest counts, int64: of reads in a presampling pass, or of lists they are in."""
    rows = max(0, min(rows, len(counts)))
    if not rows:
        return np.empty(0, np.int64)
    # Find the lowest count that is taken, without sorting the others.
    lowest = np.partition(counts, len(counts) - rows)[len(counts) - rows]
    taken = counts > lowest
    taken[np.flatnonzero(counts == lowest)[: rows - np.count_nonzero(taken)]] = True
    return np.flatnonzero(taken)


@njit(nogil=True, cache=True)
def count_in_lists(lists: Array, first: int, counts: Array) -> None:
    """Add to `counts[i]` how often vertex `first + i` occurs in neighbour lists."""
    for i in range(len(lists)):
        place = lists[i] - first
        if 0 <= place < len(counts):
            counts[place] += 1
