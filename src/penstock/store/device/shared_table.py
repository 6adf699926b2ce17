"""A table in page-locked memory that the host and a device both read."""

import numpy as np
import torch

from penstock.graph.arrays import Array
from penstock.store.device.tables import PinnedTable
from penstock.store.source import ArraySource


class SharedTable(ArraySource):
    """Rows as the host reads them; `by_device` reads the same memory, and what the device has of it in a cache."""

    def __init__(self, by_device: PinnedTable) -> None:
        super().__init__(by_device.table.numpy())
        self.by_device = by_device


def host_view(table: torch.Tensor) -> Array:
    """A table in host memory as kernels of the host read it: numbers of 16 bits by their bits."""
    if table.dtype == torch.bfloat16:
        numbers: Array = table.view(torch.int16).numpy()
        return numbers
    numbers = table.numpy()
    return numbers.view(np.uint16) if table.dtype == torch.float16 else numbers
