"""The input of partitioners: the graph as one set of vertices, its neighbour lists, and weights to balance."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype
from penstock.graph.csr import transpose_lists
from penstock.graph.data import SPLITS
from penstock.graph.folder import Graph
from penstock.graph.integrity import check_graph, check_order
from penstock.kernels import njit
from penstock.processes import ranges
from penstock.progress import SILENT, Progress

# A heterogeneous graph as one set of vertices, for partitioners and metrics.


@dataclass(frozen=True)
class WholeAdjacency:
    """In-neighbour lists over all vertices, type after type.

    With one node and one edge type these are the graph's own mapped arrays; otherwise a merged copy of the topology.
    """

    graph: Graph
    offsets: dict[str, int]
    indptr: Array
    indices: Array

    @property
    def count(self) -> int:
        """The number of vertices of all types."""
        return len(self.indptr) - 1

    def by_type(self, values: Array) -> dict[str, Array]:
        """A per-vertex array cut by node type (views)."""
        return {name: values[start : start + self.graph.nodes[name].count] for name, start in self.offsets.items()}


def whole_of(graph: Graph) -> WholeAdjacency:
    """All vertices of a graph, numbered type after type."""
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph: partition the whole graph instead.",
            code="whole-graph-needed",
        )
    check_graph(graph)
    for edge_type in graph.edges:
        check_order(graph, edge_type)
    return merged_lists(graph)


def merged_lists(graph: Graph) -> WholeAdjacency:
    """All vertices of a graph whose lists were validated, and may be in any order."""
    offsets, total = {}, 0
    for name, nodes in graph.nodes.items():
        offsets[name] = total
        total += nodes.count
    if graph.is_homogeneous and graph.edges:
        return WholeAdjacency(graph, offsets, graph.indptr, graph.indices)
    return WholeAdjacency(graph, offsets, *_merged_lists(graph, offsets, total))


def merged_relations(whole: WholeAdjacency) -> Array:
    """The relation of every entry of the lists, by its position among the graph's edge types (int16).

    Among entries with the same neighbour the relations ascend.
    """
    graph, kinds = whole.graph, len(whole.graph.edges)
    entries, fill = np.empty(len(whole.indices), np.int64), whole.indptr[:-1].copy()
    for number, ((source, _, target), edges) in enumerate(graph.edges.items()):
        starts = whole.offsets[source], whole.offsets[target]
        _copy_entries(edges.indptr, edges.indices, *starts, kinds, number, fill, entries)
    _sort_lists(whole.indptr, entries)
    return (entries % kinds).astype(np.int16)


def _merged_lists(graph: Graph, offsets: dict[str, int], total: int) -> tuple[Array, Array]:
    lengths = np.zeros(total, np.int64)
    for (_, _, target), edges in graph.edges.items():
        start = offsets[target]
        lengths[start : start + graph.nodes[target].count] += np.diff(edges.indptr)
    indptr = np.zeros(total + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), index_dtype(total))
    fill = indptr[:-1].copy()
    for (source, _, target), edges in graph.edges.items():
        _copy_entries(edges.indptr, edges.indices, offsets[source], offsets[target], 1, 0, fill, indices)
    if len(graph.edges) > 1:
        _sort_lists(indptr, indices)
    return indptr, indices


@njit(nogil=True, cache=True, writes=("fill", "out"))
def _copy_entries(
    indptr: Array, indices: Array, source: int, target: int, kinds: int, kind: int, fill: Array, out: Array
) -> None:
    """Lists with the neighbour and the relation, of so many kinds, in one number; of one kind it is the neighbour."""
    for row in range(indptr.shape[0] - 1):
        position = fill[target + row]
        for k in range(indptr[row], indptr[row + 1]):
            out[position] = np.int64(source + indices[k]) * kinds + kind
            position += 1
        fill[target + row] = position


@njit(nogil=True, cache=True)
def _sort_lists(indptr: Array, indices: Array) -> None:
    # Equal neighbours (through two relations) must be adjacent for the kernels that count them once.
    for row in range(indptr.shape[0] - 1):
        indices[indptr[row] : indptr[row + 1]].sort()


# The input of a partitioning method, with the constraints to balance; and its result.

_BLOCK = 1 << 18
_WEIGHT_UNIT, _LARGEST_TOTAL = 100, 1 << 30
KNOWN = ("vertices", "edges", *SPLITS, "types")


Weights = Callable[[int, int], Array]
"""The weights of the vertices from one number up to another; small integers."""


@dataclass(frozen=True)
class Constraints:
    """Named weights per vertex, made block by block: an array of them all would outgrow what streaming methods hold."""

    names: list[str]
    rows: list[Weights]
    count: int

    def block(self, start: int, stop: int) -> Array:
        """int32 [constraints, vertices] of the vertices from `start` up to `stop`."""
        return np.stack([np.asarray(row(start, stop), np.int32) for row in self.rows])

    @cached_property
    def weights(self) -> Array:
        """`weights[c, v]` of all vertices, kept once it was asked for."""
        return self.block(0, self.count)

    @cached_property
    def totals(self) -> Array:
        """The sum of the weights, per constraint."""
        found = np.zeros(len(self.rows), np.int64)
        for start, stop in ranges(self.count, _BLOCK):
            found += self.block(start, stop).sum(1, dtype=np.int64)
        return found

    def loads(self, assignment: Array, parts: int) -> Array:
        """[constraints, parts] sums of the weights."""
        found = np.zeros((len(self.rows), parts), np.int64)
        for start, stop in ranges(self.count, _BLOCK):
            add_up(assignment[start:stop], self.block(start, stop), found)
        return found

    def balance(self, assignment: Array, parts: int) -> dict[str, float]:
        """Largest part's load over the mean load, per constraint."""
        loads = self.loads(assignment, parts)
        means = np.maximum(loads.sum(1) / parts, 1e-30)
        return {name: float(load.max() / mean) for name, load, mean in zip(self.names, loads, means, strict=True)}

    def summed(self) -> Array:
        """One weight for each vertex, for partitioners that balance one: every constraint's relative to its mean,
        averaged, in hundredths if their sum allows.
        """
        # Mt-KaHyPar sums weights in 32 bits.
        unit = min(_WEIGHT_UNIT, _LARGEST_TOTAL // max(1, self.count))
        scale = (self.count / np.maximum(self.totals, 1) * unit / len(self.names))[:, None]
        found = np.empty(self.count, np.int64)
        for start, stop in ranges(self.count, _BLOCK):
            found[start:stop] = np.maximum(1, np.rint((self.block(start, stop) * scale).sum(0)))
        return found


def constraints_in(names: list[str], weights: Array) -> Constraints:
    """Constraints whose weights are an array in memory, `weights[c, v]`."""
    return Constraints(names, [_slices(row) for row in weights], weights.shape[1])


def default_names(whole: WholeAdjacency) -> list[str]:
    """Vertices and edges, and train vertices where there are any."""
    has_train = any(len(nodes.splits.get("train", ())) for nodes in whole.graph.nodes.values())
    return ["vertices", "edges", *(["train"] if has_train else [])]


def constraints_of(whole: WholeAdjacency, names: list[str]) -> Constraints:
    """The weights of the named constraints; `types` stands for one constraint per node type."""
    found: dict[str, Weights] = {}
    for name in names:
        found |= _weights(whole, name)
    return Constraints(list(found), list(found.values()), whole.count)


def _weights(whole: WholeAdjacency, name: str) -> dict[str, Weights]:
    if name == "vertices":
        return {name: lambda start, stop: np.ones(stop - start, np.int32)}
    if name == "edges":
        return {name: lambda start, stop: np.diff(whole.indptr[start : stop + 1])}
    if name in SPLITS:
        mask = _split_mask(whole, name)
        if not mask.any():
            raise PenstockError(
                f"Graph {whole.graph.name!r} has no {name} vertices to balance: take {name!r} off --balance.",
                code="missing-data",
            )
        return {name: _slices(mask)}
    if name == "types":
        return {f"type {kind}": _members(whole, kind) for kind in whole.graph.node_types}
    raise PenstockError(f"--balance does not know {name!r}: use any of {', '.join(KNOWN)}.", code="unknown-name")


def _slices(array: Array) -> Weights:
    return lambda start, stop: array[start:stop]


def _split_mask(whole: WholeAdjacency, name: str) -> Array:
    mask = np.zeros(whole.count, np.bool_)
    for kind, nodes in whole.graph.nodes.items():
        if name in nodes.splits:
            mask[whole.offsets[kind] + np.asarray(nodes.splits[name])] = True
    return mask


def _members(whole: WholeAdjacency, kind: str) -> Weights:
    first = whole.offsets[kind]
    last = first + whole.graph.nodes[kind].count

    def is_member(start: int, stop: int) -> Array:
        numbers = np.arange(start, stop)
        return (numbers >= first) & (numbers < last)

    return is_member


@njit(nogil=True, cache=True, writes=("loads",))
def add_up(assignment: Array, weights: Array, loads: Array) -> None:
    """Add the weights of vertices to the loads of the parts that they are in."""
    for c in range(weights.shape[0]):
        for v in range(weights.shape[1]):
            loads[c, assignment[v]] += weights[c, v]


@dataclass(frozen=True)
class Problem:
    """Assign every vertex of `whole` to one of `parts` parts."""

    whole: WholeAdjacency
    parts: int
    constraints: Constraints
    tolerance: float = 1.05
    """Largest load a part may have, over the mean."""
    seed: int = 0
    passes: int = 1
    """How often a streaming method reads the graph."""
    threads: int = 1
    progress: Progress = SILENT

    def capacities(self) -> Array:
        """The largest load of a part, per constraint. One vertex more than the mean is always allowed: shares of few
        vertices do not divide evenly.
        """
        means = self.constraints.totals / self.parts
        largest: Array = np.maximum(means * self.tolerance, np.ceil(means))
        return largest


class Method(Protocol):
    """A partitioning method: returns the part of every vertex (int32). The same problem gives the same answer, except
    where a native library runs in parallel (`hypergraph`).
    """

    def __call__(self, problem: Problem) -> Array: ...


# Undirected neighbour lists for partitioners: both directions, no self loops, parallel edges as weights.


class Adjacency(NamedTuple):
    """Symmetric neighbour lists; `weights` is None when all are equal."""

    indptr: Array
    indices: Array
    weights: Array | None


def undirected(indptr: Array, indices: Array) -> Adjacency:
    """Neighbours in either direction, weighted by how many edges join the two vertices."""
    out_indptr, out_indices = transpose_lists(indptr, indices, len(indptr) - 1)
    simple = _is_simple(indptr, indices)
    if simple and np.array_equal(out_indptr, indptr) and np.array_equal(out_indices, indices):
        # Symmetric as stored, as most training graphs are: the mapped arrays can be used directly.
        return Adjacency(indptr, indices, None)
    lengths = np.zeros(len(indptr), np.int64)
    union_lengths(indptr, indices, out_indptr, out_indices, 0, lengths)
    union_indptr = np.cumsum(lengths)
    union = np.empty(int(union_indptr[-1]), indices.dtype)
    weights = np.empty(len(union), np.int32)
    fill_union(indptr, indices, out_indptr, out_indices, 0, union_indptr, union, weights)
    uniform = len(weights) == 0 or weights.min() == weights.max()
    return Adjacency(union_indptr, union, None if uniform else weights)


def induced(adjacency: Adjacency, members: Array, place: Array) -> Adjacency:
    """The subgraph of some vertices, renumbered by their order; `place` is scratch, all -1 before and after."""
    place[members] = np.arange(len(members))
    lengths = np.zeros(len(members) + 1, np.int64)
    _induced_lengths(adjacency.indptr, adjacency.indices, members, place, lengths)
    indptr = np.cumsum(lengths)
    indices = np.empty(int(indptr[-1]), np.int32)
    weighted = adjacency.weights is not None
    source = adjacency.weights if adjacency.weights is not None else np.empty(0, np.int32)
    weights = np.empty(len(indices) if weighted else 0, np.int32)
    _fill_induced(adjacency.indptr, adjacency.indices, source, members, place, indptr, indices, weights, weighted)
    place[members] = -1
    return Adjacency(indptr, indices, weights if weighted else None)


@njit(nogil=True, cache=True, writes=())
def _is_simple(indptr: Array, indices: Array) -> bool:
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if indices[k] == row or (k > indptr[row] and indices[k] == indices[k - 1]):
                return False
    return True


@njit(nogil=True, cache=True, inline="always")
def _next(a: int, a_end: int, a_idx: Array, b: int, b_end: int, b_idx: Array) -> tuple[int, int, int, int]:
    """The smallest vertex of two ascending lists, its multiplicity in both, and the next positions."""
    if b >= b_end or (a < a_end and a_idx[a] <= b_idx[b]):
        vertex = a_idx[a]
    else:
        vertex = b_idx[b]
    times = 0
    while a < a_end and a_idx[a] == vertex:
        a += 1
        times += 1
    while b < b_end and b_idx[b] == vertex:
        b += 1
        times += 1
    return vertex, times, a, b


@njit(nogil=True, cache=True, writes=("lengths",))
def union_lengths(a_ptr: Array, a_idx: Array, b_ptr: Array, b_idx: Array, first: int, lengths: Array) -> None:
    """How many neighbours each row has in two lists together, apart from itself; the rows are numbered from `first`."""
    for row in range(a_ptr.shape[0] - 1):
        a, b = a_ptr[row], b_ptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            vertex, _, a, b = _next(a, a_ptr[row + 1], a_idx, b, b_ptr[row + 1], b_idx)
            lengths[row + 1] += vertex != first + row


@njit(nogil=True, cache=True, writes=("out", "weights"))
def fill_union(
    a_ptr: Array, a_idx: Array, b_ptr: Array, b_idx: Array, first: int, indptr: Array, out: Array, weights: Array
) -> None:
    """The neighbours that `union_lengths` counted, and how often the lists name each."""
    for row in range(a_ptr.shape[0] - 1):
        a, b, position = a_ptr[row], b_ptr[row], indptr[row]
        while a < a_ptr[row + 1] or b < b_ptr[row + 1]:
            vertex, times, a, b = _next(a, a_ptr[row + 1], a_idx, b, b_ptr[row + 1], b_idx)
            if vertex != first + row:
                out[position] = vertex
                weights[position] = times
                position += 1


@njit(nogil=True, cache=True)
def _induced_lengths(indptr: Array, indices: Array, members: Array, place: Array, lengths: Array) -> None:
    for i in range(members.shape[0]):
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            lengths[i + 1] += place[indices[k]] >= 0


@njit(nogil=True, cache=True)
def _fill_induced(
    indptr: Array,
    indices: Array,
    weights: Array,
    members: Array,
    place: Array,
    out_indptr: Array,
    out: Array,
    out_weights: Array,
    weighted: bool,
) -> None:
    for i in range(members.shape[0]):
        position = out_indptr[i]
        for k in range(indptr[members[i]], indptr[members[i] + 1]):
            local = place[indices[k]]
            if local >= 0:
                out[position] = local
                if weighted:
                    out_weights[position] = weights[k]
                position += 1
