"""A graph put where a device reads it, as was decided."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.memory import available_mb
from penstock.nn.device.rows import TableRows
from penstock.pipeline.carrying import Scale
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.loading import Batch
from penstock.pipeline.schedule import Planned, Schedule
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.progress import SILENT, Progress
from penstock.sampling.device.hops import Slot, Topology
from penstock.sampling.device.neighbours import DeviceNeighbourSampler
from penstock.sampling.device.room import Room
from penstock.store.device.hottest import by_degree, by_device_counts
from penstock.store.device.placing import to_device, to_pinned
from penstock.store.device.tables import CachedTable, DeviceTable, PinnedTable, ResidentTable
from penstock.train.device.choosing import against_capture, against_sampling, presampled_room
from penstock.train.device.drawing import drawing_on_device
from penstock.train.device.memory import Working, captured_working, loaded_working
from penstock.train.device.trial import NOTHING, StepMemory, tried_steps
from penstock.train.device.whole import WholeGraph
from penstock.train.job import Job

if TYPE_CHECKING:
    from penstock.train.session import Session

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_COUNTED = 100
"""Batches drawn ahead to count which rows are read most."""


def place(session: "Session", training: bool, progress: Progress = SILENT) -> "Placed":
    """Decide where everything goes and put it there; what does not fit is refused before anything is moved.

    A session that only uses a model streams the graph from the host.
    """
    job, graph, task, inputs = session.job, session.graph, session.task, session.inputs
    torch.cuda.reset_peak_memory_stats(inputs.device)
    fanouts = [fanout for fanout in job.fanouts if isinstance(fanout, int)]
    on_host = against_sampling(job, graph, task)
    if training and on_host and job.sample_on in ("device", "hybrid"):
        raise PenstockError(f"sample_on {job.sample_on} cannot be: {', '.join(on_host)}. Set it to auto or host.")
    if not training or job.sample_on == "host":
        on_host = [*on_host, "sample_on is host" if training else "nothing is trained"]
    zoo = getattr(session.model, "layerwise", False)
    uncaptured = [*against_capture(job, graph, task, zoo, bool(inputs.tables)), *([] if training else on_host)]
    schedule = Schedule(task.items, task.batch_size, job.seed) if training else None
    room = None if schedule is None or on_host else presampled_room(job, graph, schedule)
    step = tried_steps(session, _row_type(job)) if training else NOTHING
    in_place = not uncaptured and job.model == "sage" and job.aggregate != "max" and _in_place(job)
    if training:
        working, residence = _fitting(session, step, room, not uncaptured, in_place, on_host)
    else:
        working = loaded_working(step, None, graph.num_nodes, 1, 0, _row_type(job))
        residence = Residence("host", "host", 0, working.bytes, 0, [])
    captured = not uncaptured and "host" not in (residence.topology, residence.features)
    if not uncaptured and not captured:
        uncaptured = ["the host draws batches or copies features for each"]
    in_place = in_place and captured and residence.features == "device"
    placed = Placed(inputs.device, residence, working, fanouts, job.replace, job.needs_totals, captured, room, in_place)
    placed.why = [*residence.why, *_why_steps(placed, on_host, uncaptured)]
    for sentence in placed.why if training else []:
        progress.note(sentence)
    if training:
        _put(placed, job, graph, inputs.fields, schedule, progress)
    if schedule is not None and residence.topology != "host":
        placed.sample, who = drawing_on_device(placed, job, task, schedule)
        if who and not placed.is_captured:
            placed.why.append(who)
            progress.note(who)
    inputs.carrier = DeviceCarrier(
        inputs.device, inputs.store, inputs.fields, placed.tables, working.row_type, inputs.scale
    )
    inputs.placed_tables = placed.tables
    return placed


@dataclass(eq=False)
class Placed:
    """What a device trains with."""

    device: torch.device
    residence: Residence
    working: Working
    fanouts: list[int]
    replace: bool
    totals: bool
    is_captured: bool
    room: Room | None
    reads_in_place: bool = False
    """Whether the first layer reads features in their table."""
    topology: Any = None
    tables: dict[str, DeviceTable] = field(default_factory=dict)
    cached_rows: int = 0
    sample: "Callable[[Planned], Batch] | None" = None
    why: list[str] = field(default_factory=list)

    @property
    def table(self) -> DeviceTable:
        """The only features."""
        (only,) = self.tables.values()
        return only

    @property
    def predicted_bytes(self) -> int:
        """The most that will be allocated on the device."""
        return self.residence.device_bytes

    def take_room(self, room: Any) -> None:
        """The room that a run had when it was interrupted; a document's, so it is looked at."""
        whole = self.room is not None and isinstance(room, list) and len(room) == 2
        if not whole or [len(part) for part in room] != [len(self.fanouts) + 1, len(self.fanouts)]:
            raise PenstockError("The checkpoint's room for batches is not one of this job's: use another checkpoint.")
        rows, edges = (tuple(int(size) for size in part) for part in room)
        assert self.room is not None
        if rows[0] != self.room.rows[0] or min(*rows, *edges) < 1:
            raise PenstockError("The checkpoint's room for batches is not one of this job's: use another checkpoint.")
        self.room = Room(rows, edges)

    def slot(self, room: Room, keys: int, place: Tensor | None = None) -> Slot:
        """Memory for a batch."""
        in_place = self.reads_in_place and isinstance(self.table, ResidentTable)
        return Slot(
            self.topology, self.fanouts, room, self.device, keys, self.replace, self.totals,
            place=place, numbers_last=not in_place, turns=True,
        )  # fmt: skip

    def static_rows(self, slot: Slot) -> Tensor | TableRows:
        """Where a captured batch finds its features: in their table, or in a copy at a fixed place."""
        table = self.table
        if self.reads_in_place and isinstance(table, ResidentTable):
            return TableRows(table.table, slot.vertices[: slot.room.rows[-2]], direct=True)
        return torch.zeros((len(slot.vertices), *table.shape[1:]), dtype=self.working.row_type, device=self.device)

    def whole_graph(self, graph: Graph, job: Job, scale: Scale | None) -> WholeGraph | None:
        """The graph as one block for exact inference, where the device has room for every vertex's outputs."""
        if not isinstance(self.topology, Topology) or self.residence.topology != "device" or len(self.tables) != 1:
            return None
        free, _ = torch.cuda.mem_get_info(self.device)
        free += torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        width = max(job.hidden, self.table.shape[1])
        if len(self.topology.indices) >= 1 << 31 or 6 * 4 * width * graph.num_nodes > free // 2:
            return None
        return WholeGraph(self.topology, self.table, self.reads_in_place, scale)

    def facts(self) -> dict[str, Any]:
        """What a result says of it."""
        facts: dict[str, Any] = {
            "topology": self.residence.topology,
            "features": self.residence.features,
            "cache_rows": self.cached_rows,
        }
        if self.cached_rows and isinstance(self.table, CachedTable):
            facts["hit_rate"] = round(self.table.hit_rate(), 4)
        facts["why"] = self.why
        return facts


def _fitting(
    session: "Session", step: StepMemory, room: Room | None, captured: bool, in_place: bool, on_host: list[str]
) -> tuple[Working, Residence]:
    """The working memory and the places that go together: what is read in place lies on the device, what is captured
    is nowhere on the host."""
    job, inputs, graph = session.job, session.inputs, session.graph
    parameters, row_type = sum(p.numel() for p in session.learned.parameters()), _row_type(job)
    task: Any = session.task
    label = task.labels_of(task.items[:1]).nbytes if captured else 0
    ways = [(True, True)] * in_place + [(True, False)] * captured + [(False, False)]
    for is_captured, reads_in_place in ways:
        if is_captured and room is not None:
            given = max(inputs.widths.values()), graph.num_nodes, len(task.items), label, parameters, row_type
            working = captured_working(step, room, *given, reads_in_place)
        else:
            working = loaded_working(
                step, room, graph.num_nodes, job.transfer_depth + 1, parameters, row_type, job.sample_threads
            )
        residence = _decided(job, graph, inputs.fields, working, on_host, inputs.device)
        on_the_host = "host" in (residence.topology, residence.features)
        if (not reads_in_place or residence.features == "device") and not (is_captured and on_the_host):
            break
    return working, residence


def _row_type(job: Job) -> torch.dtype:
    """The type in which features reach the model."""
    return TYPES.get(job.compute_type, torch.float32)


def _in_place(job: Job) -> bool:
    """Whether the first layer may read features in their table: as they are, and from the device's own memory."""
    as_stored = job.input_dropout == 0 and job.scale_features == "none" and not job.residual
    return as_stored and job.placed.features in ("auto", "device")


def _why_steps(placed: Placed, on_host: list[str], uncaptured: list[str]) -> list[str]:
    sentences = []
    if on_host:
        sentences.append(f"Batches are drawn on the host: {', '.join(on_host)}.")
    if placed.is_captured:
        sentences.append("Steps are captured once and replayed.")
    else:
        sentences.append(f"Steps are launched one by one: {', '.join(uncaptured)}.")
    return sentences


def _decided(
    job: Job, graph: Graph, fields: dict[str, str], working: Working, drawn_on_host: list[str], device: torch.device
) -> Residence:
    """Where the graph goes; refused with a sentence where it cannot."""
    wish = job.placed
    if drawn_on_host and wish.topology in ("device", "pinned"):
        raise PenstockError(
            f"placement keeps the topology {wish.topology}, but batches are drawn on the host"
            f" ({', '.join(drawn_on_host)}): leave out topology."
        )
    tables = [graph.nodes[name].fields[field] for name, field in fields.items()]
    sizes = [table.size * _stored(job, table).itemsize for table in tables]
    free, total = torch.cuda.mem_get_info(device)
    # What torch keeps for later is ours as well.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    edges = next(iter(graph.edges.values()), None)
    topology = 0 if drawn_on_host or edges is None else edges.indptr.nbytes + edges.indices.nbytes
    rows = sum(len(table) for table in tables)
    cache = wish.cache_rows
    if not graph.is_homogeneous:
        # A cache would have to be shared out among the types.
        if cache:
            raise PenstockError("cache_rows is for graphs with one node and edge type: leave it out of `placement`.")
        cache = 0
    row = max(1, sum(sizes) // max(rows, 1))
    return decide_residence(
        Sizes(topology, sum(sizes), row, rows, working.bytes, free, total, available_mb() << 20),
        Wanted("host" if drawn_on_host else wish.topology, wish.features, cache, job.device_share),
    )


def _put(
    placed: Placed, job: Job, graph: Graph, fields: dict[str, str], schedule: Schedule | None, progress: Progress
) -> None:
    """Copy topology and features to their places."""
    device, residence = placed.device, placed.residence
    if residence.topology != "host":
        (edges,) = graph.edges.values()
        move = to_device if residence.topology == "device" else to_pinned
        placed.topology = Topology(
            move(edges.indptr, device, what="list bounds", progress=progress),
            move(edges.indices, device, what="neighbour lists", progress=progress),
        )
    if residence.features == "host":
        return
    for name, field_name in fields.items():
        array = graph.nodes[name].fields[field_name]
        dtype = _stored(job, array)
        if residence.features == "device":
            placed.tables[name] = ResidentTable(to_device(array, device, dtype, progress=progress))
            continue
        pinned = to_pinned(array, device, dtype, progress=progress)
        if residence.cache_rows:
            hottest = _hottest(placed, job, graph, schedule, residence.cache_rows)
            placed.tables[name] = CachedTable(pinned, hottest, device)
            placed.cached_rows = len(hottest)
        else:
            placed.tables[name] = PinnedTable(pinned, device)


def _hottest(placed: Placed, job: Job, graph: Graph, schedule: Schedule | None, rows: int) -> Tensor:
    """The rows that are read most: counted in some batches drawn ahead, or by degree."""
    if job.placed.cache_by == "degree" or placed.topology is None or schedule is None:
        (edges,) = graph.edges.values()
        return torch.from_numpy(by_degree(edges.indptr, rows))
    sampler = DeviceNeighbourSampler(placed.topology, placed.fanouts, placed.device, replace=placed.replace)
    counts = torch.zeros(graph.num_nodes, dtype=torch.int32, device=placed.device)
    for planned, _ in zip(schedule.from_position(), range(_COUNTED), strict=False):
        batch: Any = sampler.sample(planned.seeds, planned.key)
        if batch.ready is not None:
            batch.ready.synchronize()
        counts.index_add_(0, batch.vertices.long(), torch.ones_like(batch.vertices))
    return by_device_counts(counts, rows)


def _stored(job: Job, array: Any) -> torch.dtype:
    """The type of placed features: as asked for; stored float16 stays, everything else is float32."""
    if job.feature_type != "stored":
        return TYPES[job.feature_type]
    return {np.dtype(np.float16): torch.float16}.get(array.dtype, torch.float32)
