"""Relations as users name them, and the fan-outs of hops by relation."""

from collections.abc import Iterable, Mapping, Sequence

from penstock.errors import PenstockError
from penstock.graph.graph import Graph
from penstock.graph.schema import EdgeType, edge_key
from penstock.sampling.neighbours import ALL

Relation = EdgeType | str
"""An edge type, or its key `source__relation__destination`."""
Fanout = int | Mapping[Relation, int] | Mapping[str, int]
"""A hop's fan-out: one number for all relations, or numbers by relation; those that are not named are not followed."""


def edge_type_named(graph: Graph, relation: Relation) -> EdgeType:
    """The edge type given by key or as a type."""
    return edge_type_among(list(graph.edges), relation)


def edge_type_among(edge_types: Sequence[EdgeType], relation: Relation) -> EdgeType:
    """The one of some edge types that is given by key or as a type."""
    for kind in edge_types:
        if relation in (kind, edge_key(kind)):
            return kind
    named = relation if isinstance(relation, str) else edge_key(relation)
    raise PenstockError(
        f"There is no relation {named!r}: the graph has {', '.join(map(edge_key, edge_types))}.", code="unknown-name"
    )


def fanouts_by_relation(edge_types: Iterable[EdgeType], fanouts: Sequence[Fanout]) -> list[dict[EdgeType, int]]:
    """Fan-outs of every hop by the relations that it follows."""
    edge_types = list(edge_types)
    if not fanouts:
        raise PenstockError("There are no fan-outs: give one for every hop.", code="option-missing")
    return [_by_relation(edge_types, fanout) for fanout in fanouts]


def _by_relation(edge_types: list[EdgeType], fanout: Fanout) -> dict[EdgeType, int]:
    """One hop's fan-outs of the relations that it follows."""
    if isinstance(fanout, Mapping):
        found = {edge_type_among(edge_types, relation): number for relation, number in fanout.items()}
    else:
        found = dict.fromkeys(edge_types, fanout)
    if any(number < ALL for number in found.values()) or not any(found.values()):
        raise PenstockError(
            f"The fan-out is {fanout}: give positive numbers, -1 for all neighbours, or 0 for relations that are not"
            " followed.",
            code="value-out-of-range",
        )
    return {kind: number for kind, number in found.items() if number}
