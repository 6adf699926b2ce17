"""Places a session's graph as decided, and connects the pipeline's batches to it."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.graph.arrays import Array
from penstock.graph.csr import offsets_of
from penstock.graph.data import EdgeSet
from penstock.graph.folder import Graph
from penstock.nn.table_aggregation import readable
from penstock.pipeline.batch_rows import EdgeFields, EdgeRows
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.schedule import BatchPlan
from penstock.processes import default_threads
from penstock.progress import SILENT, Progress
from penstock.sampling.device.hops import Topology, Weighed
from penstock.sampling.device.sampler import DeviceSampler
from penstock.sampling.device.streams import stream_maker
from penstock.sampling.device.typed import TypedTopology, drawn_relations
from penstock.sampling.entry import DrawOptions
from penstock.store.device.copies import one_copy, to_pinned
from penstock.store.device.divided import DividedTable
from penstock.store.device.host_paths import Division, FastestDivision, FixedDivision, HostPaths
from penstock.store.device.shards import own_bytes, to_shares
from penstock.store.device.tables import (
    CachedTable,
    DeviceSource,
    PinnedTable,
    ResidentTable,
    SharedTable,
    by_device_counts,
    host_view,
)
from penstock.store.rows import by_counts
from penstock.store.source import ArraySource, RowSource
from penstock.traced import BATCHES, FEATURES, TOPOLOGY, is_traced, memory_for
from penstock.train.device.decision import PlacementDecision
from penstock.train.device.memory import drawn_options, edge_row_type, stored_type, way_of
from penstock.train.device.placed import Placed
from penstock.train.execution.support import Placeable
from penstock.train.first_layer.slots import FillParts, GatheredSlots, SlotFill
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job

_COUNTED = 100
"""Batches drawn ahead to count which rows are read most."""


def place_as_decided(
    session: Placeable, decision: PlacementDecision, schedule: BatchPlan, progress: Progress = SILENT
) -> Placed:
    """Place a session's graph as decided, and report why."""
    placed = Placed.of(session, decision)
    placed.learns_inputs = bool(session.inputs.tables)
    placed.tell(progress)
    _put(placed, session, schedule, progress)
    if placed.topology is not None:
        with memory_for(TOPOLOGY):
            placed.edges = _put_edge_rows(placed, session.inputs.edges, progress)
    return placed


def bring_batches(session: Placeable, placed: Placed) -> Placed:
    """Have the pipeline's batches read from the device and from what was placed there."""
    inputs = session.inputs
    sources: dict[str, RowSource] = {**inputs.sources, **placed.tables, **placed.cached}
    way = WAYS[session.job.first_layer]
    if way.on_both or way.on_host:
        for name, table in placed.tables.items():
            if isinstance(table, PinnedTable):
                sources[name] = SharedTable(table.below if isinstance(table, DividedTable) else table)
    inputs.carrier = DeviceCarrier(
        placed.device, sources, placed.decision.working.row_type, inputs.scale, inputs.reader,
        placed.edges or inputs.edges,
    )  # fmt: skip
    return placed


def _put(placed: Placed, session: Placeable, schedule: BatchPlan, progress: Progress) -> None:
    """Copy topology and features to their places."""
    job, graph, fields = session.job, session.graph, session.inputs.fields
    device, residence, options = placed.device, placed.decision.residence, drawn_options(session)
    if residence.topology != "host":
        move = one_copy if residence.topology == "device" else to_pinned
        with memory_for(TOPOLOGY):
            lists = {
                kind: Topology(
                    one_copy(graph.edges[kind].indptr, device, what="list bounds", progress=progress),
                    move(graph.edges[kind].indices, device, what="neighbour lists", progress=progress),
                    _weighed(graph.edges[kind], options, device, move, progress),
                )
                for kind in drawn_relations(placed.program, graph)
            }
        counts = {name: nodes.count for name, nodes in graph.nodes.items()}
        placed.topology = next(iter(lists.values())) if graph.is_homogeneous else TypedTopology(lists, counts)
    if residence.features != "host":
        _put_tables(placed, job, graph, fields, schedule, progress)
    if placed.decision.captured:
        with memory_for(BATCHES):
            placed.fill = placed.fills[job.first_layer, placed.is_divided] = _slot_fill(placed, job, graph, fields)


def _weighed(
    edges: EdgeSet, options: DrawOptions, device: torch.device, move: Any, progress: Progress
) -> Weighed | None:
    """The weights that draws or messages go by, beside the lists; None for a relation that has none to draw by."""
    if options.list_weight is None or options.list_weight not in edges.fields:
        return None

    def beside(array: Array) -> Tensor:
        moved: Tensor = move(array, device, what="weights of edges", progress=progress)
        return moved

    def there(array: Array) -> Tensor:
        return one_copy(array, device, what="sums of weights", progress=progress)

    return Weighed.of(edges, options.list_weight, options.weight is not None, beside, there)


def fill_by_job(session: Placeable, placed: Placed) -> None:
    """Set how captured steps get their inputs, by the session's current job; nothing is moved."""
    key = session.job.first_layer, placed.is_divided
    if placed.fill is not None:
        placed.fill.release()
    if key not in placed.fills:
        placed.fills[key] = _slot_fill(placed, session.job, session.graph, session.inputs.fields)
    placed.fill = placed.fills[key]
    bring_batches(session, placed)


def divide_rows(session: Placeable, placed: Placed, gathers: bool) -> None:
    """Have the host gather some rows of every captured batch, or the device read all of them."""
    placed.decision = replace(placed.decision, gathers=gathers)
    for name, table in placed.divided.items():
        placed.tables[name] = table if gathers else table.below
    fill_by_job(session, placed)


def _put_edge_rows(placed: Placed, edges: EdgeRows, progress: Progress) -> EdgeRows:
    """Copy edge features to where the lists lie."""
    device, resident = placed.device, placed.decision.residence.topology == "device"

    def put(source: RowSource) -> DeviceSource:
        assert isinstance(source, ArraySource)
        array, dtype = source.table, edge_row_type(source)
        if resident:
            return ResidentTable(one_copy(array, device, dtype, what="rows of edges", progress=progress))
        return PinnedTable(to_pinned(array, device, dtype, what="rows of edges", progress=progress), device)

    return EdgeRows(
        {
            kind: EdgeFields(tuple(map(put, each.features)), None if each.weight is None else put(each.weight))
            for kind, each in edges.fields.items()
        }
    )


def _put_tables(
    placed: Placed, job: Job, graph: Graph, fields: dict[str, str], schedule: BatchPlan, progress: Progress
) -> None:
    """Copy features to where the device reads them."""
    share = None if "pinned" in job.row_paths else 0.0
    paths = _host_paths(placed, job, share) if placed.decision.gathers else None
    for name, field_name in fields.items():
        array = graph.nodes[name].fields[field_name]
        with memory_for(FEATURES):
            _put_features(placed, job, graph, schedule, name, array, progress)
            table = placed.tables[name]
            if paths is not None and isinstance(table, PinnedTable):
                placed.tables[name] = placed.divided[name] = DividedTable(table, paths)


def _slot_fill(placed: Placed, job: Job, graph: Graph, fields: dict[str, str]) -> SlotFill | None:
    """How the host fills the slots of captured steps; None where the device reads its inputs by itself."""
    row_type, filler = placed.decision.working.row_type, way_of(job, placed.decision.residence.features).filler
    if len(fields) != 1 or not graph.is_homogeneous:
        # Rows of several types, and learned ones, are read by the device.
        return None
    ((name, field_name),) = fields.items()
    table: Any = placed.tables.get(name)
    if filler is None:
        return GatheredSlots(table.readings, row_type) if placed.is_divided else None
    if isinstance(table, DividedTable):
        # The paths of its rows belong to another way of reading.
        table = table.below
    stored = graph.nodes[name].fields[field_name]
    dtype = torch.from_numpy(np.empty(0, stored.dtype)).dtype if table is None else table.dtype
    rows = readable(stored) if table is None else host_view(table.table)

    def paths(device_share: float | None) -> HostPaths:
        return _host_paths(placed, job, device_share)

    shared = table if isinstance(table, PinnedTable) else None
    return filler.make(FillParts(job, rows, dtype, shared, paths, placed.device, row_type))


def _host_paths(placed: Placed, job: Job, device_share: float | None) -> HostPaths:
    """The paths of features in host memory, of which the device reads a share; None: find the fastest share."""
    division: Division = FastestDivision() if device_share is None else FixedDivision(device_share)
    threads = job.threads or default_threads()
    return HostPaths(placed.device, threads, division, stream_maker(placed.device))


def _put_features(
    placed: Placed, job: Job, graph: Graph, schedule: BatchPlan, name: str, array: Array, progress: Progress
) -> None:
    """Copy the features of one node type to the place that was decided for them."""
    device, residence, dtype = placed.device, placed.decision.residence, stored_type(job, array)
    if residence.features == "device":
        put = to_shares if residence.shared else one_copy
        placed.tables[name] = table = ResidentTable(put(array, device, dtype, progress=progress))
        if residence.shared:
            placed.shared_bytes += own_bytes(table.table.nbytes)
        return
    pinned = to_pinned(array, device, dtype, progress=progress)
    if residence.cache_rows:
        hottest = _hottest(placed, job, graph, schedule, residence.cache_rows)
        placed.tables[name] = CachedTable(pinned, hottest, device)
        placed.cached_rows = len(hottest)
    else:
        placed.tables[name] = PinnedTable(pinned, device)


def _hottest(placed: Placed, job: Job, graph: Graph, schedule: BatchPlan, rows: int) -> Tensor:
    """The rows that are read most: counted in some batches drawn ahead, or estimated by how many
    lists a vertex is in.
    """
    if is_traced():
        return torch.arange(rows)
    if job.placed.cache_by == "degree" or placed.topology is None or placed.program.stages:
        (edges,) = graph.edges.values()
        return torch.from_numpy(by_counts(np.diff(offsets_of(edges.indices, graph.num_nodes)), rows))
    sampler = DeviceSampler(placed.topology, placed.program, placed.device)
    counts = torch.zeros(graph.num_nodes, dtype=torch.int32, device=placed.device)
    for planned, _ in zip(schedule.from_position(), range(_COUNTED), strict=False):
        batch: Any = sampler.sample(planned.seeds, planned.key)
        if batch.ready is not None:
            batch.ready.synchronize()
        (vertices,) = batch.vertices.values()
        counts.index_add_(0, vertices.long(), torch.ones_like(vertices))
    return by_device_counts(counts, rows)
