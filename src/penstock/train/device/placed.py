"""What a device trains with: a graph where it was put, samplers on it, memory for batches, whole blocks."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.nn.device.gather import TableRows
from penstock.nn.layer_table import LAYERS
from penstock.paths.chunk_selector import PathUse
from penstock.pipeline.batch_rows import NO_EDGE_ROWS, EdgeRows, Scale
from penstock.pipeline.schedule import BatchPlan, Planned
from penstock.pipeline.stages import Batch
from penstock.progress import Progress
from penstock.sampling.device.block import DeviceBlock, Room
from penstock.sampling.device.hops import Tables, Topology
from penstock.sampling.device.program import DeviceProgram
from penstock.sampling.device.sampler import DeviceSampler
from penstock.sampling.device.slot import Slot
from penstock.sampling.device.typed import new_slot
from penstock.store.device.divided import DividedTable
from penstock.store.device.host_paths import CACHE
from penstock.store.device.tables import CachedTable, DeviceSource, ResidentTable
from penstock.store.source import CachedSource
from penstock.train.device.decision import PlacementDecision, device_program
from penstock.train.execution.support import Placeable
from penstock.train.first_layer.slots import DeviceRows, RowsByType, SlotFill
from penstock.train.job import Job
from penstock.train.layerwise.host import AlonePlan
from penstock.train.layerwise.inference import Chunk, LayerPlan, Level, Sampled
from penstock.train.run_context import device_memory_of

# A whole graph on a device as one block, for exact inference without a copy of it.


class DeviceWholeGraph(AlonePlan):
    """The `LayerPlan` with one chunk: every vertex is a row, and reads its whole list."""

    def __init__(
        self,
        host: LayerPlan,
        node_type: str,
        topology: Topology,
        table: DeviceSource,
        in_place: bool,
        scale: Scale | None,
    ) -> None:
        """`host` is the plan for models that are not computed layer by layer."""
        self._host, self.by_layers = host, host.by_layers
        self.neighbourhoods, self.pull = host.neighbourhoods, host.pull
        self._node_type, self._table, self._in_place, self._scale = node_type, table, in_place, scale
        indptr: Any = topology.indptr.to(torch.int32)
        indices: Any = topology.indices
        totals: Any = topology.indptr.diff().float()
        self.block = DeviceBlock(indptr, indices, topology.count, None, totals)
        self._every = np.arange(topology.count)

    def first(self, node_type: str, ids: Array) -> Tensor | TableRows:
        """The features of every vertex: the table itself where the layer can read it in place."""
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
        # Scaling writes in place, so rows are copied first.
        return rows if scale is None else scale(rows)

    def start(self, wanted: dict[str, Array], computed: int, layers: int) -> int:
        """Every vertex is computed in every layer."""
        self._host.start(wanted, 0, layers)
        return computed * len(self._every)

    def chunks(self, number: int) -> Iterator[Sampled]:
        """The one chunk of the whole graph, with its neighbour lists on the device."""
        yield Sampled(Chunk(self._node_type, self._every, 0), [self.block], {self._node_type: self._every})

    def level(self, number: int) -> Level:
        """Storage on the device for the outputs of one layer."""
        return DeviceLevel(self.block.device)


class DeviceLevel:
    """One layer's outputs of every vertex, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._values = device, torch.empty(0, device=device)

    def write(self, chunk: Chunk, out: Tensor) -> None:
        """Store the outputs of all vertices."""
        self._values = out.detach()

    def fetch(self, node_type: str, ids: Array) -> Tensor:
        """The outputs of some vertices, ascending; of all of them without a copy."""
        if len(ids) == len(self._values):
            return self._values.detach()
        return self._values[torch.from_numpy(ids).to(self._device)]


# What a device trains with: a graph where it was put, and memory for batches.


@dataclass(eq=False)
class Placed:
    """Everything on a device that a session trains with."""

    device: torch.device
    decision: PlacementDecision
    program: DeviceProgram
    vertices: int
    entries: int
    totals: bool
    room: Room | None
    """The upper bounds of batch sizes: as decided, or larger where a batch lacked room."""
    why: list[str]
    topology: Any = None
    tables: dict[str, DeviceSource] = field(default_factory=dict)
    edges: EdgeRows = NO_EDGE_ROWS
    """Edge features that lie on the device with the lists; otherwise the host reads them for each batch."""
    shared_bytes: int = 0
    """Bytes of the shares of features on this GPU that other GPUs read: torch's allocator does not know them."""
    cached_rows: int = 0
    cached: dict[str, CachedSource] = field(default_factory=dict)
    """Features read through the stores, of which some rows are cached on the device."""
    sample: "Callable[[Planned], Batch] | None" = None
    ahead: Any = None
    """What draws batches ahead in the thread that computes (`batch_placement.DrawnAhead`); None where threads draw."""
    fill: SlotFill | None = None
    """How the host fills the slots of captured steps; None: the device reads features by itself."""
    wish: Any = "auto"
    """The placement that the job asks for."""
    asks_for_edges: bool = False
    """Whether batches hold the positions of their edges even if these carry nothing."""
    learns_inputs: bool = False
    """Whether gradients flow to input rows, which are learned embeddings."""
    transforms_neighbours: bool = False
    """Whether the first layer transforms neighbours' rows before it weighs them, as attention does that does not read
    features in place: gradients then flow to the transformed rows.
    """
    scales_neighbours: bool = False
    """Whether the first layer, which reads features in place, needs the totals of its neighbours."""
    divided: dict[str, DividedTable] = field(default_factory=dict)
    """Tables of which the host can gather some rows, whether it currently does or the device reads all of them."""
    fills: dict[tuple[str, bool], SlotFill | None] = field(default_factory=dict)
    """The fills made so far, by `first_layer` and whether the host gathers rows. They are kept because each has
    measured its paths.
    """

    @classmethod
    def of(cls, session: Placeable, decision: PlacementDecision) -> Self:
        """For a session, before anything is placed."""
        job, graph = session.job, session.graph
        program = DeviceProgram(()) if decision.room is None else device_program(session)
        return cls(
            session.inputs.device, decision, program, graph.num_nodes, graph.num_edges, job.needs_totals,
            decision.room, [*decision.why], wish=job.placement, asks_for_edges=job.names_edges,
            scales_neighbours=decision.in_place and LAYERS[job.model].aggregates(job) == "normalised",
            transforms_neighbours=not decision.in_place
            and getattr(session.model, "layerwise", False)
            and LAYERS[job.model].has_heads,
        )  # fmt: skip

    def decide_again(self, session: Placeable, decision: PlacementDecision) -> None:
        """Execute steps otherwise, with everything where it lies."""
        made = Placed.of(session, decision)
        for name in ("decision", "program", "room", "why", "scales_neighbours", "transforms_neighbours", "fill"):
            setattr(self, name, getattr(made, name))
        self.fills.clear()

    def tell(self, progress: Progress) -> None:
        """Report why everything lies where it does."""
        for sentence in self.why:
            progress.note(sentence)

    def largest_room(self, batch_size: int) -> Room:
        """The room that no batch can exceed."""
        return self.program.largest_room(batch_size, self.vertices, self.entries)

    @property
    def names_edges(self) -> bool:
        """Whether blocks hold the positions of their edges."""
        return bool(self.edges) or self.asks_for_edges

    @property
    def is_captured(self) -> bool:
        """Whether steps are captured once and replayed."""
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
        """Take the room from a checkpoint, after validating it."""
        assert self.room is not None
        try:
            rows, edges = (tuple(int(size) for size in part) for part in room)
        except (TypeError, ValueError):
            rows, edges = (), ()
        stages = self.program.stages + self.program.hops
        fits = (len(rows), len(edges)) == (stages + 1, stages)
        types = self.room.types or ("",) * len(rows)
        by_type = [[size for size, name in zip(rows, types, strict=False) if name == each] for each in set(types)]
        # Kernels write each hop's rows behind those of the hop before, so the numbers of rows must ascend.
        ascends = all(sizes == sorted(sizes) for sizes in by_type)
        if not fits or rows[0] != self.room.rows[0] or not ascends or min(*rows, *edges) < 1:
            raise PenstockError(
                "The checkpoint's room for batches does not fit this job: use a checkpoint of this run.",
                code="mismatched-inputs",
            )
        self.room = Room(rows, edges, self.room.types)

    def slot(self, room: Room, keys: int, tables: Tables | None = None) -> Slot:
        """The memory for one batch."""
        return new_slot(
            self.topology, self.program, room, self.device, keys, self.totals,
            tables=tables, numbers_last=not self.decision.in_place and (self.fill is None or self.fill.numbers_rows),
            turns=True, turns_last=self.learns_inputs or self.transforms_neighbours,
            vertex_totals=self.topology.totals_on(self.device) if self.scales_neighbours else None,
        )  # fmt: skip

    def slot_fill(self, learned: Mapping[str, Any], node_type: str) -> SlotFill:
        """How the slots of captured steps get their inputs; `learned` are tables of learned embeddings, and the seeds
        are of `node_type`.
        """
        if self.fill is not None:
            return self.fill
        if learned or len(self.tables) != 1:
            return RowsByType(self.tables, learned, self.decision.working.row_type, node_type)
        return DeviceRows(self.table, self.decision.in_place, self.decision.working.row_type)

    def whole_graph(self, host: LayerPlan, graph: Graph, job: Job, scale: Scale | None) -> DeviceWholeGraph | None:
        """The graph as a block for exact inference, with `host` where that does not suit; None without room."""
        if (
            not isinstance(self.topology, Topology)
            or not graph.is_homogeneous
            or self.topology.weighed is not None
            or self.decision.residence.topology != "device"
            or len(self.tables) != 1
            or self.edges
            or LAYERS[job.model].makes_edge_rows
        ):
            # One row for every edge would take many times the memory of the vertices' rows.
            return None
        free, _ = device_memory_of(self.device)
        width = max(job.hidden, self.table.shape[1])
        if len(self.topology.indices) >= 1 << 31 or 6 * 4 * width * graph.num_nodes > free // 2:
            return None
        ((name, table),) = self.tables.items()
        return DeviceWholeGraph(host, name, self.topology, table, self.decision.in_place, scale)

    def facts(self) -> dict[str, Any]:
        """The placement as reported in the run's result."""
        facts: dict[str, Any] = {
            "topology": self.decision.residence.topology,
            "features": "sharded" if self.decision.residence.shared else self.decision.residence.features,
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
        """Rows, bytes and seconds of each path along which features are read; empty where there is only one path."""
        table = next((each for each in self.tables.values() if isinstance(each, DividedTable)), None)
        paths = table.paths if table is not None else None if self.fill is None else self.fill.paths
        if paths is None:
            return {}
        use = paths.use()
        if (cached := self._cached_table()) is not None:
            # Only the cache itself counts the rows that it held.
            hits, size = cached.hits_and_reads()[0], cached.row_bytes
            use[CACHE] = use.get(CACHE, PathUse())._replace(rows=hits, bytes=hits * size)
        return {"feature_paths": {name: _rounded(each) for name, each in use.items()}}

    def _cached_table(self) -> CachedTable | None:
        """The cached table over pinned features, if there is one."""
        tables = [each.below if isinstance(each, DividedTable) else each for each in self.tables.values()]
        return next((each for each in tables if isinstance(each, CachedTable)), None)


def _rounded(use: PathUse) -> dict[str, Any]:
    return {"rows": use.rows, "bytes": use.bytes, "seconds": round(use.seconds, 6)}


# Batches drawn one at a time on a device, or by host and device together.

Draw = Callable[[Planned], Batch]
_TIMED = 4
_WORTH = 0.2
"""The host joins in drawing if it adds at least this share to the device's rate, by `_TIMED` batches without the first.
"""


def drawing_on_device(placed: "Placed", job: Job, task: Any, schedule: BatchPlan) -> tuple[Draw, str]:
    """A function that draws a job's batches where the device can read the lists; and the reason,
    where it was measured.
    """
    sampler = device_sampler(placed, getattr(task, "node_type", "node"))

    def on_device(planned: Planned) -> Batch:
        return sampler.sample(planned.seeds, planned.key)

    if job.sample_on == "hybrid":
        return Shared(on_device, task.sample), ""
    if job.sample_on == "auto" and job.drawing_threads > 1:
        alone, host = (seconds_a_batch(draw, schedule) for draw in (on_device, task.sample))
        said = f"a batch takes the device {1000 * alone:.1f} ms and a thread of the host {1000 * host:.1f} ms."
        if (job.drawing_threads - 1) / host > _WORTH / alone:
            return Shared(on_device, task.sample), f"Host and device draw batches together: {said}"
        return on_device, f"The device draws batches alone: {said}"
    return on_device, ""


def device_sampler(placed: "Placed", node_type: str = "node", expected: Sequence[int] | None = None) -> DeviceSampler:
    """The sampler of batches that a device draws one at a time; `expected`: their sizes, where they are only traced."""
    return DeviceSampler(
        placed.topology, placed.program, placed.device, node_type, placed.totals, placed.names_edges, placed.room,
        expected,
    )  # fmt: skip


def seconds_a_batch(draw: Draw, schedule: BatchPlan) -> float:
    """Seconds to draw a batch, measured on some of the first ones."""
    began = time.perf_counter()
    drawn = 0
    for planned, number in zip(schedule.from_position(), range(_TIMED), strict=False):
        draw(planned)
        if number == 0:
            began = time.perf_counter()
        drawn = number
    return (time.perf_counter() - began) / max(1, drawn)


class Shared:
    """Host and device draw together: the device draws one batch at a time; threads that find it busy draw on the host.

    A batch is the same whoever draws it, so the run's results do not depend on timing.
    """

    def __init__(self, on_device: Draw, on_host: Draw) -> None:
        self.on_device, self.on_host, self._device = on_device, on_host, threading.Lock()

    def __call__(self, planned: Planned) -> Batch:
        """Draw a batch on the device if it is free, else on the host."""
        if self._device.acquire(blocking=False):
            try:
                return self.on_device(planned)
            finally:
                self._device.release()
        return self.on_host(planned)
