"""PyG's `Data` and `HeteroData` as graphs; `graph.pyg_export` is the way back."""

from typing import Any

from penstock.errors import PenstockError
from penstock.graph.convert.pyg_stores import StoreReader
from penstock.graph.graph import Graph


def from_pyg(data: Any, split: int = 0) -> Graph:
    """A graph from a PyG `Data` (types `node` and `node__to__node`) or `HeteroData` (its own types).

    Tensors with a row per vertex or edge become fields of the same name, masks become splits (column `split`
    of masks that hold several), `n_id` the ids. Attributes of the whole graph and `edge_label*` have no place
    in a graph: their names are kept in `graph.origin["dropped"]`.
    """
    from torch_geometric.data import Data, HeteroData

    reader = StoreReader(split)
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
