"""A graph as users hold it: its contents, opened from a folder, saved to one, or handed to PyG."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import mapped_file, to_tensor
from penstock.graph.data import EdgeSet, GraphData, NodeSet, mask_name, mask_of
from penstock.graph.folder import read_graph, write_graph
from penstock.graph.ids import StringIds
from penstock.graph.schema import DOCUMENT


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
