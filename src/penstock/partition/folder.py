"""The partition folder: `partition.json`, opening the folder, and restoring the whole graph from its parts."""

import os
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from penstock.errors import PenstockError
from penstock.formatting import counted, html_table
from penstock.graph.arrays import Array, index_dtype, open_array, release_pages
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.documents import StrictDocument, read_checked
from penstock.graph.facts import Facts
from penstock.graph.folder import Graph, edges_folder, nodes_folder
from penstock.graph.ids import concatenate, take_ids
from penstock.graph.integrity import check_graph, check_range, first_repeat
from penstock.graph.object_folders import fetch_part, unfetched_copy
from penstock.graph.schema import DOCUMENT as GRAPH_DOCUMENT
from penstock.graph.schema import EdgeType, check_name, edge_key, file_name, read_document
from penstock.partition.owners import Book, is_plain_permutation, new_ids_by_search

# `partition.json`: what a partition folder says about itself.

FORMAT = "penstock-partition"
VERSION = 1
DOCUMENT = "partition.json"
_ORIGINAL = "original.npy"
_MANY = 8
"""Where more than one in so many vertices are asked for by original ID, the inverse of all takes no more memory than
the answer.
"""


def damaged(what: str) -> PenstockError:
    """The error about a partition folder that does not hold what it should."""
    return PenstockError(f"{what}: cut the graph again.", code="damaged-file")


class TypeRanges(StrictDocument):
    """New IDs of one node type: `ranges[part]` are the trainers + 1 bounds of its sub-parts."""

    count: int = Field(ge=0)
    original_offset: int = Field(ge=0, description="where this type starts in original.npy")
    ranges: list[list[int]]


class PartitionDocument(StrictDocument):
    """The content of `partition.json`, validated."""

    format: str = FORMAT
    version: int = VERSION
    graph: str
    origin: dict[str, Any] = Field(default_factory=dict)
    method: str
    chosen: str | None = Field(default=None, description="why `auto` took the method")
    refine: str | None = None
    parts: int = Field(ge=1)
    trainers: int = Field(ge=1)
    seed: int
    balance: list[str]
    tolerance: float
    node_types: dict[str, TypeRanges]
    edge_ranges: dict[str, list[int]] | None = Field(
        None, description="by relation, the number of each part's first edge, and of all edges; older folders: none"
    )
    metrics: dict[str, Any]
    trainer_balance: dict[str, float] = Field(description="largest trainer's share over its part's mean, worst part")
    whole: str | None = Field(default=None, description="the folder of a graph that was not cut: the only part")

    def book(self) -> Book:
        """The book that maps vertices to owners and local numbers."""
        bounds = {}
        for name, info in self.node_types.items():
            starts = [bound for part in info.ranges for bound in part[:-1]]
            shaped = len(info.ranges) == self.parts and all(len(part) == self.trainers + 1 for part in info.ranges)
            joined = shaped and all(a[-1] == b[0] for a, b in pairwise([*info.ranges, [info.count]]))
            if not joined or starts[0] or any(b < a for a, b in pairwise([*starts, info.count])):
                raise damaged(f"{DOCUMENT}: the ranges of {name!r} do not cover its vertices")
            bounds[name] = np.array([*starts, info.count], np.int64)
        return Book(self.parts, self.trainers, bounds, self._edge_bounds())

    def _edge_bounds(self) -> dict[str, Array] | None:
        if self.edge_ranges is None:
            return None
        for name, starts in self.edge_ranges.items():
            if len(starts) != self.parts + 1 or starts[0] or any(b < a for a, b in pairwise(starts)):
                raise damaged(f"{DOCUMENT}: the ranges of {name!r} do not cover its edges")
        return {name: np.array(starts, np.int64) for name, starts in self.edge_ranges.items()}


def read_partition_document(folder: Path) -> PartitionDocument:
    """`partition.json` of a folder, checked: names are file names, and types follow each other in original.npy."""
    document = read_checked(folder / DOCUMENT, PartitionDocument, FORMAT, VERSION)
    offset = 0
    for name, info in document.node_types.items():
        try:
            check_name(name, "Node type")
        except PenstockError as error:
            raise PenstockError(f"{folder / DOCUMENT}: {error}", code=error.code) from None
        if info.original_offset != offset:
            starts = f"{folder / DOCUMENT}: {name!r} starts at {info.original_offset} in original.npy"
            raise damaged(f"{starts}, where the types before it end at {offset}")
        offset += info.count
    return document


# The partition folder: opening one.


class Partition:
    """A partitioned graph on disk: its document, its book, its parts (mapped on first use)."""

    def __init__(self, path: Path, document: PartitionDocument, unchecked: bool = False) -> None:
        self.path, self.document = path, document
        if document.edge_ranges is None:
            document = document.model_copy(update={"edge_ranges": _counted_edges(path, document.parts)})
        self.book: Book = document.book()
        total = sum(info.count for info in document.node_types.values())
        self._original = open_array(path / _ORIGINAL, "int64", (total,))
        self._facts = Facts(path, {"original": self._original}, trusted=unchecked)

    @property
    def parts(self) -> int:
        """The number of parts, one for each machine."""
        return self.document.parts

    @property
    def trainers(self) -> int:
        """The number of sub-parts of each part."""
        return self.document.trainers

    @property
    def is_uncut(self) -> bool:
        """Whether the only part is the graph's own folder."""
        return self.document.whole is not None

    def has_part(self, index: int) -> bool:
        """Whether a part's folder is on this machine."""
        return (self._folder(index) / GRAPH_DOCUMENT).is_file()

    def _folder(self, index: int) -> Path:
        return fetch_part(part_folder(self.path, index)) if self.document.whole is None else Path(self.document.whole)

    def __repr__(self) -> str:
        held = ", ".join(f"{name}: {info.count:,}" for name, info in self.document.node_types.items())
        return f"Partition({str(self.path)!r}, {counted(self.parts, 'parts')}, nodes {{{held}}})"

    def _repr_html_(self) -> str:
        names = list(self.document.node_types)
        rows = [
            (part, *(info.ranges[part][-1] - info.ranges[part][0] for info in self.document.node_types.values()))
            for part in range(self.parts)
        ]
        return html_table(f"Partition {self.path}", rows, ("part", *names))

    def part(self, index: int) -> Graph:
        """One part, mapped. Its neighbour lists name vertices by new ID."""
        graph = Graph.open(self._folder(index))
        self._check_part(graph, index)
        if self._facts.trusted:
            graph.trust()
        return graph

    def original(self, node_type: str | None = None) -> Array:
        """Original ID of every new ID of a type; validated on first use."""
        if not self._facts.trusted:
            self._check_original()
        info = self.document.node_types[self.book.type_named(node_type)]
        return self._original[info.original_offset : info.original_offset + info.count]

    def new_ids(self, original: Array, node_type: str | None = None) -> Array:
        """New ID (int64) of some original IDs, found in the mapped `original.npy`.

        The inverse of all vertices is made only where many of them are asked for, or where another tool has written a
        sub-part in another order.
        """
        to_original, ids = self.original(node_type), np.asarray(original, np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= len(to_original)):
            raise PenstockError(f"A vertex ID is outside 0..{len(to_original) - 1}.", code="id-out-of-range")
        found = None
        if ids.size * _MANY < len(to_original):
            wanted, places = np.unique(ids, return_inverse=True)
            found = new_ids_by_search(to_original, self.book.sub_bounds(node_type), wanted)
        if found is None:
            inverse = np.empty(len(to_original), index_dtype(len(to_original)))
            inverse[to_original] = np.arange(len(to_original))
            return inverse[ids].astype(np.int64)
        return found[places].reshape(ids.shape)

    def halo(self, index: int, node_type: str | None = None) -> Array:
        """New IDs of the remote vertices that a part's core vertices read, ascending."""
        name = self.book.type_named(node_type)
        if self.is_uncut:
            return np.empty(0, np.int64)
        folder = nodes_folder(self._folder(index), name)
        halo = open_array(folder / "halo.npy", "int64")
        if not self._facts.trusted:
            facts = Facts(folder, {"halo": halo})
            check_range(facts, "halo", halo, self.book.count(name), f"vertices {name!r}", name)
        return halo

    def held_out_places(self, index: int, edge_type: EdgeType, name: str) -> Array:
        """The positions of a part's held-out pairs in the whole graph's array.

        The caller must know how many there are in all parts together.
        """
        if self.is_uncut:
            return np.arange(len(self.part(index).edges[edge_type].held_out[name]))
        return open_array(edges_folder(self._folder(index), edge_type) / f"place.{file_name(name)}.npy", "int64")

    def _check_original(self) -> None:
        """Check that the vertices of each type are a permutation of 0, 1, 2, ...: kernels scatter by them."""
        types = self.document.node_types
        counts = ", ".join(str(info.count) for info in types.values())
        found = self._facts.of("original", self._original, f"permutations of {counts}", self._unlike)
        for (name, info), place in zip(types.items(), found, strict=True):
            if place >= 0:
                value = int(self._original[info.original_offset + place])
                why = "which an earlier row has" if 0 <= value < info.count else f"and there are {info.count:,}"
                held = f"{self.path / 'original.npy'} holds vertex {value} of {name!r}"
                raise damaged(f"{held} at position {info.original_offset + place}, {why}")

    def _unlike(self, original: Array) -> list[int]:
        """For each type, the first row that repeats a vertex or is out of range; -1: none."""
        found = []
        for name, info in self.document.node_types.items():
            mine = original[info.original_offset : info.original_offset + info.count]
            in_order = is_plain_permutation(mine, self.book.sub_bounds(name))
            found.append(-1 if in_order else first_repeat(mine))
            release_pages(mine)
        return found

    def _check_part(self, graph: Graph, index: int) -> None:
        """Check that a part holds the rows and the edges that `partition.json` says."""
        for name in self.book.node_types:
            nodes, (first, last) = graph.nodes.get(name), self.book.range(index, name)
            if nodes is None or (nodes.first, nodes.count, nodes.total) != (first, last - first, self.book.count(name)):
                rows = f"rows {first} to {last} of {self.book.count(name):,} vertices {name!r}"
                raise damaged(f"{graph.path} does not hold {rows}, as {self.path / DOCUMENT} says")
        if not self.book.numbers_edges:
            return
        held = {edge_key(kind): edges.count for kind, edges in graph.edges.items()}
        said = {name: int(bounds[index + 1] - bounds[index]) for name, bounds in self.book.relations.items()}
        if held != said:
            raise damaged(f"{graph.path} holds {held} edges where {self.path / DOCUMENT} says {said}")


def _counted_edges(path: Path, parts: int) -> dict[str, list[int]] | None:
    """The edge ranges of a folder that was written without them, from its parts; None: some parts are elsewhere."""
    folders = [part_folder(path, index) for index in range(parts)]
    if not all((folder / GRAPH_DOCUMENT).is_file() for folder in folders):
        return None
    held = [{name: edges.count for name, edges in read_document(folder).edge_types.items()} for folder in folders]
    if any(counts.keys() != held[0].keys() for counts in held):
        raise damaged(f"{path}: its parts have different relations")
    return {name: list(accumulate((counts[name] for counts in held), initial=0)) for name in held[0]}


def open_partition(path: str | os.PathLike[str], unchecked: bool = False) -> Partition:
    """Map a partition folder, here or on an object store; costs the same for any size.

    Arrays are validated on first use, once for each folder; `unchecked` ones never. Of an object store's, a part is
    fetched when it is first used.
    """
    path = unfetched_copy(path, DOCUMENT, _ORIGINAL)
    return Partition(path, read_partition_document(path), unchecked)


def part_folder(path: Path, index: int) -> Path:
    """The folder of a part."""
    return path / f"part{index}"


# Restores from its parts the graph they were cut from, exactly.


def stitch(partition: Partition) -> Graph:
    """The whole graph in memory, in original numbering."""
    parts = [partition.part(index) for index in range(partition.parts)]
    for index, part in enumerate(parts):
        check_graph(part)
        if _held_by(part) != _held_by(parts[0]):
            raise damaged(f"{partition.path}: part {index} does not have the same fields as part 0")
    nodes = {name: _stitch_nodes(partition, parts, name) for name in parts[0].nodes}
    edges = {edge_type: _stitch_edges(partition, parts, edge_type) for edge_type in parts[0].edges}
    return Graph(nodes, edges, partition.document.graph, None, partition.document.origin)


def _held_by(part: Graph) -> list[tuple[object, ...]]:
    """Types, fields, splits and held-out sets: the same in every part."""
    nodes = [(name, set(n.fields), set(n.splits), type(n.ids)) for name, n in part.nodes.items()]
    return [*nodes, *((kind, set(e.fields), set(e.held_out)) for kind, e in part.edges.items())]


def _stitch_nodes(partition: Partition, parts: list[Graph], name: str) -> NodeSet:
    original = np.asarray(partition.original(name))
    first = parts[0].nodes[name]
    fields = {}
    for key, sample in first.fields.items():
        whole = np.empty((len(original), *sample.shape[1:]), sample.dtype)
        for part in parts:
            nodes = part.nodes[name]
            whole[original[nodes.first : nodes.first + nodes.count]] = nodes.fields[key]
        fields[key] = whole
    splits = {
        key: np.sort(
            np.concatenate([original[part.nodes[name].first + part.nodes[name].splits[key]] for part in parts])
        )
        for key in first.splits
    }
    ids = None
    if first.ids is not None:
        back = np.argsort(original, kind="stable")
        ids = take_ids(concatenate([part.nodes[name].ids for part in parts]), back)  # type: ignore[misc]
    return NodeSet(len(original), fields, splits, ids, first.categories)


def _stitch_edges(partition: Partition, parts: list[Graph], edge_type: EdgeType) -> EdgeSet:
    source, _, destination = edge_type
    to_source, to_row = np.asarray(partition.original(source)), np.asarray(partition.original(destination))
    pieces = [part.edges[edge_type] for part in parts]
    lengths = np.empty(len(to_row), np.int64)
    for part, piece in zip(parts, pieces, strict=True):
        first = part.nodes[destination].first
        lengths[to_row[first : first + len(piece.indptr) - 1]] = np.diff(piece.indptr)
    indptr = np.zeros(len(to_row) + 1, np.int64)
    np.cumsum(lengths, out=indptr[1:])
    indices = np.empty(int(indptr[-1]), pieces[0].indices.dtype)
    fields = {
        key: np.empty((len(indices), *sample.shape[1:]), sample.dtype) for key, sample in pieces[0].fields.items()
    }
    for part, piece in zip(parts, pieces, strict=True):
        first = part.nodes[destination].first
        places = _places(indptr, to_row[first : first + len(piece.indptr) - 1])
        indices[places] = to_source[piece.indices]
        for key, whole in fields.items():
            whole[places] = piece.fields[key]
    held_out = {
        key: _stitch_held_out(partition, parts, edge_type, key, to_source, to_row) for key in pieces[0].held_out
    }
    return EdgeSet(indptr, indices, fields, held_out, pieces[0].categories)


def _places(indptr: Array, rows: Array) -> Array:
    """The positions of the list entries of some rows."""
    lengths = indptr[rows + 1] - indptr[rows]
    ends = np.cumsum(lengths)
    shifts: Array = np.repeat(indptr[rows] - (ends - lengths), lengths)
    return np.arange(len(shifts)) + shifts


def _stitch_held_out(
    partition: Partition, parts: list[Graph], edge_type: EdgeType, key: str, to_source: Array, to_row: Array
) -> Array:
    total = sum(len(part.edges[edge_type].held_out[key]) for part in parts)
    whole = np.empty((total, 2), np.int64)
    found = [partition.held_out_places(index, edge_type, key) for index in range(len(parts))]
    if first_repeat(np.concatenate(found)) >= 0 or len(np.concatenate(found)) != total:
        what = f"the positions of the held-out pairs {key!r} of {edge_key(edge_type)}"
        raise damaged(f"{partition.path}: {what} are not 0 to {total - 1}, each once")
    for part, places in zip(parts, found, strict=True):
        pairs = part.edges[edge_type].held_out[key]
        whole[places, 0], whole[places, 1] = to_source[pairs[:, 0]], to_row[pairs[:, 1]]
    return whole
