"""Edges of any converter, checked, as in-neighbour lists.

Triples (head, relation number, tail) become one edge type for each relation, named `r<number>`.
"""

from collections.abc import Mapping

import numpy as np

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.csr import build_lists
from penstock.graph.data import EdgeSet
from penstock.graph.schema import EdgeType
from penstock.memory import require_memory

_VERTEX_BYTES = 16
"""Building lists takes two offsets for every vertex, whether it has edges or not."""


def edge_set(
    sources: Array,
    destinations: Array,
    num_sources: int,
    num_destinations: int,
    where: str,
    fields: Mapping[str, Array] | None = None,
    held_out: Mapping[str, Array] | None = None,
    inverse: bool = False,
) -> EdgeSet:
    """Lists from edges in any order; each field's rows follow their edges. `where` names the input in errors.

    With `inverse` every edge counts in both directions, with the same fields; a self loop counts twice, as in OGB.
    """
    _check_shapes(sources, destinations, where)
    vertices = num_sources + num_destinations
    require_memory(_VERTEX_BYTES * vertices, f"{where}: the lists of {vertices:,} vertices", "check the vertex count")
    sources = vertex_numbers(sources, num_sources, where)
    destinations = vertex_numbers(destinations, num_destinations, where)
    for key, values in (fields or {}).items():
        if len(values) != len(sources):
            raise PenstockError(
                f"{where}: field {key!r} has {len(values):,} rows for {len(sources):,} edges.", code="shape-mismatch"
            )
    given = len(sources)
    if inverse:
        sources, destinations = (
            np.concatenate([sources, destinations]),
            np.concatenate([destinations, sources]),
        )
    indptr, indices, order = build_lists(sources, destinations, num_sources, num_destinations, want_order=bool(fields))
    if order is not None and inverse:
        order %= max(given, 1)
    moved = {key: values[order] for key, values in (fields or {}).items()}
    return EdgeSet(indptr, indices, moved, dict(held_out or {}))


def pair_array(sources: Array, destinations: Array, num_sources: int, num_destinations: int, where: str) -> Array:
    """Held-out (source, destination) pairs as checked int64 [m, 2]."""
    _check_shapes(sources, destinations, where)
    ends = vertex_numbers(sources, num_sources, where), vertex_numbers(destinations, num_destinations, where)
    return np.stack(ends, axis=1).astype(np.int64, copy=False)


def _check_shapes(sources: Array, destinations: Array, where: str) -> None:
    if sources.ndim != 1 or sources.shape != destinations.shape:
        raise PenstockError(
            f"{where} has sources of shape {sources.shape} for destinations of shape {destinations.shape}:"
            " give one of each for every edge.",
            code="shape-mismatch",
        )


def vertex_numbers(values: Array, count: int, where: str) -> Array:
    """Contiguous int32 or int64 vertex numbers, all below `count`: the list kernels do not check bounds."""
    if values.dtype.kind not in "iu" and len(values):
        raise PenstockError(
            f"{where} holds {values.dtype} where vertex numbers must be integers: convert it.", code="wrong-type"
        )
    if len(values):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= count:
            raise PenstockError(
                f"{where} names vertex {low if low < 0 else high}, but only 0 to {count - 1} exist:"
                " check the vertex count or the edges.",
                code="id-out-of-range",
            )
    dtype = values.dtype if values.dtype in (np.int32, np.int64) else np.dtype(np.int64)
    return np.ascontiguousarray(values, dtype)


Triples = tuple[Array, ...]
"""Heads, relations, tails."""
_UNQUESTIONED = 10_000
"""Up to this many relations are accepted whatever the number of triples: each becomes an edge type, with offsets for
every vertex.
"""


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
