"""A whole graph on a device as one block, for exact inference without a copy of it."""

from typing import Any

import torch
from torch import Tensor

from penstock.nn.device.rows import TableRows
from penstock.pipeline.host_carrier import Scale
from penstock.sampling.device.block import DeviceBlock
from penstock.sampling.device.hops import Topology
from penstock.store.device.tables import DeviceTable, ResidentTable


class DeviceWholeGraph:
    """Every vertex is a row, and reads its whole list."""

    def __init__(self, topology: Topology, table: DeviceTable, in_place: bool, scale: Scale | None) -> None:
        self._table, self._in_place, self._scale = table, in_place, scale
        indptr: Any = topology.indptr.to(torch.int32)
        indices: Any = topology.indices
        totals: Any = topology.indptr.diff().float()
        self.block = DeviceBlock(indptr, indices, topology.count, None, totals)

    def rows(self) -> Tensor | TableRows:
        """Every vertex's features."""
        every = torch.arange(self._table.shape[0], dtype=torch.int32, device=self.block.device)
        if self._in_place and isinstance(self._table, ResidentTable):
            return TableRows(self._table.table, every)
        out = torch.empty(self._table.shape, dtype=torch.float32, device=self.block.device)
        rows = self._table.gather(every, out)
        return rows if self._scale is None else self._scale(rows)
