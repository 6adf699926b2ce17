"""An explanation as people and programs read it: edges and columns by their masks, largest first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.explain.explainer import ExplainedOutput, Neighbourhood
from penstock.graph.schema import EdgeType

WEAK = 0.5
"""The probability of a class below which the others together are more likely."""


class ExplainedEdge(NamedTuple):
    """An edge of the neighbourhood. Ends are the user's ids; `hop` is 1 for edges into the vertex itself."""

    mask: float
    source: int | str
    destination: int | str
    hop: int
    relation: str
    source_type: str
    destination_type: str


class ExplainedColumn(NamedTuple):
    """A column of a node type's features, with its value at the explained vertex where that is of the type."""

    mask: float
    column: int
    node_type: str
    value: float | None


class ExplainedEdgeColumn(NamedTuple):
    """A column of the edge features of a relation; `column` counts within the field."""

    mask: float
    field: str
    column: int
    relation: str
    source_type: str
    destination_type: str


@dataclass(frozen=True)
class Explanation:
    """The explanation of the prediction for one vertex.

    `score` is the probability of the predicted class, the mean probability of the decisions about all labels, or the
    predicted number; `masked_score` is the same with messages and columns multiplied by their masks, and `rest_score`
    with them multiplied by 1 minus the masks.
    """

    vertex: int | str
    node_type: str
    prediction: Any
    score: float
    masked_score: float
    rest_score: float
    edges: list[ExplainedEdge]
    columns: list[ExplainedColumn]
    edge_columns: list[ExplainedEdgeColumn]
    hops: int
    vertices: int
    """Vertices of the exact neighbourhood, and its edges, of which `edges` are those within `hops`."""
    neighbourhood_edges: int
    losses: list[float]
    notes: list[str]
    label: Any = None
    """The vertex's own label, written as the prediction is; None where it has none."""
    outputs: int = 0
    """How many classes or labels the model tells apart; 0 where it predicts a number."""

    @property
    def is_right(self) -> bool | None:
        """Whether the predicted class or labels are the vertex's own; None where that is not known, and for numbers."""
        known = self.label is not None and not isinstance(self.prediction, float)
        return self.prediction == self.label if known else None

    @property
    def is_weak(self) -> bool:
        """Whether the predicted class has less than half of the probability."""
        return self.outputs > 2 and not isinstance(self.prediction, list) and self.score < WEAK

    def fields(self) -> dict[str, Any]:
        """The explanation under the names of the JSON interface."""
        return {
            "vertex": self.vertex,
            "type": self.node_type,
            "prediction": self.prediction,
            "label": self.label,
            "classes": self.outputs,
            "score": self.score,
            "masked_score": self.masked_score,
            "rest_score": self.rest_score,
            "hops": self.hops,
            "neighbourhood": {"vertices": self.vertices, "edges": self.neighbourhood_edges},
            "steps": len(self.losses),
            "loss": self.losses[-1],
            "edges": [edge._asdict() for edge in self.edges],
            "columns": [column._asdict() for column in self.columns],
            "edge_columns": [column._asdict() for column in self.edge_columns],
            "notes": self.notes,
        }


def ordered_edges(
    neighbourhood: Neighbourhood, found: ExplainedOutput, ids: dict[str, list[int | str]]
) -> list[ExplainedEdge]:
    """The edges that were masked, largest first; `ids` are the users' ids of the batch's vertices by type."""
    edges, first = list[ExplainedEdge](), 0
    for relation in neighbourhood.relations:
        source_type, name, target_type = relation.kind
        masks = found.edges[first : first + len(relation.sources)]
        first += len(masks)
        for place in np.flatnonzero(~np.isnan(masks)):
            ends = ids[source_type][relation.sources[place]], ids[target_type][relation.destinations[place]]
            edges.append(
                ExplainedEdge(float(masks[place]), *ends, int(relation.hops[place]), name, source_type, target_type)
            )
    # Sorting keeps the order of equal ones: nearer relations and lists first.
    return sorted(edges, key=lambda edge: (-edge.mask, edge.hop))


def ordered_columns(found: ExplainedOutput, values: dict[str, Any]) -> list[ExplainedColumn]:
    """All masked columns, largest first; `values` are the explained vertex's own by its type."""
    columns = [
        ExplainedColumn(float(mask), place, name, float(values[name][place]) if name in values else None)
        for name, masks in found.columns.items()
        for place, mask in enumerate(masks)
    ]
    return sorted(columns, key=lambda column: -column.mask)


def ordered_edge_columns(
    found: ExplainedOutput, named: Mapping[EdgeType, Sequence[tuple[str, int]]]
) -> list[ExplainedEdgeColumn]:
    """All masked columns of edges, largest first; `named` has, by relation, each column's field and place in it."""
    columns = [
        ExplainedEdgeColumn(float(mask), *name, relation, source, destination)
        for (source, relation, destination), masks in found.edge_columns.items()
        for mask, name in zip(masks, named[source, relation, destination], strict=True)
    ]
    return sorted(columns, key=lambda column: -column.mask)
