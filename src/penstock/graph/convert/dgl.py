"""DGL's `DGLGraph`, of one type or many."""

from typing import Any

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import edge_set
from penstock.graph.data import EdgeSet, NodeSet
from penstock.graph.graph import Graph
from penstock.graph.splits import take_masks
from penstock.graph.tensors import to_array

# DGL's names for the types of a graph that has no types.
_TYPE_NAMES = {"_N": "node", "_E": "to"}
_NODE_FIELDS = {"feat": "x", "label": "y"}
_EDGE_FIELDS = {"feat": "edge_attr"}
# The original numbers of the vertices of a subgraph.
_IDS = "_ID"


def from_dgl(graph: Any, split: int = 0) -> Graph:
    """A graph from a `DGLGraph`: `feat` becomes `x` (`edge_attr` on edges), `label` becomes `y`, masks become
    splits.

    Nothing of DGL is imported: the object answers for itself.
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
        (_type(source), _type(relation), _type(destination)): _edges(graph, (source, relation, destination))
        for source, relation, destination in graph.canonical_etypes
    }
    return Graph(nodes, edges, "dgl", origin={"from": "DGL"})


def _nodes(graph: Any, name: str, split: int) -> NodeSet:
    data = graph.nodes[name].data
    fields = _fields(data, _NODE_FIELDS, f"DGL node type {name!r}")
    ids = to_array(data[_IDS], "The ids") if _IDS in data else None
    splits = take_masks(fields, split)
    return NodeSet(int(graph.num_nodes(name)), fields, splits, ids)


def _edges(graph: Any, edge_type: tuple[str, str, str]) -> EdgeSet:
    where = f"DGL edge type {edge_type!r}"
    sources, destinations = graph.edges(form="uv", order="eid", etype=edge_type)
    fields = _fields(graph.edges[edge_type].data, _EDGE_FIELDS, where)
    return edge_set(
        to_array(sources, where),
        to_array(destinations, where),
        int(graph.num_nodes(edge_type[0])),
        int(graph.num_nodes(edge_type[2])),
        where,
        fields,
    )


def _fields(data: Any, renamed: dict[str, str], where: str) -> dict[str, Array]:
    """All data but DGL's own bookkeeping (`_ID`, `_TYPE`); a name that is taken already is left as it is."""
    fields = {}
    for key in data:
        if not key.startswith("_"):
            name = renamed.get(key, key)
            fields[key if name in data else name] = to_array(data[key], f"{where}, {key!r}")
    return fields


def _type(name: str) -> str:
    return _TYPE_NAMES.get(name, name)
