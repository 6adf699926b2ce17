"""Rows of which only some columns are sent: the others are filled with the mean row of their part.

A selection has a version and is sent to each owner once, not with every request. An owner that does not know it, as
after a restart, says so and is sent it again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.store.parts.requests import PartRows, RowEncoding, WireType, encoding_for
from penstock.wire.channel import Channel
from penstock.wire.coflows import EXPLANATIONS, within_kind
from penstock.wire.message import Message

SELECT = "select"
_VERSIONS = 4
"""Selections of a reader that an owner keeps for each field: batches in flight may use an older one."""
_BLOCK = 1 << 16
"""Rows that are summed at a time."""


class ColumnsMissing(PenstockError):  # noqa: N818
    """Raised where the reader's selection of columns is unknown."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, code="not-available")


class ColumnSelection(NamedTuple):
    """The columns of a field's rows that are sent, ascending, and the version by which owners know them."""

    version: int
    columns: Array


class SelectedEncoding:
    """Sends some columns of rows in another encoding, and leaves the other columns of their positions unchanged."""

    def __init__(self, wire_type: WireType, dtype: np.dtype[Any], columns: Array, key: int | None = None) -> None:
        columns = np.ascontiguousarray(columns, np.int64)
        self._inner: RowEncoding = encoding_for(wire_type, dtype, (len(columns),), None, key, columns)
        self._dtype, self._columns = dtype, columns
        self.row_bytes = self._inner.row_bytes
        # The scale is that of the columns that are sent.
        self.columns_alike = encoding_for(wire_type, dtype, (len(columns),), (0, len(columns))).columns_alike

    def pack(self, table: Array, rows: Array, buffer: Array, names: PartRows) -> tuple[Array, ...]:
        picked = np.empty((len(rows), len(self._columns)), self._dtype)
        _pick(_bits(table), rows, self._columns, _bits(picked))
        return self._inner.pack(picked, np.arange(len(rows)), buffer, names)

    def unpack(self, arrays: tuple[Array, ...], places: Array, out: Array) -> None:
        """Put the columns that arrived in their places."""
        picked = np.empty((len(places), len(self._columns)), self._dtype)
        self._inner.unpack(arrays, np.arange(len(places)), picked)
        _spread(_bits(picked), places, self._columns, _bits(out))


class SelectedMeans:
    """At a reader: which owners know a selection, and the mean rows that they answered with."""

    def __init__(self) -> None:
        self._means: dict[tuple[str, int], Array] = {}
        self._told: set[tuple[str, int, int]] = set()
        self._lock = threading.Lock()

    def tell(self, field: str, part: int, selection: ColumnSelection, channel: Callable[[int], Channel]) -> None:
        """Send a selection to the owner of a part, unless it was sent before."""
        named = field, part, selection.version
        with self._lock:
            if named in self._told:
                return
        known = (field, part) in self._means
        body = {"field": field, "part": part, "version": selection.version, "means": not known}
        with within_kind(EXPLANATIONS):
            answer = channel(part).call(Message(SELECT, body, (selection.columns,)))
        with self._lock:
            self._told.add(named)
            if not known:
                (self._means[field, part],) = (each.copy() for each in answer.arrays)

    def forget(self) -> None:
        """Send all selections again, as an owner has lost one."""
        with self._lock:
            self._told.clear()

    def fill(self, field: str, part: int, selection: ColumnSelection, places: Array, out: Array) -> None:
        """Fill the columns that are not sent with the part's means."""
        means, absent = self._means[field, part], np.ones(out.shape[1], np.bool_)
        if means.shape != out.shape[1:] or means.dtype != out.dtype:
            raise PenstockError(
                f"The owner of part {part} sent means of {means.dtype} {means.shape} for rows of {out.dtype}"
                f" {out.shape[1:]}: run the same release on all machines.",
                code="malformed-message",
            )
        absent[selection.columns] = False
        _fill(_bits(means), places, np.flatnonzero(absent), _bits(out))


class KeptSelections:
    """At an owner: the selections that readers have sent."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, str], OrderedDict[int, Array]] = {}
        self._means: dict[tuple[str, int], Array] = {}
        self._lock = threading.Lock()

    def keep(self, reader: str, field: str, version: int, columns: Array, width: int) -> None:
        """Remember a selection of one reader."""
        if (
            columns.ndim != 1
            or columns.dtype != np.int64
            or not len(columns)
            or columns[0] < 0
            or columns[-1] >= width
            or (np.diff(columns) <= 0).any()
        ):
            raise PenstockError(
                f"{reader} selected columns of {field!r} that it does not have: its rows have {width}.",
                code="malformed-message",
            )
        with self._lock:
            versions = self._columns.setdefault((reader, field), OrderedDict())
            versions[version] = columns.copy()
            versions.move_to_end(version)
            while len(versions) > _VERSIONS:
                versions.popitem(last=False)

    def of(self, reader: str, field: str, version: int) -> Array:
        """The columns of a selection."""
        with self._lock:
            found = self._columns.get((reader, field), OrderedDict()).get(version)
        if found is None:
            raise ColumnsMissing(f"Version {version} of the columns of {field!r} that {reader} reads is not known.")
        return found

    def means(self, field: str, part: int, table: Array) -> Array:
        """The mean row of a part's table, in its type; computed once."""
        if (field, part) not in self._means:
            total = np.zeros(table.shape[1])
            for first in range(0, len(table), _BLOCK):
                total += np.asarray(table[first : first + _BLOCK], np.float64).sum(0)
            mean = total / max(1, len(table))
            self._means[field, part] = (np.rint(mean) if table.dtype.kind in "iu" else mean).astype(table.dtype)
        return self._means[field, part]


def _bits(array: Array) -> Array:
    """Values as unsigned integers of their size, so that copying kernels serve every dtype, float16 included."""
    bits: Array = array.view(np.dtype(f"u{array.itemsize}"))
    return bits


@njit(nogil=True, cache=True)
def _pick(table: Array, rows: Array, columns: Array, out: Array) -> None:
    """Compute `out = table[rows][:, columns]` without a copy of whole rows."""
    for i in range(len(rows)):
        row = rows[i]
        for k in range(len(columns)):
            out[i, k] = table[row, columns[k]]


@njit(nogil=True, cache=True)
def _spread(values: Array, places: Array, columns: Array, out: Array) -> None:
    """Write `out[places][:, columns] = values`, which NumPy would write to a copy."""
    for i in range(len(places)):
        place = places[i]
        for k in range(len(columns)):
            out[place, columns[k]] = values[i, k]


@njit(nogil=True, cache=True)
def _fill(row: Array, places: Array, columns: Array, out: Array) -> None:
    """Write `out[places][:, columns] = row[columns]`: the same row at every place."""
    for i in range(len(places)):
        place = places[i]
        for k in range(len(columns)):
            out[place, columns[k]] = row[columns[k]]
