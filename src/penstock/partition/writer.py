"""Parts written one after the other, in blocks of rows: never more than a few blocks of the graph in memory.

New IDs go part after part, trainer after trainer, and inside these in the original order.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, ArrayWriter, index_dtype, open_array, release_pages, write_array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.folder import (
    Graph,
    edges_folder,
    index_type,
    nodes_folder,
    write_document,
    write_held_out,
    write_ids,
    write_splits,
)
from penstock.graph.ids import take_ids
from penstock.graph.journal import check_owner
from penstock.graph.schema import EdgeType, edge_key, file_name
from penstock.kernels import njit
from penstock.partition.problem import WholeAdjacency
from penstock.processes import default_threads, map_blocks
from penstock.progress import SILENT, Progress
from penstock.version import __version__


@dataclass(frozen=True)
class Relabelling:
    """Maps of one node type between new and original IDs, and the bounds of every sub-part."""

    original: Array
    """New ID to original."""
    new: Array
    """Original to new ID."""
    bounds: Array
    """parts * trainers + 1 first new IDs."""


def relabel(
    whole: WholeAdjacency, assignment: Array, trainer: Array, parts: int, trainers: int
) -> dict[str, Relabelling]:
    """The maps of every node type. Small keys sort by radix, in one or two passes."""
    groups = parts * trainers
    dtype = np.min_scalar_type(groups)
    keys = assignment.astype(dtype) * dtype.type(trainers) + trainer.astype(dtype)
    return {name: _relabel_type(view, groups) for name, view in whole.by_type(keys).items()}


def _relabel_type(keys: Array, groups: int) -> Relabelling:
    original = np.argsort(keys, kind="stable")
    bounds = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(keys, minlength=groups), out=bounds[1:])
    new = np.empty(len(keys), index_dtype(len(keys)))
    new[original] = np.arange(len(keys))
    return Relabelling(original, new, bounds)


_BYTES_UNDER_WAY = 16 << 20
"""Bytes of the blocks of all threads together, so that a machine with many cores needs no more than one with two."""
_BLOCKS_KEPT = 2
_Maps = dict[str, Relabelling]


class PartWriter:
    """Writes the parts of a graph; what all of them need is made once."""

    def __init__(self, graph: Graph, maps: _Maps, trainers: int, threads: int, progress: Progress) -> None:
        self.graph, self.maps, self.trainers = graph, maps, trainers
        self.threads, self.progress = threads, progress
        self._block_bytes = max(_BYTES_UNDER_WAY // (2 * threads), 1 << 18)
        self._splits = {
            name: {key: np.sort(maps[name].new[rows].astype(np.int64)) for key, rows in nodes.splits.items()}
            for name, nodes in graph.nodes.items()
        }
        self._held_out = {kind: _relabelled_pairs(kind, edges, maps) for kind, edges in graph.edges.items()}
        if graph.path is not None:
            for edges in graph.edges.values():  # Read in order by whoever chose the parts; read again part by part.
                release_pages(edges.indices)

    def write(self, part: int, folder: Path) -> dict[EdgeType, int]:
        """One part as a graph folder: its core vertices' rows and in-edges, neighbours named by new ID.

        Returns how many edges of each type it has.
        """
        rows = {name: _rows_of(relabelling, part, self.trainers) for name, relabelling in self.maps.items()}
        nodes = {name: self._write_nodes(name, rows[name], nodes_folder(folder, name)) for name in self.graph.nodes}
        halo = {name: np.zeros(nodes.count, np.bool_) for name, nodes in self.graph.nodes.items()}
        edges = {
            kind: self._write_edges(kind, rows[kind[2]], halo[kind[0]], edges_folder(folder, kind))
            for kind in self.graph.edges
        }
        for name, mask in halo.items():
            first, last = rows[name]
            mask[first:last] = False
            write_array(nodes_folder(folder, name) / "halo.npy", np.flatnonzero(mask))
        write_document(Graph(nodes, edges, f"{self.graph.name} part {part}", None, {"part": part}), folder)
        return {kind: written.count for kind, written in edges.items()}

    def _write_nodes(self, name: str, rows: tuple[int, int], folder: Path) -> NodeSet:
        first, last = rows
        nodes, original = self.graph.nodes[name], self.maps[name].original[first:last]
        folder.mkdir(parents=True)
        fields = {
            key: self._write_rows(values, original, folder / f"field.{file_name(key)}.npy")
            for key, values in nodes.fields.items()
        }
        splits = {}
        for key, new in self._splits[name].items():
            splits[key] = new[np.searchsorted(new, first) : np.searchsorted(new, last)] - first
        write_splits(splits, folder)
        ids = None if nodes.ids is None else take_ids(nodes.ids, original)
        write_ids(ids, folder)
        return NodeSet(last - first, fields, splits, ids, nodes.categories, first, nodes.count)

    def _write_rows(self, values: Array, rows: Array, path: Path) -> Array:
        """Rows of a mapped array in another order, gathered block by block."""
        width = max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
        block = max(1, self._block_bytes // width)
        with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
            blocks = map_blocks(lambda a, b: values[rows[a:b]], len(rows), block, self.threads)
            for place, taken in enumerate(blocks, 1):
                writer.append(taken)
                self._release_now_and_then(place, values)
        return open_array(path)

    def _release_now_and_then(self, blocks: int, values: Array) -> None:
        """Drop what was read of a mapped array, once in a number of blocks.

        Rows ascend, so earlier pages are done with; the system would keep counting them as this process's.
        """
        if self.graph.path is not None and blocks % _BLOCKS_KEPT == 0:
            release_pages(values)

    def _write_edges(self, kind: EdgeType, rows: tuple[int, int], halo: Array, folder: Path) -> EdgeSet:
        edges, new = self.graph.edges[kind], self.maps[kind[0]].new
        original = self.maps[kind[2]].original[rows[0] : rows[1]]
        indptr = np.zeros(len(original) + 1, np.int64)
        np.cumsum(edges.indptr[original + 1] - edges.indptr[original], out=indptr[1:])
        degree = max(1, int(indptr[-1]) // max(1, len(original)))
        block = max(1, self._block_bytes // (8 * degree))

        def positions(a: int, b: int) -> Array:
            found = np.empty(int(indptr[b] - indptr[a]), np.int64)
            _list_positions(edges.indptr, original[a:b], found)
            return found

        with ArrayWriter(folder / "indices.npy", index_type(edges)) as writer:
            work = map_blocks(lambda a, b: new[edges.indices[positions(a, b)]], len(original), block, self.threads)
            for place, neighbours in enumerate(work, 1):
                writer.append(neighbours)
                halo[neighbours] = True
                self.progress.advance(len(neighbours))
                self._release_now_and_then(place, edges.indices)
        write_array(folder / "indptr.npy", indptr)
        fields = {}
        for key, values in edges.fields.items():
            path = folder / f"field.{file_name(key)}.npy"
            with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
                for taken in map_blocks(lambda a, b: values[positions(a, b)], len(original), block, self.threads):  # noqa: B023
                    writer.append(taken)
            fields[key] = open_array(path)
        held_out = self._write_held_out(kind, rows, folder)
        return EdgeSet(indptr, open_array(folder / "indices.npy"), fields, held_out, edges.categories)

    def _write_held_out(self, kind: EdgeType, rows: tuple[int, int], folder: Path) -> dict[str, Array]:
        """Held-out pairs belong to the part of their destination; their positions in the whole set are kept beside
        them.
        """
        kept = {}
        for key, pairs in self._held_out[kind].items():
            mine = np.flatnonzero((pairs[:, 1] >= rows[0]) & (pairs[:, 1] < rows[1]))
            kept[key] = pairs[mine]
            write_array(folder / f"place.{file_name(key)}.npy", mine)
        write_held_out(kept, folder)
        return kept


# Parts that other processes write, each a whole one.

_NEW = "new.npy"
"""While parts are written so: the new IDs by original one, type after type, as `original.npy` has the originals."""


class PartTask(NamedTuple):
    """A part to write: into a folder that has the maps of all node types. The paths are absolute."""

    graph: str
    folder: str
    part: int
    name: str
    trainers: int
    bounds: dict[str, list[int]]
    """By node type, see `Relabelling`."""
    owner: str
    version: str = __version__


def check_readable(graph: Graph) -> Path:
    """The folder from which tasks read a graph; an error where it lies in none as it is."""
    if graph.path is None or not graph.is_as_stored():
        raise PenstockError(
            f"Graph {graph.name!r} lies in no folder that other nodes could read: save it to one that they share.",
            code="unsupported-combination",
        )
    return graph.path


def write_parts(
    graph: Graph, maps: _Maps, trainers: int, folder: Path, parts: Mapping[int, Path], mapped: Any, owner: str
) -> Iterator[tuple[int, dict[EdgeType, int]]]:
    """Write some parts to the folders given for them, each by a call that `mapped` makes, perhaps in another process;
    yields each with its counts of edges. `owner` is that of the journal, which lies above `folder`.
    """
    if not parts:
        return
    with ArrayWriter(folder / _NEW, np.int64) as writer:
        for relabelling in maps.values():
            writer.append(relabelling.new)
    bounds = {name: relabelling.bounds.tolist() for name, relabelling in maps.items()}
    graph_path, target = str(check_readable(graph).resolve()), str(folder.resolve())
    tasks = [PartTask(graph_path, target, part, path.name, trainers, bounds, owner) for part, path in parts.items()]
    for part, counts in zip(parts, mapped(write_part, tasks), strict=True):
        yield part, {kind: counts[edge_key(kind)] for kind in graph.edges}
    (folder / _NEW).unlink()


def write_part(task: PartTask) -> dict[str, int]:
    """Write one part. Where this runs twice, because a process seemed to be lost, one of the folders is kept."""
    folder = Path(task.folder)
    if not (folder / _NEW).is_file() or not Path(task.graph).is_dir():
        missing = folder.parent if Path(task.graph).is_dir() else task.graph
        raise PenstockError(
            f"The node {os.uname().nodename} does not see {missing}: the graph and the folder of --out must lie in"
            " folders that all nodes of the cluster share.",
            code="file-not-found",
        )
    check_owner(folder.parent, task.owner, task.version)
    graph, maps, start = Graph.open(task.graph), _Maps(), 0
    original, new = open_array(folder / "original.npy"), open_array(folder / _NEW)
    for name, bounds in task.bounds.items():
        mine, start = slice(start, start + bounds[-1]), start + bounds[-1]
        maps[name] = Relabelling(original[mine], new[mine], np.array(bounds))
    # Beside the partition: what a process leaves that is killed is no part of it.
    attempt = folder.with_name(f"{task.name}.{token_hex(6)}")
    try:
        counts = PartWriter(graph, maps, task.trainers, default_threads(), SILENT).write(task.part, attempt)
        check_owner(folder.parent, task.owner, task.version)
        try:
            attempt.rename(folder / task.name)
        except OSError:
            if not (folder / task.name).is_dir():
                raise
    finally:
        shutil.rmtree(attempt, ignore_errors=True)
    return {edge_key(kind): count for kind, count in counts.items()}


def _relabelled_pairs(kind: EdgeType, edges: EdgeSet, maps: _Maps) -> dict[str, Array]:
    source, target = maps[kind[0]].new, maps[kind[2]].new
    return {
        key: np.stack([source[pairs[:, 0]], target[pairs[:, 1]]], 1).astype(np.int64)
        for key, pairs in edges.held_out.items()
    }


def _rows_of(relabelling: Relabelling, part: int, trainers: int) -> tuple[int, int]:
    return int(relabelling.bounds[part * trainers]), int(relabelling.bounds[(part + 1) * trainers])


@njit(nogil=True, cache=True, writes=("out",))
def _list_positions(indptr: Array, rows: Array, out: Array) -> None:
    """The positions of the list entries of some rows, one after the other."""
    filled = 0
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            out[filled] = k
            filled += 1
