"""What a graph holds: node types with fields and splits, edge types with in-neighbour lists."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.formatting import html_table
from penstock.graph.arrays import Array
from penstock.graph.facts import Facts
from penstock.graph.hashing import document_key, unit_draws
from penstock.graph.ids import Ids
from penstock.graph.schema import EdgeType, check_names, edge_key
from penstock.processes import ranges

SPLITS = ("train", "val", "test")
_LISTS = 1 << 20
"""Lists whose lengths are computed at a time."""


@dataclass(eq=False)
class NodeSet:
    """The vertices of one type. In a part of a partitioned graph they are rows [first, first + count) of `total`."""

    count: int
    fields: dict[str, Array] = field(default_factory=dict)
    splits: dict[str, Array] = field(default_factory=dict)
    ids: Ids | None = None
    categories: dict[str, list[str]] = field(default_factory=dict)
    first: int = 0
    total: int = -1
    facts: Facts = field(default_factory=Facts, init=False, repr=False)
    """Facts found about the arrays' values (graph/integrity)."""

    def __post_init__(self) -> None:
        if self.total < 0:
            self.total = self.count
        for name, values in self.fields.items():
            if len(values) != self.count:
                raise PenstockError(
                    f"Field {name!r} has {len(values):,} rows for {self.count:,} vertices.", code="shape-mismatch"
                )
        if self.ids is not None and len(self.ids) != self.count:
            raise PenstockError(f"There are {len(self.ids):,} ids for {self.count:,} vertices.", code="shape-mismatch")

    @property
    def x(self) -> Array:
        """The feature matrix, the field `x`."""
        return self._named("x")

    @property
    def y(self) -> Array:
        """The labels; -1 where there is none."""
        return self._named("y")

    def _named(self, name: str) -> Array:
        if name not in self.fields:
            has = ", ".join(self.fields) or "none"
            raise AttributeError(f"these vertices have no field {name!r} (fields: {has})")
        return self.fields[name]


@dataclass(eq=False)
class EdgeSet:
    """Edges of one type as the in-neighbours of each destination vertex.

    `indices[indptr[v]:indptr[v + 1]]` are the sources of v's in-edges in ascending order of original vertex number;
    edge fields are rows in the same order. `held_out` are (source, destination) pairs kept out of the lists for
    evaluation.
    """

    indptr: Array
    indices: Array
    fields: dict[str, Array] = field(default_factory=dict)
    held_out: dict[str, Array] = field(default_factory=dict)
    categories: dict[str, list[str]] = field(default_factory=dict)
    facts: Facts = field(default_factory=Facts, init=False, repr=False)
    """Facts found about the arrays' values (graph/integrity)."""

    @property
    def count(self) -> int:
        """Number of edges in the lists."""
        return len(self.indices)

    def destinations(self) -> Array:
        """The destination of every edge, in list order. As large as the edges: for converters and tests."""
        found = np.empty(self.count, self.indices.dtype)
        for first, last in ranges(len(self.indptr) - 1, _LISTS):
            offsets = self.indptr[first : last + 1]
            found[offsets[0] : offsets[-1]] = np.repeat(np.arange(first, last, dtype=found.dtype), np.diff(offsets))
        return found

    def edge_index(self) -> Array:
        """[2, edges] sources above destinations."""
        return np.stack([np.asarray(self.indices), self.destinations()])


class GraphData:
    """The contents of a `Graph`, which functions that read, check and write graphs take."""

    def __init__(
        self,
        nodes: Mapping[str, NodeSet],
        edges: Mapping[EdgeType, EdgeSet],
        name: str = "graph",
        path: Path | None = None,
        origin: dict[str, Any] | None = None,
    ) -> None:
        self.nodes, self.edges = dict(nodes), dict(edges)
        self.name, self.path, self.origin = name, path, origin or {}
        _check(self)

    @property
    def node_types(self) -> list[str]:
        """Names of the node types, in stored order."""
        return list(self.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """(source, relation, destination) of the edge types, in stored order."""
        return list(self.edges)

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one node type and at most one edge type."""
        return len(self.nodes) == 1 and len(self.edges) <= 1

    def require_one_relation(self, what: str, remedy: str) -> None:
        """Refuse this graph for `what`, which knows no types, unless it is homogeneous."""
        if not self.is_homogeneous:
            raise PenstockError(
                f"{what} is for graphs with one node type and one edge type, and graph {self.name!r} has"
                f" {len(self.nodes)} and {len(self.edges)}: {remedy}.",
                code="unsupported-combination",
            )

    def require_edges(self) -> None:
        """Refuse this graph where it has no relation at all."""
        if not self.edges:
            raise PenstockError(f"Graph {self.name!r} has no edges to sample.", code="missing-data")

    @property
    def is_part(self) -> bool:
        """Whether this is a slice of a larger graph."""
        return any(nodes.count != nodes.total for nodes in self.nodes.values())

    @property
    def num_nodes(self) -> int:
        """The number of vertices of all types."""
        return sum(nodes.count for nodes in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """The number of edges of all types."""
        return sum(edges.count for edges in self.edges.values())

    @property
    def x(self) -> Array:
        """The feature matrix of the only node type."""
        return self._only_nodes("x").x

    @property
    def y(self) -> Array:
        """The labels of the only node type."""
        return self._only_nodes("y").y

    @property
    def indptr(self) -> Array:
        """The list offsets of the only edge type."""
        return self._only_edges("indptr").indptr

    @property
    def indices(self) -> Array:
        """The in-neighbours of the only edge type."""
        return self._only_edges("indices").indices

    def split(self, name: str, node_type: str | None = None) -> Array:
        """Ascending vertex numbers of a split."""
        nodes = self.nodes[node_type] if node_type else self._only_nodes("split")
        if name not in nodes.splits:
            has = ", ".join(nodes.splits) or "none"
            raise PenstockError(f"Graph {self.name!r} has no split {name!r} (splits: {has}).", code="split-missing")
        return nodes.splits[name]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, mapped or not."""
        return sum(array.nbytes for _, array in self.arrays())

    def arrays(self) -> list[tuple[str, Array]]:
        """Every array with a path-like name; ids count as their component arrays."""
        found: list[tuple[str, Array]] = []
        for name, nodes in self.nodes.items():
            found += [(f"{name}/{key}", array) for key, array in {**nodes.fields, **nodes.splits}.items()]
            if nodes.ids is not None:
                parts = [nodes.ids] if isinstance(nodes.ids, np.ndarray) else [nodes.ids.offsets, nodes.ids.data]
                found += [(f"{name}/ids", array) for array in parts]
        for edge_type, edges in self.edges.items():
            key = edge_key(edge_type)
            arrays = {"indptr": edges.indptr, "indices": edges.indices, **edges.fields, **edges.held_out}
            found += [(f"{key}/{what}", array) for what, array in arrays.items()]
        return found

    def trust(self) -> None:
        """Skip the validation of the arrays: the caller vouches for them."""
        for facts in (*(n.facts for n in self.nodes.values()), *(e.facts for e in self.edges.values())):
            facts.trusted = True

    def __repr__(self) -> str:
        nodes = ", ".join(f"{name}: {nodes.count:,}" for name, nodes in self.nodes.items())
        edges = ", ".join(f"{edge_key(kind)}: {edges.count:,}" for kind, edges in self.edges.items())
        return f"{type(self).__name__}({self.name!r}, nodes {{{nodes}}}, edges {{{edges}}})"

    def _repr_html_(self) -> str:
        rows = [(name, "vertices", nodes.count, _named(nodes.fields)) for name, nodes in self.nodes.items()]
        rows += [(edge_key(kind), "edges", edges.count, _named(edges.fields)) for kind, edges in self.edges.items()]
        return html_table(f"Graph {self.name}", rows, ("type", "", "count", "fields"))

    def _only_nodes(self, what: str) -> NodeSet:
        if len(self.nodes) != 1:
            raise AttributeError(f"graph.{what} needs one node type; use graph.nodes[type] with {self.node_types}")
        return next(iter(self.nodes.values()))

    def _only_edges(self, what: str) -> EdgeSet:
        if len(self.edges) != 1:
            raise AttributeError(f"graph.{what} needs one edge type; use graph.edges[type] with {self.edge_types}")
        return next(iter(self.edges.values()))


def _named(fields: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {values.dtype} {tuple(values.shape)}" for name, values in fields.items())


def _check(graph: GraphData) -> None:
    """Check names and lengths, without reading the arrays' contents beyond their ends."""
    for name, nodes in graph.nodes.items():
        check_names(name, "Node type", (*nodes.fields, *nodes.splits))
    for edge_type, edges in graph.edges.items():
        source, relation, destination = edge_type
        check_names(relation, "Relation", (*edges.fields, *edges.held_out))
        for end in (source, destination):
            if end not in graph.nodes:
                raise PenstockError(
                    f"Edge type {edge_key(edge_type)} names node type {end!r}, which does not exist.",
                    code="unknown-name",
                )
        rows = graph.nodes[destination].count
        if len(edges.indptr) != rows + 1:
            raise PenstockError(
                f"Edge type {edge_key(edge_type)} has {len(edges.indptr) - 1:,} lists for {rows:,} vertices.",
                code="shape-mismatch",
            )
        if int(edges.indptr[-1]) != edges.count:
            raise PenstockError(
                f"Edge type {edge_key(edge_type)} has {edges.count:,} edges"
                f" where its offsets say {int(edges.indptr[-1]):,}.",
                code="shape-mismatch",
            )


# Train, validation and test vertices: drawn by ratio from a hash of the vertex number, or given as Boolean masks.


def splits_by_ratio(eligible: Array, ratios: tuple[float, float, float], seed: int) -> dict[str, Array]:
    """Divide the eligible vertices (ascending numbers) into exact shares, in a random order by vertex number."""
    if min(ratios) < 0 or sum(ratios) > 1 + 1e-9:
        raise PenstockError(
            f"Split ratios {list(ratios)} must be at least 0 and sum to at most 1.", code="value-out-of-range"
        )
    if len(eligible) == 0:
        return {name: np.empty(0, np.int64) for name in SPLITS}
    draws = unit_draws(document_key(seed, "split"), int(eligible[-1]) + 1)
    shuffled = eligible[np.argsort(draws[eligible], kind="stable")]
    ends = np.round(np.cumsum(ratios) * len(eligible)).astype(np.int64)
    starts = [0, *ends[:-1]]
    return {name: np.sort(shuffled[a:b]).astype(np.int64) for name, a, b in zip(SPLITS, starts, ends, strict=True)}


_DRAWN_ROWS, _DRAWN_BINS = 1 << 20, 1 << 20


class DrawnSplit:
    """The same shares for any number of vertices, block by block: no array is as long as there are vertices.

    `eligible` says for each vertex whether it may be drawn; without it all of `count` may.
    """

    def __init__(self, count: int, eligible: Array | None, ratios: tuple[float, float, float], seed: int) -> None:
        self._count, self._eligible, self._key = count, eligible, document_key(seed, "split")
        bins = np.zeros(_DRAWN_BINS + 1, np.int64)
        for _, draws in self._blocks():
            bins[1:] += np.bincount(_bins_of(draws), minlength=_DRAWN_BINS)
        np.cumsum(bins, out=bins)
        ends = np.round(np.cumsum(ratios) * bins[-1]).astype(np.int64)
        self._ends = self._find(ends, bins)

    def codes(self, start: int, stop: int) -> Array:
        """The place of each vertex's share in train, val, test; 3 for none of them, -1 where it may not be drawn."""
        draws, numbers = unit_draws(self._key, stop - start, start), np.arange(start, stop)
        out = np.zeros(stop - start, np.int8)
        for draw, number in self._ends:
            out += (draws > draw) | ((draws == draw) & (numbers >= number))
        if self._eligible is not None:
            out[np.asarray(self._eligible[start:stop]) == 0] = -1
        return out

    def _find(self, ends: Array, bins: Array) -> list[tuple[float, int]]:
        """Draw and number of the first vertex behind each share."""
        # A share that takes all ends behind every bin.
        wanted = np.searchsorted(bins, ends, "right") - 1
        numbers, draws = [np.empty(0, np.int64)], [np.empty(0)]
        for some_numbers, some_draws in self._blocks():
            near = np.isin(_bins_of(some_draws), wanted)
            numbers.append(some_numbers[near])
            draws.append(some_draws[near])
        all_numbers, all_draws = np.concatenate(numbers), np.concatenate(draws)
        order = np.argsort(all_draws, kind="stable")
        all_numbers, all_draws = all_numbers[order], all_draws[order]
        firsts = np.searchsorted(_bins_of(all_draws), wanted)
        found = []
        for end, bin_, first in zip(ends.tolist(), wanted.tolist(), firsts.tolist(), strict=True):
            if bin_ >= _DRAWN_BINS:
                found.append((2.0, 0))
                continue
            place = first + end - int(bins[bin_])
            found.append((float(all_draws[place]), int(all_numbers[place])))
        return found

    def _blocks(self) -> Iterator[tuple[Array, Array]]:
        """Numbers and draws of the vertices that may be drawn."""
        for start in range(0, self._count, _DRAWN_ROWS):
            stop = min(start + _DRAWN_ROWS, self._count)
            numbers, draws = np.arange(start, stop), unit_draws(self._key, stop - start, start)
            may = slice(None) if self._eligible is None else np.asarray(self._eligible[start:stop]) != 0
            yield numbers[may], draws[may]


def _bins_of(draws: Array) -> Array:
    bins: Array = (draws * _DRAWN_BINS).astype(np.int64)
    return bins


_SUFFIX = "_mask"


def take_masks(fields: dict[str, Array], split: int = 0) -> dict[str, Array]:
    """Remove the masks from `fields` and return them as splits.

    `train_mask`, `val_mask` and `test_mask` may be of any type, other names that end in `_mask` must be boolean. Of
    masks with a column for each of several splits, column `split` is used.
    """
    splits = {}
    for key in [key for key, values in fields.items() if _is_mask(key, values)]:
        splits[key.removesuffix(_SUFFIX)] = np.flatnonzero(_column(fields.pop(key), key, split))
    return splits


def mask_of(rows: Array, count: int) -> Array:
    """A split as a boolean mask."""
    mask = np.zeros(count, np.bool_)
    mask[rows] = True
    return mask


def mask_name(split: str) -> str:
    """The name of a split's mask in other libraries."""
    return split + _SUFFIX


def _is_mask(key: str, values: Array) -> bool:
    name = key.removesuffix(_SUFFIX)
    return name != key and name != "" and (name in SPLITS or values.dtype == np.bool_) and values.ndim <= 2


def _column(mask: Array, key: str, split: int) -> Array:
    if mask.ndim == 1:
        return mask
    if not 0 <= split < mask.shape[1]:
        raise PenstockError(
            f"{key} holds {mask.shape[1]} splits, not number {split}: choose 0 to {mask.shape[1] - 1}.",
            code="value-out-of-range",
        )
    column: Array = mask[:, split]
    return column
