"""Tables that a GPU gathers rows from, wherever they lie: one protocol, three mechanisms."""

import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from penstock.errors import PenstockError

Where = Literal["device", "pinned", "cached"]


class DeviceTable(Protocol):
    """Rows by vertex number, read by the device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole table."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which rows are stored."""

    @property
    def where(self) -> Where:
        """The kind of memory that holds the table."""

    @property
    def device_bytes(self) -> int:
        """What it takes of the device's memory."""

    def gather(self, ids: Tensor, out: Tensor | None = None, count: Tensor | None = None) -> Tensor:
        """Row `ids[i]` into `out[i]`, converted to `out`'s type; without `out`, into a new tensor of the table's type.

        `ids` are int32 or int64 on the device. A negative one gives zeros, and so do all at and behind `count`, one
        int32 on the device. Ids beyond the table are the caller's error and are not looked for. Nothing waits for the
        device: a gather can be captured in a CUDA graph.
        """


class _Rows:
    """What the mechanisms share: a tensor seen as one row a line."""

    def __init__(self, table: Tensor) -> None:
        if table.dim() == 0 or not table.is_contiguous():
            raise PenstockError("Rows can be gathered only from a contiguous table: copy it first.", code="wrong-type")
        self.table = table
        self.shape, self.dtype = tuple(table.shape), table.dtype
        self._lines = table.view(len(table), math.prod(self.shape[1:]))


class ResidentTable(_Rows):
    """A table in the device's memory."""

    where: Where = "device"

    @property
    def device_bytes(self) -> int:
        """What it takes of the device's memory."""
        return self.table.nbytes

    def gather(self, ids: Tensor, out: Tensor | None = None, count: Tensor | None = None) -> Tensor:
        """See `DeviceTable.gather`."""
        return _gather(self._lines, self.shape, ids, out, count)


class PinnedTable(_Rows):
    """A table in page-locked host memory that the device reads over the bus, row by row, in the table's order.

    An address that the bus has not met lately is translated first. In the order of a batch nearly every row of a table
    of many gigabytes has one, and most of the bus's time goes to that; in the table's order rows share them.
    """

    where: Where = "pinned"

    def __init__(self, table: Tensor, device: torch.device) -> None:
        super().__init__(table)
        if device.type == "cuda" and table.nbytes and not table.is_pinned():
            # Else the first gather would fail, in the middle of a batch.
            raise PenstockError(
                "A table in plain host memory cannot be read by the GPU: place it with to_pinned.",
                code="unsupported-combination",
            )

    @property
    def device_bytes(self) -> int:
        """0: the table is in host memory."""
        return 0

    def gather(self, ids: Tensor, out: Tensor | None = None, count: Tensor | None = None) -> Tensor:
        """See `DeviceTable.gather`."""
        return _gather(self._lines, self.shape, ids, out, count, self._reading_order(ids))

    def _reading_order(self, ids: Tensor) -> Tensor | None:
        """Places of `ids` by the rows they ask for, int64. All rows of a table come in its order already."""
        return torch.sort(ids).indices if 1 < len(ids) < len(self.table) else None


class CachedTable(PinnedTable):
    """A pinned table with some of its rows, all different, on the device as well; counts how often they serve."""

    where: Where = "cached"

    def __init__(self, table: Tensor, cached: Tensor, device: torch.device) -> None:
        super().__init__(table, device)
        cached = cached.to(device)
        slots = torch.full((len(table),), -1, dtype=torch.int32, device=device)
        slots[cached.long()] = torch.arange(len(cached), dtype=torch.int32, device=device)
        tally = torch.zeros(2, dtype=torch.int64, device=device)
        self._cache = (_gather(self._lines, tuple(self._lines.shape), cached, None, None), slots, tally)

    @property
    def cached_rows(self) -> int:
        """How many rows are on the device."""
        return len(self._cache[0])

    @property
    def device_bytes(self) -> int:
        """What it takes of the device's memory: the rows, a slot for every vertex, the tally."""
        return sum(part.nbytes for part in self._cache)

    def gather(self, ids: Tensor, out: Tensor | None = None, count: Tensor | None = None) -> Tensor:
        """See `DeviceTable.gather`."""
        return _gather(self._lines, self.shape, ids, out, count, self._reading_order(ids), self._cache)

    def hits_and_reads(self) -> tuple[int, int]:
        """Rows found on the device, and rows asked for, since they were last forgotten. Waits for the device."""
        hits, reads = self._cache[2].tolist()
        return hits, reads

    def hit_rate(self) -> float:
        """The share of rows found on the device; 0 before the first. Waits for the device."""
        hits, reads = self.hits_and_reads()
        return hits / reads if reads else 0.0

    def forget_hits(self) -> None:
        """Set the hit counters to zero."""
        self._cache[2].zero_()


def _gather(
    lines: Tensor,
    shape: tuple[int, ...],
    ids: Tensor,
    out: Tensor | None,
    count: Tensor | None,
    order: Tensor | None = None,
    cache: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    from penstock.store.device.kernels import launch_gather

    wanted = (len(ids), *shape[1:])
    if out is None:
        out = torch.empty(wanted, dtype=lines.dtype, device=ids.device)
    if out.shape != wanted or (out.numel() and out.view(len(ids), -1).stride(-1) != 1):
        raise PenstockError(
            f"Rows of shape {shape[1:]} for {len(ids)} ids do not fit a buffer of {tuple(out.shape)}.",
            code="shape-mismatch",
        )
    if ids.dtype not in (torch.int32, torch.int64) or not ids.is_contiguous():
        raise PenstockError(
            f"Rows are gathered by int32 or int64 ids in a contiguous array, not by {ids.dtype}.", code="wrong-type"
        )
    if out.numel():
        launch_gather(lines, ids, out.view(len(ids), -1), count, order, cache)
    return out
