"""A table in page-locked memory that the host and a device both read."""

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.store.device.tables import PinnedTable
from penstock.store.rows import Span, gather_rows
from penstock.store.source import ArraySource


class SharedTable(ArraySource):
    """Rows as the host reads them; `by_device` reads the same memory, and what the device has of it in a cache.

    NumPy has no bfloat16: of such a table `table` has the bits, as int16, and rows that are read are float32.
    """

    def __init__(self, by_device: PinnedTable) -> None:
        self._is_bits = by_device.dtype == torch.bfloat16
        super().__init__(by_device.table.view(torch.int16).numpy() if self._is_bits else by_device.table.numpy())
        self.by_device = by_device
        if self._is_bits:
            self.dtype = np.dtype(np.float32)

    def fill(self, ids: Array, out: Array, places: Array | None = None, span: Span | None = None) -> None:
        """See `RowSource.fill`."""
        if not self._is_bits:
            super().fill(ids, out, places, span)
            return
        bits = gather_rows(self.table, ids, None, span).view(np.uint16).astype(np.uint32)
        out[slice(None) if places is None else places] = (bits << 16).view(np.float32)


def host_view(table: torch.Tensor) -> Array:
    """A table in host memory as kernels of the host read it: numbers of 16 bits by their bits."""
    if table.dtype == torch.bfloat16:
        bits: Array = table.view(torch.int16).numpy()
        return bits
    numbers: Array = table.numpy()
    return numbers.view(np.uint16) if table.dtype == torch.float16 else numbers
