"""One hop: the draw from the in-neighbour lists of a relation, and the numbering of what was drawn as rows of a batch.

All neighbour samplers share this. They draw from any `ListSource`: `Lists` is one relation of a graph in this process;
`sampling.parts` has one for a graph whose parts are held by other tasks.
"""

import copy
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.hashing import mix
from penstock.graph.schema import EdgeType
from penstock.kernels import njit
from penstock.sampling.block import Block
from penstock.sampling.draws import (
    Conditions,
    count_edges,
    draw_admissible,
    draw_uniform,
    draw_weighted,
    fetch,
    redraw_excluded,
    total_admissible,
    total_whole,
)
from penstock.sampling.exclusion import NOTHING, Exclusion, rows_excluded
from penstock.sampling.temporal import Clock
from penstock.sampling.weighted_draws import running_masses, weights_of

# Vertices as rows of a batch: new ones are numbered in the order in which they appear.
#
# There are two ways, chosen by `rows_for`, with equal results. *Direct* addressing keeps a row number for every vertex
# of the graph: one load per edge, four bytes per vertex and thread. *Hashing* keeps an open-addressing table of the
# batch's own vertices: slower by a hash and a comparison per edge, and its memory grows with the batch, not with the
# graph.

DIRECT_LIMIT = 1 << 28
"""The number of vertices up to which "auto" addresses directly: a gigabyte per thread."""
WAYS = ("auto", "direct", "hash")
Room = TypeVar("Room")
_SMALLEST_TABLE = 1 << 12


class Rows(Protocol):
    """The rows of one batch, which start with the seeds. A thread reuses it from batch to batch."""

    vertices: Array
    """The first `known` are the batch's; the rest is spare room."""
    known: int

    def start(self, seeds: Array) -> None:
        """Give the seeds the first rows."""

    def number(self, sources: Array, indptr: Array) -> Array:
        """Rows (int32) of sources, new ones after those known; `sources` may be overwritten.

        Row i of the batch reads the sources from `indptr[i]` on.
        """

    def forget(self) -> None:
        """Clear it for another batch."""


def rows_for(count: int, way: str = "auto", limit: int | None = None) -> Rows:
    """An empty numbering of `count` vertices; `limit` stands in for `DIRECT_LIMIT`."""
    check_way(way)
    direct = count <= (DIRECT_LIMIT if limit is None else limit) if way == "auto" else way == "direct"
    return DirectRows(count) if direct else HashedRows(index_dtype(count))


def check_way(way: str) -> None:
    """Refuse a way of relabelling that is not known."""
    if way not in WAYS:
        raise PenstockError(f"relabel={way!r} is not known: use one of {', '.join(WAYS)}.", code="unknown-name")


class DirectRows:
    """A row number for every vertex of the graph."""

    def __init__(self, count: int) -> None:
        self.known = 0
        self.vertices = np.empty(0, index_dtype(count))
        self._place = np.full(count, -1, np.int32)

    def start(self, seeds: Array) -> None:
        """The seeds must be different."""
        self.vertices = with_room(self.vertices, 0, len(seeds))
        known = number_seeds(seeds, self._place, self.vertices)
        if known < 0:
            raise repeated(seeds[-known - 1])
        self.known = known

    def number(self, sources: Array, indptr: Array) -> Array:
        # One more than there can be: the kernel always writes after the last.
        most = min(self.known + len(sources), len(self._place)) + 1
        self.vertices = with_room(self.vertices, self.known, most)
        rows = sources if sources.dtype == np.int32 else np.empty(len(sources), np.int32)
        self.known = _number_direct(sources, self._place, self.vertices, self.known, rows)
        return rows

    def forget(self) -> None:
        """Clears only the rows of the finished batch."""
        forget(self._place, self.vertices, self.known)
        self.known = 0


class HashedRows:
    """A table of the batch's own vertices, or of any non-negative integers."""

    def __init__(self, dtype: np.dtype[np.signedinteger]) -> None:
        self.known = 0
        self.vertices = np.empty(0, dtype)
        self._slots = np.full(_SMALLEST_TABLE, -1, np.int32)

    def start(self, seeds: Array) -> None:
        """The seeds must be different."""
        rows = self.number_these(seeds)
        if self.known < len(seeds):
            self.forget()
            raise repeated(seeds[np.flatnonzero(rows != np.arange(len(seeds)))[0]])

    def number(self, sources: Array, indptr: Array) -> Array:
        return self.number_these(sources)

    def number_these(self, numbers: Array) -> Array:
        """Rows of some numbers, new ones after those known."""
        self.vertices = with_room(self.vertices, self.known, self.known + len(numbers))
        rows = np.empty(len(numbers), np.int32)
        done = 0
        while True:
            done, self.known = _number_hashed(numbers, done, self._slots, self.vertices, self.known, rows)
            if done == len(numbers):
                return rows
            self._slots = np.full(4 * len(self._slots), -1, np.int32)
            _insert_known(self._slots, self.vertices, self.known)

    def forget(self) -> None:
        """The emptied table keeps its size."""
        self._slots.fill(-1)
        self.known = 0


class TreeRows:
    """Rows of (seed, vertex) pairs of a node type: `trees[row]` is the seed's position in the batch."""

    def __init__(self, count: int) -> None:
        self.known = 0
        self.vertices, self.trees = np.empty(0, index_dtype(count)), np.empty(0, np.int64)
        self._count, self._pairs = count, HashedRows(np.dtype(np.int64))

    def start(self, seeds: Array, first: int = 0) -> None:
        """Give the seeds the first rows; a vertex may be a seed several times, at different times.

        `first` is the position of the first one, where seeds of other types come before them.
        """
        self._pairs.start((first + np.arange(len(seeds))) * self._count + seeds)
        self._take_new()

    def number(self, sources: Array, indptr: Array) -> Array:
        """Rows of sources in the trees of the rows of this type that read them."""
        return self.number_in(self.trees, sources, indptr)

    def number_in(self, trees: Array, sources: Array, indptr: Array) -> Array:
        """Rows of sources in the trees of the rows, of any type, that read them."""
        of_edges = np.repeat(trees[: len(indptr) - 1], np.diff(indptr))
        rows = self._pairs.number_these(of_edges * self._count + sources)
        self._take_new()
        return rows

    def forget(self) -> None:
        """Make ready for another batch."""
        self._pairs.forget()
        self.known = 0

    def _take_new(self) -> None:
        """Split the pairs added since the last call."""
        before, self.known = self.known, self._pairs.known
        self.vertices = with_room(self.vertices, before, self.known)
        self.trees = with_room(self.trees, before, self.known)
        new = self._pairs.vertices[before : self.known]
        self.trees[before : self.known], self.vertices[before : self.known] = np.divmod(new, self._count)


def trees_of(rows: Mapping[str, Any]) -> dict[str, Array] | None:
    """By node type, the tree of each known row; None where rows belong to no trees."""
    trees = {name: each.trees[: each.known].copy() for name, each in rows.items() if isinstance(each, TreeRows)}
    return trees or None


class PerThread(Generic[Room]):
    """An object that each thread makes once and reuses."""

    def __init__(self, make: Callable[[], Room]) -> None:
        self._make, self._threads = make, threading.local()

    def get(self) -> Room:
        """The calling thread's own object."""
        if not hasattr(self._threads, "room"):
            self._threads.room = self._make()
        room: Room = self._threads.room
        return room


def repeated(vertex: int) -> PenstockError:
    """The error for a seed that is given twice."""
    return PenstockError(f"Vertex {vertex} occurs twice in the seeds: give each once.", code="duplicate")


def with_room(vertices: Array, known: int, most: int) -> Array:
    """The same vertices, in an array that holds `most`; pages that stay unused cost nothing."""
    if most <= len(vertices):
        return vertices
    larger = np.empty(most + most // 2, vertices.dtype)
    larger[:known] = vertices[:known]
    return larger


@njit(nogil=True, cache=True)
def _number_direct(numbers: Array, place: Array, vertices: Array, known: int, rows: Array) -> int:
    """Write the rows of vertices, maybe in place; returns how many are known afterwards. `place[v]` is the row of v or
    -1.
    """
    # Without a branch: whether a vertex is new is unpredictable, and a mispredicted branch costs more than writing
    # twice.
    found = known
    for k in range(len(numbers)):
        vertex = numbers[k]
        row = place[vertex]
        is_new = row < 0
        row = found if is_new else row
        place[vertex] = row
        vertices[found] = vertex
        found += is_new
        rows[k] = row
    return found


@njit(nogil=True, cache=True)
def forget(place: Array, vertices: Array, known: int) -> None:
    """Clear the rows of a finished batch, and only those."""
    for row in range(known):
        place[vertices[row]] = -1


@njit(nogil=True, cache=True, writes=("place", "vertices"))
def number_seeds(seeds: Array, place: Array, vertices: Array) -> int:
    """Give the seeds the first rows; returns how many, or minus one minus the position of one that repeats."""
    count = len(seeds)
    for row in range(count):
        if place[seeds[row]] >= 0:
            forget(place, vertices, row)
            return -row - 1
        place[seeds[row]] = row
        vertices[row] = seeds[row]
    return count


@njit(nogil=True, cache=True)
def _number_hashed(
    numbers: Array, first: int, slots: Array, vertices: Array, known: int, rows: Array
) -> tuple[int, int]:
    """Number from `first` on until all are done or the table is half full; returns how many are done and known.

    `slots` holds rows or -1, at the slot that a number hashes to or the next free one.
    """
    mask = len(slots) - 1
    for k in range(first, len(numbers)):
        number = numbers[k]
        slot = np.int64(mix(np.uint64(number)) & np.uint64(mask))
        row = slots[slot]
        while row >= 0 and vertices[row] != number:
            slot = (slot + 1) & mask
            row = slots[slot]
        if row < 0:
            if 2 * known >= len(slots):
                return k, known
            row = known
            slots[slot] = row
            vertices[row] = number
            known += 1
        rows[k] = row
    return len(numbers), known


@njit(nogil=True, cache=True)
def _insert_known(slots: Array, vertices: Array, known: int) -> None:
    mask = len(slots) - 1
    for row in range(known):
        slot = np.int64(mix(np.uint64(vertices[row])) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = row


# The in-neighbour lists of one relation and how to draw from them.

NO_LIMITS = np.empty(0, np.int64)
"""The limits of readers that are not bound by time."""
_NONE = NO_LIMITS
_NO_WEIGHTS = np.empty(0, np.float32)
_KEPT = 1 << 22
"""The largest scratch array of list positions that a thread keeps: 32 MiB."""


class Readers(NamedTuple):
    """Rows that read their lists. Where every seed has its own tree, each row belongs to one; where time counts, it has
    that seed's time.
    """

    vertices: Array
    trees: Array = _NONE
    limits: Array = _NONE
    exclusion: Exclusion = NOTHING


class DrawnNeighbours(NamedTuple):
    """What readers drew: row i's sources begin at `indptr[i]`. The caller owns the arrays.

    `positions` are the edges' positions in the graph's lists, where asked for; `weights` are estimators (see `Block`).
    """

    indptr: Array
    sources: Array
    positions: Array | None = None
    weights: Array | None = None


class ListSource(Protocol):
    """Lists of one relation that readers draw from, wherever they are. A started operation runs until its result is
    called for.

    Several draws may be in progress at once; `readers.vertices` must not change meanwhile.
    """

    weighted: bool
    """Whether edges are drawn in proportion to a field."""

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Start one hop's draws, with positions if `edges`; calling the result waits for them."""

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Start computing the number, or the weight, of the edges that each reader may draw, as float32."""


@dataclass(frozen=True)
class Readable:
    """A graph as samplers see it: vertices by type, lists by relation in stored order.

    `names`, where the graph was renumbered, are the original numbers of the vertices of every type. `direct_limit`,
    where there is one, stands in for `DIRECT_LIMIT`.
    """

    counts: Mapping[str, int]
    relations: Mapping[EdgeType, ListSource]
    names: Mapping[str, Array] | None = None
    direct_limit: int | None = None

    @property
    def has_several(self) -> bool:
        """Whether there are several node types or relations."""
        return len(self.counts) > 1 or len(self.relations) > 1

    def require_one_relation(self, what: str, remedy: str) -> None:
        """Refuse these lists for `what`, which knows no types, unless they are of one relation."""
        if len(self.counts) != 1 or len(self.relations) != 1:
            raise PenstockError(
                f"{what} is for graphs with one node type and one edge type, and this one has {len(self.counts)} and"
                f" {len(self.relations)}: {remedy}.",
                code="unsupported-combination",
            )


def numbered(drawn: DrawnNeighbours, sources: Rows) -> Block:
    """The block of one hop of one relation: what was drawn, numbered among the sources."""
    rows = sources.number(drawn.sources, drawn.indptr)
    return Block(drawn.indptr, rows, sources.known, drawn.weights, edges=drawn.positions)


class Lists:
    """Draws from one relation's lists: uniformly, or in proportion to a field; with or without replacement.

    With `uniform` a field's weights only scale messages, and every edge is equally likely to be drawn: one of k drawn
    from n admissible edges has the estimator weight w * n / k.
    """

    def __init__(
        self,
        edges: EdgeSet,
        where: str,
        original: Array | None = None,
        replace: bool = False,
        weight: str | None = None,
        clock: Clock | None = None,
        uniform: bool = False,
    ) -> None:
        self.replace, self.weighted, self.uniform = replace, weight is not None, uniform and weight is not None
        self._indptr, self._indices = edges.indptr, edges.indices
        self._original = _NONE if original is None else np.asarray(original, np.int64)
        if original is not None and len(self._original) != len(edges.indptr) - 1:
            raise PenstockError(
                f"{where} has {len(edges.indptr) - 1:,} lists and {len(original):,} original numbers.",
                code="shape-mismatch",
            )
        self._conditions, self._sums = Conditions(), np.empty(0, np.float32)
        if weight is not None:
            weights, self._sums = weights_of(edges, weight, where)
            self._conditions = self._conditions._replace(weights=weights, sums=self._sums)
            if not self.uniform and clock is None:
                running = running_masses(self._indptr, weights, self._sums)
                self._conditions = self._conditions._replace(running=running)
        if clock is not None:
            self._conditions = self._conditions._replace(**clock._asdict())
        self._timed = clock is not None

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Start a draw. It runs when the result is waited for, so that it is still in the cache when it is numbered."""
        return partial(self.draw, readers, key, fanout, edges)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Start counting; it runs when the result is waited for."""
        return partial(self.totals, readers)

    def draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> DrawnNeighbours:
        """One hop's draws for the readers."""
        most = self.most(readers.vertices, fanout)
        indptr, drawn = np.empty(len(readers.vertices) + 1, np.int64), np.empty(most, self._indices.dtype)
        unbound = readers.exclusion is NOTHING
        free, weights = self._plain and unbound and not len(readers.trees), None
        positions = np.empty(most, np.int64) if edges else _scratch.get().holding(most)
        if free:
            self._draw_freely(readers, key, fanout, indptr, positions)
        else:
            positions, weights = self._draw_admissible(readers, key, fanout, indptr, positions)
            drawn = drawn[: len(positions)]
        fetch(self._indices, positions, drawn)
        if self.uniform:
            weights = self._parts_in_sums(readers, indptr, positions)
        return DrawnNeighbours(indptr, drawn, positions if edges else None, weights)

    def most(self, vertices: Array, fanout: int) -> int:
        """The most edges that a draw for some vertices can have."""
        return int(count_edges(self._indptr, vertices, fanout, self.replace))

    def drawn(self, replace: bool, uniform: bool) -> "Lists":
        """The same lists, drawn with or without replacement, uniformly or by their weights, if they have any."""
        other = copy.copy(self)
        other.replace, other.uniform = replace, uniform and self.weighted
        return other

    def totals(self, readers: Readers) -> Array:
        """The number, or the weight, of the edges that each reader may draw, as float32."""
        return self._summed(readers, self._sums, self._conditions)

    def _summed(self, readers: Readers, sums: Array, conditions: Conditions) -> Array:
        """The number or the weight of each reader's admissible edges; `sums` has those of whole lists."""
        vertices, totals = readers.vertices, np.empty(len(readers.vertices), np.float32)
        timed = len(readers.limits) > 0
        if not timed:
            total_whole(self._indptr, vertices, sums, totals)
        if timed or readers.exclusion is not NOTHING:
            rows = np.arange(len(vertices)) if timed else rows_excluded(readers.exclusion, vertices)
            conditions = _of_readers(conditions, readers)
            rows_of = vertices.astype(np.int64, copy=False)
            total_admissible(self._indptr, self._indices, rows_of, rows, conditions, totals)
        return totals

    def _parts_in_sums(self, readers: Readers, indptr: Array, positions: Array) -> Array:
        """Estimator weights of edges that were drawn uniformly: weight * admissible / drawn."""
        counts = self._summed(readers, self._sums[:0], self._for_draws())
        drawn = np.diff(indptr)
        each = np.divide(counts, drawn, out=np.zeros(len(counts), np.float32), where=drawn > 0)
        parts: Array = self._conditions.weights[positions] * np.repeat(each, drawn)
        return parts.astype(np.float32, copy=False)

    @property
    def _plain(self) -> bool:
        """Whether all edges are admissible and equally likely."""
        return (self.uniform or not self.weighted) and not self._timed

    def _for_draws(self) -> Conditions:
        """The conditions on an edge that do not depend on the reader."""
        return self._conditions._replace(weights=_NO_WEIGHTS) if self.uniform else self._conditions

    def _draw_freely(self, readers: Readers, key: np.uint64, fanout: int, indptr: Array, positions: Array) -> None:
        lists = self._indptr, self._original
        draw_uniform(*lists, key, fanout, self.replace, readers.vertices, indptr, positions)

    def _draw_admissible(
        self, readers: Readers, key: np.uint64, fanout: int, indptr: Array, positions: Array
    ) -> tuple[Array, Array | None]:
        """List positions, written to the front of `positions`, and estimator weights if there are any."""
        lists, how = (self._indptr, self._indices, self._original), (key, fanout, self.replace)
        vertices, conditions = readers.vertices, _of_readers(self._for_draws(), readers)
        if self._plain and not len(readers.trees):
            self._draw_freely(readers, key, fanout, indptr, positions)
            rows = rows_excluded(readers.exclusion, vertices)
            used = redraw_excluded(*lists, *how, vertices, rows, conditions, indptr, positions)
            return positions[:used], None
        # One kernel for each type of times and weights, whatever type the vertices have.
        given = (*lists, *how, vertices.astype(np.int64, copy=False), readers.trees, conditions, indptr, positions)
        if not self.weighted or self.uniform:
            return positions[: draw_admissible(*given)], None
        estimates = fanout < 0 or not self.replace
        weights = np.empty(len(positions) if estimates else 0, np.float32)
        used = draw_weighted(*given, weights)
        return positions[:used], weights[:used] if estimates else None


def _of_readers(conditions: Conditions, readers: Readers) -> Conditions:
    return conditions._replace(limits=readers.limits, exclusion=readers.exclusion)


class _Scratch:
    """Scratch memory for list positions; fresh pages would cost a fifth of a hop's time."""

    def __init__(self) -> None:
        self._room = np.empty(0, np.int64)

    def holding(self, amount: int) -> Array:
        """An array of some length, overwritten by this thread's next hop. Large ones are not kept."""
        if amount > _KEPT:
            return np.empty(amount, np.int64)
        if amount > len(self._room):
            self._room = np.empty(min(2 * amount, _KEPT), np.int64)
        return self._room[:amount]


_scratch = PerThread(_Scratch)


def check_typed_seeds(seeds: Mapping[str, Array], counts: Mapping[str, int]) -> dict[str, Array]:
    """Seeds by type, validated and in the kernels' types."""
    for name in seeds:
        if name not in counts:
            raise PenstockError(
                f"There is no node type {name!r} for the seeds: use one of {list(counts)}.", code="unknown-name"
            )
    return {name: check_seeds(these, counts[name], name, index_dtype(counts[name])) for name, these in seeds.items()}


def check_seeds(seeds: Array, count: int, node_type: str, dtype: np.dtype[np.signedinteger]) -> Array:
    """Seeds within 0..count - 1, validated and in the kernels' type."""
    seeds = np.asarray(seeds)
    if seeds.ndim != 1 or (len(seeds) and seeds.dtype.kind not in "iu"):
        raise PenstockError(
            f"Seeds of type {node_type!r} have shape {seeds.shape} and type {seeds.dtype}:"
            " give a flat array of vertex numbers.",
            code="shape-mismatch",
        )
    if len(seeds) and (seeds.min() < 0 or seeds.max() >= count):
        raise PenstockError(f"A seed of type {node_type!r} is outside 0..{count - 1}.", code="id-out-of-range")
    return np.ascontiguousarray(seeds, dtype)
