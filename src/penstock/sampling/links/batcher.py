"""Batches of edges: what one is, how it is made from edge positions, and a worker's share of it."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.hashing import mix
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.sampling.block import BatchKey, unwrapping
from penstock.sampling.links.known import (
    End,
    KnownEdges,
    Reverse,
    checked_pairs,
    checked_reverse,
    chosen_edge_type,
    known_edges,
    lower_bound,
)
from penstock.sampling.links.negatives import DrawnNegatives, NegativePolicy, Positives

# A batch of edges: the edges, their negatives, and the vertices of both.

Exclude = Array | dict[EdgeType, Array]
"""[2, m] sources above destinations; by edge type where the graph has several types."""


class WholeEdgeBatch(NamedTuple):
    """The size of the batch that this is a worker's share of: its positives, and all its pairs that count."""

    positives: int
    pairs: int


@dataclass(eq=False)
class EdgeBatch:
    """Positives, negatives, and the vertices of both as seeds for a node sampler.

    `edges` are positions in the lists of `edge_type`, or -1 for pairs that are in none. `negative_destination` [groups,
    k] replace the positives' destinations: row g is for each of the positives [g * group, (g + 1) * group).
    `negative_source` likewise replace sources. k is 0 where an end is not replaced. A mask [positives, k] is False
    where a negative must not count against a positive; None: all count.

    `nodes` are the different vertices of each node type in order of first appearance (sources, destinations, negative
    destinations, negative sources); the `_rows` arrays, shaped like what they index, point into `nodes` of the end's
    type. `exclude` are the pairs a sampler must not draw: the positives and their reverses. `clashes` counts masked
    negatives that are true edges. `whole` describes the batch that this one is a share of, if it is one, and `places`
    are then the positions of `nodes` among that one's, types concatenated.

    Where edges have times, `times` are those of the positives, which their negatives have too. A vertex is in `nodes`
    once for each time at which it is needed, and `node_times` has these. Where positives share no vertices, it is in
    `nodes` once for each positive that needs it, and `examples` has their positions.
    """

    edge_type: EdgeType
    edges: Array
    source: Array
    destination: Array
    negative_source: Array
    negative_destination: Array
    nodes: dict[str, Array]
    source_rows: Array
    destination_rows: Array
    negative_source_rows: Array
    negative_destination_rows: Array
    exclude: Exclude
    group: int = 1
    negative_source_mask: Array | None = None
    negative_destination_mask: Array | None = None
    clashes: int = 0
    labels: Any = None
    key: BatchKey | None = None
    whole: WholeEdgeBatch | None = None
    times: Array | None = None
    node_times: dict[str, Array] | None = None
    places: dict[str, Array] | None = None
    examples: dict[str, Array] | None = None

    def __len__(self) -> int:
        return len(self.source)

    @property
    def num_pairs(self) -> int:
        """The number of pairs that count: positives and their negatives."""
        wide = self.negative_destination_mask, self.negative_destination
        other = self.negative_source_mask, self.negative_source
        return len(self) + sum(
            len(self) * negatives.shape[1] if mask is None else int(np.count_nonzero(mask))
            for mask, negatives in (wide, other)
        )

    @property
    def seeds(self) -> Array | dict[str, Array]:
        """The seeds for the node sampler: an array, or one per node type where the graph has several types."""
        return self.nodes if isinstance(self.exclude, dict) else next(iter(self.nodes.values()))

    def pairs(self) -> tuple[Array, Array, Array]:
        """(source rows, destination rows, labels) of all pairs that count, positives first; labels float32 1 or 0."""
        sources, destinations, counts = self.ranking()
        counts[:, 0] = False
        rows = np.concatenate([self.source_rows, sources[counts]])
        columns = np.concatenate([self.destination_rows, destinations[counts]])
        labels = np.zeros(len(rows), np.float32)
        labels[: len(self)] = 1
        return rows, columns, labels

    def ranking(self) -> tuple[Array, Array, Array]:
        """(source rows, destination rows, mask of what counts), each [positives, 1 + k] with the
        positive in column 0.
        """
        groups = np.arange(len(self)) // self.group
        other_destinations, other_sources = self.negative_destination_rows[groups], self.negative_source_rows[groups]
        own_source, own_destination = self.source_rows[:, None], self.destination_rows[:, None]
        sources = [own_source, np.broadcast_to(own_source, other_destinations.shape), other_sources]
        destinations = [own_destination, other_destinations, np.broadcast_to(own_destination, other_sources.shape)]
        counts = [
            np.ones(own_source.shape, np.bool_),
            _mask(self.negative_destination_mask, other_destinations),
            _mask(self.negative_source_mask, other_sources),
        ]
        return np.concatenate(sources, 1), np.concatenate(destinations, 1), np.concatenate(counts, 1)


def _mask(mask: Array | None, like: Array) -> Array:
    return np.ones(like.shape, np.bool_) if mask is None else mask


# From edge positions to a batch: ends, negatives, vertices, and what must not be sampled.


class EdgeBatcher:
    """Makes edge batches of one edge type; may be called from several threads at once.

    Without `negatives` batches hold the edges alone, as edge classification needs; `labels` names the edge field to
    include. `known` are the edges that filtered negatives avoid (default: the lists). With `times`, one for each edge,
    ends are needed at their edge's time, and negatives at that of their positive: filtered ones avoid the edges that
    are not later. With `disjoint`, positives share no vertices: each has its ends and negatives to itself.
    """

    def __init__(
        self,
        graph: Graph,
        edge_type: EdgeType | None = None,
        negatives: NegativePolicy | None = None,
        reverse: Reverse = "auto",
        labels: str | None = None,
        known: KnownEdges | None = None,
        times: Array | None = None,
        disjoint: bool = False,
    ) -> None:
        self.edge_type = chosen_edge_type(graph, edge_type)
        self.reverse = checked_reverse(graph, self.edge_type, reverse)
        self.known = known or known_edges(graph, self.edge_type, times=times)
        self.negatives, self._times, self._disjoint = negatives, times, disjoint
        if (disjoint or times is not None) and negatives is not None and negatives.shared:
            raise PenstockError(
                "Edges that are sampled by time, or with disjoint, cannot share negatives, which would be needed at the"
                " time or in the neighbourhood of each of them: use negatives uniform.",
                code="unsupported-combination",
            )
        self._edges, self._unwrapped = graph.edges[self.edge_type], unwrapping(graph)
        turned = (self.reverse,) if isinstance(self.reverse, tuple) else ()
        self.left_out = {kind: graph.edges[kind] for kind in (self.edge_type, *turned)}
        """The relations from which a batch leaves out its edges or their reverses."""
        if labels is not None and labels not in self._edges.fields:
            has = ", ".join(self._edges.fields) or "none"
            raise PenstockError(
                f"{edge_key(self.edge_type)} has no field {labels!r} to use as labels (fields: {has}).",
                code="field-missing",
            )
        self._labels = None if labels is None else self._edges.fields[labels]

    def batch(self, positions: Array, key: BatchKey) -> EdgeBatch:
        """The batch of edges at some positions of the lists."""
        positions = np.ascontiguousarray(positions, np.int64)
        batch = self._assemble(positions, self.positives(positions), key)
        if self._labels is not None:
            batch.labels = self._labels[positions]
        return batch

    def positives(self, positions: Array) -> Positives:
        """The edges at some positions of the lists."""
        if len(positions) and (positions.min() < 0 or positions.max() >= self._edges.count):
            raise PenstockError(
                f"An edge position of {edge_key(self.edge_type)} is outside 0..{self._edges.count - 1}.",
                code="id-out-of-range",
            )
        source, destination, copy = (np.empty(len(positions), np.int64) for _ in range(3))
        lists = self._edges.indptr, self._edges.indices
        _look_up(*lists, positions, source, destination, copy)
        positives = Positives(source, destination, copy)
        if self._times is not None:
            positives = replace(positives, time=_comparable(self._times[positions]))
            _number_earlier_copies(*lists, self._times, positions, positives.time, destination, copy)
        return positives

    def batch_of_pairs(self, pairs: Array, key: BatchKey, times: Array | None = None) -> EdgeBatch:
        """The batch of pairs [m, 2], which need not be in the lists, with a time for each where edges have times."""
        positives = self._pairs_given(pairs)
        if times is not None:
            positives = replace(positives, time=_comparable(times))
        return self._assemble(np.full(len(pairs), -1, np.int64), positives, key)

    def _pairs_given(self, pairs: Array) -> Positives:
        where = f"Pairs of {edge_key(self.edge_type)}"
        pairs = checked_pairs(pairs, self.known.num_sources, self.known.num_destinations, where)
        ends = np.ascontiguousarray(pairs.T)
        return Positives(ends[0], ends[1], np.zeros(len(pairs), np.int64))

    def _assemble(self, positions: Array, positives: Positives, key: BatchKey) -> EdgeBatch:
        wrong_destination = self._draw(positives, "destination", key)
        wrong_source = self._draw(positives, "source", key)
        source_type, _, destination_type = self.edge_type
        ends = positives.source, positives.destination, wrong_destination.vertices, wrong_source.vertices
        node_times = examples = None
        if self._times is not None:
            nodes, node_times, rows = _number_at(source_type, destination_type, positives.time, *ends)
        elif self._disjoint:
            apart = np.arange(len(positives))
            nodes, examples, rows = _number_at(source_type, destination_type, apart, *ends)
        else:
            nodes, rows = number_ends(source_type, destination_type, *ends)
        return EdgeBatch(
            self.edge_type,
            positions,
            positives.source,
            positives.destination,
            wrong_source.vertices,
            wrong_destination.vertices,
            nodes,
            rows[0],
            rows[1],
            rows[3],
            rows[2],
            self._exclude(positives),
            max(wrong_destination.group, wrong_source.group),
            wrong_source.mask,
            wrong_destination.mask,
            wrong_destination.clashes + wrong_source.clashes,
            key=key,
            times=None if self._times is None else positives.time,
            node_times=node_times,
            examples=examples,
        )

    def _draw(self, positives: Positives, end: End, key: BatchKey) -> DrawnNegatives:
        if self.negatives is None or self.negatives.corrupt not in (end, "both"):
            return DrawnNegatives(np.empty((len(positives), 0), np.int64), 1)
        return self.negatives.draw(positives, end, self.known, key.purpose(f"negatives/{end}"))

    def _exclude(self, positives: Positives) -> Exclude:
        forward = np.stack([positives.source, positives.destination])
        if self.reverse == "same":
            forward = np.concatenate([forward, forward[::-1]], axis=1)
        pairs = {self.edge_type: forward}
        if isinstance(self.reverse, tuple):
            pairs[self.reverse] = forward[::-1].copy()
        found: Exclude = self._unwrapped(pairs)
        return found


class PairBatcher(EdgeBatcher):
    """Makes edge batches of given (source, destination) pairs [m, 2], identified by their positions in that array."""

    def __init__(
        self,
        graph: Graph,
        pairs: Array,
        edge_type: EdgeType,
        negatives: NegativePolicy | None,
        known: KnownEdges,
        reverse: Reverse,
        disjoint: bool = False,
    ) -> None:
        super().__init__(graph, edge_type, negatives, reverse, known=known, disjoint=disjoint)
        self._pairs = np.asarray(pairs)

    def batch(self, positions: Array, key: BatchKey) -> EdgeBatch:
        """The batch of the pairs at some positions."""
        return self.batch_of_pairs(self._pairs[positions], key)

    def positives(self, positions: Array) -> Positives:
        """The pairs at some positions."""
        return self._pairs_given(self._pairs[positions])


def number_ends(
    source_type: str,
    destination_type: str,
    source: Array,
    destination: Array,
    wrong_destination: Array,
    wrong_source: Array,
) -> tuple[dict[str, Array], list[Array]]:
    """`nodes` of an `EdgeBatch`, in order of first appearance, and the rows of each of the ends, in the order given."""
    types = source_type, destination_type, destination_type, source_type
    nodes, rows = dict[str, Array](), [source, destination, wrong_destination, wrong_source]
    for node_type in dict.fromkeys(types):
        chosen = [i for i, kind in enumerate(types) if kind == node_type]
        flat = np.concatenate([rows[i].ravel() for i in chosen])
        found, places = np.empty(len(flat), np.int64), np.empty(len(flat), np.int64)
        nodes[node_type] = found[: _first_appearances(flat, found, places)].copy()
        ends = np.cumsum([rows[i].size for i in chosen])
        for i, some in zip(chosen, np.split(places, ends[:-1]), strict=True):
            rows[i] = some.reshape(rows[i].shape)
    return nodes, rows


def _number_at(
    source_type: str, destination_type: str, times: Array, *ends: Array
) -> tuple[dict[str, Array], dict[str, Array], list[Array]]:
    """As `number_ends`, for vertices at their positives' times: vertices, times, and rows."""
    different, place = np.unique(times, return_inverse=True)
    width = 1 + max((int(end.max()) for end in ends if end.size), default=0)
    named = [(place if end.ndim == 1 else place[:, None]) * width + end for end in ends]
    found, rows = number_ends(source_type, destination_type, *named)
    nodes = {name: names % width for name, names in found.items()}
    return nodes, {name: different[names // width] for name, names in found.items()}, rows


def _comparable(times: Array) -> Array:
    """Times as int64 or float64."""
    return times.astype(np.float64 if times.dtype.kind == "f" else np.int64)


@njit(nogil=True, cache=True, writes=("sources", "destinations", "copies"))
def _look_up(
    indptr: Array, indices: Array, positions: Array, sources: Array, destinations: Array, copies: Array
) -> None:
    """The ends of edges, and which of its parallel copies each is, found by searching the lists' starts."""
    for i in range(positions.shape[0]):
        position = positions[i]
        # The last list that starts at or before the position: later lists start after it, and empty ones before it have
        # ended.
        row = lower_bound(indptr, 0, indptr.shape[0], position + 1) - 1
        sources[i], destinations[i] = indices[position], row
        copies[i] = position - lower_bound(indices, indptr[row], position, indices[position])


@njit(nogil=True, cache=True)
def _number_earlier_copies(
    indptr: Array, indices: Array, times: Array, positions: Array, limits: Array, destinations: Array, copies: Array
) -> None:
    """Which of its parallel copies each edge is, counting only those that are not later than it."""
    for i in range(positions.shape[0]):
        position = positions[i]
        first = lower_bound(indices, indptr[destinations[i]], position, indices[position])
        copies[i] = 0
        for k in range(first, position):
            copies[i] += times[k] <= limits[i]


@njit(nogil=True, cache=True)
def _first_appearances(values: Array, found: Array, places: Array) -> int:
    """Number values as they first appear, by open addressing; returns how many differ."""
    size = 16
    while size < 2 * values.shape[0]:
        size *= 2
    slots = np.full(size, -1, np.int64)
    used = 0
    for i in range(values.shape[0]):
        slot = np.int64(mix(np.uint64(values[i])) & np.uint64(size - 1))
        while slots[slot] >= 0 and found[slots[slot]] != values[i]:
            slot = (slot + 1) & (size - 1)
        if slots[slot] < 0:
            slots[slot] = used
            found[used] = values[i]
            used += 1
        places[i] = slots[slot]
    return used


# A worker's share of a batch of edges: some of the positives, with their negatives in the whole batch.


def share_of(batch: EdgeBatch, rows: Array) -> EdgeBatch:
    """The positives at some positions with their negatives, drawn as for the whole, whose `exclude` stays."""
    wrong_destination, group = _of_rows(batch.negative_destination_rows, batch.group, rows)
    wrong_source, other = _of_rows(batch.negative_source_rows, batch.group, rows)
    source_type, _, destination_type = batch.edge_type
    ends = batch.source_rows[rows], batch.destination_rows[rows], wrong_destination, wrong_source
    # Rows of the whole batch are numbered like vertices: each is a vertex, or a vertex at a time.
    places, own = number_ends(source_type, destination_type, *ends)
    nodes = {name: batch.nodes[name][these] for name, these in places.items()}
    times = batch.node_times
    # Positions among the seeds of the whole batch, whose types are concatenated.
    starts = dict(zip(batch.nodes, np.cumsum([0, *map(len, batch.nodes.values())]).tolist(), strict=False))
    return replace(
        batch,
        edges=batch.edges[rows],
        source=batch.source[rows],
        destination=batch.destination[rows],
        negative_source=nodes[source_type][own[3]],
        negative_destination=nodes[destination_type][own[2]],
        nodes=nodes,
        source_rows=own[0],
        destination_rows=own[1],
        negative_source_rows=own[3],
        negative_destination_rows=own[2],
        group=max(group, other),
        negative_source_mask=_at(batch.negative_source_mask, rows),
        negative_destination_mask=_at(batch.negative_destination_mask, rows),
        labels=_at(batch.labels, rows),
        whole=WholeEdgeBatch(len(batch), batch.num_pairs),
        times=_at(batch.times, rows),
        node_times=None if times is None else {name: times[name][these] for name, these in places.items()},
        places={name: these + starts[name] for name, these in places.items()},
    )


def _of_rows(negatives: Array, group: int, rows: Array) -> tuple[Array, int]:
    """The negatives of some positives: those of the only group for all of them, else a row each."""
    if negatives.shape[1] == 0:
        return np.empty((len(rows), 0), np.int64), 1
    if len(negatives) == 1 and len(rows):
        return negatives, len(rows)
    return negatives[rows // group], 1


def _at(values: Array | None, rows: Array) -> Array | None:
    return None if values is None else values[rows]
