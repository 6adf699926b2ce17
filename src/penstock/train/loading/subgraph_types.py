"""Which edges a batch has between its vertices: those that were drawn, their reverses too, or all that there are.

PyG calls this `subgraph_type`: directional, bidirectional or induced.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.pipeline.loader import Batch
from penstock.sampling.block import Block, TypedBlock, by_relation, merge_edges, merge_values
from penstock.sampling.device.block import host_block
from penstock.sampling.induced import induce_between

SubgraphType = Literal["directional", "bidirectional", "induced"]


class EdgeList(NamedTuple):
    """Pairs [2, edges] of rows, and the edges' positions in the graph's lists; None where some have none."""

    pairs: Array
    positions: Array | None


def drawn_edges(batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """The edges that were drawn, by the relations that have any; a vertex's list once."""
    blocks: list[Any] = batch.blocks
    if isinstance(blocks[0], TypedBlock):
        parts = by_relation(blocks)
    else:
        parts = {edge_types[0]: (blocks, None)}  # type: ignore[dict-item]
    found = {}
    for kind, (several, known) in parts.items():
        hosts: list[Block] = [host_block(block) for block in several]
        found[kind] = EdgeList(merge_edges(hosts, known), merge_values(hosts, "edges", known))
    return found


def bidirectional_edges(batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """Every edge that was drawn and its reverse, each once, ascending by destination and then by source.

    In a graph of one relation a reverse has the number of the edge that it turns round, unless it was drawn itself. In
    one of several it has none, and then no edge of the relation has.
    """
    drawn = drawn_edges(batch, edge_types)
    if len(edge_types) == 1:
        ((kind, edges),) = drawn.items()
        both = _joined(edges.pairs, edges.pairs)
        positions = None if edges.positions is None else np.concatenate([edges.positions, edges.positions])
        pairs, first = _once(both)
        return {kind: EdgeList(pairs, None if positions is None else positions[first])}
    nothing = EdgeList(np.empty((2, 0), np.int64), None)
    found = {}
    for kind in edge_types:
        turned = drawn.get(reverse_type(kind, edge_types), nothing).pairs
        pairs, _ = _once(_joined(drawn.get(kind, nothing).pairs, turned))
        found[kind] = EdgeList(pairs, None)
    return found


def reverse_type(kind: EdgeType, edge_types: list[EdgeType]) -> EdgeType:
    """The relation that turns one round: the one that PyG's `ToUndirected` adds, itself, or the only one there is."""
    source, relation, destination = kind
    forward = relation.removeprefix("rev_").removeprefix("rev-")
    named = [(destination, f"rev_{relation}", source), (destination, f"rev-{relation}", source)]
    if forward != relation:
        named = [(destination, forward, source)]
    for other in named:
        if other in edge_types:
            return other
    if source == destination:
        return kind
    turned = [other for other in edge_types if (other[0], other[2]) == (destination, source)]
    if len(turned) != 1:
        raise PenstockError(
            f"subgraph_type bidirectional needs a reverse of {edge_key(kind)}, and the graph has {len(turned)}"
            f" relations from {destination} to {source}: add rev_{relation} with PyG's ToUndirected, or use induced.",
            code="unsupported-combination",
        )
    return turned[0]


def induced_edges(graph: Graph, batch: Batch, edge_types: list[EdgeType]) -> dict[EdgeType, EdgeList]:
    """All edges between the batch's vertices, but those whose existence it is asked for."""
    rows = {name: _on_host(ids) for name, ids in batch.vertices.items()}
    left_out: Mapping[EdgeType, Array] = {}
    if batch.links is not None:
        exclude = batch.links.exclude
        left_out = exclude if isinstance(exclude, dict) else {edge_types[0]: exclude}
    found = {}
    for kind in edge_types:
        sources, targets = rows[kind[0]], rows[kind[2]]
        edges = graph.edges[kind]
        pairs, positions = induce_between(edges.indptr, edges.indices, graph.nodes[kind[0]].count, sources, targets)
        if kind in left_out and left_out[kind].size:
            count = graph.nodes[kind[0]].count
            keys = targets[pairs[1]].astype(np.int64) * count + sources[pairs[0]]
            kept = ~np.isin(keys, left_out[kind][1].astype(np.int64) * count + left_out[kind][0])
            pairs, positions = pairs[:, kept], positions[kept]
        found[kind] = EdgeList(pairs, positions)
    return found


def _joined(pairs: Array, turned: Array) -> Array:
    return np.concatenate([pairs, turned[::-1]], axis=1)


def _once(pairs: Array) -> tuple[Array, Array]:
    """Different pairs, ascending by the second row and then by the first; and where each comes first."""
    width = 1 + int(pairs[0].max()) if pairs.size else 1
    _, first = np.unique(pairs[1] * width + pairs[0], return_index=True)
    return np.ascontiguousarray(pairs[:, first]), first


def _on_host(ids: Any) -> Array:
    return ids if isinstance(ids, np.ndarray) else ids.cpu().numpy()
