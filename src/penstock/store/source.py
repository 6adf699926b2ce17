"""Rows of one table by number, wherever they lie: the interface of every source of rows.

A source has `shape` and `dtype` and answers `read(ids, to, columns, dtype)`. To add a kind of source, derive from
`RowSource` and write `fill`; docs/row-sources.md shows how. Sources compose: `penstock.store.composed` has a cache over
another source, replicas, and any other way to split ids among several.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.rows import Columns, Span, gather_rows, place_rows, span_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Destination = Array | Tensor | torch.device | None


class RowSource(ABC):
    """The rows of one table by number. They are numbered from 0; a row may be asked for any number of times."""

    shape: tuple[int, ...]
    """Of the whole table: its rows, then the shape of one row."""
    dtype: Any
    """As stored: NumPy's for rows that the host reads, torch's for rows that a device reads."""
    on_device = False
    """Whether a device reads some of the rows by itself: then they are best read where they are computed with."""

    @abstractmethod
    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """`out[places[i]]` becomes row `ids[i]`; `out[i]` where there are no places.

        `out` has the source's type, rows that lie one after the other, and the shape of its rows, or of the columns
        [first, last) in `span`. Places are trusted; ids outside the table are refused. May be called from several
        threads at once.
        """

    def read(self, ids: Any, to: "Destination" = None, columns: Columns = None, dtype: Any = None) -> Any:
        """The rows `ids`, in that order.

        `to`: an array or a tensor to fill, which is returned, or a device on which a tensor is made; None: a new array.
        `columns`: a slice or numbers of columns; None: all. `dtype`: the type of rows that are made; as stored by
        default. Rows are converted to the type of an array or tensor that is given. Columns that do not lie side by
        side are picked from the columns around them.
        """
        span, picked = span_of(columns, self.shape[1:])
        if to is not None and not isinstance(to, np.ndarray):
            return self._to_device(host_ids(ids), to, span, picked, dtype)
        if picked is None and isinstance(to, np.ndarray) and to.dtype == self.dtype:
            # The way that training takes: one gather, into memory that is used again.
            check_room(to, len(ids), self.dtype, self.row_shape(span))
            self.fill(host_ids(ids), to, None, span)
            return to
        rows = self._made(host_ids(ids), span, picked)
        if to is None:
            return rows if dtype is None else rows.astype(dtype, copy=False)
        check_room(to, len(rows), to.dtype, rows.shape[1:])
        to[...] = rows
        return to

    def put(self, ids: Array, out: Any, places: Array | None = None, span: Span | None = None) -> None:
        """`fill`, whatever `out` is: also a tensor on a device, or of another type than the source's."""
        if isinstance(out, np.ndarray) and out.dtype == self.dtype:
            self.fill(ids, out, places, span)
            return
        rows: Any = self._made(ids, span, None)
        where: Any = slice(None) if places is None else places
        if not isinstance(out, np.ndarray):
            rows = _on_device(rows, out.device, out.dtype)
            where = where if places is None else _on_device(places, out.device, None)
        out[where] = rows

    def row_shape(self, span: Span | None = None) -> tuple[int, ...]:
        """The shape of one row, or of some columns of it."""
        return self.shape[1:] if span is None else (span[1] - span[0],)

    def _made(self, ids: Array, span: Span | None, picked: Array | None) -> Array:
        rows = np.empty((len(ids), *self.row_shape(span)), self.dtype)
        self.fill(ids, rows, None, span)
        return rows if picked is None else rows[:, picked]

    def _to_device(self, ids: Array, to: Any, span: Span | None, picked: Array | None, dtype: Any) -> "Tensor":
        import torch

        rows = self._made(ids, span, picked)
        if isinstance(to, torch.device):
            return _on_device(rows, to, dtype)
        check_room(to, len(rows), to.dtype, rows.shape[1:])
        return cast(torch.Tensor, to.copy_(_on_device(rows, to.device, None)))


class ArraySource(RowSource):
    """Rows of an array in memory, or mapped from a file: then reading costs the rows read."""

    def __init__(self, table: Array) -> None:
        self.table = table
        self.shape, self.dtype = table.shape, table.dtype

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """See `RowSource.fill`."""
        if places is None:
            gather_rows(self.table, ids, out, span)
        else:
            place_rows(self.table, ids, places, out, span)


def host_ids(ids: Any) -> Array:
    """Row numbers where the host reads them, wherever they were drawn."""
    return ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()


def check_room(out: Any, count: int, dtype: Any, row_shape: tuple[int, ...]) -> None:
    """Refuse a buffer that so many rows do not fit."""
    if tuple(out.shape) != (count, *row_shape) or out.dtype != dtype:
        raise PenstockError(
            f"Rows of {dtype} {tuple(row_shape)} do not fit a buffer of {out.dtype} {tuple(out.shape)}.",
            code="shape-mismatch",
        )


def _on_device(array: Array, device: "torch.device", dtype: Any) -> "Tensor":
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array)).to(device)
    return tensor if dtype is None else tensor.to(dtype)
