"""Parts written one after the other, in blocks of rows: never more than a few blocks of the graph in memory."""

from pathlib import Path

import numpy as np
from numba import njit

from penstock.graph.arrays import Array, ArrayWriter, open_array, write_array
from penstock.graph.blocks import map_blocks
from penstock.graph.folder import (
    edges_folder,
    nodes_folder,
    write_document,
    write_held_out,
    write_ids,
    write_splits,
)
from penstock.graph.graph import EdgeSet, Graph, NodeSet
from penstock.graph.ids import take_ids
from penstock.graph.schema import EdgeType, file_name
from penstock.partition.relabel import Relabelling
from penstock.progress import Progress

_BLOCK_BYTES = 8 << 20
_Maps = dict[str, Relabelling]


def write_part(
    graph: Graph, maps: _Maps, part: int, trainers: int, folder: Path, threads: int, progress: Progress
) -> None:
    """One part as a graph folder: its core vertices' rows and in-edges, neighbours named by new ID."""
    rows = {name: _rows_of(relabelling, part, trainers) for name, relabelling in maps.items()}
    nodes = {
        name: _write_nodes(graph.nodes[name], maps[name], rows[name], nodes_folder(folder, name), threads)
        for name in graph.nodes
    }
    halo = {name: np.zeros(graph.nodes[name].count, np.bool_) for name in graph.nodes}
    edges = {}
    for edge_type, edge_set in graph.edges.items():
        target = edges_folder(folder, edge_type)
        edges[edge_type] = _write_edges(edge_type, edge_set, maps, rows[edge_type[2]], halo, target, threads, progress)
    for name, mask in halo.items():
        first, last = rows[name]
        mask[first:last] = False
        write_array(nodes_folder(folder, name) / "halo.npy", np.flatnonzero(mask))
    write_document(Graph(nodes, edges, f"{graph.name} part {part}", None, {"part": part}), folder)


def _rows_of(relabelling: Relabelling, part: int, trainers: int) -> tuple[int, int]:
    return int(relabelling.bounds[part * trainers]), int(relabelling.bounds[(part + 1) * trainers])


def _write_nodes(
    nodes: NodeSet, relabelling: Relabelling, rows: tuple[int, int], folder: Path, threads: int
) -> NodeSet:
    first, last = rows
    original = relabelling.original[first:last]
    folder.mkdir(parents=True)
    fields = {
        key: _write_rows(values, original, folder / f"field.{file_name(key)}.npy", threads)
        for key, values in nodes.fields.items()
    }
    splits = {}
    for key, members in nodes.splits.items():
        new = np.sort(relabelling.new[members].astype(np.int64))
        splits[key] = new[np.searchsorted(new, first) : np.searchsorted(new, last)] - first
    write_splits(splits, folder)
    ids = None if nodes.ids is None else take_ids(nodes.ids, original)
    write_ids(ids, folder)
    return NodeSet(last - first, fields, splits, ids, nodes.categories, first, nodes.count)


def _write_rows(values: Array, rows: Array, path: Path, threads: int) -> Array:
    """Rows of a mapped array in another order, gathered block by block."""
    width = max(1, values.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
    with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
        for block in map_blocks(lambda a, b: values[rows[a:b]], len(rows), max(1, _BLOCK_BYTES // width), threads):
            writer.append(block)
    return open_array(path)


def _write_edges(
    edge_type: EdgeType,
    edges: EdgeSet,
    maps: _Maps,
    rows: tuple[int, int],
    halo: dict[str, Array],
    folder: Path,
    threads: int,
    progress: Progress,
) -> EdgeSet:
    source, _, destination = edge_type
    original = maps[destination].original[rows[0] : rows[1]]
    indptr = np.zeros(len(original) + 1, np.int64)
    np.cumsum(edges.indptr[original + 1] - edges.indptr[original], out=indptr[1:])
    degree = max(1, int(indptr[-1]) // max(1, len(original)))
    block = max(1, _BLOCK_BYTES // (8 * degree))

    def positions(a: int, b: int) -> Array:
        found = np.empty(int(indptr[b] - indptr[a]), np.int64)
        _list_positions(edges.indptr, original[a:b], found)
        return found

    with ArrayWriter(folder / "indices.npy", edges.indices.dtype) as writer:
        work = map_blocks(lambda a, b: maps[source].new[edges.indices[positions(a, b)]], len(original), block, threads)
        for neighbours in work:
            writer.append(neighbours)
            halo[source][neighbours] = True
            progress.advance(len(neighbours))
    write_array(folder / "indptr.npy", indptr)
    fields = {}
    for key, values in edges.fields.items():
        path = folder / f"field.{file_name(key)}.npy"
        with ArrayWriter(path, values.dtype, values.shape[1:]) as writer:
            for taken in map_blocks(lambda a, b: values[positions(a, b)], len(original), block, threads):  # noqa: B023
                writer.append(taken)
        fields[key] = open_array(path)
    held_out = _write_held_out(edge_type, edges, maps, rows, folder)
    return EdgeSet(indptr, open_array(folder / "indices.npy"), fields, held_out, edges.categories)


def _write_held_out(
    edge_type: EdgeType, edges: EdgeSet, maps: _Maps, rows: tuple[int, int], folder: Path
) -> dict[str, Array]:
    """Held-out pairs go with their destination, in new IDs; their places in the whole set are kept beside them."""
    source, _, destination = edge_type
    kept = {}
    for key, pairs in edges.held_out.items():
        new = np.stack([maps[source].new[pairs[:, 0]], maps[destination].new[pairs[:, 1]]], 1).astype(np.int64)
        mine = np.flatnonzero((new[:, 1] >= rows[0]) & (new[:, 1] < rows[1]))
        kept[key] = new[mine]
        write_array(folder / f"place.{file_name(key)}.npy", mine)
    write_held_out(kept, folder)
    return kept


@njit(nogil=True, cache=True)
def _list_positions(indptr: Array, rows: Array, out: Array) -> None:
    """Where the list entries of some rows stand, one after the other."""
    filled = 0
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            out[filled] = k
            filled += 1
