"""Checks of a graph's arrays: kernels use them as indices without checking bounds.

`check_graph` reads every array that a kernel indexes with once, before the first kernel uses it, and remembers the
result: on the graph while it is open, and for large arrays in a record under the user's cache folder.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, release_pages
from penstock.graph.data import EdgeSet, GraphData, NodeSet
from penstock.graph.facts import Facts
from penstock.graph.ids import StringIds
from penstock.graph.schema import EdgeType, edge_key, file_name
from penstock.processes import map_blocks

# One pass over an array, in blocks on all threads, for a fact about its values. `require_finite` and `require_times`
# refuse NaN and infinite numbers where a model or a sampler needs finite ones, and name the field, the row and how many
# there are.

_BLOCK = 2 << 20
"""Bytes that one thread reads at a time."""
_SEGMENT = 256 << 20
"""Bytes after which pages of a mapped file are released."""


def value_range(values: Array) -> list[int]:
    """The least and the largest of some integers; [0, -1] of none."""
    found = _blocks(values, lambda block, start: (int(block.min()), int(block.max())))
    return [min(low for low, _ in found), max(high for _, high in found)] if found else [0, -1]


def first_outside(values: Array, low: int, high: int) -> int:
    """The position of the first integer below `low` or above `high`, counted in the flat array; -1: none."""
    return _first(values, lambda block: (block < low) | (block > high))


def first_fall(values: Array) -> int:
    """The first position whose value is less than the one before it; -1: none."""
    return _first(values[1:], None, values) + 1 or -1


def non_finite_rows(values: Array) -> list[int]:
    """How many rows have a number that is NaN or infinite as float32, and the first of them (-1: none)."""
    return _count_and_first(values, _bad_rows)


def nan_rows(values: Array) -> list[int]:
    """How many numbers of a column are NaN, and where the first is (-1: none)."""
    return _count_and_first(values, lambda block, start: _counted(np.isnan(block), start))


def first_repeat(values: Array) -> int:
    """The first position of n integers that is outside [0, n) or has been there before; -1: a permutation."""
    outside = first_outside(values, 0, len(values) - 1)
    if outside >= 0:
        return outside
    seen = np.zeros(len(values), np.bool_)
    # Threads always write the same value, so the order of writes does not matter.
    _blocks(values, lambda block, start: seen.__setitem__(block, True))
    if seen.all():
        return -1
    _, first = np.unique(values, return_index=True)
    return int(np.setdiff1d(np.arange(len(values)), first, assume_unique=True)[0])


def _count_and_first(values: Array, bad: Callable[[Array, int], tuple[int, int]]) -> list[int]:
    found = _blocks(values, bad)
    return [sum(count for count, _ in found), min((first for _, first in found if first >= 0), default=-1)]


def _bad_rows(block: Array, start: int) -> tuple[int, int]:
    if block.dtype.itemsize > 4:
        with np.errstate(over="ignore", invalid="ignore"):
            block = block.astype(np.float32)
    finite = np.isfinite(block)
    if finite.all():
        return 0, -1
    return _counted(~np.asarray(finite.reshape(len(block), -1).all(1)), start)


def _counted(bad: Array, start: int) -> tuple[int, int]:
    return int(np.count_nonzero(bad)), start + int(bad.argmax()) if bad.any() else -1


def _first(values: Array, bad: Callable[[Array], Array] | None, whole: Array | None = None) -> int:
    """The first position at which a block is bad; without `bad`, where it is less than the one before in `whole`."""

    def search(block: Array, start: int) -> int:
        mask = bad(block) if bad is not None else block < whole[start : start + len(block)]  # type: ignore[index]
        return start + int(mask.argmax()) if mask.any() else -1

    flat = values.reshape(-1)
    return min((place for place in _blocks(flat, search) if place >= 0), default=-1)


def _blocks(values: Array, work: Callable[[Array, int], Any]) -> list[Any]:
    """`work(block of rows, first row)` of every block."""
    width = max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
    rows, found = max(1, _BLOCK // width), list[Any]()
    if len(values) <= rows:
        return [work(values, 0)] if values.size else []
    if not values.size:
        return []
    segment = max(1, _SEGMENT // (rows * width)) * rows
    for start in range(0, len(values), segment):
        piece = values[start : start + segment]
        found += map_blocks(lambda a, b: work(piece[a:b], start + a), len(piece), rows)  # noqa: B023
        release_pages(values)
    return found


READ_AT_START = 4 << 30
"""Fields up to this size are checked before training; larger ones when a loss is not finite."""


class NonFinite(NamedTuple):
    """Rows of a field with NaN or infinite numbers."""

    where: str
    rows: int
    first: int
    value: float

    def __str__(self) -> str:
        rows = f"{self.rows:,} row{'s' if self.rows > 1 else ''}"
        return f"{self.where} has NaN or infinite numbers in {rows}, first {self.value} in row {self.first}"


def non_finite(owner: NodeSet | EdgeSet, name: str, field: str) -> NonFinite | None:
    """The rows of a field that are not finite as float32, read once; None: there are none. `name` is of the type."""
    values, file = owner.fields[field], f"field.{file_name(field)}"
    if values.dtype.kind != "f":
        return None
    rows, first = owner.facts.of(file, values, "non-finite", non_finite_rows)
    if not rows:
        return None
    row = np.asarray(values[first]).reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        bad = row[~np.isfinite(row.astype(np.float32))]
    return NonFinite(owner.facts.where(file, values, name), rows, first, float(bad[0]))


def require_finite(owner: NodeSet | EdgeSet, name: str, field: str, use: str, most: int = READ_AT_START) -> None:
    """Refuse a field with NaN or infinite numbers, unless it is trusted or has more than `most` bytes."""
    if owner.facts.trusted or owner.fields[field].nbytes > most:
        return
    if found := non_finite(owner, name, field):
        raise PenstockError(f"{found}: {use} must be finite; replace these numbers.", code="not-finite")


def require_times(owner: NodeSet, name: str, field: str) -> None:
    """Refuse times of vertices that are NaN; infinite ones are before or after all others."""
    values, file = owner.fields[field], f"field.{file_name(field)}"
    if owner.facts.trusted or values.dtype.kind != "f":
        return
    rows, first = owner.facts.of(file, values, "NaN", nan_rows)
    if rows:
        where = owner.facts.where(file, values, name)
        raise PenstockError(
            f"{where} has {rows:,} times that are NaN, the first in row {first}: give each row a time.",
            code="not-finite",
        )


# The check of a whole graph: every array that a kernel indexes with. `check_order` checks that neighbour lists ascend,
# as partitioners and tasks on edges use binary search in them.


def _damaged(what: str) -> PenstockError:
    return PenstockError(f"{what}: make the graph again, or correct the file.", code="damaged-file")


def check_graph(graph: GraphData) -> None:
    """Refuse a graph whose arrays would lead a kernel out of bounds. Reads each array once, trusted ones never.

    Call it before lists, splits or ids are passed to kernels: known results cost microseconds.
    """
    for name, nodes in graph.nodes.items():
        if not nodes.facts.trusted:
            _check_nodes(nodes, name)
    for kind, edges in graph.edges.items():
        if not edges.facts.trusted:
            _check_edges(edges, edge_key(kind), graph.nodes[kind[0]], graph.nodes[kind[2]])


def _check_nodes(nodes: NodeSet, name: str) -> None:
    for split, rows in nodes.splits.items():
        file = f"split.{file_name(split)}"
        _check_integers(nodes.facts, file, rows, (len(rows),), name)
        check_range(nodes.facts, file, rows, nodes.count, f"vertices {name!r}", name)
    _check_codes(nodes, name)
    if isinstance(nodes.ids, StringIds):
        _check_strings(nodes.facts, nodes.ids, name)


def _check_edges(edges: EdgeSet, key: str, source: NodeSet, destination: NodeSet) -> None:
    facts, count = edges.facts, edges.count
    _check_integers(facts, "indptr", edges.indptr, (destination.count + 1,), key)
    _check_integers(facts, "indices", edges.indices, (count,), key)
    check_offsets(facts, "indptr", edges.indptr, count, key)
    check_range(facts, "indices", edges.indices, source.total, f"vertices {_type(key, 0)!r}", key)
    for field, values in edges.fields.items():
        if len(values) != count:
            where = facts.where(f"field.{file_name(field)}", values, key)
            raise _damaged(f"{where} has {len(values):,} rows for {count:,} edges of {key}")
    for held, pairs in edges.held_out.items():
        file = f"held_out.{file_name(held)}"
        _check_integers(facts, file, pairs, (len(pairs), 2), key)
        for column, total in enumerate((source.total, destination.total)):
            what = f"vertices {_type(key, 2 * column)!r}"
            check_range(facts, file, pairs, total, what, key, column)
    _check_codes(edges, key)


def check_offsets(facts: Facts, file: str, offsets: Array, last: int, owner: str) -> None:
    """Refuse list offsets that do not start at 0, decrease anywhere, or do not end at `last`."""
    where = facts.where(file, offsets, owner)
    if int(offsets[0]) != 0:
        raise _damaged(f"{where} starts with {int(offsets[0])} at position 0, and offsets start at 0")
    (fall,) = facts.of(file, offsets, "falls", lambda values: [first_fall(values)])
    if fall >= 0:
        before, after = int(offsets[fall - 1]), int(offsets[fall])
        raise _damaged(f"{where} falls from {before} to {after} at position {fall}, and offsets never fall")
    if int(offsets[-1]) != last:
        raise _damaged(f"{where} ends with {int(offsets[-1])} where there are {last:,} entries")


def check_range(
    facts: Facts, file: str, values: Array, total: int, what: str, owner: str, column: int | None = None
) -> None:
    """Refuse integers that are not in [0, total). `column` is the one to look at, of an array of pairs."""

    def chosen(array: Array) -> Array:
        return array if column is None else array[:, column]

    fact = "range" if column is None else f"range of column {column}"
    low, high = facts.of(file, values, fact, lambda array: value_range(chosen(array)))
    if low < 0 or high >= total:
        place = first_outside(chosen(values), 0, total - 1)
        at = place if column is None else f"{place}, {column}"
        held = f"{facts.where(file, values, owner)} holds {int(chosen(values)[place])} at position {at}"
        raise _damaged(f"{held}, where the {what} are 0 to {total - 1}")


def _check_integers(facts: Facts, file: str, values: Array, shape: tuple[int, ...], owner: str) -> None:
    # An empty array may have any dtype: converters make some of float64.
    if values.shape != shape or (values.size and (values.dtype.kind not in "iu" or not values.dtype.isnative)):
        found = f"{facts.where(file, values, owner)} is {values.dtype} of shape {values.shape}"
        raise _damaged(f"{found} where integers of shape {shape} are needed")


def _check_codes(owner: NodeSet | EdgeSet, name: str) -> None:
    """Check that every code has a word; -1 has none."""
    for field, words in owner.categories.items():
        values = owner.fields.get(field)
        if values is None or values.dtype.kind not in "iu":
            continue
        file = f"field.{file_name(field)}"
        low, high = owner.facts.of(file, values, "range", value_range)
        if low < -1 or high >= len(words):
            place = first_outside(values, -1, len(words) - 1)
            held = f"{owner.facts.where(file, values, name)} holds the code {int(values.reshape(-1)[place])}"
            raise _damaged(f"{held} at position {place}, and there are {len(words):,} categories")


def _check_strings(facts: Facts, ids: StringIds, owner: str) -> None:
    _check_integers(facts, "ids.offsets", ids.offsets, (len(ids) + 1,), owner)
    check_offsets(facts, "ids.offsets", ids.offsets, len(ids.data), owner)
    (bad,) = facts.of("ids.bytes", ids.data, "not UTF-8", lambda _: [_first_not_utf8(ids)])
    if bad >= 0:
        where = facts.where("ids.bytes", ids.data, owner)
        raise _damaged(f"{where}: the id of vertex {bad} is not valid UTF-8")


def _first_not_utf8(ids: StringIds) -> int:
    try:
        ids.to_arrow().validate(full=True)
    except pa.ArrowInvalid:
        data = np.asarray(ids.data)
        for row, (start, stop) in enumerate(zip(ids.offsets[:-1], ids.offsets[1:], strict=True)):
            try:
                bytes(data[start:stop]).decode()
            except UnicodeDecodeError:
                return row
        return 0
    return -1


def _type(key: str, end: int) -> str:
    return key.split("__")[end]


_ROWS = 1 << 14
"""Lists that one thread looks at at a time."""


def check_order(graph: GraphData, edge_type: EdgeType) -> None:
    """Refuse lists that do not ascend, of an edge type whose arrays have been checked. Reads them once."""
    edges = graph.edges[edge_type]
    if edges.facts.trusted:
        return
    (row,) = edges.facts.of("indices", edges.indices, "unordered", lambda values: [_first_row(edges.indptr, values)])
    if row >= 0:
        where = edges.facts.where("indices", edges.indices, edge_key(edge_type))
        raise PenstockError(
            f"{where}: the neighbour list of vertex {row} does not ascend, from position {int(edges.indptr[row])} on:"
            " sort every list (and the edge fields with it), or make the graph again.",
            code="damaged-file",
        )


def _first_row(indptr: Array, indices: Array) -> int:
    def search(start: int, stop: int) -> int:
        first = int(indptr[start])
        block = indices[first : int(indptr[stop])]
        falls = block[1:] < block[:-1]
        # From the end of a list to the start of the next, numbers may decrease.
        starts = indptr[start + 1 : stop] - first
        falls[starts[(starts > 0) & (starts < len(block))] - 1] = False
        if not falls.any():
            return -1
        return int(np.searchsorted(indptr, first + int(falls.argmax()), "right")) - 1

    found = next((row for row in map_blocks(search, len(indptr) - 1, _ROWS) if row >= 0), -1)
    release_pages(indices)
    return found
