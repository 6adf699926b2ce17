"""The graph folder: reading one (mapped) and writing one (completely or not at all); and `Graph`, a graph as users hold
it: opened from a folder, saved to one, or handed to PyG.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, mapped_file, open_array, to_tensor, write_array
from penstock.graph.data import EdgeSet, GraphData, NodeSet, mask_name, mask_of
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


# A graph as users hold it.


class Graph(GraphData):
    """A heterogeneous graph, in memory or mapped. With one type of each, `graph.x` and
    `graph.num_nodes` work directly.
    """

    @classmethod
    def open(cls, path: str | os.PathLike[str], unchecked: bool = False) -> Self:
        """Map a graph folder; costs the same for any size.

        Its arrays are validated before the first kernel reads them, once for each folder; with `unchecked` they never
        are, and a wrong number in a file may then crash the process.
        """
        found = read_graph(Path(path))
        graph = cls(found.nodes, found.edges, found.name, found.path, found.origin)
        if unchecked:
            graph.trust()
        return graph

    def save(self, path: str | os.PathLike[str], force: bool = False) -> Self:
        """Write a graph folder and return the graph mapped from it."""
        write_graph(self, Path(path), force)
        return self.open(path)

    def is_as_stored(self) -> bool:
        """Whether whoever opens the graph's folder finds the same graph: nothing was added, left out or changed in
        memory.
        """
        if self.path is None or not (self.path / DOCUMENT).is_file():
            return False
        stored = read_graph(self.path)
        ours, theirs = (
            [{key: (each.count, each.categories) for key, each in sets.items()} for sets in (graph.nodes, graph.edges)]
            for graph in (self, stored)
        )
        arrays = [[(name, *mapped_file(array)) for name, array in graph.arrays()] for graph in (self, stored)]
        return ours == theirs and arrays[0] == arrays[1]

    def to_pyg(self) -> Any:
        """As a PyG `Data` (one type of each) or `HeteroData`; arrays are shared where torch allows."""
        # Torch takes seconds to import, and most commands do not need it.

        return to_pyg(self)


# A graph as PyG's `Data` or `HeteroData`.

HELD_OUT = "held_out_"
"""The prefix of the names of held-out edges."""
_PYG_OWN = {"edge_index", "num_nodes"}


def to_pyg(graph: GraphData) -> Any:
    """`Data` for one type of each, else `HeteroData`; fields are shared with the graph where torch allows.

    Splits become `<split>_mask`, held-out edges `held_out_<name>_index` [2, m], ids `n_id` (a list if they
    are strings). `from_pyg` reads all of it back; names of categories are lost.
    """
    try:
        from torch_geometric.data import Data, HeteroData
    except ImportError:
        raise PenstockError(
            "PyG is not installed: install it with `pip install 'penstock[pyg]'`.", code="not-installed"
        ) from None
    if graph.is_part:
        raise PenstockError(
            f"Graph {graph.name!r} is a part of a cut graph, which PyG cannot hold: convert the whole graph.",
            code="whole-graph-needed",
        )
    if graph.is_homogeneous:
        node_values = _node_values(next(iter(graph.nodes.values())))
        edge_values = {"edge_index": to_tensor(np.empty((2, 0), np.int64), "edge_index")}
        for edges in graph.edges.values():
            edge_values = _edge_values(edges)
        return Data.from_dict({**node_values, **_apart(edge_values, node_values, graph)})
    data = HeteroData()
    for name, nodes in graph.nodes.items():
        data[name].update(_node_values(nodes))
    for edge_type, edges in graph.edges.items():
        data[edge_type].update(_edge_values(edges))
    return data


def _node_values(nodes: NodeSet) -> dict[str, Any]:
    for key in _PYG_OWN & set(nodes.fields):
        raise PenstockError(
            f"PyG keeps something of its own under the name of field {key!r}: rename the field.", code="duplicate"
        )
    values = {key: to_tensor(array, f"Field {key!r}") for key, array in nodes.fields.items()}
    for split, rows in nodes.splits.items():
        values[mask_name(split)] = to_tensor(mask_of(rows, nodes.count), split)
    if isinstance(nodes.ids, StringIds):
        values["n_id"] = nodes.ids.tolist()
    elif nodes.ids is not None:
        values["n_id"] = to_tensor(nodes.ids, "The ids")
    if "x" not in values:
        values["num_nodes"] = nodes.count
    return values


def _edge_values(edges: EdgeSet) -> dict[str, Any]:
    # PyG needs int64, so the indices are always copied.
    edge_index = np.empty((2, edges.count), np.int64)
    edge_index[0] = edges.indices
    edge_index[1] = edges.destinations()
    values = {"edge_index": to_tensor(edge_index, "edge_index")}
    names = _names(edges.fields, _PYG_OWN, _PYG_OWN)
    values |= {names[key]: to_tensor(array, f"Field {key!r}") for key, array in edges.fields.items()}
    for name, pairs in edges.held_out.items():
        values[f"{HELD_OUT}{name}_index"] = to_tensor(np.ascontiguousarray(pairs.T), name)
    return values


def _apart(edge_values: dict[str, Any], node_values: dict[str, Any], graph: GraphData) -> dict[str, Any]:
    """Edge values, with `edge_` before the names that PyG would take for vertex values."""
    same_length = graph.num_nodes == graph.num_edges
    mistaken = {key for key in edge_values if same_length and "edge" not in key and "index" not in key}
    names = _names(edge_values, mistaken | set(node_values), set(node_values))
    return {names[key]: value for key, value in edge_values.items()}


def _names(keys: Iterable[str], renamed: set[str], taken: set[str]) -> dict[str, str]:
    """New names, with `edge_` before those in `renamed`, once more as long as another value has the name."""
    taken = taken | (set(keys) - renamed)
    names = {}
    for key in keys:
        name = f"edge_{key}" if key in renamed else key
        while key in renamed and (name in taken or name.startswith("edge_label")):
            name = f"edge_{name}"
        names[key] = name
        taken.add(name)
    return names
