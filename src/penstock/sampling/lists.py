"""The in-neighbour lists of one relation and how to draw from them, shared by all neighbour samplers.

Samplers draw from any `ListSource`. `Lists` is one relation of a graph in this process; `sampling.parts` has one for a
graph whose parts are held by other tasks.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import index_dtype
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType
from penstock.sampling.block import Block
from penstock.sampling.draws import (
    Conditions,
    count_edges,
    draw_admissible,
    draw_uniform,
    fetch,
    redraw_excluded,
    total_admissible,
    total_whole,
)
from penstock.sampling.exclusion import NOTHING, Exclusion, rows_excluded
from penstock.sampling.relabel import PerThread, Rows
from penstock.sampling.temporal import Clock
from penstock.sampling.weighted_draws import running_masses, weights_of

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

    `names`, where the graph was renumbered, are the original numbers of the vertices of every type.
    """

    counts: Mapping[str, int]
    relations: Mapping[EdgeType, ListSource]
    names: Mapping[str, Array] | None = None


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
        free, weights = self._plain and not readers.exclusion and not len(readers.trees), None
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
        if timed or readers.exclusion:
            rows = np.arange(len(vertices)) if timed else rows_excluded(readers.exclusion, vertices)
            conditions = _of_readers(conditions, readers)
            total_admissible(self._indptr, self._indices, vertices, rows, conditions, totals)
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
        estimates = self.weighted and not self.uniform and (fanout < 0 or not self.replace)
        weights = np.empty(len(positions) if estimates else 0, np.float32)
        used = draw_admissible(*lists, *how, vertices, readers.trees, conditions, indptr, positions, weights)
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
