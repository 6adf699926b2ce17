"""Segments: vertices and edges appended to a graph folder, whose vertices keep their numbers.

Whoever reads a graph finds plain arrays, as in any folder. Rows of new vertices are written behind those of old ones,
into the same files. Lists are merged once, when a segment is appended: the new lists replace those before, so that
samplers and kernels know nothing of segments. A segment itself keeps what is new: the ranges of vertices in
`graph.json`, and its edges as lists of the vertices that got some.

Until `graph.json` is replaced, the graph is what it was: rows behind those that it counts are not read, nor are folders
that it does not name. What a killed process leaves is removed by the next one that appends or compacts.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, append_rows, index_dtype, open_array, settle_rows, write_array
from penstock.graph.data import EdgeSet, GraphData, NodeSet
from penstock.graph.files import open_lock, replace_whole, writing
from penstock.graph.folder import (
    describe_edges,
    document_text,
    edges_folder,
    lists_folder,
    nodes_folder,
    read_graph,
    segment_folder,
    write_held_out,
)
from penstock.graph.ids import StringIds
from penstock.graph.integrity import check_graph, check_order
from penstock.graph.object_folders import address_of, is_remote
from penstock.graph.schema import (
    DOCUMENT,
    EdgeInfo,
    EdgeType,
    GraphDocument,
    NodeInfo,
    SegmentInfo,
    edge_key,
    file_name,
    read_document,
)
from penstock.kernels import njit
from penstock.progress import SILENT, Progress

_BLOCK_EDGES = 1 << 22


class Addition(NamedTuple):
    """What a segment adds: rows of new vertices, and lists of new edges, one for each vertex of the grown graph.

    `distinct` are the edge types whose lists name a neighbour once.
    """

    nodes: Mapping[str, NodeSet]
    edges: Mapping[EdgeType, EdgeSet]
    distinct: frozenset[EdgeType] = frozenset()


@dataclass
class Growth:
    """A graph folder that this process alone changes."""

    folder: Path
    document: GraphDocument
    graph: GraphData
    name: str
    """The name of the segment that would come next."""

    @property
    def work(self) -> Path:
        """A folder for files that are not kept, removed with what killed processes leave."""
        return self.folder / "segments" / "work"

    def append(self, added: Addition, progress: Progress = SILENT) -> SegmentInfo:
        """Append a segment, at once: until the last step the graph is what it was."""
        _check_alike(self.graph, added)
        with writing(self.folder):
            return self._append(added, progress)

    def _append(self, added: Addition, progress: Progress) -> SegmentInfo:
        target = segment_folder(self.folder, self.name)
        grown = _grown_document(self.document, self.graph, added, self.name)
        for edge_type, info in ((_type_of(each), each) for each in grown.edge_types.values()):
            before, new = self.graph.edges[edge_type], added.edges.get(edge_type)
            if info.lists != self.name:
                continue
            rows, sources = (grown.node_types[end].count for end in (info.destination, info.source))
            place = edges_folder(target, edge_type)
            if new is None:
                known = self.document.edge_types[edge_key(edge_type)]
                _write_longer(before, lists_folder(self.folder, known), place, rows)
                continue
            if edge_type in added.distinct:
                new = _without_known(before, new)
            with progress.step(f"{edge_key(edge_type)}: lists", before.count + new.count, "edges"):
                merged = _write_merged(before, new, place, index_dtype(sources), progress)
            _write_added(new, target, edge_type)
            described = describe_edges(edge_type, merged)
            described.lists = self.name
            grown.edge_types[edge_key(edge_type)] = described
            (grown.segments or [])[-1].edges[edge_key(edge_type)] = new.count
        if self.document.segments is None:
            self._write(self.document.model_copy(update={"segments": []}))
        for node_type, nodes in added.nodes.items():
            self._append_rows(node_type, nodes)
        self._write(grown)
        tidy(self.folder, grown)
        return (grown.segments or [])[-1]

    def _append_rows(self, node_type: str, new: NodeSet) -> None:
        before, place = self.graph.nodes[node_type], nodes_folder(self.folder, node_type)
        for key, rows in new.fields.items():
            append_rows(place / f"field.{file_name(key)}.npy", before.count, rows)
        for key, rows in new.splits.items():
            path = place / f"split.{file_name(key)}.npy"
            if key in before.splits:
                append_rows(path, len(before.splits[key]), np.asarray(rows, np.int64))
            else:
                _write_again(path, np.asarray(rows, np.int64))
        if isinstance(new.ids, StringIds) and isinstance(before.ids, StringIds):
            bytes_before = int(before.ids.offsets[-1])
            append_rows(place / "ids.offsets.npy", before.count + 1, np.asarray(new.ids.offsets[1:]) + bytes_before)
            append_rows(place / "ids.bytes.npy", bytes_before, new.ids.data)
        elif isinstance(new.ids, np.ndarray):
            if before.ids is None:
                _write_again(place / "ids.npy", np.concatenate([np.arange(before.count), new.ids]))
            else:
                append_rows(place / "ids.npy", before.count, new.ids)

    def _write(self, document: GraphDocument) -> None:
        text = document_text(document).encode()
        replace_whole(self.folder / DOCUMENT, lambda file: file.write(text), durable=True)


@contextmanager
def growing(folder: Path) -> Iterator[Growth]:
    """Hold a graph folder while it is changed; what earlier processes left is removed first, and work afterwards."""
    if is_remote(folder):
        raise PenstockError(
            f"A segment is written where a graph lies, and {address_of(folder)} is an address: append to a"
            " local folder, and write that to the address.",
            code="unsupported-combination",
        )
    document = read_document(folder)
    if document.is_part:
        raise PenstockError(
            f"{folder} is a part of a cut graph: append to the whole graph, and cut that again.",
            code="whole-graph-needed",
        )
    with writing(folder / ".lock"):
        try:
            lock = open_lock(folder / ".lock")
        except BlockingIOError:
            raise PenstockError(
                f"{folder} is being changed by another process: wait for it or stop it.", code="in-use"
            ) from None
    try:
        document = read_document(folder)
        tidy(folder, document)
        number = max((int(each.name) for each in document.segments or []), default=0) + 1
        yield Growth(folder, document, read_graph(folder), str(number))
    finally:
        with suppress(OSError, PenstockError):
            tidy(folder, read_document(folder))
        os.close(lock)


def compact(folder: Path) -> int:
    """Make a graph with segments a plain one again, with the same arrays; returns how many segments it had."""
    with growing(folder) as held:
        segments = held.document.segments or []
        plain = held.document.model_copy(deep=True, update={"segments": None})
        for info in plain.edge_types.values():
            lists, info.lists = lists_folder(folder, info), None
            own = lists_folder(folder, info)
            if lists != own:
                # Nobody reads what is there: graph.json names the lists of a segment.
                shutil.rmtree(own, ignore_errors=True)
                with writing(own):
                    _copy_folder(lists, own)
        if held.document.segments is not None:
            held._write(plain)
    return len(segments)


class Changed(NamedTuple):
    """What segments have changed: vertices that are new, and by edge type the ends of new edges, ascending."""

    new: dict[str, Array]
    sources: dict[EdgeType, Array]
    destinations: dict[EdgeType, Array]


def changed_since(folder: Path, segment: str) -> Changed:
    """What a segment and those after it have added to a graph."""
    document = read_document(folder)
    names = [each.name for each in document.segments or []]
    if segment not in names:
        has = ", ".join(names) or "none"
        raise PenstockError(f"{folder} has no segment {segment!r} (segments: {has}).", code="unknown-name")
    since = (document.segments or [])[names.index(segment) :]
    new: dict[str, list[Array]] = {}
    ends: dict[EdgeType, list[tuple[Array, Array]]] = {}
    for each in since:
        for node_type, (first, stop) in each.nodes.items():
            new.setdefault(node_type, []).append(np.arange(first, stop))
        for key in each.edges:
            edge_type = _type_of(document.edge_types[key])
            place = _added_folder(segment_folder(folder, each.name), edge_type)
            found = open_array(place / "indices.npy"), open_array(place / "rows.npy", "int64")
            ends.setdefault(edge_type, []).append(found)
    return Changed(
        {name: np.concatenate(rows) for name, rows in new.items()},
        {kind: np.unique(np.concatenate([each[0] for each in found])) for kind, found in ends.items()},
        {kind: np.unique(np.concatenate([each[1] for each in found])) for kind, found in ends.items()},
    )


def tidy(folder: Path, document: GraphDocument) -> None:
    """Remove what `graph.json` does not name, and have the files of vertices end with the rows that it counts."""
    if document.segments is None and not (folder / "segments").exists():
        return
    kept = {each.name for each in document.segments or []}
    for place in (folder / "segments").glob("*") if (folder / "segments").is_dir() else []:
        if place.name not in kept:
            shutil.rmtree(place, ignore_errors=True)
    if not kept:
        shutil.rmtree(folder / "segments", ignore_errors=True)
    for info in document.edge_types.values():
        places = [edges_folder(place, _type_of(info)) for place in (folder, *(segment_folder(folder, n) for n in kept))]
        for place in places:
            if place != lists_folder(folder, info):
                shutil.rmtree(place, ignore_errors=True)
    for name, nodes in document.node_types.items():
        for path, count in _files_of(nodes, nodes_folder(folder, name)):
            settle_rows(path, count)


def _files_of(info: NodeInfo, place: Path) -> Iterator[tuple[Path, int]]:
    """The files of a node type, with the rows that each has."""
    for key in info.fields:
        yield place / f"field.{file_name(key)}.npy", info.count
    for key, size in info.splits.items():
        yield place / f"split.{file_name(key)}.npy", size
    if info.ids == "integer":
        yield place / "ids.npy", info.count
    elif info.ids == "string":
        offsets = open_array(place / "ids.offsets.npy", "int64", (info.count + 1,), growing=True)
        yield place / "ids.bytes.npy", int(offsets[-1])
        yield place / "ids.offsets.npy", info.count + 1


def _type_of(info: EdgeInfo) -> EdgeType:
    return info.source, info.relation, info.destination


def _added_folder(segment: Path, edge_type: EdgeType) -> Path:
    return segment / "added" / file_name(edge_key(edge_type))


# What the graph is with a segment, before anything is written.


def _check_alike(graph: GraphData, added: Addition) -> None:
    """Refuse rows and edges that are not as the graph has them; the graph's own lists are validated."""
    check_graph(graph)
    for name, nodes in added.nodes.items():
        _check_fields(f"vertices {name!r}", graph.nodes[name], nodes)
    for edge_type, edges in added.edges.items():
        if edge_type not in graph.edges:
            raise PenstockError(
                f"The graph has no edges of type {edge_key(edge_type)}: segments add to types that there are; import"
                " the tables together.",
                code="unknown-name",
            )
        _check_fields(f"edges {edge_key(edge_type)}", graph.edges[edge_type], edges)
        check_order(graph, edge_type)


def _check_fields(owner: str, known: NodeSet | EdgeSet, new: NodeSet | EdgeSet) -> None:
    for key in sorted(set(known.fields) ^ set(new.fields)):
        lacks, has = ("new", "known") if key in known.fields else ("known", "new")
        raise PenstockError(
            f"The {lacks} {owner} lack the field {key!r}, which the {has} ones have: give the tables and the spec that"
            " the graph was imported with.",
            code="field-missing",
        )
    for key, values in known.fields.items():
        here, there = values, new.fields[key]
        if here.dtype != there.dtype or here.shape[1:] != there.shape[1:]:
            raise PenstockError(
                f"Field {key!r} of the new {owner} is {there.dtype} {there.shape[1:]}, and the graph's"
                f" {here.dtype} {here.shape[1:]}: give the same columns.",
                code="shape-mismatch",
            )
        if known.categories.get(key) != new.categories.get(key):
            raise PenstockError(
                f"Field {key!r} of the new {owner} has other words than the graph's: give the same kind of column.",
                code="mismatched-inputs",
            )


def _grown_document(document: GraphDocument, graph: GraphData, added: Addition, name: str) -> GraphDocument:
    """What `graph.json` will say, but for the lists that are merged."""
    grown = document.model_copy(deep=True)
    ranges: dict[str, list[int]] = {}
    for node_type, new in added.nodes.items():
        info = grown.node_types[node_type]
        if new.count:
            ranges[node_type] = [info.count, info.count + new.count]
        info.count += new.count
        info.total = info.count
        for field in info.fields.values():
            field.shape[0] = info.count
        info.splits |= {key: info.splits.get(key, 0) + len(rows) for key, rows in new.splits.items()}
        if info.ids is None and new.ids is not None:
            info.ids = "integer"
    for key, edges in grown.edge_types.items():
        if _type_of(edges) in added.edges or edges.destination in ranges:
            grown.edge_types[key].lists = name
    grown.segments = [*(document.segments or []), SegmentInfo(name=name, nodes=ranges, edges={})]
    return grown


# Lists of the graph and of a segment, merged.


def _write_longer(before: EdgeSet, source: Path, target: Path, rows: int) -> None:
    """The same lists, and empty ones for new vertices."""
    ends = np.full(rows + 1 - len(before.indptr), before.count)
    write_array(target / "indptr.npy", np.concatenate([before.indptr, ends]))
    _copy_folder(source, target, but="indptr.npy")


def _copy_folder(source: Path, target: Path, but: str = "") -> None:
    """The files of a folder under another name too; copied where a file system has no second names."""
    target.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name != but:
            try:
                os.link(file, target / file.name)
            except OSError:
                shutil.copyfile(file, target / file.name)


def _without_known(before: EdgeSet, new: EdgeSet) -> EdgeSet:
    """New edges but for those that the graph has already."""
    keep = np.ones(new.count, np.bool_)
    _mark_known(before.indptr, before.indices, new.indptr, new.indices, keep)
    kept = np.flatnonzero(keep)
    indptr = np.zeros(len(new.indptr), np.int64)
    np.cumsum(keep, out=(counts := np.zeros(new.count, np.int64)))
    indptr[1:] = np.concatenate([[0], counts])[new.indptr[1:]]
    fields = {key: values[kept] for key, values in new.fields.items()}
    return EdgeSet(indptr, new.indices[kept], fields, new.held_out, new.categories)


def _write_merged(
    before: EdgeSet, new: EdgeSet, target: Path, dtype: np.dtype[np.signedinteger], progress: Progress
) -> EdgeSet:
    """Lists of old and new edges, ascending; of parallel ones the old come first."""
    rows = len(new.indptr) - 1
    old_ptr = np.concatenate([before.indptr, np.full(rows + 1 - len(before.indptr), before.count)])
    indptr = old_ptr + new.indptr
    write_array(target / "indptr.npy", indptr)
    writers = {
        key: ArrayWriter(target / f"field.{file_name(key)}.npy", values.dtype, values.shape[1:])
        for key, values in before.fields.items()
    }
    with ArrayWriter(target / "indices.npy", dtype) as writer:
        first = 0
        while first < rows:
            stop = int(np.searchsorted(indptr, indptr[first] + _BLOCK_EDGES, "right")) - 1
            stop = min(rows, max(first + 1, stop))
            size = int(indptr[stop] - indptr[first])
            indices, places = np.empty(size, dtype), np.empty(size, np.int64)
            _merge_lists(old_ptr, before.indices, new.indptr, new.indices, first, stop, indices, places)
            writer.append(indices)
            for key, field in writers.items():
                field.append(_field_rows(before.fields[key], new.fields[key], places))
            progress.advance(size)
            first = stop
    for field in writers.values():
        field.close()
    held_out = {
        key: np.concatenate([before.held_out.get(key, _NO_PAIRS), new.held_out.get(key, _NO_PAIRS)])
        for key in {**before.held_out, **new.held_out}
    }
    write_held_out(held_out, target)
    fields = {key: open_array(field.path) for key, field in writers.items()}
    return EdgeSet(indptr, open_array(target / "indices.npy"), fields, held_out, before.categories)


_NO_PAIRS = np.empty((0, 2), np.int64)


def _field_rows(old: Array, new: Array, places: Array) -> Array:
    """Rows of a field, of old edges by position and of new ones by -1 minus theirs."""
    rows = np.empty((len(places), *old.shape[1:]), old.dtype)
    is_old = places >= 0
    rows[is_old] = old[places[is_old]]
    rows[~is_old] = new[-1 - places[~is_old]]
    return rows


def _write_added(new: EdgeSet, segment: Path, edge_type: EdgeType) -> None:
    """The new edges alone: lists of the vertices that have some."""
    place, degrees = _added_folder(segment, edge_type), np.diff(new.indptr)
    rows = np.flatnonzero(degrees)
    write_array(place / "rows.npy", rows)
    write_array(place / "indptr.npy", np.concatenate([[0], np.cumsum(degrees[rows])]))
    write_array(place / "indices.npy", np.ascontiguousarray(new.indices))
    for key, values in new.fields.items():
        write_array(place / f"field.{file_name(key)}.npy", values)


def _write_again(path: Path, values: Array) -> None:
    """An array that the graph does not have yet; a killed process may have left one."""
    path.unlink(missing_ok=True)
    write_array(path, values)


@njit(nogil=True, cache=True, writes=("indices", "places"))
def _merge_lists(
    old_ptr: Array, old: Array, new_ptr: Array, new: Array, first: int, stop: int, indices: Array, places: Array
) -> None:
    """The lists of rows [first, stop); `places` are positions in `old`, or -1 minus those in `new`."""
    k = 0
    for row in range(first, stop):
        i, i_end, j, j_end = old_ptr[row], old_ptr[row + 1], new_ptr[row], new_ptr[row + 1]
        while i < i_end or j < j_end:
            if j == j_end or (i < i_end and old[i] <= new[j]):
                indices[k], places[k] = old[i], i
                i += 1
            else:
                indices[k], places[k] = new[j], -1 - j
                j += 1
            k += 1


@njit(nogil=True, cache=True, writes=("keep",))
def _mark_known(old_ptr: Array, old: Array, new_ptr: Array, new: Array, keep: Array) -> None:
    """False for new edges that are among the old ones."""
    for row in range(old_ptr.shape[0] - 1):
        i = old_ptr[row]
        for j in range(new_ptr[row], new_ptr[row + 1]):
            while i < old_ptr[row + 1] and old[i] < new[j]:
                i += 1
            keep[j] = i == old_ptr[row + 1] or old[i] != new[j]
