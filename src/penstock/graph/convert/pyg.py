"""PyG's `Data` and `HeteroData` as graphs; `graph.graph.to_pyg` is the way back.

PyG's stores hold the values of a node type, an edge type or a whole `Data`; `StoreReader` reads them as fields.
"""

from typing import Any

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, to_array
from penstock.graph.convert.edges import edge_set, pair_array
from penstock.graph.data import EdgeSet, NodeSet, take_masks
from penstock.graph.folder import HELD_OUT, Graph
from penstock.graph.ids import Ids, array_ids, string_ids
from penstock.graph.schema import EdgeType


def from_pyg(data: Any, split: int = 0, number_edges: bool = False) -> Graph:
    """A graph from a PyG `Data` (types `node` and `node__to__node`) or `HeteroData` (its own types).

    Tensors with a row per vertex or edge become fields of the same name, masks become splits (column `split` of masks
    that hold several), `n_id` the ids. Attributes of the whole graph and `edge_label*` have no place in a graph: their
    names are kept in `graph.origin["dropped"]`. With `number_edges`, edges without a field `e_id` get one: their
    positions in `edge_index`, which a graph's lists do not keep.
    """
    from torch_geometric.data import Data, HeteroData

    reader = StoreReader(split, number_edges)
    if isinstance(data, HeteroData):
        nodes = {str(store._key): reader.nodes(store, str(store._key)) for store in data.node_stores}
        edges = {tuple(store._key): reader.edges(store, tuple(store._key), nodes) for store in data.edge_stores}
        reader.dropped += list(data._global_store.keys())
    elif isinstance(data, Data):
        nodes, edges = reader.homogeneous(data._store)
    else:
        raise PenstockError(
            f"A PyG {type(data).__name__} is not a graph: give a Data or a HeteroData.", code="wrong-type"
        )
    dropped = {"dropped": reader.dropped} if reader.dropped else {}
    return Graph(nodes, edges, "pyg", origin={"from": "PyG", **dropped})


NODE_TYPE = "node"
EDGE_TYPE = (NODE_TYPE, "to", NODE_TYPE)

# Values that give the number of vertices when `num_nodes` is not set, most reliable first.
_SIZED = ("x", "feat", "pos", "node_type", "n_id", "batch", "train_mask", "val_mask", "test_mask", "y")

# These values change the graph's meaning, so a wrong length is an error.
_NEVER_DROPPED = {"x", "train_mask", "val_mask", "test_mask", "edge_attr", "edge_weight"}


class StoreReader:
    """Reads PyG's stores and records what it had to leave out."""

    def __init__(self, split: int, number_edges: bool = False) -> None:
        self.split, self.number_edges, self.dropped = split, number_edges, list[str]()

    def homogeneous(self, store: Any) -> tuple[dict[str, NodeSet], dict[EdgeType, EdgeSet]]:
        """Vertex and edge values are in one store and are distinguished by their length, as in PyG."""
        edge_index = _edge_index(store, "data")
        top = int(edge_index.max()) if edge_index.size else -1
        known = _num_nodes(store, top)
        count = top + 1 if known is None else known
        node_values, edge_values = {}, {}
        for key, value in _values(store):
            rows = _rows(key, value)
            if rows == count and (count != edge_index.shape[1] or "edge" not in key):
                node_values[key] = value
            else:
                edge_values[key] = value
        nodes = self._node_set(node_values, count, "data")
        edges = self._edge_set(edge_index, edge_values, nodes, nodes, "data")
        return {NODE_TYPE: nodes}, {EDGE_TYPE: edges}

    def nodes(self, store: Any, name: str) -> NodeSet:
        """The vertices of one type of a `HeteroData`."""
        count = _num_nodes(store, -1)
        if count is None:
            raise PenstockError(
                f"PyG node type {name!r} does not say how many vertices it has: set data[{name!r}].num_nodes.",
                code="missing-data",
            )
        return self._node_set(dict(_values(store)), count, f"data[{name!r}]")

    def edges(self, store: Any, edge_type: EdgeType, nodes: dict[str, NodeSet]) -> EdgeSet:
        """The edges of one type of a `HeteroData`."""
        where = f"data[{edge_type!r}]"
        for end in (edge_type[0], edge_type[2]):
            if end not in nodes:
                raise PenstockError(
                    f"{where} names node type {end!r}, which has no data: set data[{end!r}].num_nodes.",
                    code="missing-data",
                )
        source, destination = nodes[edge_type[0]], nodes[edge_type[2]]
        return self._edge_set(_edge_index(store, where), dict(_values(store)), source, destination, where)

    def _node_set(self, values: dict[str, Any], count: int, where: str) -> NodeSet:
        ids = _ids(values.pop("n_id", None), count, f"{where}.n_id")
        fields = self._fields(values, count, where, f"{count:,} vertices")
        splits = take_masks(fields, self.split)
        return NodeSet(count, fields, splits, ids)

    def _edge_set(
        self, edge_index: Array, values: dict[str, Any], source: NodeSet, destination: NodeSet, where: str
    ) -> EdgeSet:
        held_out = {}
        for key in [key for key in values if key.startswith(HELD_OUT) and key.endswith("_index")]:
            pairs = to_array(values.pop(key), f"{where}.{key}")
            name = key.removeprefix(HELD_OUT).removesuffix("_index")
            held_out[name] = pair_array(pairs[0], pairs[1], source.count, destination.count, f"{where}.{key}")
        # A `Data` has the values of vertices and edges in one store; those with the length of neither get here.
        edges = f"{edge_index.shape[1]:,} edges"
        there_are = f"{source.count:,} vertices and {edges}" if where == "data" else edges
        fields = self._fields(values, edge_index.shape[1], where, there_are)
        if self.number_edges:
            fields.setdefault("e_id", np.arange(edge_index.shape[1]))
        label = f"{where}.edge_index"
        return edge_set(edge_index[0], edge_index[1], source.count, destination.count, label, fields, held_out)

    def _fields(self, values: dict[str, Any], count: int, where: str, there_are: str) -> dict[str, Array]:
        fields = {}
        for key, value in values.items():
            rows = _rows(key, value)
            if rows == count:
                fields[key] = to_array(value, f"{where}.{key}")
            elif key in _NEVER_DROPPED:
                raise PenstockError(
                    f"{where}.{key} has {rows or 0:,} rows where there are {there_are}: give it as many rows.",
                    code="shape-mismatch",
                )
            else:
                self.dropped.append(key if where == "data" else f"{where}.{key}")
        return fields


def _values(store: Any) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in store.items() if key not in ("edge_index", "num_nodes")]


def _rows(key: str, value: Any) -> int | None:
    """The number of rows of a value that may be a field; None for one that may not, such as `edge_label_index`."""
    if ("index" in key and getattr(value, "ndim", 0) != 1) or key.startswith("edge_label"):
        return None
    if isinstance(value, list):
        return len(value) if key == "n_id" else None
    if not hasattr(value, "dtype") or not getattr(value, "ndim", 0):
        return None
    return int(value.shape[0])


def _num_nodes(store: Any, top: int) -> int | None:
    """Stored or implied by a value. `y` may be the whole graph's, so it must reach the edges' `top`."""
    stored = store.get("num_nodes", None)
    if stored is not None:
        try:
            return int(stored)
        except (TypeError, ValueError, RuntimeError):
            raise PenstockError(
                "num_nodes of the PyG data is not one number: set it to the vertex count.", code="invalid-value"
            ) from None
    for key in _SIZED:
        rows = _rows(key, store[key]) if key in store else None
        if rows is not None and (key != "y" or rows > top):
            return rows
    return None


def _edge_index(store: Any, where: str) -> Array:
    if "edge_index" not in store:
        if "adj_t" in store or "adj" in store:
            raise PenstockError(
                f"{where} holds its edges as adj_t, not as edge_index: load it without ToSparseTensor.",
                code="wrong-type",
            )
        raise PenstockError(
            f"{where} has no edge_index: set one of shape [2, edges], empty if there are no edges.",
            code="field-missing",
        )
    edge_index = to_array(store["edge_index"], f"{where}.edge_index")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise PenstockError(
            f"{where}.edge_index has shape {edge_index.shape} where [2, edges] is needed: transpose it.",
            code="shape-mismatch",
        )
    return edge_index


def _ids(value: Any, count: int, where: str) -> Ids | None:
    if value is None:
        return None
    if isinstance(value, list):
        return string_ids([str(each) for each in value], where)
    numbers = to_array(value, where)
    return None if np.array_equal(numbers, np.arange(count)) else array_ids(numbers, where)
