"""A device's memory: what training takes of it by two small steps, and what of the graph fits beside that."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.memory import available_mb
from penstock.pipeline.device import DeviceCarrier
from penstock.pipeline.schedule import Schedule
from penstock.pipeline.stages import Batch
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.plan.residence import NoRoomError, Place
from penstock.sampling.device.block import Room
from penstock.sampling.device.hops import Weighed
from penstock.sampling.device.streams import rest
from penstock.sampling.entry import DrawOptions
from penstock.store.device.copies import pinned_already
from penstock.store.device.shards import GpuGroup, current_gpu_group, share_bytes
from penstock.store.source import RowSource
from penstock.trace.libraries import library_memory
from penstock.train.batch_source import settings_of
from penstock.train.dataset.inputs import sampled_job
from penstock.train.execution.support import Placeable
from penstock.train.first_layer.ways import WAYS, FirstLayerWay
from penstock.train.job import Job
from penstock.train.job_options import Where
from penstock.train.run_context import device_memory_of, device_peak
from penstock.train.session import Session, model_at_fault, state_kept

# What a step keeps in a device's memory, learned from two small ones before anything is placed.
#
# Nothing is known of a model's inside, but what it keeps grows with the rows and edges of its batch: a half and a
# quarter of a batch are computed, forward and back, and the line through both is followed to a whole one. The model is
# left as it was found.


class Load(NamedTuple):
    """The size of a batch: input values, and the rows and edges that its layers compute and read."""

    inputs: int
    rows: int
    edges: int


class StepMemory(NamedTuple):
    """Bytes of a step beside its inputs: a fixed part, and a part for each row or edge of the batch."""

    fixed: float
    a_row: float
    whole: Load
    """The expected size of a whole batch: twice that of the half that was tried."""

    def of(self, load: Load) -> int:
        """Bytes of a step on a batch of that size."""
        return max(0, round(self.fixed + self.a_row * _weighed(load)))


NOTHING = StepMemory(0.0, 0.0, Load(0, 0, 0))
"""Used where nothing is trained."""


def tried_steps(session: Session, row_type: torch.dtype) -> StepMemory:
    """Compute two small batches on the device and fit the memory that they took."""
    device, size = session.inputs.device, session.task.batch_size
    inputs = session.inputs
    carrier = DeviceCarrier(device, inputs.sources, row_type, inputs.scale, edges=inputs.edges)
    sizes = sorted({max(1, min(size, len(session.task.items)) // part) for part in (4, 2)})
    # Libraries allocate what they keep when they are first used.
    _tried(session, carrier, sizes[0])
    tried = [_tried(session, carrier, seeds) for seeds in sizes]
    return followed(tried, min(size, len(session.task.items)) / sizes[-1])


def followed(tried: list[tuple[Load, float]], factor: float) -> StepMemory:
    """Extrapolate the memory of tried steps, given from the smallest to the largest, to a batch `factor` times as
    large.
    """
    (small, little), (large, much) = tried[0], tried[-1]
    grown = _weighed(large) - _weighed(small)
    if grown > 0.1 * _weighed(large) and much > little:
        a_row = (much - little) / grown
        fixed = max(0.0, little - a_row * _weighed(small))
    else:
        a_row, fixed = much / max(1.0, _weighed(large)), 0.0
    return StepMemory(fixed, a_row, Load(*(round(factor * amount) for amount in large)))


def room_load(room: Room, width: int) -> Load:
    """The load of a batch that fills its room (the upper bounds of its sizes)."""
    return Load(room.rows[-1] * width, sum(room.rows[:-1]), sum(room.edges))


def _tried(session: Session, carrier: DeviceCarrier, seeds: int) -> tuple[Load, float]:
    planned = next(Schedule(session.task.items, seeds, session.job.draw_seed).from_position())
    batch = session.task.sample(planned)
    carrier.gather(batch)
    session.task.label(batch)
    device = session.inputs.device
    with state_kept(session):
        carrier.transfer(batch)
        carrier.arrive(batch)
        x = session.inputs.complete(batch)
        rest(device)
        before = torch.cuda.memory_allocated(device)
        peak = device_peak(device)
        try:
            with model_at_fault():
                with session.precision():
                    loss = session.task.loss(session.encode(batch, x), batch)
                session.backward(loss)
        except torch.OutOfMemoryError:
            raise PenstockError(
                f"Not even {seeds:,} seeds fit {device}: lower batch_size, fanouts or hidden, or free device memory.",
                code="out-of-memory",
            ) from None
        rest(device)
        most = peak.read()
    return batch_load(batch, x), most - before


def batch_load(batch: Batch, x: dict[str, Any]) -> Load:
    """The load of a batch with its inputs."""
    rows = edges = 0
    for block in batch.blocks:
        rows += sum(part.num_dst for part in block.parts)
        edges += block.num_edges
    return Load(sum(values.numel() for values in x.values()), rows, edges)


def _weighed(load: Load) -> float:
    return load.rows + load.edges / 8


# What training takes of a device's memory beside the graph, by two small steps that were tried there.

TYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

_STREAMS = 6
"""Workspaces of matrix libraries: one for each stream (trial, two warm-ups, capture), some with two libraries. This
many were missing in the predicted memory of captured steps on an H200, whatever the graph.
"""
_THREADS = 2
"""Threads of launched steps that multiply matrices: the caller's, and autograd's for the backward pass."""
_ITEM_BYTES = 60
"""Bytes for each item of an epoch: its name, number and label, before and after the shuffle, and the sort's workspace.
"""
_EDGE_BYTES = 4
"""Bytes for each edge of a block that is copied to the device; lists derived from it count as part of the step."""


@dataclass(frozen=True)
class Working:
    """Bytes of everything on the device except topology and features. `row_type` is the type in which features reach
    the model.
    """

    bytes: int
    row_type: torch.dtype
    parts: dict[str, int]


class TrialMemory:
    """The `MemoryModel` by two small steps that were tried on the device, for models whose step cannot be traced."""

    method = "trial"

    def __init__(self, session: Session, step: StepMemory, untraced: str) -> None:
        """`untraced` says why there is no trace."""
        self._session, self._step, self.untraced = session, step, untraced

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        session, job = self._session, self._session.job
        parameters, rows_as = sum(p.numel() for p in session.learned.parameters()), row_type(job)
        vertices = session.graph.num_nodes
        if captured and room is not None:
            return self._captured(room, 4 * 3 * parameters, rows_as, in_place)
        return loaded_working(
            self._step, room, vertices, job.transfer_depth + 1, parameters, rows_as, job.drawing_threads,
            positions=bool(session.inputs.edges),
        )  # fmt: skip

    def _captured(self, room: Room, weights: int, rows_as: torch.dtype, in_place: bool) -> Working:
        """The memory of captured steps: two slots, weights, gradients and moments, and a step's activations."""
        task: Any = self._session.task
        labels, width = task.labels_of(task.items[:1]), max(self._session.inputs.widths.values())
        parts = {
            "numbering": 4 * self._session.graph.num_nodes,
            "slots": 2 * _slot_bytes(room),
            "epoch": len(task.items) * (_ITEM_BYTES + 2 * (0 if labels is None else labels.nbytes)),
            "weights": weights,
            "step": self._step.of(room_load(room, width)),
            "libraries": _STREAMS * library_memory().product_workspace,
        }
        if not in_place:
            parts["inputs"] = 2 * room.rows[-1] * width * rows_as.itemsize
        return Working(sum(parts.values()), rows_as, parts)

    def predicted(self, decision: Any) -> int:
        return int(decision.residence.device_bytes)


def row_type(job: Job) -> torch.dtype:
    """The type in which features reach the model."""
    return TYPES.get(job.compute_type, torch.float32)


def loaded_working(
    step: StepMemory,
    room: Room | None,
    vertices: int,
    ahead: int,
    parameters: int,
    row_type: torch.dtype,
    threads: int = 1,
    positions: bool = False,
    merges: bool = False,
) -> Working:
    """The working memory of steps on batches that a pipeline brings, `ahead` of them queued; with `room`, each thread
    has a device sampler.

    `positions`: samplers keep the numbers of drawn edges. `merges`: samplers also keep the edges of all hops as one
    list.
    """
    load = step.whole
    parts = {
        "batches": (1 + ahead) * (load.inputs * row_type.itemsize + _EDGE_BYTES * (load.edges + load.rows)),
        "weights": 4 * 3 * parameters,
        "step": step.of(load),
        "libraries": _THREADS * library_memory().product_workspace + library_memory().bias_workspace,
    }
    if room is not None:
        slot = _slot_bytes(room) + (8 * positions + 16 * merges) * sum(room.edges)
        parts |= {"numbering": threads * 4 * vertices, "slots": threads * slot}
    return Working(sum(parts.values()), row_type, parts)


def _slot_bytes(room: Room) -> int:
    """The bytes of one `sampling.device.hops.Slot`, with its transposed lists."""
    rows, edges = sum(room.rows[:-1]), sum(room.edges)
    scratch = 4 * (max(room.edges[0::2]) + max(room.edges[1::2], default=0)) + max(room.edges)
    turned = sum(8 * held + 20 * size for held, size in zip(room.rows[1:-1], room.edges[:-1], strict=True))
    return 8 * room.rows[-1] + 4 * rows + 4 * edges + scratch + turned


# What fits a device together: what training takes there, and where the graph lies beside it.


class MemoryModel(Protocol):
    """Predicts what training takes of a device before anything is placed."""

    method: str
    """How memory is predicted: `traced` or `trial`."""
    untraced: str
    """Why the step could not be traced; empty where it could."""

    def predicted(self, decision: Any) -> int:
        """The predicted peak of tensor memory in bytes, with everything placed as decided."""

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """The memory of steps done in this way; `features`: their place, if known; `gathers`: by the host."""


class Asked(NamedTuple):
    """How steps should be done, if memory allows it."""

    job: Job
    room: Room | None
    """The upper bounds of batch sizes, where a device draws them."""
    captured: bool
    in_place: bool
    """Whether the first layer may read features directly in their table, without gathering them."""
    fills: bool
    """Whether the host may fill the slots of captured steps although the job does not ask for it. It may not for
    workers' shares.
    """
    on_host: list[str]
    """The reasons why the host draws; empty where it does not."""
    unless_captured: list[str]
    """The reasons why the host draws if steps are not captured; empty where the device draws then too."""
    relations: tuple[EdgeType, ...] = ()
    """The relations whose lists a device reads to draw."""


class Fitted(NamedTuple):
    """The working memory, and the places of topology and features that fit beside it."""

    working: Working
    residence: Residence
    gathers: bool
    """Whether the host gathers rows of pinned features."""
    captured: bool


def drawn_options(session: Placeable) -> DrawOptions:
    """The options by which a device draws a session's batches; a user's module gets weights of edges as rows."""
    return settings_of(sampled_job(session.job, getattr(session.model, "module", None))).options


def fitting(session: Placeable, memory: MemoryModel, asked: Asked) -> Fitted:
    """Choose where the graph lies beside the working memory, and whether the host gathers rows of pinned features.

    The host gathers where the job allows it; if the job leaves that open, only where its buffers fit.
    """
    try:
        return _fitting_with(session, memory, asked, gathers_rows(asked.job))
    except NoRoomError:
        if asked.job.feature_paths != "auto":
            raise
        return _fitting_with(session, memory, asked, False)


_MOST_CACHED = 0.8
"""If the device holds at least this share of the rows, gathering the few others on the host is not worth its cost per
batch.
"""


def _fitting_with(session: Placeable, memory: MemoryModel, asked: Asked, gathers: bool) -> Fitted:
    """`fitting` for one value of `gathers`. Features read in place are on the device, and captured steps use nothing
    that lies on the host, except features that the host itself brings to their slots.
    """
    job, room, needed = asked.job, asked.room, read_place(asked.job)
    place: Place | None = None if needed == "auto" else needed
    for is_captured, reads_in_place in _ways(asked, place):
        if not is_captured and asked.unless_captured:
            asked, room = asked._replace(room=None, on_host=asked.unless_captured), None
        records = is_captured and room is not None
        working = memory.working(room, records, reads_in_place, place, gathers=gathers and place == "pinned")
        residence = _decided(session, asked, working)
        if records and not reads_in_place and residence.features == "host" != place and _can_capture(asked, residence):
            # Slots that the host fills take more memory than those into which a device reads by itself.
            try:
                working = memory.working(room, True, False, "host")
                residence = _decided(session, asked, working)
            except NoRoomError:
                continue
        possible = not is_captured or _can_capture(asked, residence)
        if (not reads_in_place or residence.features == "device") and possible:
            break
    if residence.features == "pinned" and gathers and place != "pinned":
        # Rows that the host gathers have buffers on the device, which a cache leaves room for.
        working = memory.working(room, is_captured and room is not None, False, "pinned", gathers=True)
        residence = _decided(session, asked, working)
    rows = sum(len(session.graph.nodes[name].fields[field]) for name, field in session.inputs.fields.items())
    if job.feature_paths == "auto" and residence.cache_rows > _MOST_CACHED * rows and gathers:
        return _fitting_with(session, memory, asked, False)
    captured = is_captured and _can_capture(asked, residence)
    return Fitted(working, residence, gathers and residence.features == "pinned", captured)


def _ways(asked: Asked, place: Place | None) -> list[tuple[bool, bool]]:
    """(captured, in place) in the order in which they are tried."""
    captured = asked.captured and (place != "host" or can_capture(asked.job, "device", "host", asked.fills))
    return [(True, True)] * asked.in_place + [(True, False)] * captured + [(False, False)]


def _can_capture(asked: Asked, residence: Residence) -> bool:
    return can_capture(asked.job, residence.topology, residence.features, asked.fills)


def gathers_rows(job: Job) -> bool:
    """Whether the host may gather rows of pinned features: only where the job asks for nothing else to be done with
    them.
    """
    way = WAYS[job.first_layer]
    return "gathered" in job.row_paths and not way.on_host and not way.on_both


def way_of(job: Job, features: Place) -> FirstLayerWay:
    """How a device's steps read features that lie in a place: as the job says; under `auto` the host gathers what only
    it can read.
    """
    return WAYS["gather" if job.first_layer == "auto" and features == "host" else job.first_layer]


def can_capture(job: Job, topology: Place, features: Place, fills: bool = True) -> bool:
    """Whether steps with these places can be captured; `fills`: the host may fill their slots unasked."""
    way = way_of(job, features)
    read = features != "host" or (way.filler is not None and (fills or way.name == job.first_layer))
    return read and (topology != "host" or drawn_for_slots(job))


def drawn_for_slots(job: Job) -> bool:
    """Whether the host both draws batches and fills their slots, because the job asks for it."""
    way = WAYS[job.first_layer]
    return job.sample_on == "host" and way.on_host and way.filler is not None


def _decided(session: Placeable, asked: Asked, working: Working) -> Residence:
    """Decide where topology and features go; raises an error where they cannot fit."""
    job, graph, drawn_on_host = asked.job, session.graph, asked.on_host
    wish = job.placed
    if drawn_on_host and wish.topology in ("device", "pinned"):
        raise PenstockError(
            f"placement keeps the topology {wish.topology}, but batches are drawn on the host"
            f" ({', '.join(drawn_on_host)}): leave out topology.",
            code="unsupported-combination",
        )
    features = read_place(job)
    tables = [graph.nodes[name].fields[field] for name, field in session.inputs.fields.items()]
    sizes = [table.size * stored_type(job, table).itemsize for table in tables]
    free, total = device_memory_of(session.inputs.device)
    relations = [] if drawn_on_host else [graph.edges[kind] for kind in asked.relations]
    topology = sum(edges.indptr.nbytes + edges.indices.nbytes for edges in relations)
    if topology:
        # What edges carry lies with the lists.
        carried = [source for each in session.inputs.edges.fields.values() for source in each.sources]
        topology += sum(math.prod(source.shape) * edge_row_type(source).itemsize for source in carried)
    bounds = sum(edges.indptr.nbytes for edges in relations)
    options = drawn_options(session)
    if options.list_weight is not None:
        by_weight, having = options.weight is not None, [e for e in relations if options.list_weight in e.fields]
        weighed = [Weighed.bytes_of(edges, options.list_weight, by_weight) for edges in having]
        topology += sum(beside + there for beside, there in weighed)
        bounds += sum(there for _, there in weighed)
    rows = sum(len(table) for table in tables)
    cache = 0 if WAYS[job.first_layer].on_host else wish.cache_rows
    if "cache" not in job.row_paths:
        if cache:
            raise PenstockError(
                f"placement keeps {cache:,} rows on the device, but feature_paths leaves out the cache: add cache to"
                " feature_paths, or leave out cache_rows.",
                code="unsupported-combination",
            )
        cache = 0
    if not graph.is_homogeneous:
        # A cache would have to be shared out among the types.
        if cache:
            graph.require_one_relation("cache_rows", "leave it out of `placement`")
        cache = 0
    row = max(1, sum(sizes) // max(rows, 1))
    group = current_gpu_group() or GpuGroup(1)
    return decide_residence(
        Sizes(
            topology,
            sum(sizes),
            row,
            rows,
            working.bytes,
            free + group.held,
            total,
            (available_mb() << 20) + pinned_already(),
            bounds,
            group.count,
            sum(share_bytes(size, group.count) for size in sizes),
            group.all_fit,
        ),
        Wanted(
            "host" if drawn_on_host else wish.topology,
            "sharded" if wish.features == "sharded" else features,
            cache,
            job.device_share,
        ),
    )


def read_place(job: Job) -> Where:
    """Where features must lie for a job's first layer; refuses a place that the user named and that it cannot read.

    Features that are sharded over several GPUs are read as those on the device.
    """
    wish, way = "device" if job.placed.features == "sharded" else job.placed.features, WAYS[job.first_layer]
    # The host can read pinned memory as well.
    on_host: Where = "pinned" if wish == "pinned" else "host"
    needed: Where = on_host if way.on_host else "pinned" if way.on_both else wish
    if wish not in ("auto", needed):
        whose = "on the host" if way.on_host else "in pinned memory"
        raise PenstockError(
            f"placement keeps the features {job.placed.features}, but first_layer {job.first_layer} reads them {whose}:"
            " leave out features.",
            code="unsupported-combination",
        )
    if way.on_both and "gathered" in job.row_paths and job.feature_paths != "auto":
        raise PenstockError(
            f"feature_paths has the host gather rows, and first_layer {job.first_layer} has it aggregate them: leave"
            " gathered out of feature_paths.",
            code="unsupported-combination",
        )
    return needed


def edge_row_type(source: RowSource) -> torch.dtype:
    """The dtype of edge features where a device reads them: stored float16 stays, everything else becomes float32."""
    return torch.float16 if source.dtype == np.float16 else torch.float32


def stored_type(job: Job, array: Any) -> torch.dtype:
    """The dtype of placed features: the one asked for; else stored float16 stays, everything else becomes float32."""
    if job.feature_type != "stored":
        return TYPES[job.feature_type]
    return {np.dtype(np.float16): torch.float16}.get(array.dtype, torch.float32)
