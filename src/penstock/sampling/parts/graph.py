"""Samplers of a partitioned graph, whose batches equal those of the unpartitioned graph."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as with_changes
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.partition.folder import Partition
from penstock.sampling.entry import ReadableLists
from penstock.sampling.labor import Labor
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import Readable
from penstock.sampling.neighbours import NeighbourSampler, Relation
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.relation import RelationReader
from penstock.sampling.parts.remote import Channels, PartedLists, VertexTimedLists
from penstock.sampling.parts.requests import PLAIN_DRAWS, DrawSettings, Name, StrictRequest, read_body
from penstock.sampling.temporal import OF_NODES, Clock
from penstock.sampling.typed import TypedNeighbourSampler, neighbour_sampler
from penstock.wire.channel import Channel
from penstock.wire.message import Message

DIRECT_LIMIT_OF_PARTS = 1 << 21
"""Vertices of a cut graph up to which batches are numbered directly: 8 MiB for each thread. Where there are more, such
a table exceeds a processor's cache, and a worker has tables of its batches' vertices, which are faster then.
"""
KEPT_TIMES = 1 << 21
"""The most times of vertices that a worker keeps: 32 MiB."""
EdgeTimes = Callable[[str, Array], Array]
"""(relation key, edge numbers in the partitioned graph) -> the times of these edges."""


def parted_sampler(
    partition: Partition,
    fanouts: Sequence[int | Mapping[Relation, int]],
    *,
    totals: bool = False,
    edges: bool = False,
    relabel: str = "auto",
    ages: bool = False,
    local: Mapping[int, OwnedPart] | None = None,
    channels: Channels | None = None,
    **how: Any,
) -> NeighbourSampler | TypedNeighbourSampler:
    """A neighbour sampler, for one type or several as the graph has; other arguments are as for `parted_lists`.

    Without `local` and `channels` all parts are opened here. Batches hold the original numbers of their vertices, and
    with `edges` the numbers of their edges in the partitioned graph, by which stores serve edge fields. With `ages`
    blocks hold the ages of edges.
    """
    local, channels = _reached(partition, local, channels)
    lists = parted_lists(partition, local=local, channels=channels, **how)
    return neighbour_sampler(lists, fanouts, totals=totals, relabel=relabel, edges=edges, ages=ages)


def parted_lists(
    partition: Partition,
    replace: bool = False,
    weight: str | None = None,
    time: str | None = None,
    shared: bool = False,
    *,
    local: Mapping[int, OwnedPart],
    channels: Channels,
    absent: Mapping[EdgeType, HeldOutRule] | None = None,
    vertex_times: "Array | VertexTimes | None" = None,
    edge_times: EdgeTimes | None = None,
    uniform: bool = False,
) -> ReadableLists:
    """The lists of a partitioned graph, by new vertex numbers, and the clock that their draws obey.

    `local` are the parts in this process, `channels` leads to the owners of the others. Edges that are `absent` from a
    relation are not drawn. With `uniform` the field `weight` only scales messages. `vertex_times`, by new number, are
    needed where `time` names a field of vertices; `edge_times` where ages of edges are asked for, whose times are at
    their owners. With `shared`, all rows of a hop see the same random number of a source vertex.
    """
    by_vertex = time is not None and time.startswith(OF_NODES)
    if by_vertex and (vertex_times is None or (weight is not None and absent)):
        raise PenstockError(
            "A cut graph can be sampled by time only with all its edges: pass `vertex_times` and hold no edges out, or"
            " name a field of the edges as `time`.",
            code="unsupported-combination",
        )
    whole = by_vertex and weight is not None
    bound = {} if time is None or by_vertex else _relations_with(local, channels, time)
    how = DrawSettings(replace, weight, uniform=uniform, shared=shared, whole=whole)
    readable = readable_parts(partition, local, channels, how, absent, bound)
    if time is None:
        return ReadableLists(readable, {})
    if by_vertex and vertex_times is not None:
        readable.require_one_relation(
            "Sampling a cut graph by times of vertices", "name a field of the edges as `time`, or train on one machine"
        )
        readable, clock = _by_vertex_times(readable, vertex_times, replace, uniform)
        return ReadableLists(readable, dict.fromkeys(readable.relations, clock))
    clocks = {kind: _clock_like(partition, local, channels, kind, time, edge_times) for kind in bound}
    return ReadableLists(readable, clocks)


def _relations_with(local: Mapping[int, OwnedPart], channels: Channels, time: str) -> dict[EdgeType, str]:
    """The relations whose edges have a field of times, and its name; the others are not bound by time."""
    fields = _edge_fields_in(local, channels)
    found = {kind: time for kind, names in fields.items() if time in names}
    if not found:
        has = ", ".join(dict.fromkeys(name for names in fields.values() for name in names)) or "none"
        raise PenstockError(
            f"The edges have no field {time!r} to use as times (fields: {has}); {OF_NODES}NAME names a field of the"
            " vertices, NAME one of the edges.",
            code="field-missing",
        )
    return found


def _by_vertex_times(
    readable: Readable, times: "Array | VertexTimes", replace: bool, uniform: bool
) -> tuple[Readable, Clock]:
    """The lists of the only relation, for a caller that has, or can read, the times of all vertices."""
    ((node_type, count),), ((kind, lists),) = readable.counts.items(), readable.relations.items()
    if times.shape != (count,) or times.dtype.kind not in "iuf" or times.dtype == np.uint64 or readable.names is None:
        raise PenstockError(
            f"The times of {count:,} vertices must be one signed number for each, not {times.dtype}.", code="wrong-type"
        )
    kind_of_times = np.dtype(np.float64 if times.dtype.kind == "f" else np.int64)
    timed = VertexTimedLists(lists, readable.names[node_type], times, kind_of_times, replace, uniform)
    # Draws compare the times of the vertices in lists; a clock's own are used for ages.
    by_number: Any = times
    clock = Clock(np.empty(0, kind_of_times), by_number)
    return with_changes(readable, relations={kind: timed}), clock


class VertexTimes:
    """The times of vertices, by number in the partitioned graph, read from their owners when lists name them.

    Times that were read are kept in a table of up to `KEPT_TIMES` slots, 12 to 16 bytes each: in graphs of no more
    vertices every time is read once. Any thread may ask.
    """

    ndim = 1

    def __init__(self, count: int, dtype: np.dtype[Any], read: Callable[[Array], Array]) -> None:
        self.shape, self.dtype, self._read = (count,), dtype, read
        self._kept = np.full(1 << (min(count, KEPT_TIMES) - 1).bit_length(), -1, index_dtype(count))
        self._times, self._lock = np.empty(len(self._kept), dtype), threading.Lock()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers: Array) -> Array:
        found, missing = np.empty(len(numbers), self.dtype), np.empty(len(numbers), np.int64)
        with self._lock:
            lacking = missing[: _kept_times(self._kept, self._times, numbers, found, missing)]
        if len(lacking):
            wanted = numbers[lacking]
            times = np.asarray(self._read(wanted))
            found[lacking] = times
            with self._lock:
                _keep_times(self._kept, self._times, wanted, times)
        return found


@njit(nogil=True, cache=True, writes=("found", "missing"))
def _kept_times(kept: Array, times: Array, numbers: Array, found: Array, missing: Array) -> int:
    """Write the times that are kept, and the positions of the others; returns how many these are."""
    mask, lacking = len(kept) - 1, 0
    for i in range(len(numbers)):
        slot = numbers[i] & mask
        found[i] = times[slot]
        missing[lacking] = i
        lacking += kept[slot] != numbers[i]
    return lacking


@njit(nogil=True, cache=True)
def _keep_times(kept: Array, times: Array, numbers: Array, new: Array) -> None:
    """Keep times, each instead of the one that had its slot."""
    mask = len(kept) - 1
    for i in range(len(numbers)):
        slot = numbers[i] & mask
        kept[slot], times[slot] = numbers[i], new[i]


class TimesAtOwners:
    """The times of a relation's edges, by number in the partitioned graph; read when they are needed."""

    def __init__(self, count: int, dtype: np.dtype[Any], read: Callable[[Array], Array]) -> None:
        self._count, self.dtype, self._read = count, dtype, read

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, numbers: Array) -> Array:
        return self._read(numbers).astype(self.dtype)


def _clock_like(
    partition: Partition,
    local: Mapping[int, OwnedPart],
    channels: Channels,
    kind: EdgeType,
    time: str,
    edge_times: EdgeTimes | None,
) -> Clock:
    """A clock with the dtype of a relation's edge field, whose values are with the owners."""
    values = RelationReader(partition, local, channels).no_values(kind, time)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or values.dtype == np.uint64:
        raise PenstockError(
            f"Edge field {time!r} cannot be used as times: it must hold one signed number for each edge.",
            code="wrong-type",
        )
    nothing = np.empty(0, np.float64 if values.dtype.kind == "f" else np.int64)
    if edge_times is None:
        return Clock(nothing, nothing)
    key = edge_key(kind)
    count = int(partition.book.edge_bounds(key)[-1])
    # They are only used for ages: draws are made where the times are.
    there: Any = TimesAtOwners(count, nothing.dtype, lambda numbers: edge_times(key, numbers))
    return Clock(there, nothing)


def parted_labor(
    partition: Partition,
    fanouts: Sequence[int],
    edges: bool = False,
    *,
    local: Mapping[int, OwnedPart] | None = None,
    channels: Channels | None = None,
) -> Labor:
    """LABOR over a partitioned graph of one type; other arguments are as for `parted_sampler`."""
    local, channels = _reached(partition, local, channels)
    return Labor.over(parted_lists(partition, shared=True, local=local, channels=channels).readable, fanouts, edges)


def _reached(
    partition: Partition, local: Mapping[int, OwnedPart] | None, channels: Channels | None
) -> tuple[Mapping[int, OwnedPart], Channels]:
    """The parts in this process (all of them by default), and the channels to the others."""
    if local is None:
        local = {} if channels else {part: OwnedPart.of(partition, part) for part in range(partition.parts)}
    return local, channels or _nobody


def readable_parts(
    partition: Partition,
    local: Mapping[int, OwnedPart],
    channels: Channels,
    how: DrawSettings = PLAIN_DRAWS,
    absent: Mapping[EdgeType, HeldOutRule] | None = None,
    times: Mapping[EdgeType, str] | None = None,
) -> Readable:
    """A partitioned graph as samplers see it; `absent` and `times` are those of `how`, by relation."""
    book, relations = partition.book, {}
    for kind in edge_types_in(local, channels):
        own = how._replace(absent=(absent or {}).get(kind), time=(times or {}).get(kind))
        here = {index: part.lists(kind, own) for index, part in local.items()}
        relations[kind] = PartedLists(kind, book, here, channels, own)
    counts = {name: book.count(name) for name in book.node_types}
    names = {name: partition.original(name) for name in book.node_types}
    return Readable(counts, relations, names, DIRECT_LIMIT_OF_PARTS)


def edge_types_in(local: Mapping[int, OwnedPart], channels: Channels) -> list[EdgeType]:
    """The relations of a partitioned graph, in stored order."""
    return list(_edge_fields_in(local, channels))


def _edge_fields_in(local: Mapping[int, OwnedPart], channels: Channels) -> dict[EdgeType, list[str]]:
    """The names of the fields of edges, by relation in stored order."""
    if local:
        return {kind: list(edges.fields) for kind, edges in next(iter(local.values())).graph.edges.items()}
    return edge_fields_of(channels(0), 0)


def edge_fields_of(channel: Channel, part: int) -> dict[EdgeType, list[str]]:
    """The names of the fields of edges, by relation in stored order, as reported by the owner of a part."""
    held = read_body(channel.call(Message("lists")), _Held)
    if str(part) not in held.parts:
        raise PenstockError(
            f"{channel.peer} does not hold part {part}: give the channel of the task that holds it.",
            code="not-available",
        )
    return {(each.type[0], each.type[1], each.type[2]): each.fields for each in held.parts[str(part)]}


def _nobody(part: int) -> Channel:
    raise PenstockError(
        f"Part {part} is neither local nor reachable: pass all parts in `local`, or pass `channels`.",
        code="not-available",
    )


class _Relation(StrictRequest):
    type: Annotated[list[Name], Field(min_length=3, max_length=3)]
    fields: list[str]


class _Held(StrictRequest):
    parts: dict[str, list[_Relation]]
