"""The masks of one prediction: the edges of its neighbourhood and the columns of features that it depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.explain.mask_optimiser import Mask, MaskOptions, Masks, decided_target_of, optimise_masks
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key
from penstock.nn.masked import MaskedBlock
from penstock.sampling.block import Block, MiniBatch

# The exact neighbourhood of one vertex as a batch, and the batch with a mask over its edges.


@dataclass(frozen=True, eq=False)
class RelationEdges:
    """The edges of one relation: rows of both ends in the batch, and how many hops from the vertex each edge is.

    An edge into the vertex itself is at hop 1.
    """

    kind: EdgeType
    sources: Array
    destinations: Array
    hops: Array


class Neighbourhood:
    """A batch with one seed and all neighbours, whose edges are masked alike in all layers.

    A layer's neighbour lists of a relation are the first of those of any layer further out, so that the outermost block
    that has the relation has each of its edges once.
    """

    def __init__(self, batch: MiniBatch, kinds: Sequence[EdgeType]) -> None:
        """`kinds` are the graph's relations."""
        assert batch.num_seeds == 1, f"a neighbourhood of {batch.num_seeds} vertices"
        self.batch, self._layers = batch, [block.named(kinds) for block in batch.blocks]
        (self.node_type,) = (name for name, rows in batch.seeds.items() if len(rows))
        widest = dict[EdgeType, Block]()
        for layer in self._layers:
            for kind, block in layer.relations.items():
                _check_prefix(block, widest.setdefault(kind, block))
        hops = {kind: _hops(kind[2], self._layers) for kind in widest}
        self.relations = [_relation(kind, block, hops[kind]) for kind, block in widest.items()]
        starts = np.cumsum([0, *(len(each.sources) for each in self.relations)])
        self._first = dict(zip(widest, starts.tolist(), strict=False))

    @property
    def num_edges(self) -> int:
        """The number of edges of all relations; an edge that several layers read counts once."""
        return sum(len(each.sources) for each in self.relations)

    @property
    def num_vertices(self) -> int:
        """Vertices of all types that the prediction depends on."""
        return sum(map(len, self.batch.vertices.values()))

    def edge_hops(self) -> Array:
        """The hop of every edge, relation after relation."""
        return np.concatenate([each.hops for each in self.relations] or [np.zeros(0, np.int64)])

    @property
    def edge_widths(self) -> dict[EdgeType, int]:
        """The width of `edge_attr`, by the relations that have any."""
        parts = [(kind, part.edge_attr) for layer in self._layers for kind, part in layer.relations.items()]
        return {kind: int(rows.shape[1]) for kind, rows in parts if rows is not None}

    def masked_blocks(self, mask: Tensor, columns: Mapping[EdgeType, Tensor] | None = None) -> list[Block]:
        """The batch's blocks with a mask over all edges, relation after relation.

        `columns` multiply the edge features of a relation.
        """
        made = list[Block]()
        for block, layer in zip(self.batch.blocks, self._layers, strict=True):
            kinds = {id(part): kind for kind, part in layer.relations.items()}

            def masked(part: Block, kinds: dict[int, EdgeType] = kinds) -> Block:
                kind = kinds[id(part)]
                first, wanted = self._first[kind], (columns or {}).get(kind)
                carried = None if wanted is None or part.edge_attr is None else part.edge_attr * wanted
                return MaskedBlock(part, mask[first : first + part.num_edges], carried)

            made.append(block.changed(masked))
        return made


def full_mask(mask: Tensor, places: Array, edges: int) -> Tensor:
    """A mask over all edges: the given values at some places and 1 elsewhere."""
    whole = torch.ones(edges, dtype=mask.dtype)
    return whole.index_put((torch.from_numpy(places),), mask)


def _hops(node_type: str, blocks: Sequence[Block]) -> Array:
    """The hop of the edges into each row of a type: 1 for those that the innermost block computes."""
    counts = [block.dst_counts.get(node_type, 0) for block in blocks]
    new = np.diff(counts[::-1], prepend=0)
    return np.repeat(np.arange(1, len(counts) + 1), new)


def _relation(kind: EdgeType, block: Block, hops: Array) -> RelationEdges:
    targets = np.asarray(block.destinations(), np.int64)
    return RelationEdges(kind, np.asarray(block.indices, np.int64), targets, hops[targets])


def _check_prefix(block: Block, widest: Block) -> None:
    rows, edges = block.num_dst, block.num_edges
    if np.array_equal(block.indptr, widest.indptr[: rows + 1]) and np.array_equal(
        block.indices, widest.indices[:edges]
    ):
        return
    raise PenstockError(
        "The layers read different neighbours of one vertex, which one mask over edges cannot cover: explain a run that"
        " was trained without `time`.",
        code="unsupported-combination",
    )


# The weights of PyG's GNNExplainer.
_EDGE_SIZE, _EDGE_ENTROPY = 0.005, 1.0
_COLUMN_SIZE, _COLUMN_ENTROPY = 1.0, 0.1


@dataclass(frozen=True, eq=False)
class ExplainedOutput:
    """Masks from 0 to 1, and the logits [outputs] of the vertex on the whole input, on the masked one, and on the rest.

    `edges` follow `Neighbourhood.relations`, one after the other; those that were not masked have NaN. `columns` are by
    node type, `edge_columns` by relation. The rest is the input multiplied by 1 minus each mask.
    """

    edges: Array
    columns: dict[str, Array]
    edge_columns: dict[EdgeType, Array]
    whole: Array
    masked: Array
    rest: Array
    losses: list[float]


def explain_output(
    model: Callable[..., Any],
    neighbourhood: Neighbourhood,
    x: Mapping[str, Tensor],
    columns: list[str],
    options: MaskOptions,
    seed: int,
    hops: int | None = None,
) -> ExplainedOutput:
    """The masks that explain the model's output for the neighbourhood's vertex.

    `x` are the rows of its vertices by node type; those of the types in `columns` get a mask for each column, shared by
    all vertices of the type. So do the columns of edge features, for each relation. With `hops`, only edges within so
    many hops are masked. The caller must have put the model into evaluation mode.
    """
    within = neighbourhood.edge_hops() <= (len(neighbourhood.batch.blocks) if hops is None else hops)
    places = np.flatnonzero(within)
    masks = {f"columns {name}": Mask((x[name].shape[1],), _COLUMN_SIZE, _COLUMN_ENTROPY, "mean") for name in columns}
    carried = {kind: f"edge columns {edge_key(kind)}" for kind in neighbourhood.edge_widths}
    for kind, name in carried.items():
        masks[name] = Mask((neighbourhood.edge_widths[kind],), _COLUMN_SIZE, _COLUMN_ENTROPY, "mean")
    if len(places):
        masks["edges"] = Mask((len(places),), _EDGE_SIZE, _EDGE_ENTROPY)

    if not masks:
        raise PenstockError(
            "The vertex has neither neighbours nor stored features, so that its prediction rests on nothing that could"
            " be masked: choose another.",
            code="missing-data",
        )

    def forward(values: Masks) -> Tensor:
        chosen = values.get("edges", torch.ones(0))
        of_edges = {kind: values[name] for kind, name in carried.items()}
        blocks = neighbourhood.masked_blocks(full_mask(chosen, places, neighbourhood.num_edges), of_edges)
        rows = {name: each * values[f"columns {name}"] if name in columns else each for name, each in x.items()}
        return _output(model, neighbourhood, blocks, rows)

    with torch.no_grad():
        whole = forward({name: torch.ones(mask.shape) for name, mask in masks.items()})
    found = optimise_masks(forward, decided_target_of(whole, options.output), masks, options, seed)
    with torch.no_grad():
        masked, rest = forward(found.values), forward({name: 1 - values for name, values in found.values.items()})
    edges = np.full(neighbourhood.num_edges, np.nan, np.float32)
    edges[places] = found.values["edges"].numpy() if len(places) else 0
    return ExplainedOutput(
        edges,
        {name: found.values[f"columns {name}"].numpy() for name in columns},
        {kind: found.values[name].numpy() for kind, name in carried.items()},
        whole[0].numpy(),
        masked[0].numpy(),
        rest[0].numpy(),
        found.losses,
    )


def _output(
    model: Callable[..., Any], neighbourhood: Neighbourhood, blocks: list[Block], x: dict[str, Tensor]
) -> Tensor:
    out = model(blocks, next(iter(x.values())) if blocks[0].has_lists else x)
    rows = out.get(neighbourhood.node_type) if isinstance(out, dict) else out
    if rows is None or rows.dim() != 2 or len(rows) < 1:
        raise PenstockError(
            f"The model gives no row of outputs for a vertex of type {neighbourhood.node_type!r}: explain a vertex of"
            " the type that it predicts.",
            code="mismatched-inputs",
        )
    result: Tensor = rows[:1].float()
    return result


# An explanation as people and programs read it: edges and columns by their masks, largest first.

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
