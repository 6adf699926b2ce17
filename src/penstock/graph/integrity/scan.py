"""One pass over an array, in blocks on all threads, for a fact about its values.

`require_finite` and `require_times` refuse NaN and infinite numbers where a model or a sampler needs real ones, and
name the field, the row and how many there are.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, release_pages
from penstock.graph.blocks import map_blocks
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.schema import file_name

_BLOCK = 2 << 20
"""Bytes that one thread reads at a time."""
_SEGMENT = 256 << 20
"""Bytes after which pages of a mapped file are let go."""


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
    found = _blocks(values, _bad_rows)
    bad = [first for _, first in found if first >= 0]
    return [sum(count for count, _ in found), min(bad, default=-1)]


def nan_rows(values: Array) -> list[int]:
    """How many numbers of a column are NaN, and where the first is (-1: none)."""
    found = _blocks(values, lambda block, start: _counted(np.isnan(block), start))
    bad = [first for _, first in found if first >= 0]
    return [sum(count for count, _ in found), min(bad, default=-1)]


def first_repeat(values: Array) -> int:
    """The first position of n integers that is outside [0, n) or has been there before; -1: a permutation."""
    outside = first_outside(values, 0, len(values) - 1)
    if outside >= 0:
        return outside
    seen = np.zeros(len(values), np.bool_)
    # Every thread writes the same value, so that the order of writes does not matter.
    _blocks(values, lambda block, start: seen.__setitem__(block, True))
    if seen.all():
        return -1
    _, first = np.unique(values, return_index=True)
    return int(np.setdiff1d(np.arange(len(values)), first, assume_unique=True)[0])


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
"""Bytes of a field up to which it is read through before training; a larger one when a loss is not finite."""


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
