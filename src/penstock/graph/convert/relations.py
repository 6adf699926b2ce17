"""Triples (head, relation number, tail) as one edge type per relation, named `r<number>`."""

from collections.abc import Mapping

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.convert.edges import edge_set, pair_array
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType

Triples = tuple[Array, ...]
"""Heads, relations, tails."""
_UNQUESTIONED = 10_000
"""Relations that may be more than there are triples: each becomes an edge type, with offsets for every vertex."""


def relation_sets(
    node_type: str, count: int, num_relations: int, train: Triples, held_out: Mapping[str, Triples]
) -> dict[EdgeType, EdgeSet]:
    """Edges of every relation, those without any included; held-out pairs lie with their relation."""
    triples = len(train[1]) + sum(len(each[1]) for each in held_out.values())
    if num_relations > max(_UNQUESTIONED, triples):
        raise PenstockError(
            f"There are {num_relations:,} relations for {triples:,} triples: check num_relations, and number relations"
            " from 0 without gaps.",
            code="value-out-of-range",
        )
    apart = {name: _by_relation(triples, num_relations, name) for name, triples in held_out.items()}
    edges = {}
    for number, (heads, tails) in enumerate(_by_relation(train, num_relations, "The edges")):
        where = f"Relation {number}"
        pairs = {name: pair_array(*groups[number], count, count, where) for name, groups in apart.items()}
        edges[node_type, f"r{number}", node_type] = edge_set(heads, tails, count, count, where, held_out=pairs)
    return edges


def _by_relation(triples: Triples, num_relations: int, where: str) -> list[tuple[Array, Array]]:
    heads, relations, tails = triples
    if relations.ndim != 1 or not heads.shape == relations.shape == tails.shape:
        raise PenstockError(
            f"{where} have heads, relations and tails of shapes {heads.shape}, {relations.shape} and {tails.shape}:"
            " give one of each for every triple.",
            code="shape-mismatch",
        )
    if len(relations) and relations.dtype.kind not in "iu":
        raise PenstockError(
            f"{where}: relation numbers are {relations.dtype}, not integers: convert them.", code="wrong-type"
        )
    if len(relations) and not 0 <= int(relations.min()) <= int(relations.max()) < num_relations:
        raise PenstockError(
            f"{where}: relation numbers run outside 0 to {num_relations - 1}: check num_relations.",
            code="id-out-of-range",
        )
    relations = relations.astype(np.int64, copy=False)
    order = np.argsort(relations, kind="stable")
    ends = np.cumsum(np.bincount(relations, minlength=num_relations))[:-1]
    return list(zip(np.split(heads[order], ends), np.split(tails[order], ends), strict=True))
