"""The edges of OGB's link sets: the training edges as lists, the others held out with their edge type."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import Triples, pair_array, relation_sets
from penstock.graph.convert.ogb.raw import EDGE_TYPE, NODE_TYPE, RawGraph
from penstock.graph.convert.ogb.splits import Links
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType, edge_key
from penstock.graph.tensors import to_array

HeldOut = dict[EdgeType, dict[str, Array]]

# The field that numbers the relation of an edge in knowledge graphs.
_RELATION = "edge_reltype"


def is_knowledge_graph(raw: RawGraph, links: Mapping[str, Links]) -> bool:
    """Whether there is one edge type whose edges have relation numbers, as in ogbl-wikikg2."""
    triples = any("relation" in arrays for arrays in links.values())
    return triples and EDGE_TYPE in raw.edges and _RELATION in raw.edges[EDGE_TYPE].fields


def knowledge_edges(raw: RawGraph, links: Mapping[str, Links], folder: Path) -> dict[EdgeType, EdgeSet]:
    """One edge type per relation. The given negatives are left out, see `held_out_pairs`."""
    stored = raw.edges[EDGE_TYPE]
    held_out = {name: _triples(arrays, f"{folder}, {name}") for name, arrays in links.items()}
    numbers = [stored.fields[_RELATION], *(triples[1] for triples in held_out.values())]
    num_relations = 1 + max((int(each.max()) for each in numbers if len(each)), default=-1)
    train = (stored.sources, stored.fields[_RELATION], stored.destinations)
    return relation_sets(NODE_TYPE, raw.counts[NODE_TYPE], num_relations, train, held_out)


def held_out_pairs(raw: RawGraph, links: Mapping[str, Links], folder: Path) -> HeldOut:
    """Positives as `val` and `test`, given negatives as `val_negative` and `test_negative`, by edge type.

    The negatives of knowledge graphs are left out: hundreds for each triple, drawn at random, they would
    outweigh the graph.
    """
    held_out: HeldOut = {edge_type: {} for edge_type in raw.edges}
    for name, arrays in links.items():
        where = f"{folder}, {name}"
        if "relation" in arrays:
            for edge_type, pairs in _by_edge_type(raw, _triples(arrays, where), where).items():
                held_out[edge_type][name] = pairs
            continue
        if len(raw.edges) != 1:
            raise PenstockError(
                f"{where} does not say which edge type its edges are of: this layout is not known.", code="wrong-file"
            )
        (edge_type,) = raw.edges
        ends = raw.counts[edge_type[0]], raw.counts[edge_type[2]]
        for key, (sources, destinations) in _pairs(arrays, where).items():
            held_out[edge_type][f"{name}{key}"] = pair_array(sources, destinations, *ends, where)
    return held_out


def _pairs(arrays: Links, where: str) -> dict[str, tuple[Array, Array]]:
    """Ends of the positives (under "") and of the negatives."""
    if "edge" in arrays:
        keys = {"": "edge", "_negative": "edge_neg"}
        return {suffix: _columns(_array(arrays, key, where), where) for suffix, key in keys.items() if key in arrays}
    if "source_node" not in arrays:
        has = ", ".join(arrays)
        raise PenstockError(
            f"{where} has {has} where edge, source_node or head is needed: this layout is not known.", code="wrong-file"
        )
    sources = _array(arrays, "source_node", where)
    found = {"": (sources, _array(arrays, "target_node", where))}
    if "target_node_neg" in arrays:
        negatives = _array(arrays, "target_node_neg", where).reshape(len(sources), -1)
        found["_negative"] = (np.repeat(sources, negatives.shape[1]), negatives.reshape(-1))
    return found


def _by_edge_type(raw: RawGraph, triples: Triples, where: str) -> dict[EdgeType, Array]:
    """Pairs of each edge type; its training edges tell which relation number it has."""
    heads, relations, tails = triples
    found, placed = {}, 0
    for edge_type, edges in raw.edges.items():
        numbers = edges.fields.get(_RELATION)
        if numbers is None or len(numbers) == 0:
            raise PenstockError(
                f"{where} has triples, but {edge_key(edge_type)} has no {_RELATION}: download it again.",
                code="damaged-file",
            )
        rows = relations == numbers[0]
        ends = raw.counts[edge_type[0]], raw.counts[edge_type[2]]
        found[edge_type] = pair_array(heads[rows], tails[rows], *ends, where)
        placed += len(found[edge_type])
    if placed != len(relations):
        raise PenstockError(
            f"{where} has {len(relations) - placed:,} triples of relations that the graph does not have.",
            code="damaged-file",
        )
    return found


def _triples(arrays: Links, where: str) -> Triples:
    return tuple(_array(arrays, key, where) for key in ("head", "relation", "tail"))


def _columns(pairs: Array, where: str) -> tuple[Array, Array]:
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise PenstockError(
            f"{where} has edges of shape {pairs.shape} where [m, 2] is needed: download the set again.",
            code="damaged-file",
        )
    return pairs[:, 0], pairs[:, 1]


def _array(arrays: Links, key: str, where: str) -> Array:
    if key not in arrays:
        raise PenstockError(f"{where} has no {key!r}: download the set again.", code="damaged-file")
    return to_array(arrays[key], f"{where}, {key!r}")
