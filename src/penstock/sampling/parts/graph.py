"""Samplers of a cut graph, whose batches are those of the graph before it was cut."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.partition.folder import Partition
from penstock.sampling.labor import Labor
from penstock.sampling.links.edge_split import HeldOutRule
from penstock.sampling.lists import Readable
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.relation import RelationReader
from penstock.sampling.parts.remote import Channels, PartedLists
from penstock.sampling.parts.requests import Name, StrictRequest, Whole, read_body
from penstock.sampling.parts.vertex_times import VertexTimedLists
from penstock.sampling.registry import ReadableLists
from penstock.sampling.temporal import OF_NODES, Clock
from penstock.sampling.typed import Relation, TypedNeighbourSampler
from penstock.wire.channel import Channel
from penstock.wire.message import Message


def parted_sampler(
    partition: Partition,
    fanouts: Sequence[int | Mapping[Relation, int]],
    replace: bool = False,
    weight: str | None = None,
    totals: bool = False,
    edges: bool = False,
    time: str | None = None,
    relabel: str = "auto",
    *,
    local: Mapping[int, OwnedPart] | None = None,
    channels: Channels | None = None,
    absent: Mapping[EdgeType, HeldOutRule] | None = None,
    vertex_times: Array | None = None,
    uniform: bool = False,
) -> NeighbourSampler | TypedNeighbourSampler:
    """A neighbour sampler, of one type or of several as the graph has; the rest is as for `parted_lists`.

    Without `local` and `channels` all parts are opened here. Batches carry the original numbers of their vertices, and
    with `edges` the numbers of their edges in the cut graph, by which stores serve fields of edges.
    """
    local, channels = _reached(partition, local, channels)
    lists = parted_lists(
        partition,
        replace,
        weight,
        time,
        local=local,
        channels=channels,
        absent=absent,
        vertex_times=vertex_times,
        uniform=uniform,
    )
    readable = lists.readable
    if len(readable.counts) > 1 or len(readable.relations) > 1:
        return TypedNeighbourSampler.over(readable, fanouts, totals, relabel, edges)
    plain = [fanout for fanout in fanouts if isinstance(fanout, int)]
    if len(plain) < len(fanouts):
        raise PenstockError(
            "Fan-outs by relation are for graphs with several relations: give one number for each hop.",
            code="unsupported-combination",
        )
    return NeighbourSampler.over(readable, plain, totals, relabel, lists.clock, edges)


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
    vertex_times: Array | None = None,
    uniform: bool = False,
) -> ReadableLists:
    """The lists of a cut graph, whose vertices go by their new numbers, and the clock that draws from them obey.

    `local` are the parts that are here, `channels` leads to the owners of the others. Edges that are `absent` from a
    relation are not drawn. With `uniform` the field `weight` counts in sums alone. `vertex_times`, by new number, are
    needed where `time` names them. With `shared`, all rows of a hop see the same random number of a source vertex.
    """
    by_vertex = time is not None and time.startswith(OF_NODES)
    if by_vertex and (vertex_times is None or (weight is not None and absent)):
        raise PenstockError(
            "A cut graph can be sampled by time only with all its edges: pass `vertex_times` and hold no edges out, or"
            " name a field of the edges as `time`.",
            code="unsupported-combination",
        )
    obeyed, whole = None if by_vertex else time, by_vertex and weight is not None
    readable = readable_parts(partition, local, channels, replace, weight, absent, shared, obeyed, whole, uniform)
    if time is None:
        return ReadableLists(readable, {})
    if len(readable.counts) > 1 or len(readable.relations) > 1:
        raise PenstockError(
            "A cut graph is sampled by time only if it has one node type and one edge type: leave out `time`, or train"
            " on one machine.",
            code="unsupported-combination",
        )
    if by_vertex and vertex_times is not None:
        readable, clock = _by_vertex_times(readable, vertex_times, replace, uniform)
    else:
        clock = _clock_like(partition, local, channels, time)
    return ReadableLists(readable, dict.fromkeys(readable.relations, clock))


def _by_vertex_times(readable: Readable, times: Array, replace: bool, uniform: bool) -> tuple[Readable, Clock]:
    """The only relation, for a caller that holds the times of all vertices."""
    ((node_type, count),), ((kind, lists),) = readable.counts.items(), readable.relations.items()
    if times.shape != (count,) or times.dtype.kind not in "iuf" or times.dtype == np.uint64 or readable.names is None:
        raise PenstockError(
            f"The times of {count:,} vertices must be one signed number for each, not {times.dtype}.", code="wrong-type"
        )
    times = times.astype(np.int64) if times.dtype.kind == "u" else times
    timed = VertexTimedLists(lists, readable.names[node_type], times, replace, uniform)
    nothing = np.empty(0, times.dtype)
    return Readable(readable.counts, {kind: timed}, readable.names), Clock(nothing, nothing)


def _clock_like(partition: Partition, local: Mapping[int, OwnedPart], channels: Channels, time: str) -> Clock:
    """A clock with the kind of numbers of an edge field, whose values are with the owners."""
    (kind,) = edge_types_in(local, channels)
    values = RelationReader(partition, local, channels).no_values(kind, time)
    if values.ndim != 1 or values.dtype.kind not in "iuf" or values.dtype == np.uint64:
        raise PenstockError(
            f"Edge field {time!r} cannot be used as times: it must hold one signed number for each edge.",
            code="wrong-type",
        )
    nothing = np.empty(0, np.float64 if values.dtype.kind == "f" else np.int64)
    return Clock(nothing, nothing)


def parted_labor(
    partition: Partition,
    fanouts: Sequence[int],
    edges: bool = False,
    *,
    local: Mapping[int, OwnedPart] | None = None,
    channels: Channels | None = None,
) -> Labor:
    """LABOR over a cut graph of one type; the rest is as for `parted_sampler`."""
    local, channels = _reached(partition, local, channels)
    return Labor.over(parted_lists(partition, shared=True, local=local, channels=channels).readable, fanouts, edges)


def _reached(
    partition: Partition, local: Mapping[int, OwnedPart] | None, channels: Channels | None
) -> tuple[Mapping[int, OwnedPart], Channels]:
    """The parts that are here, which are all of them where nothing is said, and the way to the others."""
    if local is None:
        local = {} if channels else {part: OwnedPart.of(partition, part) for part in range(partition.parts)}
    return local, channels or _nobody


def readable_parts(
    partition: Partition,
    local: Mapping[int, OwnedPart],
    channels: Channels,
    replace: bool = False,
    weight: str | None = None,
    absent: Mapping[EdgeType, HeldOutRule] | None = None,
    shared: bool = False,
    time: str | None = None,
    whole: bool = False,
    uniform: bool = False,
) -> Readable:
    """A cut graph as samplers see it; `whole`: its lists are given as they are."""
    book, absent = partition.book, absent or {}
    kinds = edge_types_in(local, channels)
    relations = {
        kind: PartedLists(
            kind,
            book,
            {
                index: part.lists(kind, replace, weight, absent.get(kind), time, uniform)
                for index, part in local.items()
            },
            channels,
            replace,
            weight,
            absent.get(kind),
            shared,
            time,
            whole,
            uniform,
        )
        for kind in kinds
    }
    counts = {name: book.count(name) for name in book.node_types}
    return Readable(counts, relations, {name: partition.original(name) for name in book.node_types})


def edge_types_in(local: Mapping[int, OwnedPart], channels: Channels) -> list[EdgeType]:
    """The relations of a cut graph, in stored order."""
    return list(next(iter(local.values())).graph.edges) if local else edge_types_of(channels(0), 0)


def edge_types_of(channel: Channel, part: int) -> list[EdgeType]:
    """The relations of a graph, in stored order, as the owner of a part tells them."""
    held = read_body(channel.call(Message("lists")), _Held)
    if str(part) not in held.parts:
        raise PenstockError(
            f"{channel.peer} does not hold part {part}: give the channel of the task that holds it.",
            code="not-available",
        )
    return [(source, name, target) for source, name, target in (each.type for each in held.parts[str(part)].relations)]


def _nobody(part: int) -> Channel:
    raise PenstockError(
        f"Part {part} is neither local nor reachable: pass all parts in `local`, or pass `channels`.",
        code="not-available",
    )


class _Nodes(StrictRequest):
    first: Whole
    count: Whole
    total: Whole


class _Relation(StrictRequest):
    type: Annotated[list[Name], Field(min_length=3, max_length=3)]
    key: Name
    edges: Whole
    fields: list[str]


class _Part(StrictRequest):
    nodes: dict[str, _Nodes]
    relations: list[_Relation]


class _Held(StrictRequest):
    parts: dict[str, _Part]
