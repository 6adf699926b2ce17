"""LABOR-0 (Balin and Çatalyürek, NeurIPS 2023): neighbours chosen so that destinations share them.

All destinations of a hop see the same uniform number r_u of a source vertex u, and v takes u if r_u < min(1, k / d_v).
Each edge is as likely as with k neighbours for each vertex, but destinations agree on their choice, so that a batch has
fewer vertices. The number drawn varies: k on average for lists longer than k, the whole list for others. Because the
random number depends only on the source, the owners of a partitioned graph's parts decide by themselves and still
agree. Where neighbouring batches share their draws as well (`shared_draws`; Balin et al., 2023, call them dependent
minibatches), they read many of the same vertices, whose rows need not be read again.

Estimator: Horvitz and Thompson's. An edge's weight is 1 / min(1, k / d_v), so that the weighted sum is unbiased for the
list's sum and, divided by `totals`, for its mean. (The plain mean of what was drawn would vary less and be biased.)
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self

import numpy as np

from penstock.graph.arrays import Array, index_dtype
from penstock.graph.folder import Graph
from penstock.graph.hashing import draw, unit
from penstock.kernels import njit
from penstock.sampling.block import BatchKey, Block, MiniBatch, Purpose
from penstock.sampling.entry import (
    DrawOptions,
    GraphSource,
    LaborOptions,
    SamplerEntry,
    SamplerSettings,
    plain_fanouts,
    rule,
)
from penstock.sampling.homogeneous import WholeGraph, whole_graph
from penstock.sampling.lists import DrawnNeighbours, PerThread, Readable, Readers, Rows, check_seeds, numbered, rows_for
from penstock.sampling.neighbours import ALL, check_fanouts

if TYPE_CHECKING:
    from penstock.sampling.device.program import DeviceProgram


class Labor:
    """Draws `fanouts[h]` in-neighbours on average of every vertex known at hop h, counted from the seeds.

    Blocks come with `edges` where asked for. `sample` may be called from several threads at once.
    """

    def __init__(
        self,
        graph: Graph,
        fanouts: Sequence[int],
        original: Array | None = None,
        edges: bool = False,
        shared_draws: int = 1,
    ) -> None:
        whole = whole_graph(graph, "Labor", original)
        names = None if original is None else {whole.node_type: original}
        (kind,) = graph.edges
        lists = Readable({whole.node_type: whole.count}, {kind: SharedLists(whole)}, names)
        self._set_up(lists, fanouts, edges, shared_draws)

    @classmethod
    def over(cls, readable: Readable, fanouts: Sequence[int], edges: bool = False, shared_draws: int = 1) -> Self:
        """A sampler over lists, wherever they are; they must draw as `SharedLists` does."""
        readable.require_one_relation("Sampler labor", "use neighbour")
        sampler = cls.__new__(cls)
        sampler._set_up(readable, fanouts, edges, shared_draws)
        return sampler

    def _set_up(self, readable: Readable, fanouts: Sequence[int], edges: bool, shared_draws: int) -> None:
        check_fanouts(fanouts)
        self._draws = [Purpose(str(hop), shared_draws) for hop in range(len(fanouts))]
        ((self.node_type, count),), (self._lists,) = readable.counts.items(), readable.relations.values()
        self.fanouts, self.edges, self._count = list(fanouts), edges, count
        self._names = None if readable.names is None else readable.names[self.node_type]
        self._rows: PerThread[Rows] = PerThread(lambda: rows_for(count, limit=readable.direct_limit))

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        seeds = check_seeds(seeds, self._count, self.node_type, index_dtype(self._count))
        rows, blocks = self._rows.get(), list[Block]()
        rows.start(seeds)
        try:
            for draws, fanout in zip(self._draws, self.fanouts, strict=True):
                readers = Readers(rows.vertices[: rows.known])
                blocks.append(numbered(self._lists.start_draw(readers, draws.key(key), fanout, self.edges)(), rows))
            totals = self._lists.start_totals(Readers(rows.vertices[: rows.known]))()
            for block in blocks:
                block.totals = totals[: block.num_src]
            vertices = rows.vertices[: rows.known].copy()
        finally:
            rows.forget()
        names = None if self._names is None else {self.node_type: self._names[vertices]}
        return MiniBatch({self.node_type: seeds}, {self.node_type: vertices}, blocks[::-1], key=key, names=names)


class SharedLists:
    """Lists of a graph in this process, from which all rows of a hop draw with the same random numbers."""

    weighted = False

    def __init__(self, graph: WholeGraph) -> None:
        self._graph = graph

    def start_draw(self, readers: Readers, key: np.uint64, fanout: int, edges: bool) -> Callable[[], DrawnNeighbours]:
        """Start a draw; it runs when the result is waited for."""
        return partial(self._draw, readers.vertices, key, fanout, edges)

    def start_totals(self, readers: Readers) -> Callable[[], Array]:
        """Start counting; it runs when the result is waited for."""
        return partial(self._graph.totals, readers.vertices)

    def _draw(self, vertices: Array, key: np.uint64, fanout: int, edges: bool) -> DrawnNeighbours:
        graph = self._graph
        most = np.iinfo(np.int64).max if fanout == ALL else fanout
        indptr, positions = draw_shared(graph.indptr, graph.indices, graph.names, key, most, vertices)
        row_weights = np.maximum(graph.totals(vertices) / np.float32(most), np.float32(1))
        weights = np.repeat(row_weights, np.diff(indptr))
        return DrawnNeighbours(indptr, graph.indices[positions], positions if edges else None, weights)


def _build(source: GraphSource, settings: SamplerSettings) -> Labor:
    fanouts = plain_fanouts(settings.options)
    readable = source.lists(settings.options, shared=True).readable
    return Labor.over(readable, fanouts, settings.edges, settings.options.shared_draws)


def _on_device(options: DrawOptions, sampler: object) -> "DeviceProgram":
    from penstock.sampling.device.program import DeviceProgram, FilterRule

    rules = rule("keep_shared"), rule("weigh_shared")
    hops = tuple(FilterRule(fanout, *rules) for fanout in plain_fanouts(options))
    return DeviceProgram(hops, totals=True, shared_draws=options.shared_draws)


LABOR = SamplerEntry("labor", _build, per_layer="fanouts", scales=True, own_options=LaborOptions, device=_on_device)


@njit(nogil=True, cache=True, writes=())
def draw_shared(
    indptr: Array, indices: Array, names: Array, key: np.uint64, fanout: int, readers: Array
) -> tuple[Array, Array]:
    """Draw in-neighbours of some vertices: offsets, and positions in the lists.

    A list of at most `fanout` is taken whole. `names[u]` is u's name in the hash; empty: u itself.
    """
    out_indptr = np.zeros(readers.shape[0] + 1, np.int64)
    positions = np.empty(64 + 16 * readers.shape[0], np.int64)
    used = 0
    for row in range(readers.shape[0]):
        first, last = indptr[readers[row]], indptr[readers[row] + 1]
        if used + last - first > positions.shape[0]:
            wider = np.empty(2 * (used + last - first), np.int64)
            for k in range(used):
                wider[k] = positions[k]
            positions = wider
        if last - first <= fanout:
            for k in range(first, last):
                positions[used] = k
                used += 1
        else:
            chance = fanout / (last - first)
            for k in range(first, last):
                # Written always, kept or not: an unpredictable branch costs more than the store.
                positions[used] = k
                name = indices[k] if names.shape[0] == 0 else names[indices[k]]
                used += unit(draw(key, np.uint64(name))) < chance
        out_indptr[row + 1] = used
    return out_indptr, positions[:used].copy()
