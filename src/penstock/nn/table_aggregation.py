"""Aggregation over a block on the host, straight from the table that the rows lie in: they are not gathered before.

The sums are those of `nn.aggregation` on gathered rows, in the same order. Rows of float16 are widened on the way.
"""

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic, overload

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.nn.aggregation import known_totals, mean_scale, sum_scale
from penstock.nn.first_rows import Aggregation
from penstock.nn.threads import plain_chunks, row_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.store.rows import LINE_BYTES, prefetch

_AHEAD = 8
"""Edges between the one whose row is added and the one whose row is asked of memory."""


class _Scales(NamedTuple):
    """See `nn.kernels.gather_sum`; arrays of no length stand for ones, of `own` for zeros."""

    read: Array
    write: Array
    own: Array


def aggregate_table(block: Block, what: Aggregation, table: Array, ids: Array, out: Array, begin: int = 0) -> None:
    """`out` [num_dst - begin, width] float32 becomes what a layer aggregates of rows `table[ids]`, of float32 or
    float16, for the destinations from `begin` on."""
    scales, weights, rows = _scales(block, what), _factors(block.weights), _readable(table)

    def work(_: int, first: int, last: int) -> None:
        _sum_rows(
            block.indptr, block.indices, ids, weights, scales.read, scales.write, scales.own, rows, out, begin,
            begin + first, begin + last,
        )  # fmt: skip

    bounds = block.indptr[begin:]
    run_chunks(work, row_chunks(bounds - bounds[0] if begin else bounds, table.shape[1]))


def widened_rows(table: Array, ids: Array, out: Array) -> None:
    """`out` float32 becomes rows `table[ids]`, of float32 or float16."""
    rows = _readable(table)
    run_chunks(lambda _, first, last: _copy_rows(rows, ids, out, first, last), plain_chunks(len(ids), table.shape[1]))


def _readable(table: Array) -> Array:
    """The table as kernels read it: float16 by its bits, as Numba's kernels for the host have no float16."""
    return table.view(np.uint16) if table.dtype == np.float16 else table


def _scales(block: Block, what: Aggregation) -> _Scales:
    none = np.empty(0, np.float32)
    if what == "normalised":
        roots = 1 / np.sqrt(known_totals(block, block.num_src) + 1)
        own, estimate = roots[: block.num_dst], sum_scale(block)
        return _Scales(_factors(roots), _factors(own if estimate is None else own * estimate), _factors(own * own))
    return _Scales(none, _factors(mean_scale(block) if what == "mean" else sum_scale(block)), none)


def _factors(values: Array | None) -> Array:
    return np.empty(0, np.float32) if values is None else np.asarray(values, np.float32)


def _float_of_bits(typing: Any, bits: Any) -> Any:
    """A float32 with these bits, an uint32's."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), generate


_float32_of: Any = intrinsic(_float_of_bits)


@njit(nogil=True, cache=True)
def _widened(half: np.uint16) -> np.float32:
    """The float32 of a float16's bits, exactly and without a branch, so that loops of it vectorise."""
    bits = np.uint32(half)
    exponent = bits & np.uint32(0x7C00)
    # What the float32 of the shifted bits has too little in its exponent is multiplied, subnormal numbers as well;
    # what is infinite or NaN has the largest exponent in both types.
    size = _float32_of((bits & np.uint32(0x7FFF)) << np.uint32(13)) * np.float32(2.0**112)
    special = _float32_of(np.uint32(0x7F800000) | ((bits & np.uint32(0x3FF)) << np.uint32(13)))
    size = special if exponent == np.uint32(0x7C00) else size
    wide: np.float32 = -size if bits & np.uint32(0x8000) else size
    return wide


def _number(stored: Any) -> Any:
    """A number of a table as a float32: compiled for each type that kernels read."""
    raise NotImplementedError


def _compiled_number(stored):  # type: ignore[no-untyped-def]
    # Numba compares this signature with that of the lambdas, which have no annotations.
    if isinstance(stored, types.Float):
        return lambda stored: stored
    return lambda stored: _widened(stored)


overload(_number)(_compiled_number)


@njit(nogil=True, cache=True)
def _ask(table: Array, row: int) -> None:
    """Have a row on its way to the cache."""
    line = max(1, LINE_BYTES // table.itemsize)
    for k in range(0, table.shape[1], line):
        prefetch(table, np.int64(row), np.int64(k))


@njit(nogil=True, cache=True, fastmath={"contract"})
def _sum_rows(
    indptr: Array,
    indices: Array,
    ids: Array,
    weights: Array,
    read_scale: Array,
    write_scale: Array,
    own_scale: Array,
    table: Array,
    out: Array,
    begin: int,
    first: int,
    last: int,
) -> None:
    """`nn.kernels.gather_sum` of rows `table[ids]`, as float32; destination `begin` is the first row of `out`."""
    width = table.shape[1]
    weighted, scaled, written = weights.shape[0] > 0, read_scale.shape[0] > 0, write_scale.shape[0] > 0
    final = indptr[last]
    c = np.empty(4, np.float32)
    for i in range(first, last):
        start, stop = indptr[i], indptr[i + 1]
        factor, o = write_scale[i] if written else np.float32(1), i - begin
        if own_scale.shape[0] > 0:
            for f in range(width):
                out[o, f] = own_scale[i] * _number(table[ids[i], f])
        else:
            for f in range(width):
                out[o, f] = 0
        e = start
        while e < stop:
            n = min(4, stop - e)
            for k in range(n):
                if e + k + _AHEAD < final:
                    _ask(table, ids[indices[e + k + _AHEAD]])
                c[k] = factor
                if weighted:
                    c[k] *= weights[e + k]
                if scaled:
                    c[k] *= read_scale[indices[e + k]]
            if n == 4:
                j0, j1 = ids[indices[e]], ids[indices[e + 1]]
                j2, j3 = ids[indices[e + 2]], ids[indices[e + 3]]
                c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
                for f in range(width):
                    low = c0 * _number(table[j0, f]) + c1 * _number(table[j1, f])
                    high = c2 * _number(table[j2, f]) + c3 * _number(table[j3, f])
                    out[o, f] += low + high
            else:
                for k in range(n):
                    j, c0 = ids[indices[e + k]], c[k]
                    for f in range(width):
                        out[o, f] += c0 * _number(table[j, f])
            e += n


@njit(nogil=True, cache=True)
def _copy_rows(table: Array, ids: Array, out: Array, first: int, last: int) -> None:
    for i in range(first, last):
        if i + _AHEAD < last:
            _ask(table, ids[i + _AHEAD])
        for f in range(table.shape[1]):
            out[i, f] = _number(table[ids[i], f])
