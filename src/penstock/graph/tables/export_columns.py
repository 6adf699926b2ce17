"""Fields as columns of a table, each with the line of the spec that reads it back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.blocks import ranges

_SCAN_ROWS = 1 << 20


class OutColumns:
    """The fields of one node or edge type on their way out."""

    def __init__(self, what: str, reserved: set[str], lists: bool) -> None:
        self._what, self._taken, self._lists = what, set(reserved), lists
        self._columns: list[_Column] = []

    def add(self, name: str, values: Array, categories: list[str] | None, is_label: bool) -> None:
        """One more field. A class label is written as people read it: nothing where there is none."""
        if values.dtype.kind not in "biuf" or values.dtype.itemsize > 8 or values.ndim > 2:
            raise PenstockError(
                f"Field {name!r} of {self._what} is {values.dtype} of {values.ndim} dimensions:"
                " tables take numbers of one or two.",
                code="wrong-type",
            )
        if values.ndim == 2:
            self._columns.append(self._matrix(name, values, categories))
        elif categories is not None:
            self._columns.append(self._words(name, values, categories, is_label))
        elif is_label and values.dtype == np.int64 and _lowest(values) >= -1:
            column = self._free(name)
            self._columns.append(_Column(values, lambda rows: {column: _or_null(rows)}, label={"column": column}))
        else:
            column = self._free(name)
            entry = self._entry(name, values, column=column)
            self._columns.append(_Column(values, lambda rows: {column: self._plain(rows)}, entry))

    def arrays(self, start: int, stop: int) -> dict[str, pa.Array]:
        """The columns of a range of rows."""
        return self._made([column.values[start:stop] for column in self._columns])

    def blank(self, rows: int) -> dict[str, pa.Array]:
        """The columns of rows that have no fields."""
        blanks = [
            np.full((rows, *column.values.shape[1:]), column.fill, column.values.dtype) for column in self._columns
        ]
        return self._made(blanks)

    def spec(self) -> dict[str, Any]:
        """The keys of the spec that read these columns."""
        entries = [column.entry for column in self._columns if column.entry is not None]
        labels = [column.label for column in self._columns if column.label is not None]
        return ({"fields": entries} if entries else {}) | ({"label": labels[0]} if labels else {})

    def _made(self, blocks: list[Array]) -> dict[str, pa.Array]:
        made: dict[str, pa.Array] = {}
        for column, block in zip(self._columns, blocks, strict=True):
            made |= column.make(np.ascontiguousarray(block))
        return made

    def _words(self, name: str, values: Array, categories: list[str], is_label: bool) -> "_Column":
        if len(set(categories)) < len(categories) or _lowest(values) < -1 or _highest(values) >= len(categories):
            raise PenstockError(
                f"Field {name!r} of {self._what} has codes that do not match its categories one to one.",
                code="value-out-of-range",
            )
        column, words = self._free(name), pa.array(categories, pa.string())

        def make(rows: Array) -> dict[str, pa.Array]:
            return {column: words.take(_or_null(rows))}

        if is_label and values.dtype == np.int64:
            return _Column(values, make, label={"column": column, "categories": categories}, fill=-1)
        entry = {"name": name, "column": column, "dtype": str(values.dtype), "categories": categories}
        return _Column(values, make, entry, fill=-1)

    def _matrix(self, name: str, values: Array, categories: list[str] | None) -> "_Column":
        width = values.shape[1]
        named = {} if categories is None else {"categories": categories}
        if width == 0 or not self._lists:
            columns = [self._free(f"{name}_{k}") for k in range(width)]
            entry = {"name": name, "columns": columns, "dtype": str(values.dtype)} | named
            return _Column(values, lambda rows: {c: self._plain(rows[:, k]) for k, c in enumerate(columns)}, entry)
        column = self._free(name)

        def make(rows: Array) -> dict[str, pa.Array]:
            return {column: pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), width)}

        plain = self._entry(name, values, column=column)
        return _Column(values, make, {"name": name, "column": column} | named if named else plain)

    def _plain(self, rows: Array) -> pa.Array:
        # Text has no half floats; they are exact as single ones.
        return pa.array(rows.astype(np.float32) if rows.dtype == np.float16 and not self._lists else rows)

    def _entry(self, name: str, values: Array, column: str) -> dict[str, Any] | str:
        """The shortest line that gives the field back: a table of lists keeps the dtype by itself."""
        if self._lists:
            return name if name == column else {"name": name, "column": column}
        return {"name": name, "column": column, "dtype": str(values.dtype)}

    def _free(self, name: str) -> str:
        """A column name not taken yet."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name


@dataclass
class _Column:
    values: Array
    make: Callable[[Array], dict[str, pa.Array]]
    entry: dict[str, Any] | str | None = None
    label: dict[str, Any] | None = None
    fill: int = 0


def _or_null(rows: Array) -> pa.Array:
    """The column with -1 replaced by null."""
    return pa.array(rows, mask=rows < 0)


def _lowest(values: Array) -> float:
    return min((float(values[a:b].min()) for a, b in ranges(len(values), _SCAN_ROWS)), default=0)


def _highest(values: Array) -> float:
    return max((float(values[a:b].max()) for a, b in ranges(len(values), _SCAN_ROWS)), default=-1)
