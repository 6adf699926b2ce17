"""Tables that a GPU gathers rows from, wherever they lie: sources of rows with three mechanisms.

A cache holds the rows that were or will be read most (`by_counts`). Ties are broken by row number, so that a choice can
be repeated; the chosen rows are in ascending order.
"""

import math
from abc import abstractmethod
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.store.rows import Columns, Span, gather_rows, span_of
from penstock.store.source import ArraySource, RowSource, check_room
from penstock.traced import launches

Where = Literal["device", "pinned", "cached"]


class DeviceSource(RowSource):
    """Rows of a tensor that a device reads by itself, with a mechanism for each place it lies in.
    Ids are not checked.
    """

    on_device = True
    where: Where
    """The kind of memory that holds the table."""
    device: torch.device
    """The device that reads it."""
    _cache: tuple[Tensor, Tensor, Tensor] | None = None
    """Rows that are on the device as well: the rows, a slot for each row of the table, and hits and reads."""

    def __init__(self, table: Tensor, device: torch.device) -> None:
        if table.dim() == 0 or not table.is_contiguous():
            raise PenstockError("Rows can be gathered only from a contiguous table: copy it first.", code="wrong-type")
        self.table, self.device = table, device
        self.shape, self.dtype = tuple(table.shape), table.dtype
        self._lines = table.view(len(table), math.prod(self.shape[1:]))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row as it is stored, before it is converted."""
        return int(self._lines.shape[1] * self.dtype.itemsize)

    @property
    @abstractmethod
    def device_bytes(self) -> int:
        """Bytes of device memory that it takes."""

    def gather(
        self,
        ids: Tensor,
        out: Tensor | None = None,
        count: Tensor | None = None,
        places: Tensor | None = None,
        span: Span | None = None,
    ) -> Tensor:
        """Row `ids[i]` into `out[i]`, converted to `out`'s type; without `out`, into a new tensor of the table's type.

        `ids` are int32 or int64 on the device. A negative one gives zeros, and so do all from `count` on, one int32 on
        the device. Ids past the table are the caller's error and are not checked. `places`, on the device too, are the
        rows of `out` to write; `span` is the columns [first, last). Nothing waits for the device: a gather can be
        captured in a CUDA graph.
        """
        out = self._checked(ids, out, places, span)
        rows = len(out)
        if out.numel():
            lines, first, order = out.view(rows, -1), 0 if span is None else span[0], self._reading_order(ids)
            if launches(ids, out, rows=len(ids), of=lines):
                from penstock.store.device.kernels import launch_gather

                launch_gather(self._lines, ids, lines, count, order, self._cache, places, first)
        return out

    def _checked(self, ids: Tensor, out: Tensor | None, places: Tensor | None, span: Span | None) -> Tensor:
        """`out`, or a new tensor for the rows; an error where shapes or types do not fit."""
        wanted = (len(ids), *self.row_shape(span))
        if out is None:
            out = torch.empty(wanted, dtype=self.dtype, device=ids.device)
        rows = len(out) if places is not None else len(ids)
        if out.shape != (rows, *wanted[1:]) or (out.numel() and out.view(rows, -1).stride(-1) != 1):
            raise PenstockError(
                f"Rows of shape {wanted[1:]} for {len(ids)} ids do not fit a buffer of {tuple(out.shape)}.",
                code="shape-mismatch",
            )
        if ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
            raise PenstockError(
                f"Rows are gathered by int32 or int64 ids in a contiguous array, not by {ids.dtype}.", code="wrong-type"
            )
        return out

    def read(self, ids: Any, to: Any = None, columns: Columns = None, dtype: Any = None) -> Any:
        """As `RowSource.read`; where `out` is not given, the result is a tensor on the device."""
        span, picked = span_of(columns, self.shape[1:])
        ids = self._on_device(ids)
        here = isinstance(to, Tensor) and to.device == ids.device and picked is None
        if here or (picked is None and to is None and dtype is None):
            return self.gather(ids, to, span=span)
        wanted = (len(ids), *self.row_shape(span))
        rows = self.gather(ids, torch.empty(wanted, dtype=dtype or self.dtype, device=ids.device), span=span)
        if picked is not None:
            rows = rows[:, torch.from_numpy(picked).to(rows.device)]
        if to is None or isinstance(to, torch.device):
            return rows if to is None else rows.to(to)
        check_room(to, len(rows), to.dtype, tuple(rows.shape[1:]))
        _tensor(to).copy_(rows)
        return to

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """As `RowSource.fill`: rows are copied back to the host."""
        rows = self.gather(self._on_device(ids), span=span).cpu()
        _tensor(out)[slice(None) if places is None else torch.from_numpy(places)] = rows.to(_tensor(out).dtype)

    def put(self, ids: Array, out: Any, places: Array | None = None, span: Span | None = None) -> None:
        """As `RowSource.put`; where `out` is on the device, rows are gathered into it directly."""
        if not isinstance(out, Tensor):
            self.fill(ids, out, places, span)
            return
        self.gather(self._on_device(ids), out, places=None if places is None else self._on_device(places), span=span)

    def _on_device(self, ids: Any) -> Tensor:
        return _tensor(ids).to(self.device, non_blocking=True)

    def _reading_order(self, ids: Tensor) -> Tensor | None:
        """Positions of `ids` in the order in which they are read, int64; None: as given."""
        return None


class ResidentTable(DeviceSource):
    """A table in the device's memory."""

    where: Where = "device"

    def __init__(self, table: Tensor) -> None:
        super().__init__(table, table.device)

    @property
    def device_bytes(self) -> int:
        return self.table.nbytes


class PinnedTable(DeviceSource):
    """A table in page-locked host memory that the device reads over the bus, row by row, in the table's order.

    An address that the bus has not used lately is translated first. In the order of a batch nearly every row of a table
    of many gigabytes needs that, and it takes most of the bus's time; in the table's order rows share translations.
    """

    where: Where = "pinned"

    def __init__(self, table: Tensor, device: torch.device) -> None:
        super().__init__(table, device)
        if device.type == "cuda" and table.nbytes and not table.is_pinned():
            # Otherwise the first gather would fail, in the middle of a batch.
            raise PenstockError(
                "A table in plain host memory cannot be read by the GPU: place it with to_pinned.",
                code="unsupported-combination",
            )

    @property
    def device_bytes(self) -> int:
        """0: the table is in host memory."""
        return 0

    def _reading_order(self, ids: Tensor) -> Tensor | None:
        """By row number. All rows of a table are in order already."""
        return torch.sort(ids).indices if 1 < len(ids) < len(self.table) else None


class CachedTable(PinnedTable):
    """A pinned table with some of its rows, all different, on the device as well; counts cache hits."""

    where: Where = "cached"

    def __init__(self, table: Tensor, cached: Tensor, device: torch.device) -> None:
        super().__init__(table, device)
        cached = cached.to(device)
        slots = torch.full((len(table),), -1, dtype=torch.int32, device=device)
        slots[cached.long()] = torch.arange(len(cached), dtype=torch.int32, device=device)
        tally = torch.zeros(2, dtype=torch.int64, device=device)
        hottest = self.gather(cached).view(len(cached), self._lines.shape[1])
        self._cache, self._tally = (hottest, slots, tally), tally
        self.cached_rows = len(cached)
        """How many rows are on the device."""

    @property
    def device_bytes(self) -> int:
        """Bytes of device memory: the rows, a slot for every vertex, the counters."""
        return sum(part.nbytes for part in self._cache or ())

    def hits_and_reads(self) -> tuple[int, int]:
        """Rows found on the device, and rows asked for, so far. Waits for the device."""
        hits, reads = self._tally.tolist()
        return hits, reads

    def hit_rate(self) -> float:
        """The share of rows found on the device; 0 before the first. Waits for the device."""
        hits, reads = self.hits_and_reads()
        return hits / reads if reads else 0.0


def _tensor(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else torch.from_numpy(out)


def by_device_counts(counts: Tensor, rows: int) -> Tensor:
    """`by_counts` where the counts are on a device; the answer is there too. Waits for the device."""
    rows = max(0, min(rows, len(counts)))
    if not rows:
        return torch.empty(0, dtype=torch.int64, device=counts.device)
    lowest = counts.topk(rows, sorted=False).values.amin()
    taken = counts > lowest
    taken[(counts == lowest).nonzero().view(-1)[: rows - int(taken.sum())]] = True
    return taken.nonzero().view(-1)


# A table in page-locked memory that the host and a device both read.


class SharedTable(ArraySource):
    """Rows as the host reads them; `by_device` reads the same memory, and its cache on the device.

    NumPy has no bfloat16: for such a table `table` has the bits, as int16, and rows that are read are float32.
    """

    def __init__(self, by_device: PinnedTable) -> None:
        self._is_bits = by_device.dtype == torch.bfloat16
        super().__init__(by_device.table.view(torch.int16).numpy() if self._is_bits else by_device.table.numpy())
        self.by_device = by_device
        if self._is_bits:
            self.dtype = np.dtype(np.float32)

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        if not self._is_bits:
            super().fill(ids, out, places, span)
            return
        bits = gather_rows(self.table, ids, None, span).view(np.uint16).astype(np.uint32)
        out[slice(None) if places is None else places] = (bits << 16).view(np.float32)


def host_view(table: torch.Tensor) -> Array:
    """A table in host memory as kernels of the host read it: 16-bit floats by their bits."""
    if table.dtype == torch.bfloat16:
        bits: Array = table.view(torch.int16).numpy()
        return bits
    numbers: Array = table.numpy()
    return numbers.view(np.uint16) if table.dtype == torch.float16 else numbers
