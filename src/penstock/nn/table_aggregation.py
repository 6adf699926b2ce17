"""Aggregation over a block on the host, straight from the table that the rows lie in: they are not gathered before.

The sums are those of `nn.aggregation` on gathered rows, in the same order. Narrower numbers are widened on the way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.nn.aggregation import known_totals
from penstock.nn.first_rows import Aggregation
from penstock.nn.stored_numbers import readable, stored_number
from penstock.nn.threads import plain_chunks, row_chunks, run_chunks
from penstock.sampling.block import Block
from penstock.store.rows import LINE_BYTES, prefetch, store_once, take_turn

_AHEAD = 24
"""Edges between the one whose row is added and the one whose row is asked of memory: several lists of usual length."""
_MEAN, _SUM, _NORMALISED = 0, 1, 2
_CODES: dict[Aggregation, int] = {"mean": _MEAN, "sum": _SUM, "normalised": _NORMALISED}
_NO_IDS, _NO_WEIGHTS, _NO_TOTALS = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float64)


class TableLists(NamedTuple):
    """Lists whose entries are rows of a table: `ids[indices[e]]`, or `indices[e]` itself where `ids` has no length.

    `weights` and `totals` as in a block, or of no length. `totals` of destinations are enough but for `normalised`.
    """

    indptr: Array
    indices: Array
    ids: Array = _NO_IDS
    weights: Array = _NO_WEIGHTS
    totals: Array = _NO_TOTALS


def table_lists(block: Block, what: Aggregation, ids: Array) -> TableLists:
    """A block's lists of rows `ids` of a table; refused where it lacks the totals that are needed."""
    is_needed = {"mean": block.weights is not None, "sum": block.totals is not None, "normalised": True}[what]
    rows = block.num_src if what == "normalised" else block.num_dst
    totals = known_totals(block, rows) if is_needed else _NO_TOTALS
    weights = _NO_WEIGHTS if block.weights is None else np.asarray(block.weights, np.float32)
    return TableLists(block.indptr, block.indices, ids, weights, totals)


def aggregate_table(block: Block, what: Aggregation, table: Array, ids: Array, out: Array, begin: int = 0) -> None:
    """`out` [num_dst - begin, width] float32 becomes what a layer aggregates of rows `table[ids]`, of a type
    `READ_IN_PLACE`, for the destinations from `begin` on."""
    lists, code, rows = table_lists(block, what, ids), _CODES[what], readable(table)

    def work(_: int, first: int, last: int) -> None:
        _sum_rows(*lists, code, rows, out, begin, begin + first, begin + last)

    bounds = block.indptr[begin:]
    run_chunks(work, row_chunks(bounds - bounds[0] if begin else bounds, table.shape[1]))


def shared_aggregation(
    lists: TableLists, what: Aggregation, rows: Array, out: Array, begin: int, end: int, step: int
) -> Callable[[], None]:
    """The aggregates of destinations [begin, end) into `out`, as a function for several threads.

    Each thread that calls it takes `step` destinations in its turn; a call returns when all were taken, some perhaps by
    threads that still add. `rows` is a table as `readable` gives it. Results are written past the caches: `out` is what
    a device copies from.
    """
    turn, code = np.zeros(1, np.int64), _CODES[what]
    return lambda: _sum_in_turns(*lists, code, rows, out, begin, end, turn, step)


def widened_rows(table: Array, ids: Array, out: Array) -> None:
    """`out` float32 becomes rows `table[ids]`, of a type `READ_IN_PLACE`."""
    rows = readable(table)
    run_chunks(lambda _, first, last: _copy_rows(rows, ids, out, first, last), plain_chunks(len(ids), table.shape[1]))


@njit(nogil=True, cache=True)
def _ask(table: Array, row: int) -> None:
    """Have a row on its way to the cache."""
    line = max(1, LINE_BYTES // table.itemsize)
    for k in range(0, table.shape[1], line):
        prefetch(table, np.int64(row), np.int64(k))


@njit(nogil=True, cache=True)
def _row(ids: Array, indices: Array, e: int) -> Any:
    """The row of the table that edge e names, an int64."""
    return np.int64(ids[indices[e]]) if ids.shape[0] > 0 else np.int64(indices[e])


@njit(nogil=True, cache=True)
def _ask_edges(indices: Array, ids: Array, table: Array, first: int, last: int) -> None:
    """Have the rows of edges [first, last) on their way to the cache."""
    for e in range(first, last):
        _ask(table, _row(ids, indices, e))


@njit(nogil=True, cache=True)
def _reciprocal(value: float) -> float:
    return 1.0 / value if value > 0 else 0.0


@njit(nogil=True, cache=True)
def _root(total: float) -> float:
    """What GCN divides a row by, as a factor."""
    root: float = 1 / np.sqrt(total + 1)
    return root


@njit(nogil=True, cache=True)
def _write_scale(code: int, weighted: bool, totals: Array, i: int, length: int) -> np.float32:
    """What destination i's sum of weights[e] * x is multiplied by (`nn.aggregation`)."""
    if code == _MEAN:
        return np.float32(_reciprocal(totals[i] if weighted else np.float64(length)))
    known = totals.shape[0] > 0 and not weighted
    estimate = _reciprocal(np.float64(length)) * totals[i] if known else 1.0
    return np.float32(_root(totals[i]) * estimate if code == _NORMALISED else estimate)


@njit(nogil=True, cache=True)
def _edge_scale(indices: Array, weights: Array, totals: Array, code: int, factor: np.float32, e: int) -> np.float32:
    """What edge e's row is multiplied by, where `factor` is its destination's."""
    if weights.shape[0] > 0:
        factor *= weights[e]
    if code == _NORMALISED:
        factor *= np.float32(_root(totals[indices[e]]))
    return factor


@njit(nogil=True, cache=True, fastmath={"contract"})
def _sum_list(
    indptr: Array,
    indices: Array,
    ids: Array,
    weights: Array,
    totals: Array,
    code: int,
    table: Array,
    i: int,
    sums: Array,
) -> None:
    """`sums` becomes what `nn.kernels.gather_sum` makes of destination i's rows, as float32."""
    width, start, stop = table.shape[1], indptr[i], indptr[i + 1]
    factor = _write_scale(code, weights.shape[0] > 0, totals, i, stop - start)
    if code == _NORMALISED:
        own, j = np.float32(_root(totals[i]) * _root(totals[i])), ids[i]
        for f in range(width):
            sums[f] = own * stored_number(table[j, f])
    else:
        for f in range(width):
            sums[f] = 0
    e = start
    while e + 4 <= stop:
        j0, j1 = _row(ids, indices, e), _row(ids, indices, e + 1)
        j2, j3 = _row(ids, indices, e + 2), _row(ids, indices, e + 3)
        c0 = _edge_scale(indices, weights, totals, code, factor, e)
        c1 = _edge_scale(indices, weights, totals, code, factor, e + 1)
        c2 = _edge_scale(indices, weights, totals, code, factor, e + 2)
        c3 = _edge_scale(indices, weights, totals, code, factor, e + 3)
        for f in range(width):
            low = c0 * stored_number(table[j0, f]) + c1 * stored_number(table[j1, f])
            high = c2 * stored_number(table[j2, f]) + c3 * stored_number(table[j3, f])
            sums[f] += low + high
        e += 4
    while e < stop:
        j, c = _row(ids, indices, e), _edge_scale(indices, weights, totals, code, factor, e)
        for f in range(width):
            sums[f] += c * stored_number(table[j, f])
        e += 1


@njit(nogil=True, cache=True)
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
) -> None:
    """Destinations [first, last); `begin` is the first row of `out`."""
    sums, final = np.empty(table.shape[1], np.float32), indptr[last]
    _ask_edges(indices, ids, table, indptr[first], min(indptr[first] + _AHEAD, final))
    for i in range(first, last):
        _ask_edges(indices, ids, table, indptr[i] + _AHEAD, min(indptr[i + 1] + _AHEAD, final))
        _sum_list(indptr, indices, ids, weights, totals, code, table, i, sums)
        for f in range(table.shape[1]):
            out[i - begin, f] = sums[f]


@njit(nogil=True, cache=True)
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
    sums = np.empty(table.shape[1], np.float32)
    while True:
        first = begin + take_turn(turn) * step
        if first >= end:
            return
        last = min(first + step, end)
        final = indptr[last]
        _ask_edges(indices, ids, table, indptr[first], min(indptr[first] + _AHEAD, final))
        for i in range(first, last):
            _ask_edges(indices, ids, table, indptr[i] + _AHEAD, min(indptr[i + 1] + _AHEAD, final))
            _sum_list(indptr, indices, ids, weights, totals, code, table, i, sums)
            for f in range(table.shape[1]):
                store_once(out, np.int64(i - begin), np.int64(f), sums[f])


@njit(nogil=True, cache=True)
def _copy_rows(table: Array, ids: Array, out: Array, first: int, last: int) -> None:
    for i in range(first, last):
        if i + _AHEAD < last:
            _ask(table, ids[i + _AHEAD])
        for f in range(table.shape[1]):
            out[i, f] = stored_number(table[ids[i], f])
