"""Edges held out for evaluation, and edge positions for training, validation and test, chosen by hash.

The hash is that of the pair, so that parallel edges, and an edge and its reverse, are treated alike.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, passing_numbers, release_pages
from penstock.graph.data import SPLITS, EdgeSet
from penstock.graph.folder import Graph
from penstock.graph.hashing import document_key, key_of, mix
from penstock.graph.schema import EdgeType, edge_key
from penstock.kernels import njit
from penstock.sampling.links.known import Reverse, checked_reverse, chosen_edge_type, is_edge

_OWN = np.empty(0, np.int64)
"""Empty: vertices are named by their own numbers."""


@dataclass(frozen=True)
class HeldOutRule:
    """Which edges of a relation are held out: those whose pair's hash under `key` is below `end`.

    `unordered`: a pair and its reverse have the same hash; `turned`: a pair has the hash of its reverse. With it, the
    holder of a part decides for its own edges without the whole graph.
    """

    key: int
    end: int
    unordered: bool
    turned: bool

    def taken_from(self, edges: EdgeSet, sources: Array, destinations: Array) -> EdgeSet:
        """The edges without those held out; `sources` and `destinations` are the original numbers of the vertices."""
        return without_edges(edges, self.leaves(edges, sources, destinations), {}, passing=True)

    def leaves(self, edges: EdgeSet, sources: Array, destinations: Array) -> Array:
        """Whether each edge remains, in list order."""
        bits = np.empty(edges.count, np.uint64)
        key = np.uint64(self.key)
        _draw_pairs(edges.indptr, edges.indices, sources, destinations, key, self.unordered, self.turned, False, bits)
        left: Array = bits >= np.uint64(self.end)
        return left


def split_edges(
    graph: Graph,
    edge_type: EdgeType | None = None,
    ratios: tuple[float, float] = (0.05, 0.10),
    seed: int = 0,
    reverse: Reverse = "auto",
) -> Graph:
    """The graph without a share of its edges, which lie in `held_out` as `val` and `test`.

    Ratios are of the different pairs. A pair is removed with all its parallel edges and its reverse; in a symmetric
    graph each pair is held out once. Takes about 12 bytes per edge beside the new lists.
    """
    edge_type = chosen_edge_type(graph, edge_type)
    return _split(graph, edge_type, ratios, seed, checked_reverse(graph, edge_type, reverse), passing=False)[0]


def split_and_tell(
    graph: Graph, edge_type: EdgeType, ratios: tuple[float, float], seed: int
) -> tuple[Graph, dict[EdgeType, HeldOutRule]]:
    """As `split_edges`, and the rule by which edges are held out of each relation, for holders of parts of the graph.
    New offsets are `passing_numbers`.
    """
    reverse = checked_reverse(graph, edge_type, "auto")
    split, end = _split(graph, edge_type, ratios, seed, reverse, passing=True)
    key = int(document_key(seed, "edge split"))
    absent = {edge_type: HeldOutRule(key, end, reverse == "same", False)}
    # A reverse that was found has the same edges: the pair alone says which of them are removed.
    if isinstance(reverse, tuple):
        absent[reverse] = HeldOutRule(key, end, False, True)
    return split, absent


def _split(
    graph: Graph, edge_type: EdgeType, ratios: tuple[float, float], seed: int, reverse: Reverse, passing: bool
) -> tuple[Graph, int]:
    """The graph without the held-out edges, and the hash below which they are; `passing`: as in `without_edges`."""
    edges = graph.edges[edge_type]
    _check_split(graph, edge_type, ratios)
    key = document_key(seed, "edge split")
    bits = pair_bits(edges, key, reverse == "same", False, False)
    named = np.empty(edges.count, np.bool_)
    _mark_named(edges.indptr, edges.indices, reverse == "same", named)
    ends = _thresholds(bits[named], ratios, edge_key(edge_type))
    held_out = dict(edges.held_out)
    for name, low, high in zip(SPLITS[1:], (np.uint64(0), ends[0]), ends, strict=True):
        held_out[name] = _pairs_at(edges, np.flatnonzero(named & (bits >= low) & (bits < high)))
    new = {**graph.edges, edge_type: without_edges(edges, bits >= ends[1], held_out, passing)}
    if isinstance(reverse, tuple):
        other = graph.edges[reverse]
        keep = pair_bits(other, key, False, True, False) >= ends[1]
        _keep_unpaired(other.indptr, other.indices, edges.indptr, edges.indices, keep)
        new[reverse] = without_edges(other, keep, other.held_out, passing)
    done = {"edge_type": edge_key(edge_type), "ratios": list(ratios), "seed": seed}
    return Graph(graph.nodes, new, graph.name, origin={**graph.origin, "edge_split": done}), int(ends[1])


def split_positions(
    edges: EdgeSet,
    ratios: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    reverse: Reverse = "none",
    eligible: Array | None = None,
) -> dict[str, Array]:
    """Ascending edge positions of train, val and test, for tasks whose examples are edges.

    `eligible` are the positions that may be chosen, such as those with a label (default: all). With reverse `same` an
    edge and its reverse are in the same split.
    """
    if min(ratios) < 0 or sum(ratios) > 1 + 1e-9:
        raise PenstockError(
            f"Split ratios {list(ratios)} must be at least 0 and sum to at most 1.", code="value-out-of-range"
        )
    if reverse not in ("none", "same"):
        raise PenstockError(
            f"Positions of one edge type cannot be split with reverse {reverse!r}: use none or same.",
            code="unsupported-combination",
        )
    chosen = np.arange(edges.count) if eligible is None else _checked_positions(eligible, edges.count)
    bits = pair_bits(edges, document_key(seed, "edge positions"), reverse == "same", False, True)[chosen]
    ends = np.round(np.cumsum(ratios) * len(chosen)).astype(np.int64)
    ends = ends[ends < len(chosen)]
    folds = np.searchsorted(np.partition(bits, ends)[ends], bits, side="right")
    return {name: chosen[folds == fold].astype(np.int64) for fold, name in enumerate(SPLITS)}


def _checked_positions(eligible: Array, count: int) -> Array:
    positions = np.sort(np.asarray(eligible))
    if positions.ndim != 1 or (len(positions) and positions.dtype.kind not in "iu"):
        raise PenstockError(
            f"Edges to split are {positions.dtype} {positions.shape}: give their positions (np.flatnonzero of a mask).",
            code="wrong-type",
        )
    if len(positions) and (positions[0] < 0 or positions[-1] >= count or np.any(positions[1:] == positions[:-1])):
        raise PenstockError(f"Edges to split must be different positions in 0..{count - 1}.", code="id-out-of-range")
    return positions


def _check_split(graph: Graph, edge_type: EdgeType, ratios: tuple[float, float]) -> None:
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph: hold edges out of the whole graph, then cut it.",
            code="whole-graph-needed",
        )
    if min(ratios) < 0 or sum(ratios) >= 1:
        raise PenstockError(
            f"Ratios {list(ratios)} of held-out edges must be at least 0 and sum to less than 1.",
            code="value-out-of-range",
        )
    held = [name for name in SPLITS[1:] if name in graph.edges[edge_type].held_out]
    if held:
        raise PenstockError(
            f"{edge_key(edge_type)} has edges held out already ({', '.join(held)}): use those.",
            code="unsupported-combination",
        )


def _thresholds(bits: Array, ratios: tuple[float, float], where: str) -> tuple[np.uint64, np.uint64]:
    """Hashes below the first are val, below the second val or test: as many as the ratios say."""
    ends = np.round(np.cumsum(ratios) * len(bits)).astype(np.int64)
    counts = np.diff(ends, prepend=0)
    if any(ratio > 0 and count == 0 for ratio, count in zip(ratios, counts, strict=True)) or ends[1] >= len(bits):
        raise PenstockError(
            f"{where} has {len(bits):,} different pairs, too few to hold out {list(ratios)} of them.",
            code="missing-data",
        )
    ordered = np.partition(bits, ends)
    return ordered[ends[0]], ordered[ends[1]]


def _pairs_at(edges: EdgeSet, positions: Array) -> Array:
    destinations = np.searchsorted(edges.indptr, positions, side="right") - 1
    return np.stack([edges.indices[positions].astype(np.int64), destinations], axis=1)


def without_edges(edges: EdgeSet, keep: Array, held_out: dict[str, Array], passing: bool = False) -> EdgeSet:
    """The edges that are kept. Their offsets are in memory, or, `passing`, in an unlinked file where they are many."""
    old = edges.indptr
    indptr = passing_numbers(len(old), old.dtype) if passing else np.zeros_like(old)
    _count_kept(old, keep, indptr)
    release_pages(indptr)
    fields = {name: values[keep] for name, values in edges.fields.items()}
    return EdgeSet(indptr, edges.indices[keep], fields, dict(held_out), edges.categories)


def pair_bits(edges: EdgeSet, key: np.uint64, unordered: bool, turned: bool, apart: bool) -> Array:
    bits = np.empty(edges.count, np.uint64)
    _draw_pairs(edges.indptr, edges.indices, _OWN, _OWN, key, unordered, turned, apart, bits)
    return bits


@njit(nogil=True, cache=True, writes=("bits",))
def _draw_pairs(
    indptr: Array,
    indices: Array,
    sources: Array,
    destinations: Array,
    key: np.uint64,
    unordered: bool,
    turned: bool,
    apart: bool,
    bits: Array,
) -> None:
    """64 random bits of every pair: equal for both directions if `unordered`, those of the reverse if `turned`.
    `apart`: parallel edges have their own. `sources` and `destinations` name the vertices; empty: their own numbers.
    """
    for row in range(indptr.shape[0] - 1):
        copy = 0
        for k in range(indptr[row], indptr[row + 1]):
            a = np.int64(indices[k] if sources.shape[0] == 0 else sources[indices[k]])
            b = np.int64(row if destinations.shape[0] == 0 else destinations[row])
            copy = copy + 1 if k > indptr[row] and indices[k - 1] == indices[k] else 0
            if turned or (unordered and b < a):
                a, b = b, a
            drawn = mix(mix(key ^ np.uint64(a)) ^ np.uint64(b))
            bits[k] = mix(drawn ^ np.uint64(copy)) if apart else drawn


@njit(nogil=True, cache=True, writes=("named",))
def _mark_named(indptr: Array, indices: Array, unordered: bool, named: Array) -> None:
    """Mark the edges that represent their pair: the first of parallel ones and, if `unordered`, of both directions the
    one from the lower number (or the only one).
    """
    nothing = np.empty(0, np.int64)
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            source = indices[k]
            named[k] = k == indptr[row] or indices[k - 1] != source
            if unordered and source > row and is_edge(indptr, indices, nothing, 0, row, source):
                named[k] = False


@njit(nogil=True, cache=True, writes=("keep",))
def _keep_unpaired(indptr: Array, indices: Array, of_indptr: Array, of_indices: Array, keep: Array) -> None:
    """Also keep edges whose reverse does not exist and so was not held out."""
    nothing = np.empty(0, np.int64)
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            if not keep[k]:
                keep[k] = not is_edge(of_indptr, of_indices, nothing, 0, row, indices[k])


@njit(nogil=True, cache=True, writes=("out",))
def _count_kept(indptr: Array, keep: Array, out: Array) -> None:
    kept = 0
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            kept += keep[k]
        out[row + 1] = kept


# Training edges divided once into those that are predicted and those that carry messages. A mini-batch leaves out only
# its own edges. Training on the whole graph has one batch, so a share of the edges is chosen by hash before training:
# these are supervised, and neither they nor their reverses carry messages.


class Supervision(NamedTuple):
    """The edges that are predicted, and the graph of the others."""

    positions: Array
    """Positions of the supervised edges in the lists of the whole graph, ascending."""
    messages: Graph
    """The graph without the supervised pairs, their parallel edges and their reverses."""


def supervise(
    graph: Graph, edge_type: EdgeType, training: Array, share: float, seed: int, reverse: Reverse
) -> Supervision:
    """Choose a share of the `training` positions by a hash of (seed, pair); in a symmetric relation a pair and its
    reverse are chosen together. `reverse` is the relation's, resolved.
    """
    edges = graph.edges[edge_type]
    bits = pair_bits(edges, key_of(seed, "supervised edges"), reverse == "same", False, False)
    chosen = np.sort(np.asarray(training, np.int64))
    chosen = chosen[(bits[chosen] >> np.uint64(11)) * 2.0**-53 < share]
    if not len(chosen):
        raise PenstockError(
            f"None of the {len(training):,} training edges of {edge_key(edge_type)} is supervised: raise `supervision`"
            f" ({share:g}).",
            code="missing-data",
        )
    supervised = np.zeros(edges.count, np.bool_)
    supervised[chosen] = True
    apart = without_edges(edges, supervised, {})
    lists = {edge_type: edges}
    if isinstance(reverse, tuple):
        lists[reverse] = graph.edges[reverse]
    new = dict(graph.edges)
    for kind, each in lists.items():
        keep = np.ones(each.count, np.bool_)
        if kind == edge_type:
            _leave_out(each.indptr, each.indices, apart.indptr, apart.indices, False, keep)
        if kind == reverse or reverse == "same":
            _leave_out(each.indptr, each.indices, apart.indptr, apart.indices, True, keep)
        new[kind] = without_edges(each, keep, each.held_out)
    return Supervision(chosen, Graph(graph.nodes, new, graph.name, origin=graph.origin))


@njit(nogil=True, cache=True)
def _leave_out(indptr: Array, indices: Array, of_indptr: Array, of_indices: Array, turned: bool, keep: Array) -> None:
    """Mark edges that are in other lists, or whose reverse is if `turned`, as removed."""
    nothing = np.empty(0, np.int64)
    for row in range(indptr.shape[0] - 1):
        for k in range(indptr[row], indptr[row + 1]):
            source, target = (row, indices[k]) if turned else (indices[k], row)
            if is_edge(of_indptr, of_indices, nothing, 0, source, target):
                keep[k] = False
