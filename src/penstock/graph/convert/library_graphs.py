"""Graph objects of DGL, NetworkX and SciPy."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, index_dtype, to_array
from penstock.graph.convert.edges import edge_set
from penstock.graph.data import EdgeSet, NodeSet, take_masks
from penstock.graph.folder import Graph
from penstock.graph.ids import Ids, string_ids

# DGL's `DGLGraph`, of one type or many.

# DGL's names for the types of a graph that has no types.
_TYPE_NAMES = {"_N": "node", "_E": "to"}
_NODE_FIELDS = {"feat": "x", "label": "y"}
_EDGE_FIELDS = {"feat": "edge_attr"}
# The original numbers of the vertices of a subgraph.
_IDS = "_ID"


def from_dgl(graph: Any, split: int = 0) -> Graph:
    """A graph from a `DGLGraph`: `feat` becomes `x` (`edge_attr` on edges), `label` becomes `y`, masks become splits.

    DGL itself is not imported.
    """
    if not hasattr(graph, "canonical_etypes") or not hasattr(graph, "ntypes"):
        raise PenstockError(
            f"{type(graph).__name__} is not a DGLGraph: it has no ntypes and canonical_etypes.", code="wrong-type"
        )
    if getattr(graph, "is_block", False):
        raise PenstockError(
            "A DGL block is one layer of a batch, not a graph: convert the graph it was sampled from.",
            code="wrong-type",
        )
    nodes = {_type(name): _nodes(graph, name, split) for name in graph.ntypes}
    edges = {
        (_type(source), _type(relation), _type(destination)): _dgl_edges(graph, (source, relation, destination))
        for source, relation, destination in graph.canonical_etypes
    }
    return Graph(nodes, edges, "dgl", origin={"from": "DGL"})


def _nodes(graph: Any, name: str, split: int) -> NodeSet:
    data = graph.nodes[name].data
    fields = _dgl_fields(data, _NODE_FIELDS, f"DGL node type {name!r}")
    ids = to_array(data[_IDS], "The ids") if _IDS in data else None
    splits = take_masks(fields, split)
    return NodeSet(int(graph.num_nodes(name)), fields, splits, ids)


def _dgl_edges(graph: Any, edge_type: tuple[str, str, str]) -> EdgeSet:
    where = f"DGL edge type {edge_type!r}"
    sources, destinations = graph.edges(form="uv", order="eid", etype=edge_type)
    fields = _dgl_fields(graph.edges[edge_type].data, _EDGE_FIELDS, where)
    return edge_set(
        to_array(sources, where),
        to_array(destinations, where),
        int(graph.num_nodes(edge_type[0])),
        int(graph.num_nodes(edge_type[2])),
        where,
        fields,
    )


def _dgl_fields(data: Any, renamed: dict[str, str], where: str) -> dict[str, Array]:
    """All data but DGL's own bookkeeping (`_ID`, `_TYPE`); a name that is already used is kept unchanged."""
    fields = {}
    for key in data:
        if not key.startswith("_"):
            name = renamed.get(key, key)
            fields[key if name in data else name] = to_array(data[key], f"{where}, {key!r}")
    return fields


def _type(name: str) -> str:
    return _TYPE_NAMES.get(name, name)


# NetworkX graphs, directed or not, with parallel edges or without.

_INT64 = np.iinfo(np.int64)


def from_networkx(graph: Any) -> Graph:
    """A graph from any NetworkX graph; an undirected edge becomes two, a self loop stays one.

    Node names become ids. Numeric attributes that all nodes (or edges) have, as a number or as lists of one
    length, become fields: integers int64, floats float32. The names of the others are kept in
    `graph.origin["dropped"]`.
    """
    names = list(graph.nodes)
    number = {name: row for row, name in enumerate(names)}
    dropped: list[str] = []
    fields = _networkx_fields([attributes for _, attributes in graph.nodes(data=True)], "node", dropped)
    splits = take_masks(fields)
    nodes = NodeSet(len(names), fields, splits, _ids(names))
    sources, destinations, attributes = _networkx_edges(graph, number)
    edges = edge_set(
        sources,
        destinations,
        len(names),
        len(names),
        "The NetworkX graph",
        _networkx_fields(attributes, "edge", dropped),
    )
    origin = {"from": "NetworkX", **({"dropped": dropped} if dropped else {})}
    return Graph({"node": nodes}, {("node", "to", "node"): edges}, str(graph.name) or "networkx", origin=origin)


def _networkx_edges(graph: Any, number: dict[Any, int]) -> tuple[Array, Array, list[dict[str, Any]]]:
    both_ways = not graph.is_directed()
    sources, destinations, attributes = [], [], []
    for source, destination, values in graph.edges(data=True):
        ends = number[source], number[destination]
        for a, b in [ends, ends[::-1]] if both_ways and ends[0] != ends[1] else [ends]:
            sources.append(a)
            destinations.append(b)
            attributes.append(values)
    return np.array(sources, np.int64), np.array(destinations, np.int64), attributes


def _ids(names: Sequence[Any]) -> Ids | None:
    """None for 0..n-1 in order, integers for integers, else strings."""
    if all(isinstance(name, Integral) and not isinstance(name, bool) for name in names):
        numbers = [int(name) for name in names]
        if numbers == list(range(len(names))):
            return None
        if all(_INT64.min <= number <= _INT64.max for number in numbers):
            return np.array(numbers, np.int64)
    strings = [str(name) for name in names]
    if len(set(strings)) < len(strings):
        twice = next(text for row, text in enumerate(strings) if text in strings[:row])
        raise PenstockError(
            f"Two nodes of the NetworkX graph are both written {twice!r}: relabel one of them.", code="duplicate"
        )
    return string_ids(strings, "The NetworkX graph")


def _networkx_fields(rows: Sequence[dict[str, Any]], level: str, dropped: list[str]) -> dict[str, Array]:
    fields = {}
    for key in dict.fromkeys(key for attributes in rows for key in attributes):
        values = _array(attributes.get(key) for attributes in rows)
        if values is None:
            dropped.append(f"{level} {key}")
        else:
            fields[str(key)] = values
    return fields


def _array(values: Iterable[Any]) -> Array | None:
    """Numbers or equally long lists of numbers as an array; None for anything else."""
    found = list(values)
    if any(value is None or isinstance(value, (str, bytes)) for value in found):
        return None
    try:
        array = np.array(found)
    except (ValueError, TypeError):
        return None
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        return None
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind == "u" and array.size and array.max() > _INT64.max:
        return None
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int64, copy=False)


# SciPy's sparse matrices and arrays: A[i, j] is the edge i -> j.


def from_scipy(matrix: Any, x: Array | None = None, y: Array | None = None, name: str = "scipy") -> Graph:
    """A graph from an adjacency matrix, with features and labels if given.

    Every stored entry is an edge, zeros too; entries of one place are summed, as SciPy does. Values that are
    not all 1 become the edge field `weight` (float32). A matrix that is not square joins node type `row` to
    `column`.
    """
    if len(matrix.shape) != 2:
        raise PenstockError(
            f"A sparse array of shape {matrix.shape} is not an adjacency matrix: give one with two dimensions.",
            code="shape-mismatch",
        )
    if matrix.dtype.kind not in "biuf":
        raise PenstockError(
            f"The matrix holds {matrix.dtype}, which cannot be edge weights: convert it to float32.", code="wrong-type"
        )
    rows, columns = matrix.shape
    edges = _lists(matrix)
    given = {key: values for key, values in (("x", x), ("y", y)) if values is not None}
    if rows == columns:
        nodes = {"node": NodeSet(rows, given)}
        return Graph(nodes, {("node", "to", "node"): edges}, name, origin={"from": "SciPy"})
    if given:
        raise PenstockError(
            f"A {rows:,} x {columns:,} matrix has two node types, so {' and '.join(given)} cannot be placed:"
            ' set graph.nodes["row"].fields or graph.nodes["column"].fields.',
            code="unsupported-combination",
        )
    nodes = {"row": NodeSet(rows), "column": NodeSet(columns)}
    return Graph(nodes, {("row", "to", "column"): edges}, name, origin={"from": "SciPy"})


def _lists(matrix: Any) -> EdgeSet:
    """The columns of A are the in-neighbour lists, so SciPy's own conversion does the sorting."""
    if hasattr(matrix, "check_format"):
        try:
            matrix.check_format(full_check=True)
        except ValueError as error:
            raise PenstockError(f"The matrix is not valid ({error}): build it again.", code="invalid-value") from None
    compressed = matrix.tocsc()
    if not compressed.has_canonical_format:
        # The matrix may be the caller's own, so a copy is sorted and summed.
        compressed = compressed.copy()
        compressed.sum_duplicates()
    fields = {}
    if not np.all(compressed.data == 1):
        fields["weight"] = compressed.data.astype(np.float32, copy=False)
    indices = compressed.indices.astype(index_dtype(matrix.shape[0]), copy=False)
    return EdgeSet(compressed.indptr.astype(np.int64, copy=False), indices, fields)
