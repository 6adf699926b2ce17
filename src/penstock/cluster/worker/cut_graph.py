"""A partitioned graph as a worker sees it: vertices in the original numbering, lists and features in the stores."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.cluster.member import Member
from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import SPLITS, EdgeSet, NodeSet
from penstock.graph.folder import Graph
from penstock.graph.hashing import seed_of
from penstock.graph.integrity import check_graph, require_finite
from penstock.graph.schema import EdgeType, edge_key, is_about
from penstock.partition import Partition, open_partition
from penstock.processes import ranges
from penstock.sampling.block import BatchKey
from penstock.sampling.exclusion import Exclusion
from penstock.sampling.explanation import SamplingExplanation
from penstock.sampling.links import HeldOutRule
from penstock.sampling.parts import OwnedPart, RelationReader, VertexTimes, edge_types_in
from penstock.sampling.parts.remote import place_lists
from penstock.sampling.sampler_table import SAMPLERS
from penstock.sampling.temporal import OF_NODES
from penstock.store.parts import PartedStore, StochasticRounding
from penstock.store.source import LocalStore, RowSource
from penstock.train.dataset.labels import (
    SAMPLED,
    SplitValues,
    column,
    different_labels,
    in_any,
    of_splits_suffice,
)
from penstock.train.job import Job
from penstock.wire.channel import Channel, PendingCall
from penstock.wire.message import Message

# The parts that the tasks of a run map, validated before kernels read them.


def checked_part(partition: Partition, index: int, features: str) -> Graph:
    """A mapped part, with validated lists and finite features. The result of the check is
    remembered on this machine.
    """
    graph = partition.part(index)
    check_graph(graph)
    for name, nodes in graph.nodes.items():
        if features in nodes.fields:
            require_finite(nodes, name, features, "features")
    return graph


def check_parts(partition: Partition, features: str) -> None:
    """Validate all parts before tasks are started: those of this machine then find them checked."""
    for index in range(partition.parts):
        checked_part(partition, index, features)
    for name in partition.book.node_types:
        partition.original(name)


# All-gather of large arrays: each worker computes a part and keeps it until the others have received it.

_PIECE = 16 << 20
"""Bytes of a part that are sent at a time."""


class RowExchange:
    """Sends this worker's parts of named arrays to the other workers."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._kept: dict[str, Array] = {}
        member.endpoint.serve("part-of", self._give)

    def keep(self, name: str, part: Array) -> None:
        """Keep a part, for other workers to request."""
        self._kept[name] = np.ascontiguousarray(part)

    def joined(self, name: str, rows: Sequence[int]) -> Array:
        """All workers' parts, of so many rows each, by rank; every worker must have kept its own."""
        setup, own = self._member.setup, self._kept[name]
        asked = {
            rank: self._member.endpoint.channel(f"worker-{rank}", "state").start(
                Message("part-of", {"name": name}), setup.cluster.failure.patience
            )
            for rank in range(setup.layout.world)
            if rank != setup.task.rank
        }
        found = np.empty((sum(rows), *own.shape[1:]), own.dtype)
        bounds = np.cumsum([0, *rows])
        for rank, count in enumerate(rows):
            place = found[bounds[rank] : bounds[rank] + count]
            if rank == setup.task.rank:
                place[...] = own
            else:
                _receive(asked[rank], place, f"Worker-{rank}")
        return found

    def forget(self, name: str) -> None:
        """Drop an array that all workers have received."""
        self._kept.pop(name, None)

    def forget_all(self) -> None:
        """Drop everything that was kept in a round that is over."""
        self._kept.clear()

    def _give(self, message: Message, sender: str) -> Iterator[Message]:
        name = str(message.body.get("name"))
        if name not in self._kept:
            raise PenstockError(
                f"{self._member.setup.task.id} holds no rows of {name!r}: it may have been started again.",
                code="not-available",
            )
        return _pieces(self._kept[name])


def _pieces(part: Array) -> Iterator[Message]:
    step = max(1, _PIECE // max(1, part[:1].nbytes))
    return (Message("part-of", {}, (part[start : start + step],)) for start in range(0, len(part), step))


def _receive(call: PendingCall, place: Array, who: str) -> None:
    """Copy the rows to their positions as they arrive; an error where they do not match this worker's own part."""
    start = 0
    for message in call.parts():
        for piece in message.arrays:
            stop = start + len(piece) if piece.ndim else start
            if piece.shape[1:] != place.shape[1:] or piece.dtype != place.dtype or not start < stop <= len(place):
                raise PenstockError(
                    f"{who} sent rows of {piece.dtype} {piece.shape} where {len(place) - start} of {place.dtype}"
                    f" {place.shape[1:]} were expected: run the same release on all machines.",
                    code="malformed-message",
                )
            place[start:stop] = piece
            start = stop
    if start != len(place):
        raise PenstockError(f"{who} sent only {start:,} of {len(place):,} rows: ask again.", code="malformed-message")


_COLUMN = 1 << 20
"""Rows of a column that are read at a time."""


@dataclass(eq=False)
class RemoteEdges(EdgeSet):
    """A relation whose lists are at the parts' owners: its size, and the names of its fields without their values."""

    total: int = 0

    def __post_init__(self) -> None:
        # There is nothing to check here: the owners of the lists validate them.
        self.facts.trusted = True

    @property
    def count(self) -> int:
        return self.total


class CutGraph(Graph):
    """What a session needs of a graph. Only labels are read when it is opened."""

    def __init__(
        self,
        nodes: Mapping[str, NodeSet],
        edges: Mapping[EdgeType, EdgeSet],
        field_names: Mapping[str, list[str]],
        name: str,
        size: int,
    ) -> None:
        # The parent's constructor would check lists, which are not here.
        self.nodes, self.edges = dict(nodes), dict(edges)
        self.field_names = field_names
        """The names of the vertices' fields by type; their values are at the owners."""
        self.name, self.path, self.origin, self._size = name, None, {}, size

    @property
    def nbytes(self) -> int:
        return self._size


class SupervisedEdges(NamedTuple):
    """Edges of a cut graph that carry no messages in training, and how many others do."""

    pairs: dict[EdgeType, Exclusion]
    """By relation, in the numbers of the partitioned graph."""
    message_edges: int


class Parts:
    """The parts of a run's graph as one of its tasks reaches them: mapped if they are local, else requested."""

    def __init__(self, member: Member, mapped: bool = True) -> None:
        setup = member.setup
        self.member, self.partition = member, open_partition(Path(setup.partition), bool(setup.job.get("unchecked")))
        here = setup.task.parts if mapped else []
        self.graphs: dict[int, Graph] = {
            part: checked_part(self.partition, part, setup.job["features"]) for part in here
        }
        self.owned = {part: OwnedPart.of(self.partition, part) for part in here}
        local = {part: LocalStore.of_graph(graph) for part, graph in self.graphs.items()}
        book = self.partition.book
        # Times and labels are read through the same store, and must not be rounded.
        self.narrowed = {f"{name}/{setup.job['features']}" for name in book.node_types}
        """Fields whose rows may be rounded when they are sent."""
        cluster = setup.cluster
        self.rounding = None
        """The stochastic rounding of rows that are sent; None: to the nearest."""
        if cluster.wire_rounding == "stochastic":
            self.rounding = StochasticRounding(
                seed_of(setup.job["seed"], setup.job["draws"]), rows_are_kept=cluster.remote_cache_mb > 0
            )
        how = self.channels("features", 2), cluster.wire_type, self.narrowed, self.rounding
        self.new_store: Callable[[], PartedStore] = partial(PartedStore, book, local, *how)
        """Makes another store over the same parts, with traffic counters of its own."""
        self.store = self.new_store()
        self.lists = self.channels("lists", 1)
        """The channels to parts' lists: draws have priority, as rows cannot be requested before they are known."""
        self.absent: dict[EdgeType, HeldOutRule] = {}
        """Edges that the task holds out, by relation: they are in the parts' files, but are not drawn."""
        self.supervised: SupervisedEdges | None = None
        """Where the whole graph is one batch: edges that are predicted, and so carry no messages."""
        self.explanation_at: Callable[[BatchKey], SamplingExplanation | None] = lambda key: None
        """The explanation that a batch is drawn by, if the run makes any."""
        self.score_bytes = 0
        """Bytes of explanations' scores that were sent to the owners of lists."""
        self.exchange = RowExchange(member)
        self._times: VertexTimes | None = None

    @cached_property
    def edge_types(self) -> list[EdgeType]:
        """The relations of the graph, in stored order."""
        return edge_types_in(self.owned, self.lists)

    def edge_fields(self) -> dict[EdgeType, list[str]]:
        """The names of the edges' fields, by relation."""
        return {kind: self.reader.names(kind, "")[0] for kind in self.edge_types}

    @property
    def reader(self) -> RelationReader:
        """A reader of whole relations."""
        return RelationReader(self.partition, self.owned, self.lists)

    def vertex_times(self, time: str | None) -> VertexTimes | None:
        """The times of vertices, by new number, if a job draws by the times of vertices; all have one."""
        if time is None or not time.startswith(OF_NODES):
            return None
        if self._times is None:
            name = f"{self.partition.book.type_named(None)}/{time.removeprefix(OF_NODES)}"
            source = self.store.source(name)
            if source.row_shape():
                raise PenstockError(
                    f"Field {name!r} cannot be used as times: it must hold one signed number for each.",
                    code="wrong-type",
                )
            rows, first = self.nan_times(*name.split("/", 1))
            if rows:
                original = int(self.partition.original()[first])
                raise PenstockError(
                    f"Field {name!r} has {rows:,} times that are NaN, the first at vertex {original}: give every"
                    " vertex a time.",
                    code="not-finite",
                )
            self._times = VertexTimes(self.partition.book.count(), source.dtype, source.read)
        return self._times

    def edge_times(self, time: str | None) -> Callable[[str, Array], Array] | None:
        """A function that reads the times of edges by number, if `time` names an edge field; else None."""
        if time is None or time.startswith(OF_NODES):
            return None

        def read(relation: str, numbers: Array) -> Array:
            return np.asarray(self.store.source(f"{relation}/{time}").read(numbers))

        return read

    def channels(self, flow: str, priority: int) -> Callable[[int], Channel]:
        """A flow to the owners of parts."""
        endpoint, owners = self.member.endpoint, self.member.setup.layout.owners

        def channel(part: int) -> Channel:
            return endpoint.channel(owners[part], flow, priority)

        return channel

    def nan_times(self, node_type: str, field: str) -> tuple[int, int]:
        """How many numbers of a column are NaN, as its owners count them, and the first such vertex by new number."""
        said = [answer.body for answer in self._ask_owners("nan-times", node_type, field)]
        found = [(int(each["rows"]), int(each["first"])) for each in said]
        return sum(rows for rows, _ in found), next((first for rows, first in found if rows), -1)

    def different_labels(self, node_type: str, field: str) -> Iterator[Array | None]:
        """The different labels of each part, as its owner finds them; None: too many."""
        dtype = self.store.source(f"{node_type}/{field}").dtype
        for part, answer in enumerate(self._ask_owners("different-labels", node_type, field)):
            if any(labels.ndim != 1 or labels.dtype != dtype for labels in answer.arrays):
                raise PenstockError(
                    f"The owner of part {part} answered with other labels than {dtype}: run the same release on all"
                    " machines.",
                    code="malformed-message",
                )
            yield answer.arrays[0] if answer.arrays else None

    def _ask_owners(self, kind: str, node_type: str, field: str) -> list[Message]:
        """The answers of all parts' owners about a column."""
        patience = self.member.setup.cluster.failure.patience
        calls = [
            self.lists(part).start(Message(kind, {"part": part, "node_type": node_type, "field": field}), patience)
            for part in range(self.partition.parts)
        ]
        return [call.result() for call in calls]

    def describe(self, label: str) -> list[dict[str, Any]]:
        """The description of every part, in order."""
        calls = [
            self.member.endpoint.channel(owner, "lists", 1).start(Message("part", {"part": part, "label": label}))
            for part, owner in enumerate(self.member.setup.layout.owners)
        ]
        return [call.result().body for call in calls]


def open_cut_graph(parts: Parts, job: Job, times: str | None = None) -> CutGraph:
    """The graph with the labels of a job on vertices, the field `times`, and its splits, in the original order.

    Only values of the splits are kept where the job reads no others (`SplitValues`).
    """
    label, said = job.label, parts.describe(job.label)
    wanted = set() if times is None else {times}
    if job.task == "auto" or is_about(job.task, "vertices"):
        wanted.add(label)
    book = parts.partition.book
    nodes: dict[str, NodeSet] = {}
    for name in book.node_types:
        described = [each["nodes"][name] for each in said]
        fields: dict[str, Any] = {}
        splits = _splits(parts, name)
        for field in wanted & set(described[0]["fields"]):
            fields[field] = _values_of_splits(parts, name, splits, job, field, times)
            if fields[field] is None:
                fields[field] = _column(parts.store, parts.partition, name, field)
        words = described[0]["words"]
        categories = {} if words is None else {label: list(words)}
        nodes[name] = NodeSet(book.count(name), fields, splits, None, categories)
    edges: dict[EdgeType, EdgeSet] = {}
    for number, relation in enumerate(said[0]["edges"]):
        source, relation_name, target = relation["type"]
        total = sum(int(each["edges"][number]["count"]) for each in said)
        none = np.empty(0, np.int64)
        fields = dict.fromkeys(map(str, relation["fields"]), none)
        edges[source, relation_name, target] = RemoteEdges(none, none, fields, total=total)
    size = sum(int(each["bytes"]) for each in said)
    field_names = {name: list(said[0]["nodes"][name]["fields"]) for name in nodes}
    return CutGraph(nodes, edges, field_names, str(parts.partition.document.graph), size)


def _values_of_splits(
    parts: Parts, node_type: str, splits: dict[str, Array], job: Job, field: str, times: str | None
) -> SplitValues | None:
    """A type's labels or times of its splits, in the original order; None where the job needs those of other vertices
    too, or a sentence about them is due.
    """
    count, source = parts.partition.book.count(node_type), parts.store.source(f"{node_type}/{field}")
    if SAMPLERS[job.sampler].joint or not of_splits_suffice(job, splits, count):
        return None

    def read(original: Array) -> Array:
        return column(source.read(parts.partition.new_ids(original, node_type)))

    of_times = field == times and source.dtype.kind == "f" and not source.row_shape()
    if of_times and parts.nan_times(node_type, field)[0]:
        return None
    different: Array | None = read(np.arange(0))
    if field == job.label:
        first = read(np.arange(min(count, SAMPLED if source.dtype.kind == "f" else 0)))
        different = different_labels(first, parts.different_labels(node_type, field), job)
    if different is None:
        return None
    rows = in_any(list(splits.values()))
    return SplitValues(count, rows, read(rows), different)


def _column(store: PartedStore, partition: Partition, node_type: str, name: str) -> Array:
    """A whole field, in the original order."""
    field_name, original = f"{node_type}/{name}", partition.original(node_type)
    source = store.source(field_name)
    column = np.empty((len(original), *source.row_shape()), source.dtype)
    for start in range(0, len(original), _COLUMN):
        stop = min(start + _COLUMN, len(original))
        column[original[start:stop]] = source.read(np.arange(start, stop))
    return column


def edge_column(parts: Parts, kind: EdgeType, name: str, indptr: Array) -> Array:
    """A whole field of a relation's edges, in the original order of its lists, which have the offsets `indptr`."""
    book, targets = parts.partition.book, parts.partition.original(kind[2])
    source = parts.store.source(f"{edge_key(kind)}/{name}")
    column = np.empty(source.shape, source.dtype)
    bounds = book.edge_bounds(edge_key(kind))
    for part in range(book.parts):
        rows = np.ascontiguousarray(targets[slice(*book.range(part, kind[2]))])
        first, last = int(bounds[part]), int(bounds[part + 1])
        values = [source.read(np.arange(first + low, first + high)) for low, high in ranges(last - first, _COLUMN)]
        place_lists(rows, indptr, np.concatenate([column[:0], *values]), column)
    return column


def _splits(parts: Parts, node_type: str) -> dict[str, Array]:
    """A type's splits, by original numbers."""
    original, owners = parts.partition.original(node_type), parts.member.setup.layout.owners
    found: dict[str, list[Array]] = {}
    for part, owner in enumerate(owners):
        channel = parts.member.endpoint.channel(owner, "lists", 1)
        answer = channel.call(Message("splits", {"part": part, "node_type": node_type}))
        for name, rows in zip(answer.body["names"], answer.arrays, strict=True):
            if name not in SPLITS:
                raise PenstockError(
                    f"Part {part} has a split {name!r}, which is not one of {', '.join(SPLITS)}.", code="unknown-name"
                )
            found.setdefault(name, []).append(original[rows])
    return {name: np.sort(np.concatenate(rows)) for name, rows in found.items()}


# A whole partitioned graph for one worker's GPU, in the original numbering. Lists are read at once, rows while they are
# copied. A worker that has the graph there draws and learns like a machine with one GPU, batch for batch.


class PartedColumn:
    """A field of the vertices in the original order, fetched from the parts a slice at a time.

    It has as much of an array's interface as copying it to a device needs.
    """

    base = None

    def __init__(self, source: RowSource, new_ids: Array) -> None:
        self._source, self._new_ids = source, new_ids
        self.dtype, self.shape = source.dtype, (len(new_ids), *source.row_shape())

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Array:
        """Some rows, one after the other."""
        found: Array = self._source.read(self._new_ids[rows])
        return found

    @property
    def size(self) -> int:
        """The number of values in all rows."""
        return int(np.prod(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of one value, as NumPy's `itemsize`."""
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, as NumPy's `nbytes`."""
        return self.size * self.itemsize


def list_bytes(graph: CutGraph) -> int:
    """Bytes that the lists of a graph take, known before any of them is read."""
    counts = {name: nodes.count for name, nodes in graph.nodes.items()}
    return sum(
        8 * (counts[kind[2]] + 1) + edges.count * index_dtype(counts[kind[0]]).itemsize
        for kind, edges in graph.edges.items()
    )


def gathered_graph(parts: Parts, graph: CutGraph, fields: dict[str, str]) -> Graph:
    """The graph with its lists, and its feature fields by node type as `PartedColumn`; one that was not cut as it is
    mapped.
    """
    if parts.partition.is_uncut:
        return parts.graphs[0]
    counts = {name: parts.partition.book.count(name) for name in graph.nodes}
    lists = {kind: parts.reader.lists(kind) for kind in graph.edges}
    whole = Graph({name: NodeSet(count) for name, count in counts.items()}, lists, graph.name)
    # Added after the checks of a graph in memory, which would read every row.
    for name, field in fields.items():
        new_ids = parts.partition.new_ids(np.arange(counts[name]), name)
        columns: dict[str, Any] = whole.nodes[name].fields
        columns[field] = PartedColumn(parts.store.source(f"{name}/{field}"), new_ids)
    return whole
