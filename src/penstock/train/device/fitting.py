"""What fits a device together: what training takes there, and where the graph lies beside it."""

import math
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from penstock.errors import PenstockError
from penstock.memory import available_mb
from penstock.plan import Residence, Sizes, Wanted, decide_residence
from penstock.plan.residence import NoRoomError, Place
from penstock.sampling.device.room import Room
from penstock.store.source import RowSource
from penstock.train.device.memory import TYPES, Working
from penstock.train.device_memory import device_memory_of
from penstock.train.device_options import Where
from penstock.train.execution.support import Placeable
from penstock.train.first_layer.way import FirstLayerWay
from penstock.train.first_layer.ways import WAYS
from penstock.train.job import Job


class WorkingMemory(Protocol):
    """Says what training takes of a device beside the graph."""

    def working(
        self, room: Room | None, captured: bool, in_place: bool, features: Place | None = None, gathers: bool = False
    ) -> Working:
        """What it takes beside topology and features, if steps are done in this way.

        `features`: where they lie, where that is known; `gathers`: whether the host gathers rows of pinned ones.
        """


class Asked(NamedTuple):
    """How steps are to be done, as far as that is possible with the graph where it fits."""

    job: Job
    room: Room | None
    """For batches that a device draws."""
    captured: bool
    in_place: bool
    """Whether the first layer may read features in their table."""
    fills: bool
    """Whether the host may fill slots of captured steps unasked: not those of workers' shares."""
    on_host: list[str]
    """Why the host draws, where it does."""


class Fitted(NamedTuple):
    """The working memory and the places that go together."""

    working: Working
    residence: Residence
    gathers: bool
    """Whether the host gathers rows of pinned features."""
    captured: bool


def fitting(session: Placeable, memory: WorkingMemory, asked: Asked) -> Fitted:
    """Where the graph lies beside what training takes, and whether the host gathers rows of pinned features.

    It does where the job allows it; where that is left open and its buffers have no room, it does not.
    """
    try:
        return _fitting_with(session, memory, asked, gathers_rows(asked.job))
    except NoRoomError:
        if asked.job.feature_paths != "auto":
            raise
        return _fitting_with(session, memory, asked, False)


_MOST_CACHED = 0.8
"""Share of the rows on the device from which on the host's turn in every batch is not worth the few that are left."""


def _fitting_with(session: Placeable, memory: WorkingMemory, asked: Asked, gathers: bool) -> Fitted:
    """What is read in place lies on the device, what is captured is not on the host, but for features that the host
    itself brings."""
    job, room, needed = asked.job, asked.room, read_place(asked.job)
    place: Place | None = None if needed == "auto" else needed
    for is_captured, reads_in_place in _ways(asked, place):
        records = is_captured and room is not None
        working = memory.working(room, records, reads_in_place, place, gathers=gathers and place == "pinned")
        residence = _decided(session, asked, working)
        if records and not reads_in_place and residence.features == "host" != place and _can_capture(asked, residence):
            # Slots that the host fills take more than those into which a device reads by itself.
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
    """Whether steps are captured and read features in place: what is tried, one after the other."""
    captured = asked.captured and (place != "host" or can_capture(asked.job, "device", "host", asked.fills))
    return [(True, True)] * asked.in_place + [(True, False)] * captured + [(False, False)]


def _can_capture(asked: Asked, residence: Residence) -> bool:
    return can_capture(asked.job, residence.topology, residence.features, asked.fills)


def gathers_rows(job: Job) -> bool:
    """Whether the host may gather rows of pinned features: it does nothing else with them."""
    way = WAYS[job.first_layer]
    return "gathered" in job.row_paths and not way.on_host and not way.on_both


def way_of(job: Job, features: Place) -> FirstLayerWay:
    """How a device's steps read features in a place: as the job says; `auto` has the host gather what only it reads."""
    return WAYS["gather" if job.first_layer == "auto" and features == "host" else job.first_layer]


def can_capture(job: Job, topology: Place, features: Place, fills: bool = True) -> bool:
    """Whether steps can be captured with lists and features in these places.

    `fills`: whether the host may fill their slots without being asked to by `first_layer`.
    """
    way = way_of(job, features)
    read = features != "host" or (way.filler is not None and (fills or way.name == job.first_layer))
    return read and (topology != "host" or drawn_for_slots(job))


def drawn_for_slots(job: Job) -> bool:
    """Whether the host draws batches for slots that it fills as well, as the job asks for."""
    way = WAYS[job.first_layer]
    return job.sample_on == "host" and way.on_host and way.filler is not None


def _decided(session: Placeable, asked: Asked, working: Working) -> Residence:
    """Where the graph goes; refused with a sentence where it cannot."""
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
    edges = next(iter(graph.edges.values()), None)
    topology = 0 if drawn_on_host or edges is None else edges.indptr.nbytes + edges.indices.nbytes
    if topology:
        # What edges carry lies with the lists.
        carried = [source for each in session.inputs.edges.fields.values() for source in each.sources]
        topology += sum(math.prod(source.shape) * edge_row_type(source).itemsize for source in carried)
    bounds = edges.indptr.nbytes if topology and edges is not None else 0
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
            raise PenstockError(
                "cache_rows is for graphs with one node type and one edge type: leave it out of `placement`.",
                code="unsupported-combination",
            )
        cache = 0
    row = max(1, sum(sizes) // max(rows, 1))
    return decide_residence(
        Sizes(topology, sum(sizes), row, rows, working.bytes, free, total, available_mb() << 20, bounds),
        Wanted("host" if drawn_on_host else wish.topology, features, cache, job.device_share),
    )


def read_place(job: Job) -> Where:
    """Where features must lie for a job's first layer; what was asked for by name and does not do is refused."""
    wish, way = job.placed.features, WAYS[job.first_layer]
    # What is pinned the host can read as well.
    on_host: Where = "pinned" if wish == "pinned" else "host"
    needed: Where = on_host if way.on_host else "pinned" if way.on_both else wish
    if wish not in ("auto", needed):
        whose = "on the host" if way.on_host else "in pinned memory"
        raise PenstockError(
            f"placement keeps the features {wish}, but first_layer {job.first_layer} reads them {whose}: leave out"
            " features.",
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
    """The type of what edges carry where a device reads it: stored float16 stays, everything else is float32."""
    return torch.float16 if source.dtype == np.float16 else torch.float32


def stored_type(job: Job, array: Any) -> torch.dtype:
    """The type of placed features: as asked for; stored float16 stays, everything else is float32."""
    if job.feature_type != "stored":
        return TYPES[job.feature_type]
    return {np.dtype(np.float16): torch.float16}.get(array.dtype, torch.float32)
