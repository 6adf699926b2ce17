"""Samplers of a cut graph, whose batches are those of the graph before it was cut."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import Field

from penstock.errors import PenstockError
from penstock.graph.schema import EdgeType
from penstock.partition.folder import Partition
from penstock.sampling.lists import Readable
from penstock.sampling.neighbours import NeighbourSampler
from penstock.sampling.parts.owner import OwnedPart
from penstock.sampling.parts.remote import Channels, PartedLists
from penstock.sampling.parts.requests import Name, Request, Whole, read_body
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
) -> NeighbourSampler | TypedNeighbourSampler:
    """A sampler by neighbours, of one type or of several as the graph has; vertices go by their new numbers.

    `local` are the parts that are here (all of them, where nothing is said of either); `channels` leads to the owners
    of the others. Batches of a graph of one type carry the original numbers of their vertices.
    """
    if edges:
        raise PenstockError(
            "A cut graph's edges have no positions to give: sample without `edges`, or the whole graph."
        )
    if time is not None:
        raise PenstockError("A cut graph is not sampled by time: leave out `time`, or sample the whole graph.")
    if local is None:
        local = {} if channels else {part: OwnedPart.of(partition, part) for part in range(partition.parts)}
    readable = readable_parts(partition, local, channels or _nobody, replace, weight)
    if len(readable.counts) > 1 or len(readable.relations) > 1:
        return TypedNeighbourSampler.over(readable, fanouts, totals, relabel)
    plain = [fanout for fanout in fanouts if isinstance(fanout, int)]
    if len(plain) < len(fanouts):
        raise PenstockError("Fan-outs by relation are for graphs with several relations: give one number a hop.")
    return NeighbourSampler.over(readable, plain, totals, relabel)


def readable_parts(
    partition: Partition, local: Mapping[int, OwnedPart], channels: Channels, replace: bool, weight: str | None
) -> Readable:
    """A cut graph as samplers see it."""
    book = partition.book
    kinds = list(next(iter(local.values())).graph.edges) if local else edge_types_of(channels(0), 0)
    relations = {
        kind: PartedLists(
            kind,
            book,
            {index: part.lists(kind, replace, weight) for index, part in local.items()},
            channels,
            replace,
            weight,
        )
        for kind in kinds
    }
    counts = {name: book.count(name) for name in book.node_types}
    return Readable(counts, relations, {name: partition.original(name) for name in book.node_types})


def edge_types_of(channel: Channel, part: int) -> list[EdgeType]:
    """The relations of a graph, in stored order, as the owner of a part tells them."""
    held = read_body(channel.call(Message("lists")), _Held)
    if str(part) not in held.parts:
        raise PenstockError(f"{channel.peer} does not hold part {part}: tell who does.")
    return [(source, name, target) for source, name, target in (each.type for each in held.parts[str(part)].relations)]


def _nobody(part: int) -> Channel:
    raise PenstockError(
        f"Part {part} is not here and nobody is known who holds it: give `local` all parts, or `channels`."
    )


class _Nodes(Request):
    first: Whole
    count: Whole
    total: Whole


class _Relation(Request):
    type: Annotated[list[Name], Field(min_length=3, max_length=3)]
    key: Name
    edges: Whole
    fields: list[str]


class _Part(Request):
    nodes: dict[str, _Nodes]
    relations: list[_Relation]


class _Held(Request):
    parts: dict[str, _Part]
