"""The graph folder: reading one (mapped) and writing one (completely or not at all)."""

import json
from pathlib import Path
from typing import Literal

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, open_array, write_array
from penstock.graph.data import EdgeSet, GraphData, NodeSet
from penstock.graph.facts import Facts
from penstock.graph.files import write_new
from penstock.graph.ids import Ids, StringIds
from penstock.graph.new_folders import new_folder
from penstock.graph.object_folders import local_copy
from penstock.graph.schema import (
    DOCUMENT,
    EdgeInfo,
    EdgeType,
    FieldInfo,
    GraphDocument,
    NodeInfo,
    edge_key,
    file_name,
    read_document,
)


def read_graph(folder: Path) -> GraphData:
    """Map every array of a graph folder, here or on an object store. Time and memory depend on the number of fields
    only, but for what must be fetched.
    """
    folder = local_copy(folder)
    document = read_document(folder)
    while True:
        try:
            return _read(folder, document)
        except PenstockError:
            # A segment may have been appended since the document was read: then it names other files.
            before, document = document, read_document(folder)
            if document == before:
                raise


def _read(folder: Path, document: GraphDocument) -> GraphData:
    growing = document.segments is not None
    nodes = {name: open_nodes(nodes_folder(folder, name), info, growing) for name, info in document.node_types.items()}
    edges = {}
    for info in document.edge_types.values():
        edge_type = (info.source, info.relation, info.destination)
        edges[edge_type] = open_edges(lists_folder(folder, info), info, nodes[info.destination].count)
    return GraphData(nodes, edges, document.name, folder, document.origin)


def write_graph(graph: GraphData, folder: Path, force: bool = False) -> None:
    """Write any graph as a folder."""
    with new_folder(folder, force) as temporary:
        write_arrays(graph, temporary)
        write_document(graph, temporary)
        # Before it replaces anything, check that what was written opens.
        read_graph(temporary)


def write_arrays(graph: GraphData, folder: Path) -> None:
    """Every array of a graph, without the document that makes the folder openable."""
    for name, nodes in graph.nodes.items():
        write_nodes(nodes, nodes_folder(folder, name))
    for edge_type, edges in graph.edges.items():
        target = edges_folder(folder, edge_type)
        write_array(target / "indptr.npy", np.asarray(edges.indptr, np.int64))
        write_array(target / "indices.npy", edges.indices.astype(index_type(edges), copy=False))
        for key, values in edges.fields.items():
            write_array(target / f"field.{file_name(key)}.npy", values)
        write_held_out(edges.held_out, target)


def write_nodes(nodes: NodeSet, target: Path) -> None:
    """The fields, splits and ids of one node type."""
    for key, values in nodes.fields.items():
        write_array(target / f"field.{file_name(key)}.npy", values)
    write_splits(nodes.splits, target)
    write_ids(nodes.ids, target)


def write_splits(splits: dict[str, Array], target: Path) -> None:
    """Each split as ascending vertex numbers."""
    for key, rows in splits.items():
        write_array(target / f"split.{file_name(key)}.npy", np.asarray(rows, np.int64))


def write_held_out(held_out: dict[str, Array], target: Path) -> None:
    """Each held-out set as [m, 2] pairs."""
    for key, pairs in held_out.items():
        write_array(target / f"held_out.{file_name(key)}.npy", np.asarray(pairs, np.int64))


def write_ids(ids: Ids | None, target: Path) -> None:
    """The users' ids, unless they are 0..n-1."""
    if isinstance(ids, StringIds):
        write_array(target / "ids.offsets.npy", ids.offsets)
        write_array(target / "ids.bytes.npy", ids.data)
    elif ids is not None:
        write_array(target / "ids.npy", np.asarray(ids, np.int64))


def write_document(graph: GraphData, folder: Path) -> None:
    """`graph.json`, written last: from then on the folder opens."""
    document = GraphDocument(
        name=graph.name,
        node_types={name: describe_nodes(nodes) for name, nodes in graph.nodes.items()},
        edge_types={edge_key(kind): describe_edges(kind, edges) for kind, edges in graph.edges.items()},
        origin=graph.origin,
    )
    write_new(folder / DOCUMENT, document_text(document))


def document_text(document: GraphDocument) -> str:
    """The text of `graph.json`, indented, with a line end."""
    return json.dumps(document.model_dump(exclude_none=True), indent=1) + "\n"


def describe_nodes(nodes: NodeSet) -> NodeInfo:
    """What `graph.json` says of a node type."""
    kind = None if nodes.ids is None else "string" if isinstance(nodes.ids, StringIds) else "integer"
    return NodeInfo(
        count=nodes.count,
        first=nodes.first,
        total=nodes.total,
        ids=kind,  # type: ignore[arg-type]
        fields={key: _describe_field(values, nodes.categories.get(key)) for key, values in nodes.fields.items()},
        splits={key: len(rows) for key, rows in nodes.splits.items()},
    )


def describe_edges(edge_type: EdgeType, edges: EdgeSet) -> EdgeInfo:
    """What `graph.json` says of an edge type."""
    source, relation, destination = edge_type
    return EdgeInfo(
        source=source,
        relation=relation,
        destination=destination,
        count=edges.count,
        index_dtype=index_type(edges),
        fields={key: _describe_field(values, edges.categories.get(key)) for key, values in edges.fields.items()},
        held_out={key: len(pairs) for key, pairs in edges.held_out.items()},
    )


def nodes_folder(folder: Path, node_type: str) -> Path:
    """Where a node type's arrays live."""
    return folder / "nodes" / file_name(node_type)


def edges_folder(folder: Path, edge_type: EdgeType) -> Path:
    """Where an edge type's arrays live."""
    return folder / "edges" / file_name(edge_key(edge_type))


def segment_folder(folder: Path, segment: str) -> Path:
    """Where the files of a segment live."""
    return folder / "segments" / segment


def lists_folder(folder: Path, info: EdgeInfo) -> Path:
    """Where an edge type's lists live: with the graph's own arrays, or with a segment that has added to them."""
    place = folder if info.lists is None else segment_folder(folder, info.lists)
    return edges_folder(place, (info.source, info.relation, info.destination))


def index_type(edges: EdgeSet) -> Literal["int32", "int64"]:
    """The integer type in which a folder stores neighbour numbers."""
    return "int32" if edges.indices.dtype == np.int32 else "int64"


def _describe_field(values: Array, categories: list[str] | None) -> FieldInfo:
    return FieldInfo(dtype=str(values.dtype), shape=list(values.shape), categories=categories)


def open_nodes(folder: Path, info: NodeInfo, growing: bool = False) -> NodeSet:
    """Map the arrays of a node type."""
    fields = {key: _open_field(folder, key, field, growing) for key, field in info.fields.items()}
    splits = {
        key: open_array(folder / f"split.{file_name(key)}.npy", "int64", (size,), growing)
        for key, size in info.splits.items()
    }
    categories = {key: field.categories for key, field in info.fields.items() if field.categories is not None}
    ids = _open_ids(folder, info, growing)
    nodes = NodeSet(info.count, fields, splits, ids, categories, info.first, info.total)
    strings = {"ids.offsets": ids.offsets, "ids.bytes": ids.data} if isinstance(ids, StringIds) else {}
    nodes.facts = Facts(folder, {**_by_file("field", fields), **_by_file("split", splits), **strings})
    return nodes


def open_edges(folder: Path, info: EdgeInfo, rows: int) -> EdgeSet:
    """Map the arrays of an edge type, with lists of so many vertices."""
    edges = EdgeSet(
        open_array(folder / "indptr.npy", "int64", (rows + 1,)),
        open_array(folder / "indices.npy", info.index_dtype, (info.count,)),
        {key: _open_field(folder, key, field) for key, field in info.fields.items()},
        {
            key: open_array(folder / f"held_out.{file_name(key)}.npy", "int64", (size, 2))
            for key, size in info.held_out.items()
        },
        {key: field.categories for key, field in info.fields.items() if field.categories is not None},
    )
    mapped = {**_by_file("field", edges.fields), **_by_file("held_out", edges.held_out)}
    edges.facts = Facts(folder, {"indptr": edges.indptr, "indices": edges.indices, **mapped})
    return edges


def _by_file(kind: str, arrays: dict[str, Array]) -> dict[str, Array]:
    """Arrays by the names of their files, without `.npy`."""
    return {f"{kind}.{file_name(key)}": values for key, values in arrays.items()}


def _open_field(folder: Path, key: str, info: FieldInfo, growing: bool = False) -> Array:
    return open_array(folder / f"field.{file_name(key)}.npy", info.dtype, tuple(info.shape), growing)


def _open_ids(folder: Path, info: NodeInfo, growing: bool) -> Ids | None:
    if info.ids is None:
        return None
    if info.ids == "integer":
        return open_array(folder / "ids.npy", "int64", (info.count,), growing)
    offsets = open_array(folder / "ids.offsets.npy", "int64", (info.count + 1,), growing)
    size = (max(0, int(offsets[-1])),) if growing else None
    return StringIds(offsets, open_array(folder / "ids.bytes.npy", "uint8", size, growing))
