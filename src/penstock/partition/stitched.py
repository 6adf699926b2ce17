"""Restores from its parts the graph they were cut from, exactly."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.ids import concatenate, take_ids
from penstock.graph.integrity import check_graph, first_repeat
from penstock.graph.schema import EdgeType, edge_key
from penstock.partition.folder import Partition, damaged


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
