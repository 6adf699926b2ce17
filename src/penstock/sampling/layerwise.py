"""Layer-wise sampling: a hop draws a fixed number of source vertices for all its destinations together.

They are drawn with repeats in proportion to probabilities q: a vertex u drawn c times of `size` becomes one row, and
all its edges to destinations have the weight c / (size * q_u). Its mean is 1, so weighted sums are unbiased for the
lists' sums, exactly and for any q that is positive wherever there is an edge. Destinations keep their own rows, which
are exact; one whose neighbours were not drawn gets an empty row.

`fastgcn` and `ladies` differ only in q.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.folder import Graph
from penstock.graph.hashing import draw, share_of
from penstock.kernels import njit
from penstock.sampling.block import BatchKey, Block, MiniBatch
from penstock.sampling.entry import LAYER_SIZES, DrawOptions, SamplerEntry, plain_fanouts, rule
from penstock.sampling.homogeneous import Distribution, Homogeneous, NeighbourLists, Reader, homogeneous, importance
from penstock.sampling.lists import PerThread, Rows, rows_for

if TYPE_CHECKING:
    from penstock.sampling.device.hops import Tables, Topology
    from penstock.sampling.device.program import DeviceProgram


class LayerwiseSampler(ABC):
    """Draws `sizes[h]` source vertices for the vertices known at hop h, counted from the seeds.

    Blocks come with `edges` where asked for. `sample` may be called from several threads at once; each keeps eight
    bytes per vertex beside its rows.
    """

    def __init__(
        self, graph: Graph | Homogeneous, sizes: Sequence[int], original: Array | None = None, edges: bool = False
    ) -> None:
        self._graph = homogeneous(graph, type(self).__name__, original)
        if not sizes or any(size < 1 for size in sizes):
            raise PenstockError(
                f"Layer sizes are {list(sizes)}: give a positive number for every layer.",
                code="value-out-of-range",
            )
        self.sizes, self.edges = list(sizes), edges
        self._rows: PerThread[Rows] = PerThread(lambda: rows_for(self._graph.count))
        self._scales: PerThread[Array] = PerThread(lambda: np.zeros(self._graph.count))

    def sample(self, seeds: Array, key: BatchKey) -> MiniBatch:
        """The batch of some different seeds; the same for the same key on any thread."""
        seeds = self._graph.seeds(seeds)
        rows, reader, blocks = self._rows.get(), self._graph.reader(), list[Block]()
        rows.start(seeds)
        try:
            for hop, size in enumerate(self.sizes):
                blocks.append(self._hop(rows, reader, size, key.hop(hop)))
            vertices = rows.vertices[: rows.known].copy()
        finally:
            rows.forget()
        name = self._graph.node_type
        return MiniBatch({name: seeds}, {name: vertices}, blocks[::-1], key=key)

    def _hop(self, rows: Rows, reader: Reader, size: int, key: np.uint64) -> Block:
        vertices = rows.vertices[: rows.known]
        lists, scale = reader.read(vertices), self._scales.get()
        touched = self._draw(lists, size, key, scale)
        indptr, positions, weights = _link(*lists, scale)
        scale[touched] = 0
        edges = self._graph.positions(lists, vertices, indptr, positions) if self.edges else None
        indices = rows.number(lists.indices[positions], indptr)
        return Block(indptr, indices, rows.known, weights, self._graph.totals(rows.vertices[: rows.known]), edges)

    @abstractmethod
    def _draw(self, lists: NeighbourLists, size: int, key: np.uint64, scale: Array) -> Array:
        """Set `scale`, all 0, of the drawn vertices to their edges' weight; returns the vertices that were touched.

        `lists` are those of the hop's destinations.
        """


@njit(nogil=True, cache=True, writes=())
def _link(indptr: Array, indices: Array, rows: Array, scale: Array) -> tuple[Array, Array, Array]:
    """The edges in some lists from drawn vertices: offsets, positions, weights."""
    out_indptr = np.zeros(rows.shape[0] + 1, np.int64)
    for i in range(rows.shape[0]):
        linked = 0
        for k in range(indptr[rows[i]], indptr[rows[i] + 1]):
            linked += scale[indices[k]] > 0
        out_indptr[i + 1] = out_indptr[i] + linked
    positions = np.empty(out_indptr[-1], np.int64)
    weights = np.empty(out_indptr[-1], np.float32)
    used = 0
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            if scale[indices[k]] > 0:
                positions[used] = k
                weights[used] = scale[indices[k]]
                used += 1
    return out_indptr, positions, weights


# FastGCN (Chen, Ma and Xiao, ICLR 2018): every layer's vertices drawn from the whole graph by importance.
#
# q_u is in proportion to the squared norm of u's column in the row-normalised adjacency (entries 1 / d_v), found once.
# Many drawn vertices have no edge to a small batch's destinations: rows are often empty, and `sizes` should be
# generous.


class FastGCN(LayerwiseSampler):
    """Layer-wise sampling by importance in the whole graph; eight bytes per vertex for all threads."""

    def __init__(
        self, graph: Graph | Homogeneous, sizes: Sequence[int], original: Array | None = None, edges: bool = False
    ) -> None:
        super().__init__(graph, sizes, original, edges)
        self._distribution = Distribution(importance(self._graph), self._graph.natural_order())

    def _draw(self, lists: NeighbourLists, size: int, key: np.uint64, scale: Array) -> Array:
        drawn, chances = self._distribution.draw(key, size)
        vertices, places, times = np.unique(drawn, return_index=True, return_counts=True)
        scale[vertices] = times / (size * chances[places])
        return vertices

    @property
    def distribution(self) -> Distribution:
        """What vertices are drawn by."""
        return self._distribution


def _fastgcn_on_device(options: DrawOptions, sampler: FastGCN) -> "DeviceProgram":
    from penstock.sampling.device.hops import TableDrawHop
    from penstock.sampling.device.program import DeviceProgram, TogetherRule

    def tables(topology: "Topology") -> "Tables":
        import torch

        running, total = sampler.distribution.sums()
        times = torch.zeros(topology.count, dtype=torch.int32)
        return {"times": times, "running": torch.from_numpy(running), "total": torch.from_numpy(total)}

    rules = rule("keep_drawn"), rule("weigh_drawn")
    hops = tuple(TogetherRule(TableDrawHop, size, *rules) for size in plain_fanouts(options))
    return DeviceProgram(hops, totals=True, make_tables=tables)


FASTGCN = SamplerEntry(
    "fastgcn",
    lambda source, settings: FastGCN(
        source.whole_lists("fastgcn"), plain_fanouts(settings.options), edges=settings.edges
    ),
    facts=LAYER_SIZES,
    per_layer="fanouts",
    joint=True,
    device=_fastgcn_on_device,
    is_redefined=lambda options: True,
)


# LADIES (Zou et al., NeurIPS 2019): every layer's vertices drawn by importance among the destinations' neighbours.
#
# q_u is in proportion to the sum of (1 / d_v)^2 over the edges from u to this hop's destinations v: the squared norm of
# u's column in their rows of the row-normalised adjacency. Where there are no more neighbours than asked for, all are
# taken with weight 1, and the layer is exact. Masses are whole numbers, so that sums do not depend on their order; an
# entry of a list is drawn in proportion to its list's share, and so a vertex to its mass.


class Ladies(LayerwiseSampler):
    """Layer-wise sampling by importance for the current destinations."""

    def _draw(self, lists: NeighbourLists, size: int, key: np.uint64, scale: Array) -> Array:
        mass = scale.view(np.int64)
        candidates = _weigh(*lists, mass)
        if len(candidates) <= size:
            scale[candidates] = 1.0
            return candidates
        drawn, total = _draw_entries(*lists, key, size)
        vertices, times = np.unique(drawn, return_counts=True)
        expected = size * mass[vertices].astype(np.float64) / float(total)
        mass[candidates] = 0
        scale[vertices] = times / expected
        return vertices


def _ladies_on_device(options: DrawOptions, sampler: object) -> "DeviceProgram":
    from penstock.sampling.device.hops import ImportanceHop
    from penstock.sampling.device.program import DeviceProgram, TogetherRule

    def tables(topology: "Topology") -> "Tables":
        import torch

        kinds = {
            "times": (topology.count, torch.int32),
            "mass": (topology.count, torch.int64),
            "layer": (2, torch.int64),
        }
        return {name: torch.zeros(size, dtype=dtype) for name, (size, dtype) in kinds.items()}

    rules = rule("keep_important"), rule("weigh_important")
    hops = tuple(TogetherRule(ImportanceHop, size, *rules) for size in plain_fanouts(options))
    return DeviceProgram(hops, totals=True, make_tables=tables)


LADIES = SamplerEntry(
    "ladies",
    lambda source, settings: Ladies(
        source.whole_lists("ladies"), plain_fanouts(settings.options), edges=settings.edges
    ),
    facts=LAYER_SIZES,
    per_layer="fanouts",
    joint=True,
    device=_ladies_on_device,
    is_redefined=lambda options: True,
)


@njit(nogil=True, cache=True)
def _share(length: int, rows: int) -> int:
    """One over the squared length of a list, in units such that the masses of so many rows add up to below 2^63."""
    bits = 0
    while rows > 0:
        bits += 1
        rows >>= 1
    length = max(1, length)
    return max((1 << (62 - bits)) // (length * length), 1)


@njit(nogil=True, cache=True, writes=("mass",))
def _weigh(indptr: Array, indices: Array, rows: Array, mass: Array) -> Array:
    """Sum the importance of every neighbour; returns the neighbours, each once, in order of appearance."""
    most = 0
    for row in rows:
        most += indptr[row + 1] - indptr[row]
    candidates = np.empty(min(most, mass.shape[0]), np.int64)
    found = 0
    for row in rows:
        share = _share(indptr[row + 1] - indptr[row], rows.shape[0])
        for k in range(indptr[row], indptr[row + 1]):
            u = indices[k]
            if mass[u] == 0:
                candidates[found] = u
                found += 1
            mass[u] += share
    return candidates[:found].copy()


@njit(nogil=True, cache=True, writes=())
def _draw_entries(indptr: Array, indices: Array, rows: Array, key: np.uint64, size: int) -> tuple[Array, int]:
    """The sources of `size` entries of the lists, drawn in proportion to their lists' shares; and the sum of these."""
    running, total = np.empty(rows.shape[0], np.int64), 0
    for i in range(rows.shape[0]):
        length = indptr[rows[i] + 1] - indptr[rows[i]]
        total += length * _share(length, rows.shape[0])
        running[i] = total
    drawn = np.empty(size, np.int64)
    for j in range(size):
        point = np.int64(share_of(draw(key, np.uint64(j)), np.uint64(total)))
        at = np.searchsorted(running, point, side="right")
        row = rows[at]
        share = _share(indptr[row + 1] - indptr[row], rows.shape[0])
        drawn[j] = indices[indptr[row] + (point - (running[at - 1] if at > 0 else 0)) // share]
    return drawn, total
