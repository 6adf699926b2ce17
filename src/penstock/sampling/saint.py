"""GraphSAINT (Zeng et al., ICLR 2020): a batch is the subgraph induced by what some independent draws visit.

`Saint` makes the batches; `VertexDraws`, `EdgeDraws` and `WalkDraws` say what a draw is; `inclusion` and `edge_weights`
have the estimator's weights.
"""

from functools import cached_property
from math import expm1, log1p
from typing import TYPE_CHECKING, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import transpose_lists
from penstock.graph.folder import Graph
from penstock.graph.hashing import draw, key_of, share_of, unit
from penstock.kernels import njit
from penstock.sampling.block import BatchKey, MiniBatch
from penstock.sampling.entry import SUBGRAPH_SIZE, GraphSource, SamplerEntry, SamplerSettings, rule
from penstock.sampling.homogeneous import Distribution, Homogeneous, Reader, homogeneous, importance
from penstock.sampling.induced import Induced, Inducer, blocks_on

if TYPE_CHECKING:
    from penstock.sampling.device.hops import Tables
    from penstock.sampling.device.program import DeviceProgram

# Probabilities that vertices and pairs are in a subgraph, and the weights of its edges that follow. All kinds of
# GraphSAINT make `size` independent draws, each of which visits a vertex, an edge's ends, or a walk's vertices. If one
# draw visits v with probability m_v, and both u and v with probability m_uv, then v is in the subgraph with probability
# p_v = 1 - (1 - m_v)^size, and both are with probability p_u + p_v - (1 - (1 - m_u - m_v + m_uv)^size).


def inclusion(mass: Array, size: int) -> Array:
    """The probability of being visited by one of `size` draws, from that of one draw."""
    return _inclusion(mass, size)


def edge_weights(inside: Induced, mass: Array, joint: Array, size: int) -> Array:
    """1 / P(source in | destination in) of every edge (float32): weighted sums are unbiased where v is in.

    `mass` is of the rows, `joint` of the edges, both for one draw.
    """
    return _weights(inside.indptr, inside.indices, mass, joint, size)


def count_copies(inside: Induced) -> tuple[Array, Array]:
    """For every edge u -> v of a subgraph: how many there are from u to v, and how many from v to u."""
    out_indptr, out_indices = transpose_lists(inside.indptr, inside.indices, len(inside.vertices))
    there = _tally(inside.indptr, inside.indices, inside.indptr, inside.indices)
    back = _tally(inside.indptr, inside.indices, out_indptr, out_indices)
    return there, back


@njit(nogil=True, cache=True)
def _visited(mass: float, size: int) -> float:
    """1 - (1 - mass)^size, accurate for small masses."""
    return 1.0 if mass >= 1.0 else -expm1(size * log1p(-mass))


@njit(nogil=True, cache=True)
def _inclusion(mass: Array, size: int) -> Array:
    out = np.empty(mass.shape[0])
    for i in range(mass.shape[0]):
        out[i] = _visited(mass[i], size)
    return out


@njit(nogil=True, cache=True)
def _weights(indptr: Array, indices: Array, mass: Array, joint: Array, size: int) -> Array:
    out = np.empty(indices.shape[0], np.float32)
    for v in range(indptr.shape[0] - 1):
        own = _visited(mass[v], size)
        for k in range(indptr[v], indptr[v + 1]):
            u = indices[k]
            # An estimated m_uv may exceed m_u or m_v, which the true one cannot.
            either = max(mass[u] + mass[v] - joint[k], mass[u], mass[v])
            both = _visited(mass[u], size) + own - _visited(either, size)
            out[k] = 1.0 if u == v else own / both
    return out


@njit(nogil=True, cache=True)
def _tally(indptr: Array, indices: Array, other_indptr: Array, other_indices: Array) -> Array:
    """How often each edge's source is in another list of the same row."""
    times = np.zeros(indptr.shape[0] - 1, np.int32)
    out = np.empty(indices.shape[0], np.int32)
    for row in range(indptr.shape[0] - 1):
        for k in range(other_indptr[row], other_indptr[row + 1]):
            times[other_indices[k]] += 1
        for k in range(indptr[row], indptr[row + 1]):
            out[k] = times[indices[k]]
        for k in range(other_indptr[row], other_indptr[row + 1]):
            times[other_indices[k]] = 0
    return out


# Draws of edges: u -> v in proportion to 1 / d_u + 1 / d_v, degrees being lengths of in-lists, counted as 1 at least.
#
# A destination is drawn by the mass of its list, then an edge of the list: eight bytes a vertex instead of an edge.


class EdgeDraws:
    """A draw visits both ends of an edge. Vertices without any edge are never visited."""

    def __init__(self, graph: Homogeneous) -> None:
        self._graph = graph
        lists, mass = np.zeros(graph.count), np.zeros(graph.count)
        for vertices, some in graph.in_order():
            _add_masses(graph.indptr, vertices, *some, lists, mass)
        self.distribution = Distribution(lists, graph.natural_order())
        self.mass = mass / self.distribution.total if self.distribution.total > 0 else mass

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """Both ends of every edge drawn, in order, with repeats."""
        destinations, _ = self.distribution.draw(key.purpose("lists"), amount)
        lists = reader.read(destinations)
        sources = _draw_sources(self._graph.indptr, *lists, destinations, key.purpose("edges"))
        return np.stack([sources, destinations], 1).ravel()

    def joint(self, inside: Induced) -> Array:
        """The mass of all edges between two vertices, in both directions."""
        there, back = count_copies(inside)
        degrees = np.maximum(1, self._graph.degrees(inside.vertices))
        rows = np.repeat(np.arange(len(inside.vertices)), np.diff(inside.indptr))
        single = 1 / degrees[inside.indices] + 1 / degrees[rows]
        mass: Array = (there + back) * single / self.distribution.total
        return mass


@njit(nogil=True, cache=True, writes=("lists", "mass"))
def _add_masses(
    offsets: Array, vertices: Array, indptr: Array, indices: Array, rows: Array, lists: Array, mass: Array
) -> None:
    """Add the mass of some vertices' lists, and of all edges at them; `offsets` are those of all lists."""
    for i in range(vertices.shape[0] if vertices.shape[0] else lists.shape[0]):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        for k in range(indptr[row], indptr[row + 1]):
            u = indices[k]
            single = _single(offsets, u, v)
            lists[v] += single
            mass[v] += single
            if u != v:
                mass[u] += single


@njit(nogil=True, cache=True, writes=())
def _draw_sources(
    offsets: Array, indptr: Array, indices: Array, rows: Array, destinations: Array, key: np.uint64
) -> Array:
    """Draw an edge of every destination's list by mass; `offsets` are those of all lists."""
    sources = np.empty(destinations.shape[0], np.int64)
    for j in range(destinations.shape[0]):
        v, row = destinations[j], rows[j]
        total = 0
        for k in range(indptr[row], indptr[row + 1]):
            total += _single_units(offsets, indices[k], v)
        left = np.int64(share_of(draw(key, np.uint64(j)), np.uint64(total)))
        for k in range(indptr[row], indptr[row + 1]):
            sources[j] = indices[k]
            left -= _single_units(offsets, indices[k], v)
            if left < 0:
                break
    return sources


@njit(nogil=True, cache=True, writes=())
def _single_units(offsets: Array, u: int, v: int) -> int:
    """`_single` in units of 2^-40: whole numbers, so that sums do not depend on their order."""
    whole: int = (1 << 40) // max(1, offsets[u + 1] - offsets[u]) + (1 << 40) // max(1, offsets[v + 1] - offsets[v])
    return whole


@njit(nogil=True, cache=True, writes=())
def _single(offsets: Array, u: int, v: int) -> float:
    single: float = 1.0 / max(1, offsets[u + 1] - offsets[u]) + 1.0 / max(1, offsets[v + 1] - offsets[v])
    return single


# Draws of random walks: a uniform root, then `length` steps, each to a uniform in-neighbour. A walk that comes to an
# empty list stays there. Probabilities of the root and the first step have closed forms. Those of later steps have not
# and are counted over walks made beforehand: four bytes per edge for pairs, eight per vertex, and all lists where it is
# counted.


class WalkDraws:
    """A draw visits the vertices of one walk."""

    def __init__(self, graph: Homogeneous, length: int, counted: int, key: np.uint64) -> None:
        self._graph, self._order, self.length = graph, graph.natural_order(), length
        self.mass = np.zeros(graph.count)
        for vertices, lists in graph.in_order():
            unsorted = _add_first_visits(vertices, *lists, graph.names, self.mass)
            if unsorted >= 0:
                raise PenstockError(
                    f"The neighbours of vertex {unsorted} are not sorted by original number: pass `original`, the"
                    " original number of every vertex.",
                    code="option-missing",
                )
        self._pairs, self._counted = np.zeros(0, np.int32), counted
        if length > 1:
            whole, visits = graph.whole(), np.zeros(graph.count, np.int64)
            self._pairs = np.zeros(len(whole.indices), np.int32)
            here = whole.indptr, whole.indices, whole.names, self._order
            _count_later_visits(*here, key, length, counted, visits, self._pairs)
            self.mass = np.minimum(self.mass + visits / counted, 1.0)

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices of all walks, in order, with repeats."""
        stream, paths = key.purpose("walks"), np.empty((amount, self.length + 1), np.int64)
        _start(stream, self._order, self._graph.count, paths)
        for t in range(1, self.length + 1):
            _step(*reader.read(paths[:, t - 1].copy()), stream, t, paths)
        return paths.ravel()

    def joint(self, inside: Induced) -> Array:
        """Pairs of the root and the first step by closed form, later ones as counted."""
        there, back = count_copies(inside)
        degrees = self._graph.degrees(inside.vertices)
        rows = np.repeat(np.arange(len(inside.vertices)), np.diff(inside.indptr))
        # u may have no list of its own; then `back` is 0 too.
        steps = there / degrees[rows] + back / np.maximum(degrees[inside.indices], 1)
        first: Array = steps / len(self.mass)
        return first + self._pairs[inside.edges] / self._counted if len(self._pairs) else first


@njit(nogil=True, cache=True, writes=("mass",))
def _add_first_visits(vertices: Array, indptr: Array, indices: Array, rows: Array, names: Array, mass: Array) -> int:
    """Add the probability of being the root or the first step; returns a vertex whose list is not ascending, or -1."""
    count = mass.shape[0]
    for i in range(vertices.shape[0] if vertices.shape[0] else count):
        v = vertices[i] if vertices.shape[0] else i
        row = rows[i] if vertices.shape[0] else i
        mass[v] += 1.0 / count
        step = 1.0 / count / max(1, indptr[row + 1] - indptr[row])
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] != v:
                mass[indices[k]] += step
            if k > indptr[row] and _name(names, indices[k - 1]) > _name(names, indices[k]):
                return int(v)
    return -1


@njit(nogil=True, cache=True)
def _start(key: np.uint64, order: Array, count: int, paths: Array) -> None:
    """Write the roots of all walks of a stream."""
    for j in range(paths.shape[0]):
        paths[j, 0] = _root(key, j * paths.shape[1], order, count)


@njit(nogil=True, cache=True, writes=("paths",))
def _step(indptr: Array, indices: Array, rows: Array, key: np.uint64, t: int, paths: Array) -> None:
    """Make the t-th step of all walks of a stream; `rows` are those of the vertices that they have reached."""
    for j in range(paths.shape[0]):
        row = rows[j]
        place = _choice(key, j * paths.shape[1] + t, indptr[row + 1] - indptr[row])
        paths[j, t] = indices[indptr[row] + place] if place >= 0 else paths[j, t - 1]


@njit(nogil=True, cache=True)
def _walk(indptr: Array, indices: Array, order: Array, key: np.uint64, number: int, path: Array) -> None:
    """Write the `number`-th walk of a stream, as long as `path`."""
    first = number * path.shape[0]
    path[0] = _root(key, first, order, indptr.shape[0] - 1)
    for t in range(1, path.shape[0]):
        v = path[t - 1]
        place = _choice(key, first + t, indptr[v + 1] - indptr[v])
        path[t] = indices[indptr[v] + place] if place >= 0 else v


@njit(nogil=True, cache=True, writes=())
def _root(key: np.uint64, number: int, order: Array, count: int) -> int:
    root = int(unit(draw(key, np.uint64(number))) * count)
    return int(order[root]) if order.shape[0] else root


@njit(nogil=True, cache=True)
def _choice(key: np.uint64, number: int, degree: int) -> int:
    """A position in a list of some length; -1 in an empty one."""
    return int(unit(draw(key, np.uint64(number))) * degree) if degree else -1


@njit(nogil=True, cache=True, writes=("visits", "pairs"))
def _count_later_visits(
    indptr: Array,
    indices: Array,
    names: Array,
    order: Array,
    key: np.uint64,
    length: int,
    amount: int,
    visits: Array,
    pairs: Array,
) -> None:
    """Count walks that visit a vertex only after the first step, and pairs other than the root with the first step."""
    path, distinct = np.empty(length + 1, np.int64), np.empty(length + 1, np.int64)
    for j in range(amount):
        _walk(indptr, indices, order, key, j, path)
        found = 0
        for v in path:
            new = True
            for i in range(found):
                new = new and distinct[i] != v
            if new:
                distinct[found] = v
                found += 1
        # The root, and the first step unless it stayed, are the first distinct vertices.
        early = 2 if path[1] != path[0] else 1
        for i in range(early, found):
            visits[distinct[i]] += 1
        for i in range(1, found):
            for other in range(i):
                if i >= early:
                    _count_pair(indptr, indices, names, distinct[other], distinct[i], pairs)
                    _count_pair(indptr, indices, names, distinct[i], distinct[other], pairs)


@njit(nogil=True, cache=True)
def _count_pair(indptr: Array, indices: Array, names: Array, u: int, v: int, pairs: Array) -> None:
    """Add one to every edge u -> v, if there is any."""
    low, last = indptr[v], indptr[v + 1]
    high, wanted = last, _name(names, u)
    while low < high:
        middle = (low + high) // 2
        if _name(names, indices[middle]) < wanted:
            low = middle + 1
        else:
            high = middle
    while low < last and indices[low] == u:
        pairs[low] += 1
        low += 1


@njit(nogil=True, cache=True)
def _name(names: Array, v: int) -> int:
    return int(v) if names.shape[0] == 0 else int(names[v])


# Batches of GraphSAINT: the induced subgraph, its weights, and the weights of the seeds' losses.


class VertexDraws:
    """A draw visits one vertex, so two vertices are together only by different draws."""

    def __init__(self, graph: Homogeneous) -> None:
        mass = importance(graph, self_loops=True)
        self.distribution = Distribution(mass, graph.natural_order())
        self.mass = mass / self.distribution.total

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices drawn, in order, with repeats."""
        return self.distribution.draw(key.purpose("vertices"), amount)[0]

    def joint(self, inside: Induced) -> Array:
        """Zero: no draw visits two vertices."""
        return np.zeros(len(inside.indices))


class Draws(Protocol):
    """Independent draws that each visit some vertices."""

    mass: Array
    """The probability (float64) that one draw visits each vertex."""

    def visit(self, amount: int, key: BatchKey, reader: Reader) -> Array:
        """The vertices visited by `amount` draws, in order, with repeats."""
        ...

    def joint(self, inside: Induced) -> Array:
        """The probability (float64) that one draw visits both ends, for every edge of a subgraph;
        loops do not matter.
        """
        ...


KINDS = ("vertex", "edge", "walk")


class Saint:
    """Subgraphs of `size` draws: vertices, edges, or walks of `walk_length` steps from uniform roots.

    Edges have the weight 1 / P(u in | v in): where v is in, weighted sums are unbiased for the list's sum. Seeds are
    the training vertices inside, perhaps none. Their weights are 1 / (T p_v), T being the number of training vertices
    that can be drawn and p_v the probability that v is in: the expectation of the sum of seed weight * loss is the mean
    loss of those T. All probabilities are exact, except for walks of more than one step, where later steps are counted
    over as many walks as `presample` subgraphs have.

    `items` numbers the subgraphs of an epoch, which together have as many vertices as the graph on average. `sample`
    may be called from several threads at once.
    """

    def __init__(
        self,
        graph: Graph | Homogeneous,
        train: Array,
        kind: str = "vertex",
        size: int = 1000,
        walk_length: int = 2,
        layers: int = 2,
        presample: int | None = None,
        original: Array | None = None,
        seed: int = 0,
    ) -> None:
        self._graph = homogeneous(graph, "Saint", original)
        _check(kind, size, walk_length, layers, presample)
        if kind == "walk" and walk_length > 1:
            # Later steps are counted over many walks and per edge; where memory suffices for that, it suffices for the
            # lists.
            self._graph = self._graph.whole()
        self.kind, self.size, self.layers = kind, size, layers
        self._is_train = self._graph.train_mask(train)
        self._draws = self._draws_of(walk_length, presample, seed)
        self._inclusion = inclusion(self._draws.mass, size)
        self._trained = int(self._is_train[self._inclusion > 0].sum())
        if not self._trained:
            raise PenstockError(
                f"No training vertex of {graph.name!r} has an edge: draw vertices or walks instead.",
                code="missing-data",
            )
        self.items = np.arange(int(np.ceil(self._graph.count / self._inclusion.sum())))
        self._inducer = Inducer(self._graph)

    def sample(self, items: Array, key: BatchKey) -> MiniBatch:
        """The subgraph of one item. Its draws depend only on the key, and are the same on any thread."""
        if np.size(items) != 1:
            raise PenstockError(
                f"GraphSAINT draws one subgraph for each batch, not {np.size(items)}: set batch_size to 1.",
                code="value-out-of-range",
            )
        reader = self._graph.reader()
        vertices = self._seeds_first(self._draws.visit(self.size, key, reader))
        inside = self._inducer.induce(vertices, reader)
        weights = edge_weights(inside, self._draws.mass[inside.vertices], self._draws.joint(inside), self.size)
        seeds = inside.vertices[: int(self._is_train[inside.vertices].sum())]
        seed_weights = (1 / (self._trained * self._inclusion[seeds])).astype(np.float32)
        blocks = blocks_on(self._graph, inside, weights, len(seeds), self.layers)
        name = self._graph.node_type
        return MiniBatch({name: seeds}, {name: inside.vertices}, blocks, seed_weights=seed_weights, key=key)

    def on_device(self) -> "DeviceProgram":
        """How a device draws the same subgraphs: weights of edges and seeds are the same in all of them, so that they
        are tables.
        """
        from penstock.sampling.device.subgraphs import Drawn, InducedRule, SubgraphProgram, by_edges, by_sums, by_walks

        if isinstance(self._draws, WalkDraws):
            length = self._draws.length
            visits = Drawn(self.size, length + 1, ("walks",), by_walks(length))
        elif isinstance(self._draws, EdgeDraws):
            visits = Drawn(self.size, 2, ("lists", "edges"), by_edges)
        else:
            visits = Drawn(self.size, 1, ("vertices",), by_sums)
        with np.errstate(divide="ignore"):
            seed_weights = (1 / (self._trained * self._inclusion)).astype(np.float32)
        hop = InducedRule(-1, rule("keep_inside"), rule("weigh_inside"), ("place", "weights"))
        given = (hop,), visits, self.layers
        return SubgraphProgram(*given, totals=True, seed_weights=seed_weights, make_tables=self._tables)

    def _tables(self, topology: object) -> "Tables":
        import torch

        draws = self._draws
        tables = {"is_train": self._is_train.astype(np.int8), "weights": self._all_weights}
        if isinstance(draws, VertexDraws | EdgeDraws):
            tables["running"], tables["total"] = draws.distribution.sums()
        return {name: torch.from_numpy(np.ascontiguousarray(table)) for name, table in tables.items()}

    @cached_property
    def _all_weights(self) -> Array:
        """The weight of every edge of the graph."""
        graph = self._graph.whole()
        inside = Induced(np.arange(graph.count), graph.indptr, graph.indices, np.arange(len(graph.indices)))
        return edge_weights(inside, self._draws.mass, self._draws.joint(inside), self.size)

    def _seeds_first(self, visited: Array) -> Array:
        """Every visited vertex once, in order of appearance, training vertices before others."""
        _, first = np.unique(visited, return_index=True)
        vertices = visited[np.sort(first)]
        inside = self._is_train[vertices]
        return np.concatenate([vertices[inside], vertices[~inside]])

    def _draws_of(self, walk_length: int, presample: int | None, seed: int) -> Draws:
        if self.kind == "vertex":
            return VertexDraws(self._graph)
        if self.kind == "edge":
            return EdgeDraws(self._graph)
        if presample is None:
            # As in GraphSAINT: until a vertex has been in about fifty subgraphs.
            walks = 50 * self._graph.count // (walk_length + 1)
        else:
            walks = presample * self.size
        return WalkDraws(self._graph, walk_length, max(walks, 1), key_of(seed, "saint/presample"))


def _check(kind: str, size: int, walk_length: int, layers: int, presample: int | None) -> None:
    if kind not in KINDS:
        raise PenstockError(
            f"There is no GraphSAINT sampler of kind {kind!r}: use one of {', '.join(KINDS)}.", code="unknown-name"
        )
    least = 2 if kind == "vertex" else 1
    if size < least:
        raise PenstockError(f"size is {size}, which draws no edge: give {least} or more.", code="value-out-of-range")
    if walk_length < 1 or layers < 1:
        raise PenstockError(
            f"walk_length is {walk_length} and layers is {layers}: give 1 or more for both.",
            code="value-out-of-range",
        )
    if presample is not None and presample < 1:
        raise PenstockError(
            f"presample is {presample}: give 1 or more, or leave it out.",
            code="value-out-of-range",
        )


def _entry(kind: str) -> SamplerEntry:
    name = f"saint-{kind}"

    def build(source: GraphSource, settings: SamplerSettings) -> Saint:
        options = settings.options
        return Saint(
            source.whole_lists(name),
            source.training_vertices(),
            kind=kind,
            size=options.batch_size,
            walk_length=options.walk_length,
            layers=settings.layers,
        )

    return SamplerEntry(
        name,
        build,
        facts=SUBGRAPH_SIZE,
        joint=True,
        items_per_batch=lambda options: 1,
        shuffles=False,
        device=lambda options, sampler: sampler.on_device(),
        # A device reads a table of all edges' weights, which takes the host several gigabytes for 100 M edges.
        device_edges=100_000_000,
        is_redefined=lambda options: kind == "edge",
    )


SAINT_VERTEX = _entry("vertex")
SAINT_EDGE = _entry("edge")
SAINT_WALK = _entry("walk")
