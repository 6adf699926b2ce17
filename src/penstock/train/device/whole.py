"""A whole graph on a device as one block, for exact inference without a copy of it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.nn.device.rows import TableRows
from penstock.pipeline.host_carrier import Scale
from penstock.sampling.device.block import DeviceBlock
from penstock.sampling.device.hops import Topology
from penstock.store.device.tables import DeviceSource, ResidentTable
from penstock.train.layerwise.chunks import Chunk, Sampled
from penstock.train.layerwise.host import AlonePlan
from penstock.train.layerwise.levels import Level
from penstock.train.layerwise.plan import LayerPlan


class DeviceWholeGraph(AlonePlan):
    """Layers over one chunk: every vertex is a row, and reads its whole list."""

    def __init__(
        self,
        host: LayerPlan,
        node_type: str,
        topology: Topology,
        table: DeviceSource,
        in_place: bool,
        scale: Scale | None,
    ) -> None:
        """`host` is the plan for models that are not computed by layers."""
        self._host, self.by_layers, self.neighbourhoods = host, host.by_layers, host.neighbourhoods
        self._node_type, self._table, self._in_place, self._scale = node_type, table, in_place, scale
        indptr: Any = topology.indptr.to(torch.int32)
        indices: Any = topology.indices
        totals: Any = topology.indptr.diff().float()
        self.block = DeviceBlock(indptr, indices, topology.count, None, totals)
        self._every = np.arange(topology.count)

    def first(self, node_type: str, ids: Array) -> Tensor | TableRows:
        """Every vertex's features, in their table where they are read there."""
        table, scale = self._table, self._scale
        every = torch.arange(table.shape[0], dtype=torch.int32, device=self.block.device)
        if isinstance(table, ResidentTable):
            if self._in_place:
                return TableRows(table.table, every)
            if scale is None and table.table.dtype == torch.float32:
                # Layers do not write to what they read, so no copy is made.
                return table.table
        out = torch.empty(table.shape, dtype=torch.float32, device=self.block.device)
        rows = table.gather(every, out)
        # It changes rows where they are.
        return rows if scale is None else scale(rows)

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Every vertex is computed in every layer."""
        self._host.start(wanted, 0, layers)
        return computed * len(self._every)

    def chunks(self, number: int) -> Iterator[Sampled]:
        """Chunks of the graph, each with its neighbour lists on the device."""
        yield Sampled(Chunk(self._node_type, self._every, 0), [self.block], {self._node_type: self._every})

    def level(self, number: int) -> Level:
        """Storage on the device for the rows of one layer."""
        return DeviceLevel(self.block.device)


class DeviceLevel:
    """The outputs of every vertex, where they were computed."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._values = device, torch.empty(0, device=device)

    def write(self, chunk: Chunk, out: Tensor) -> None:
        """Take the outputs of all vertices."""
        self._values = out.detach()

    def fetch(self, node_type: str, ids: Array) -> Tensor:
        """The outputs of some vertices, ascending; of all of them without a copy."""
        if len(ids) == len(self._values):
            return self._values.detach()
        return self._values[torch.from_numpy(ids).to(self._device)]
