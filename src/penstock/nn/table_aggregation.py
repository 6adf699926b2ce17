"""Aggregation over lists directly from the table or matrix that holds the rows, without gathering them first."""

import platform
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.nn.aggregation import Aggregation, as_rows, gather_rows, known_totals
from penstock.nn.device.gather import Own, Scale, destination_lists, gather
from penstock.nn.threads import plain_chunks, row_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock
from penstock.store.rows import LINE_BYTES, prefetch, store_once, take_turn
from penstock.traced import array_of

# Values of feature tables as kernels of the host read them: of any stored type, widened to float32 exactly. Numba's
# kernels for the host have no 16-bit floats, so these are read by their bits: float16 as uint16, bfloat16 as int16
# (tables of these integers themselves are not read in place).

READ_IN_PLACE = (np.float32, np.float16, np.int8)
"""NumPy's dtypes of tables whose values kernels read in place."""
HAS_HALVES = platform.machine() in ("aarch64", "arm64") or bool(binding.get_host_cpu_features().get("f16c"))
"""Whether the CPU has an instruction to widen float16, as all since about 2012 have; others compute
it from the bits.
"""


def readable(table: Array) -> Array:
    """A table of one of the types `READ_IN_PLACE` as kernels read it."""
    return table.view(np.uint16) if table.dtype == np.float16 else table


def _float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 with the bits of a uint32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


def _widened_half(typing: Any, half: Any) -> Any:
    """The float32 of a float16 given by its bits (uint16), by the CPU's own instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


_float32_of: Any = intrinsic(_float_of_bits)
_by_processor: Any = intrinsic(_widened_half)


@njit(nogil=True, cache=True)
def _by_bits(half: np.uint16) -> np.float32:
    """The float32 of a float16's bits, exactly and without a branch, so that loops over it vectorise."""
    bits = np.uint32(half)
    exponent = bits & np.uint32(0x7C00)
    # What the float32 of the shifted bits has too little in its exponent is multiplied, subnormal numbers as well;
    # what is infinite or NaN has the largest exponent in both types.
    size = _float32_of((bits & np.uint32(0x7FFF)) << np.uint32(13)) * np.float32(2.0**112)
    special = _float32_of(np.uint32(0x7F800000) | ((bits & np.uint32(0x3FF)) << np.uint32(13)))
    size = special if exponent == np.uint32(0x7C00) else size
    wide: np.float32 = -size if bits & np.uint32(0x8000) else size
    return wide


def stored_number(stored: Any) -> Any:
    """A value of a table as a float32: called from kernels, and compiled for each dtype that they read."""
    raise NotImplementedError


def _compiled_number(stored):  # type: ignore[no-untyped-def]
    # Numba compares this signature with that of the lambdas, which have no annotations.
    if isinstance(stored, types.Float):
        return lambda stored: stored
    if stored == types.uint16:
        if HAS_HALVES:
            return lambda stored: _by_processor(stored)
        return lambda stored: _by_bits(stored)
    if stored == types.int16:
        return lambda stored: _float32_of(np.uint32(np.uint16(stored)) << np.uint32(16))
    return lambda stored: np.float32(stored)


overload(stored_number)(_compiled_number)


# Aggregation over a block on the host, directly from the table that holds the rows. The sums are those of
# `nn.aggregation` on gathered rows, in the same order. Narrower values are widened on the way.

_AHEAD = 12
"""Edges between the one whose row is added and the one whose row is prefetched: some lists of usual length."""
_MEAN, _SUM, _NORMALISED = 0, 1, 2
_CODES: dict[Aggregation, int] = {"mean": _MEAN, "sum": _SUM, "normalised": _NORMALISED}
_NO_IDS, _NO_WEIGHTS, _NO_TOTALS = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float64)


class TableLists(NamedTuple):
    """Lists whose entries are rows of a table: `ids[indices[e]]`, or `indices[e]` itself where `ids` is empty.

    `weights` and `totals` are as in a block, or empty. `totals` of destinations are enough except for `normalised`.
    """

    indptr: Array
    indices: Array
    ids: Array = _NO_IDS
    weights: Array = _NO_WEIGHTS
    totals: Array = _NO_TOTALS


def table_lists(block: Block, what: Aggregation, ids: Array) -> TableLists:
    """A block's lists of rows `ids` of a table; an error where it lacks the totals that are needed."""
    is_needed = {"mean": block.weights is not None, "sum": block.totals is not None, "normalised": True}[what]
    rows = block.num_src if what == "normalised" else block.num_dst
    totals = known_totals(block, rows) if is_needed else _NO_TOTALS
    weights = _NO_WEIGHTS if block.weights is None else np.asarray(block.weights, np.float32)
    return TableLists(block.indptr, block.indices, ids, weights, totals)


def aggregate_table(block: Block, what: Aggregation, table: Array, ids: Array, out: Array, begin: int = 0) -> None:
    """Write to `out` [num_dst - begin, width] float32 what a layer aggregates of rows `table[ids]`, of a type
    `READ_IN_PLACE`, for the destinations from `begin` on.
    """
    lists, code, rows = table_lists(block, what, ids), _CODES[what], readable(table)
    words = out.view(np.uint32)

    def work(_: int, first: int, last: int) -> None:
        _sum_rows(*lists, code, rows, words, begin, begin + first, begin + last, False)

    bounds = block.indptr[begin:]
    run_chunks(work, row_chunks(bounds - bounds[0] if begin else bounds, table.shape[1]))


def shared_aggregation(
    lists: TableLists, what: Aggregation, rows: Array, out: Array, begin: int, end: int, step: int
) -> Callable[[], None]:
    """A function for several threads that writes the aggregates of destinations [begin, end) to `out`.

    Each thread that calls it takes `step` destinations at a time; a call returns when all are taken, while other
    threads may still compute. `rows` is a table as `readable` gives it. Results bypass the caches: `out` is what a
    device copies from.
    """
    turn, code, words = np.zeros(1, np.int64), _CODES[what], _words(out)
    return lambda: _sum_in_turns(*lists, code, rows, words, begin, end, turn, step)


def _words(out: Array) -> Array:
    """Rows of float32 as words, which CPUs can write past their caches."""
    return out.view(np.uint64 if out.shape[1] % 2 == 0 else np.uint32)


def widened_rows(table: Array, ids: Array, out: Array) -> None:
    """`out` float32 becomes rows `table[ids]`, of a type `READ_IN_PLACE`."""
    rows = readable(table)
    run_chunks(lambda _, first, last: _copy_rows(rows, ids, out, first, last), plain_chunks(len(ids), table.shape[1]))


@njit(nogil=True, cache=True)
def _reciprocal(value: float) -> float:
    return 1.0 / value if value > 0 else 0.0


@njit(nogil=True, cache=True)
def _root(total: float) -> float:
    """GCN's factor of a row."""
    root: float = 1 / np.sqrt(total + 1)
    return root


@njit(nogil=True, cache=True)
def _write_scale(code: int, weighted: bool, known: bool, total: float, length: int) -> np.float32:
    """The factor of a destination's sum of weights[e] * x (see `nn.aggregation`).

    `total`, where `known`, is that of its whole list.
    """
    if code == _MEAN:
        return np.float32(_reciprocal(total if weighted else np.float64(length)))
    estimate = _reciprocal(np.float64(length)) * total if known and not weighted else 1.0
    return np.float32(_root(total) * estimate if code == _NORMALISED else estimate)


@njit(nogil=True, cache=True, fastmath={"contract"}, writes=("out",))
def _sum_rows(
    indptr: Array,
    indices: Array,
    ids: Array,
    weights: Array,
    totals: Array,
    code: int,
    table: Array,
    out: Array,
    begin: int,
    first: int,
    last: int,
    past_caches: bool,
) -> None:
    """What `nn.kernels.gather_sum` computes for the lists of destinations [first, last), as float32.

    `out` are rows of float32 as words of 4 or 8 bytes; its first is destination `begin`. All is in one function: a
    version that called others for each list and edge took more than twice as long.
    """
    width, final, line = table.shape[1], indptr[last], max(1, LINE_BYTES // table.itemsize)
    named, weighted, known, scaled = ids.shape[0] > 0, weights.shape[0] > 0, totals.shape[0] > 0, code == _NORMALISED
    words = np.empty(out.shape[1], out.dtype)
    sums = words.view(np.float32)
    asked = indptr[first]
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        for e in range(asked, min(stop + _AHEAD, final)):
            ahead = np.int64(ids[indices[e]]) if named else np.int64(indices[e])
            for k in range(0, width, line):
                prefetch(table, ahead, np.int64(k))
        asked = max(asked, min(stop + _AHEAD, final))
        total = totals[i] if known else 0.0
        factor = _write_scale(code, weighted, known, total, stop - start)
        if scaled:
            own, j = np.float32(_root(total) * _root(total)), ids[i]
            for f in range(width):
                sums[f] = own * stored_number(table[j, f])
        else:
            for f in range(width):
                sums[f] = 0
        e = start
        while e + 4 <= stop:
            i0, i1, i2, i3 = indices[e], indices[e + 1], indices[e + 2], indices[e + 3]
            j0, j1, j2, j3 = np.int64(i0), np.int64(i1), np.int64(i2), np.int64(i3)
            if named:
                j0, j1, j2, j3 = np.int64(ids[i0]), np.int64(ids[i1]), np.int64(ids[i2]), np.int64(ids[i3])
            c0, c1, c2, c3 = factor, factor, factor, factor
            if weighted:
                c0, c1, c2, c3 = c0 * weights[e], c1 * weights[e + 1], c2 * weights[e + 2], c3 * weights[e + 3]
            if scaled:
                c0, c1 = c0 * np.float32(_root(totals[i0])), c1 * np.float32(_root(totals[i1]))
                c2, c3 = c2 * np.float32(_root(totals[i2])), c3 * np.float32(_root(totals[i3]))
            for f in range(width):
                low = c0 * stored_number(table[j0, f]) + c1 * stored_number(table[j1, f])
                high = c2 * stored_number(table[j2, f]) + c3 * stored_number(table[j3, f])
                sums[f] += low + high
            e += 4
        while e < stop:
            j, c = np.int64(ids[indices[e]]) if named else np.int64(indices[e]), factor
            if weighted:
                c = c * weights[e]
            if scaled:
                c = c * np.float32(_root(totals[indices[e]]))
            for f in range(width):
                sums[f] += c * stored_number(table[j, f])
            e += 1
        if past_caches:
            for w in range(words.shape[0]):
                store_once(out, np.int64(i - begin), np.int64(w), words[w])
        else:
            for w in range(words.shape[0]):
                out[i - begin, w] = words[w]


@njit(nogil=True, cache=True, writes=("out", "turn"))
def _sum_in_turns(
    indptr: Array,
    indices: Array,
    ids: Array,
    weights: Array,
    totals: Array,
    code: int,
    table: Array,
    out: Array,
    begin: int,
    end: int,
    turn: Array,
    step: int,
) -> None:
    """`_sum_rows` of destinations [begin, end), some at a time, past the caches."""
    while True:
        first = begin + take_turn(turn) * step
        if first >= end:
            return
        last = min(first + step, end)
        _sum_rows(indptr, indices, ids, weights, totals, code, table, out, begin, first, last, True)


@njit(nogil=True, cache=True, writes=("out",))
def _copy_rows(table: Array, ids: Array, out: Array, first: int, last: int) -> None:
    line = max(1, LINE_BYTES // table.itemsize)
    for i in range(first, last):
        if i + _AHEAD < last:
            for k in range(0, table.shape[1], line):
                prefetch(table, np.int64(ids[i + _AHEAD]), np.int64(k))
        for f in range(table.shape[1]):
            out[i, f] = stored_number(table[ids[i], f])


# Sums over lists of rows of a whole matrix, read in place, on the host or on a device; without gradients, which callers
# compute along the transposed lists.


def sum_lists(
    block: Block,
    x: Tensor,
    dtype: torch.dtype,
    read: Tensor | None = None,
    write: Tensor | None = None,
    own: Tensor | None = None,
) -> Tensor:
    """[num_dst, width] of type `dtype`: write[i] * sum of read[j] * x[j] over the list of i, + own[i].

    Missing scales are ones. Rows past the last of `own` have no such term. On a device x and `own` are of any real
    type, on the host of type `dtype`.
    """
    return _sum_lists(block, x, dtype, read, write, own)


@singledispatch
def _sum_lists(
    block: Block, x: Tensor, dtype: torch.dtype, read: Tensor | None, write: Tensor | None, own: Tensor | None
) -> Tensor:
    before, after = (None if each is None else array_of(each) for each in (read, write))
    added = None if own is None else as_rows(own)
    return gather_rows(block.indptr, block.indices, None, before, after, None, added, x)


@_sum_lists.register
def _(
    block: DeviceBlock, x: Tensor, dtype: torch.dtype, read: Tensor | None, write: Tensor | None, own: Tensor | None
) -> Tensor:
    reads, writes = (None if each is None else Scale(each) for each in (read, write))
    return gather(destination_lists(block), x, None, reads, writes, None if own is None else Own(own), out_dtype=dtype)
