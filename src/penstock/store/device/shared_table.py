"""A table in page-locked memory that the host and a device both read."""

from penstock.store.device.tables import PinnedTable
from penstock.store.source import ArraySource


class SharedTable(ArraySource):
    """Rows as the host reads them; `by_device` reads the same memory, and what the device has of it in a cache."""

    def __init__(self, by_device: PinnedTable) -> None:
        super().__init__(by_device.table.numpy())
        self.by_device = by_device
