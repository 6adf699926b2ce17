"""Negative-sampling policies: uniform, joint and in-batch, their interface, and true edges among negatives."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.hashing import below, draw, mix
from penstock.kernels import njit
from penstock.sampling.links.known import End, KnownEdges, is_edge, is_edge_by, lower_bound

# The inputs and outputs of a negative-sampling policy.

Corrupt = Literal["destination", "source", "both"]


@dataclass(frozen=True, eq=False)
class Positives:
    """The true edges of a batch. `copy` numbers parallel edges among themselves, from 0, so that an edge has an
    identity that does not depend on its position in the batch. `time`, where edges have times: one for each.
    """

    source: Array
    destination: Array
    copy: Array
    time: Array = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.source)

    def at(self, end: End) -> Array:
        """The vertices at one end."""
        return self.destination if end == "destination" else self.source


@dataclass(frozen=True, eq=False)
class DrawnNegatives:
    """Vertices that replace one end of the positives.

    Row g of `vertices` [groups, k] is for positives [g * group, (g + 1) * group). Where `mask` [positives, k] is False
    the vertex must not count against that positive: it is its own end, or makes a true edge. None: all count. `clashes`
    is how many are masked because they are true edges.
    """

    vertices: Array
    group: int
    mask: Array | None = None
    clashes: int = 0


class NegativePolicy:
    """How negatives are chosen. `corrupt` says which ends are replaced: with `both` each end has its own."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    shared: ClassVar[bool] = True
    """Whether several positives have the same negatives."""

    corrupt: Corrupt
    filtered: bool
    """Whether true edges are no negatives."""

    def __post_init__(self) -> None:
        k = getattr(self, "k", 1)
        if k < 1:
            raise PenstockError(
                f"The number of negatives for each positive is {k}: give 1 or more.", code="value-out-of-range"
            )
        if self.corrupt not in ("destination", "source", "both"):
            raise PenstockError(
                f"Negatives cannot replace {self.corrupt!r}: choose destination, source or both.", code="unknown-name"
            )

    def per_positive(self, positives: int) -> int:
        """The number of negatives at one end of each positive, in a batch of so many."""
        return int(getattr(self, "k", positives))

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Vertices that replace `end`; a pure function of its arguments."""
        raise NotImplementedError


def _candidates(known: KnownEdges, end: End) -> int:
    """The number of vertices that can replace an end: two or more."""
    count = known.candidates(end)
    if count < 2:
        raise PenstockError(
            f"There is only one vertex that can be the {end}: negatives need at least two.", code="missing-data"
        )
    return count


# True edges among negatives that many positives share. A search for every positive and every negative would take longer
# than sampling the batch. Lists are short, so each is scanned once, and its vertices are looked up among the sorted
# ones of the other side.

_LONG = 8
"""A list this many times longer than what is looked up in it is searched rather than scanned."""


def mask_true_edges(known: KnownEdges, positives: Positives, end: End, vertices: Array, group: int, mask: Array) -> int:
    """Set `mask` [positives, k] to False where `vertices` [groups, k] at `end` make true edges; returns how many were
    True before."""
    at_destination = end == "destination"
    kept = _in_groups(positives.source if at_destination else positives.destination, group)
    owners, sought = (vertices, kept) if at_destination else (kept, vertices)
    order = np.argsort(sought, axis=1, kind="stable")
    return _mask(
        known.indptr,
        known.indices,
        known.kept_out,
        known.num_sources,
        owners,
        np.take_along_axis(sought, order, 1).ravel(),
        order.ravel(),
        at_destination,
        group,
        mask,
    )


def _in_groups(vertices: Array, group: int) -> Array:
    """[groups, group], the last row padded with -1."""
    rows = np.full((-(-len(vertices) // group), group), -1, np.int64)
    rows.ravel()[: len(vertices)] = vertices
    return rows


@njit(nogil=True, cache=True)
def _mask(
    indptr: Array,
    indices: Array,
    kept_out: Array,
    num_sources: int,
    owners: Array,
    sought: Array,
    order: Array,
    at_destination: bool,
    group: int,
    mask: Array,
) -> int:
    """Scan the in-list of every owner [groups, a] for what is sought: ascending in each of `groups` equal slices."""
    clashes, width = 0, len(sought) // max(len(owners), 1)
    for g in range(owners.shape[0]):
        first, last = g * width, (g + 1) * width
        for x in range(owners.shape[1]):
            owner = owners[g, x]
            if owner < 0:
                continue
            row, column = (g * group, x) if at_destination else (g * group + x, -1)
            low, high = indptr[owner], indptr[owner + 1]
            if high - low > _LONG * width:
                for y in range(first, last):
                    place = lower_bound(indices, low, high, sought[y])
                    if place < high and indices[place] == sought[y]:
                        clashes += _mark(sought, order, y, y + 1, sought[y], row, column, mask)
            else:
                for k in range(low, high):
                    if k == low or indices[k] != indices[k - 1]:
                        clashes += _mark(sought, order, first, last, indices[k], row, column, mask)
            place = lower_bound(kept_out, 0, kept_out.shape[0], owner * num_sources)
            while place < kept_out.shape[0] and kept_out[place] < (owner + 1) * num_sources:
                source = kept_out[place] - owner * num_sources
                clashes += _mark(sought, order, first, last, source, row, column, mask)
                place += 1
    return clashes


@njit(nogil=True, cache=True)
def _mark(sought: Array, order: Array, first: int, last: int, vertex: int, row: int, column: int, mask: Array) -> int:
    """Mask a vertex wherever it is in sought[first:last]: in a column's rows, or in a row's columns."""
    marked = 0
    y = lower_bound(sought, first, last, vertex)
    while y < last and sought[y] == vertex:
        i, j = (row + order[y], column) if column >= 0 else (row, order[y])
        marked += mask[i, j]
        mask[i, j] = False
        y += 1
    return marked


# Negatives of each positive's own: k vertices drawn uniformly, never its own end.

TRIES = 32
"""Attempts for a filtered negative before a true edge is kept and masked."""
STEP = np.uint64(64)
"""Counter values reserved for the attempts of one negative."""


@dataclass(frozen=True)
class Uniform(NegativePolicy):
    """`k` vertices per positive, drawn uniformly with repeats from all but its own end.

    With `filtered`, a draw that makes a true edge is drawn again. The draws of a positive follow from the batch's key
    and from the edge itself, not from its position in the batch.
    """

    shared: ClassVar[bool] = False

    k: int = 1
    corrupt: Corrupt = "destination"
    filtered: bool = False

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Negatives of shape [positives, k]."""
        count = _candidates(known, end)
        out = np.empty((len(positives), self.k), np.int64)
        mask = np.ones(out.shape, np.bool_)
        clashes = _draw_uniform(
            key,
            positives.source,
            positives.destination,
            positives.copy,
            end == "destination",
            count,
            TRIES if self.filtered else 0,
            known.indptr,
            known.indices,
            known.kept_out,
            known.num_sources,
            known.times,
            positives.time,
            out,
            mask,
        )
        return DrawnNegatives(out, 1, mask if clashes else None, clashes)


@njit(nogil=True, cache=True, writes=("out", "mask"))
def _draw_uniform(
    key: np.uint64,
    sources: Array,
    destinations: Array,
    copies: Array,
    at_destination: bool,
    count: int,
    tries: int,
    indptr: Array,
    indices: Array,
    kept_out: Array,
    num_sources: int,
    times: Array,
    limits: Array,
    out: Array,
    mask: Array,
) -> int:
    """With `times` of the lists' edges, a vertex clashes where it makes an edge that is not later than the limit."""
    clashes = 0
    for i in range(out.shape[0]):
        source, destination = sources[i], destinations[i]
        own = destination if at_destination else source
        stream = mix(mix(mix(key ^ np.uint64(source)) ^ np.uint64(destination)) ^ np.uint64(copies[i]))
        for j in range(out.shape[1]):
            counter = np.uint64(j) * STEP
            vertex, clash, attempt = 0, True, 0
            while clash and attempt < max(tries, 1):
                # One of the other count - 1 vertices.
                vertex = below(draw(stream, counter + np.uint64(attempt)), count - 1)
                vertex += vertex >= own
                attempt += 1
                left, right = (source, vertex) if at_destination else (vertex, destination)
                if tries == 0:
                    clash = False
                elif len(times):
                    clash = is_edge_by(indptr, indices, times, left, right, limits[i])
                else:
                    clash = is_edge(indptr, indices, kept_out, num_sources, left, right)
            out[i, j] = vertex
            mask[i, j] = not clash
            clashes += clash
    return clashes


# Negatives shared by a group of positives, so that few vertices are sampled and scores are a matrix product.


@dataclass(frozen=True)
class Joint(NegativePolicy):
    """`k` vertices for every `group` positives (None: for the whole batch), drawn uniformly with repeats.

    A vertex is masked for the positives whose own end it is and, with `filtered`, for those with which it makes a true
    edge. What is masked for the whole group is drawn again. Drawing again whatever clashes with any positive would
    leave hubs out of the negatives, and the model would learn that hubs are always right; so it is not done. Of what
    counts for a positive, every vertex that makes no true edge is equally likely.
    """

    k: int = 64
    group: int | None = None
    corrupt: Corrupt = "destination"
    filtered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group is not None and self.group < 1:
            raise PenstockError(
                f"group is {self.group}: give 1 or more positives that share negatives.", code="value-out-of-range"
            )

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """Negatives of shape [groups, k]."""
        count = _candidates(known, end)
        group = max(1, min(self.group or len(positives), len(positives)))
        starts = np.arange(0, len(positives), group)
        vertices = np.empty((len(starts), self.k), np.int64)
        useless = np.ones(vertices.shape, np.bool_)
        for attempt in range(TRIES):
            _draw_joint(key, count, attempt, useless, vertices)
            mask = np.repeat(vertices, group, axis=0)[: len(positives)] != positives.at(end)[:, None]
            clashes = mask_true_edges(known, positives, end, vertices, group, mask) if self.filtered else 0
            useless = ~np.logical_or.reduceat(mask, starts) if len(starts) else np.empty_like(useless)
            if not useless.any():
                break
        return DrawnNegatives(vertices, group, None if mask.all() else mask, clashes)


@njit(nogil=True, cache=True)
def _draw_joint(key: np.uint64, count: int, attempt: int, useless: Array, vertices: Array) -> None:
    """Draw those vertices again that count for no positive."""
    for g in range(vertices.shape[0]):
        stream = mix(key ^ np.uint64(g))
        for j in range(vertices.shape[1]):
            if useless[g, j]:
                vertices[g, j] = below(draw(stream, np.uint64(j) * STEP + np.uint64(attempt)), count)


# The other positives' ends as negatives: nothing more is sampled, and scores are one square matrix.


@dataclass(frozen=True)
class InBatch(NegativePolicy):
    """The ends of all other positives of the batch are each positive's negatives.

    Vertices occur as often as they have edges, so popular ones are negatives more often: the known bias of the method.
    With `filtered`, true edges are masked.
    """

    corrupt: Corrupt = "destination"
    filtered: bool = False

    def draw(self, positives: Positives, end: End, known: KnownEdges, key: np.uint64) -> DrawnNegatives:
        """[1, positives] vertices; a positive's own end is masked wherever it occurs."""
        count, vertices = len(positives), positives.at(end)
        mask = vertices[:, None] != vertices[None, :]
        clashes = 0
        groups = vertices[None, :].copy() if count else np.empty((0, 0), np.int64)
        if self.filtered:
            clashes = mask_true_edges(known, positives, end, groups, max(count, 1), mask)
        return DrawnNegatives(groups, max(count, 1), mask, clashes)
