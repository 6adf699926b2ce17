"""What a user passes to `ps.loader`: a graph, and what a PyG object holds beside it, such as `edge_label_index`."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array, to_array
from penstock.graph.convert import load
from penstock.graph.convert.edges import pair_array
from penstock.graph.convert.pyg import EDGE_TYPE, NODE_TYPE, from_pyg
from penstock.graph.folder import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.neighbours import edge_type_named

Place = str | EdgeType | None
"""The owner of a value: a node type, an edge type, or the whole graph (None)."""


class EdgeExamples(NamedTuple):
    """Pairs [m, 2] of one relation that the user chose, edges or not, and a label for each."""

    edge_type: EdgeType
    pairs: Array
    labels: Array | None


class GivenGraph(NamedTuple):
    """A graph as the user passed it."""

    data: Any
    graph: Graph
    from_pyg: bool = False
    is_hetero: bool = False
    """Whether PyG would make batches `HeteroData`, even with one type of each."""
    examples: Mapping[EdgeType, EdgeExamples] = {}
    """The result of `RandomLinkSplit` by relation: `edge_label_index` and `edge_label`."""
    attributes: Mapping[Place, Mapping[str, Any]] = {}
    """Values that belong to neither vertices nor edges; PyG copies them to every batch."""


def given_graph(data: Any) -> GivenGraph:
    """Anything `ps.load` recognises. The edges of a PyG object have a field `e_id`, their places in `edge_index`."""
    if isinstance(data, Graph):
        return GivenGraph(data, data)
    if not _is_pyg(data):
        graph = load(data)
        return GivenGraph(graph, graph)
    graph = from_pyg(data, number_edges=True)
    hetero = _is_hetero(data)
    stores: dict[Place, Any] = {None: data._global_store if hetero else data._store}
    if hetero:
        stores |= {store._key: store for store in (*data.node_stores, *data.edge_stores)}
    examples = {}
    for place, store in stores.items():
        kind = place if isinstance(place, tuple) else EDGE_TYPE
        if store.get("edge_label_index", None) is not None:
            examples[kind] = _examples(graph, kind, store["edge_label_index"], store.get("edge_label", None))
    known = {place: _known(graph, place, hetero) for place in stores}
    attributes = {
        place: {key: value for key, value in store.items() if key not in known[place] and not _is_sampled(key, value)}
        for place, store in stores.items()
    }
    return GivenGraph(data, graph, True, hetero, examples, attributes)


def chosen_examples(given: GivenGraph, index: Any, labels: Any, named: str | None) -> EdgeExamples | EdgeType | None:
    """What the arguments `edge_label_index` and `edge_label` mean: pairs, or all edges of a type; None without them."""
    graph, kind = given.graph, None
    if index is None:
        if labels is not None:
            raise PenstockError(
                "edge_label was given without edge_label_index, whose pairs it labels: give both.",
                code="option-missing",
            )
        return None
    if isinstance(index, list | tuple) and len(index) == 3 and all(isinstance(part, str) for part in index):
        return edge_type_named(graph, _edge_type(index))
    if isinstance(index, list | tuple) and len(index) == 2 and _names_a_type(index[0]):
        kind = edge_type_named(graph, index[0] if isinstance(index[0], str) else _edge_type(index[0]))
        if index[1] is None:
            return kind
        index = index[1]
    if kind is None:
        kind = edge_type_named(graph, named) if named is not None else _only_relation(graph)
    return _examples(graph, kind, index, labels)


def _examples(graph: Graph, kind: EdgeType, index: Any, labels: Any) -> EdgeExamples:
    where = f"edge_label_index of {edge_key(kind)}"
    pairs = to_array(np.asarray(index) if isinstance(index, list | tuple) else index, where)
    if pairs.ndim != 2 or len(pairs) != 2:
        raise PenstockError(
            f"{where} has shape {pairs.shape}: give sources above destinations, [2, pairs].", code="shape-mismatch"
        )
    counts = graph.nodes[kind[0]].count, graph.nodes[kind[2]].count
    checked = pair_array(pairs[0], pairs[1], *counts, where)
    if labels is None:
        return EdgeExamples(kind, checked, None)
    values = to_array(labels, f"edge_label of {edge_key(kind)}")
    if values.ndim == 0 or len(values) != len(checked):
        raise PenstockError(
            f"edge_label of {edge_key(kind)} has shape {values.shape} for {len(checked):,} pairs: give one for each.",
            code="shape-mismatch",
        )
    return EdgeExamples(kind, checked, values)


def _only_relation(graph: Graph) -> EdgeType:
    if len(graph.edges) != 1:
        raise PenstockError(
            "The graph has several relations: give edge_label_index as (edge type, pairs), or name target"
            f" ({', '.join(map(edge_key, graph.edges))}).",
            code="option-missing",
        )
    return graph.edge_types[0]


def _names_a_type(part: Any) -> bool:
    parts = [part] if isinstance(part, str) else list(part) if isinstance(part, list | tuple) else []
    return bool(parts) and all(isinstance(each, str) for each in parts)


def _edge_type(parts: Any) -> EdgeType:
    source, relation, destination = parts
    return source, relation, destination


def _is_pyg(data: Any) -> bool:
    return hasattr(data, "edge_attrs") and any(
        base.__module__.startswith("torch_geometric.") for base in type(data).__mro__
    )


def _is_hetero(data: Any) -> bool:
    return any(base.__name__ == "HeteroData" for base in type(data).__mro__)


def _is_sampled(key: str, value: Any) -> bool:
    """Whether a value must be sampled with the batch rather than copied: pairs to score, and other vertex numbers."""
    return key.startswith("edge_label") or ("index" in key and getattr(value, "ndim", 0) > 1)


def _known(graph: Graph, place: Place, hetero: bool) -> set[str]:
    """The names that a batch defines by itself."""
    known = {"edge_index", "num_nodes", "n_id", "e_id"}
    nodes = [graph.nodes[place]] if isinstance(place, str) else []
    edges = [graph.edges[place]] if isinstance(place, tuple) else []
    if place is None and not hetero:
        nodes, edges = [graph.nodes[NODE_TYPE]], [graph.edges[EDGE_TYPE]]
    for each in nodes:
        known |= {*each.fields, *(f"{split}_mask" for split in each.splits)}
    for lists in edges:
        known |= {*lists.fields, *(f"held_out_{name}_index" for name in lists.held_out)}
    return known
