"""Tables that a GPU reads: in its own memory, in pinned host memory, or there with the hottest rows cached.

`tables` has sources of rows with three mechanisms, `kernels` (Triton, imported at the first gather) what they launch;
`divided` brings rows of a pinned table along two paths at once (`host_paths`, `path_division`, `host_threads`);
`copies` brings a host array to where it is read, `pinned_memory` makes host memory the GPU can read. What goes where is
decided elsewhere, in `penstock.plan.residence`.
"""

from penstock.store.device.copies import page_locked, to_device, to_pinned
from penstock.store.device.tables import (
    CachedTable,
    DeviceSource,
    PinnedTable,
    ResidentTable,
    by_device_counts,
)

__all__ = [
    "CachedTable",
    "DeviceSource",
    "PinnedTable",
    "ResidentTable",
    "by_device_counts",
    "page_locked",
    "to_device",
    "to_pinned",
]
