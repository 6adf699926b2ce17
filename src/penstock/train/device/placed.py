"""What a device trains with: a graph where it was put, and memory for batches."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.nn.device.rows import TableRows
from penstock.nn.layer_table import layer_entry
from penstock.paths.path_use import PathUse
from penstock.pipeline.edge_rows import NO_EDGE_ROWS, EdgeRows
from penstock.pipeline.host_carrier import Scale
from penstock.pipeline.loader import Batch
from penstock.pipeline.schedule import Planned
from penstock.sampling.device.hops import Slot, Topology
from penstock.sampling.device.room import Room
from penstock.store import CachedSource
from penstock.store.device.divided import DividedTable
from penstock.store.device.host_paths import CACHE
from penstock.store.device.tables import CachedTable, DeviceSource, ResidentTable
from penstock.train.device.decision import Decision
from penstock.train.device.whole import DeviceWholeGraph
from penstock.train.device_memory import device_memory_of
from penstock.train.first_layer.slot_fill import SlotFill
from penstock.train.job import Job
from penstock.train.layerwise.plan import LayerPlan


@dataclass(eq=False)
class Placed:
    """What a device trains with."""

    device: torch.device
    decision: Decision
    fanouts: list[int]
    replace: bool
    totals: bool
    room: Room | None
    """As decided, or as it has grown."""
    why: list[str]
    topology: Any = None
    tables: dict[str, DeviceSource] = field(default_factory=dict)
    edges: EdgeRows = NO_EDGE_ROWS
    """What edges carry, where it lies with the lists; the host reads it for each batch where it does not."""
    cached_rows: int = 0
    cached: dict[str, CachedSource] = field(default_factory=dict)
    """Where the graph stays with the stores: features of which some rows are on the device."""
    sample: "Callable[[Planned], Batch] | None" = None
    fill: SlotFill | None = None
    """How the host fills the slots of captured steps; None: the device reads features by itself."""
    wish: Any = "auto"
    """The placement that the job asks for."""
    asks_for_edges: bool = False
    """Whether batches name their edges, whatever they carry."""
    divided: dict[str, DividedTable] = field(default_factory=dict)
    """Features of which the host can gather some rows, whether it does or the device reads all of them by itself."""
    fills: dict[tuple[str, bool], SlotFill | None] = field(default_factory=dict)
    """By `first_layer` and whether the host gathers rows, the fills that were made: what one has found out of its paths
    is not lost to another's trial."""

    @classmethod
    def of(cls, job: Job, device: torch.device, decision: Decision) -> Self:
        """For a job, with nothing put anywhere yet."""
        fanouts = [fanout for fanout in job.fanouts if isinstance(fanout, int)]
        return cls(
            device, decision, fanouts, job.replace, job.needs_totals, decision.room, [*decision.why],
            wish=job.placement, asks_for_edges=job.names_edges,
        )  # fmt: skip

    @property
    def names_edges(self) -> bool:
        """Whether blocks have the positions of their edges."""
        return bool(self.edges) or self.asks_for_edges

    @property
    def is_captured(self) -> bool:
        """Whether steps are captured."""
        return self.decision.captured

    @property
    def table(self) -> DeviceSource:
        """The features of the only node type."""
        (only,) = self.tables.values()
        return only

    @property
    def is_divided(self) -> bool:
        """Whether features reach the device along several paths at once."""
        return any(isinstance(table, DividedTable) for table in self.tables.values())

    @property
    def predicted_bytes(self) -> int:
        """The most that will be allocated on the device."""
        return self.decision.predicted_bytes or self.decision.residence.device_bytes

    def take_room(self, room: Any) -> None:
        """The room that a run had when it was interrupted; a document's, so it is looked at."""
        assert self.room is not None
        try:
            rows, edges = (tuple(int(size) for size in part) for part in room)
        except (TypeError, ValueError):
            rows, edges = (), ()
        fits = (len(rows), len(edges)) == (len(self.fanouts) + 1, len(self.fanouts))
        # Kernels write a hop's rows behind those of the hop before.
        if not fits or rows[0] != self.room.rows[0] or list(rows) != sorted(rows) or min(*rows, *edges) < 1:
            raise PenstockError(
                "The checkpoint's room for batches does not fit this job: use a checkpoint of this run.",
                code="mismatched-inputs",
            )
        self.room = Room(rows, edges)

    def slot(self, room: Room, keys: int, place: Tensor | None = None) -> Slot:
        """The memory for one batch."""
        return Slot(
            self.topology, self.fanouts, room, self.device, keys, self.replace, self.totals,
            place=place, numbers_last=not self.decision.in_place and (self.fill is None or self.fill.numbers_rows),
            turns=True,
        )  # fmt: skip

    def static_rows(self, slot: Slot) -> Tensor | TableRows:
        """Where a captured batch finds its features: in their table, or in a copy at a fixed place."""
        table = self.table
        if self.decision.in_place and isinstance(table, ResidentTable):
            return TableRows(table.table, slot.vertices[: slot.room.rows[-2]], direct=True)
        return torch.zeros(
            (len(slot.vertices), *table.shape[1:]), dtype=self.decision.working.row_type, device=self.device
        )

    def whole_graph(self, host: LayerPlan, graph: Graph, job: Job, scale: Scale | None) -> DeviceWholeGraph | None:
        """The graph as one block for exact inference, where the device has room for every vertex's outputs.

        `host` is how it goes without the device.
        """
        if (
            not isinstance(self.topology, Topology)
            or self.decision.residence.topology != "device"
            or len(self.tables) != 1
            or self.edges
            or layer_entry(job.model).makes_edge_rows
        ):
            # Rows of all edges at once would be many times those of the vertices.
            return None
        free, _ = device_memory_of(self.device)
        width = max(job.hidden, self.table.shape[1])
        if len(self.topology.indices) >= 1 << 31 or 6 * 4 * width * graph.num_nodes > free // 2:
            return None
        ((name, table),) = self.tables.items()
        return DeviceWholeGraph(host, name, self.topology, table, self.decision.in_place, scale)

    def facts(self) -> dict[str, Any]:
        """What a result says of it."""
        facts: dict[str, Any] = {
            "topology": self.decision.residence.topology,
            "features": self.decision.residence.features,
            "cache_rows": self.cached_rows or self.decision.residence.cache_rows,
        }
        if self.cached:
            facts["hit_rate"] = round(max(source.hit_rate() for source in self.cached.values()), 4)
        if (cached := self._cached_table()) is not None:
            facts["hit_rate"] = round(cached.hit_rate(), 4)
        if self.decision.predicted_by:
            facts["predicted_by"] = self.decision.predicted_by
        if self.decision.untraced:
            facts["predicted_reason"] = self.decision.untraced
        facts["decided_by"] = self.decision.decided_by
        facts["why"] = self.why
        return facts

    def path_facts(self) -> dict[str, Any]:
        """Rows, bytes and seconds of each path that features came along; nothing where there is one path."""
        table = next((each for each in self.tables.values() if isinstance(each, DividedTable)), None)
        paths = table.paths if table is not None else None if self.fill is None else self.fill.paths
        if paths is None:
            return {}
        use = paths.use()
        if (cached := self._cached_table()) is not None:
            # The cache's own count: nobody else sees which rows it had.
            hits, size = cached.hits_and_reads()[0], cached.row_bytes
            use[CACHE] = use.get(CACHE, PathUse())._replace(rows=hits, bytes=hits * size)
        return {"feature_paths": {name: _rounded(each) for name, each in use.items()}}

    def _cached_table(self) -> CachedTable | None:
        """The features of which some rows are on the device, where they are in pinned memory."""
        tables = [each.below if isinstance(each, DividedTable) else each for each in self.tables.values()]
        return next((each for each in tables if isinstance(each, CachedTable)), None)


def _rounded(use: PathUse) -> dict[str, Any]:
    return {"rows": use.rows, "bytes": use.bytes, "seconds": round(use.seconds, 6)}
