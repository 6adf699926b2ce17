"""The masks of one prediction: which edges of its neighbourhood and which columns of features it rests on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.errors import PenstockError
from penstock.explain.mask_optimiser import Mask, MaskOptions, Masks, decided_target_of, optimise_masks
from penstock.explain.neighbourhood import Neighbourhood, full_mask
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType, edge_key

# The weights of PyG's GNNExplainer.
_EDGE_SIZE, _EDGE_ENTROPY = 0.005, 1.0
_COLUMN_SIZE, _COLUMN_ENTROPY = 1.0, 0.1


@dataclass(frozen=True, eq=False)
class ExplainedOutput:
    """Masks from 0 to 1, and the logits [outputs] of the vertex on all of the input, on the masked, and on the rest.

    `edges` follow `Neighbourhood.relations`, one after the other; those that were not masked have NaN. `columns` are
    by node type, `edge_columns` by relation. The rest is what the masks take away, 1 minus each of them.
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
    """What the model's output for the neighbourhood's vertex rests on.

    `x` are the rows of its vertices by node type; those of the types in `columns` get a mask for each column, shared by
    all vertices of the type. So do the columns of what edges carry, for each relation. With `hops`, only edges of so
    many hops are masked. The model is called as it is: whoever calls has put it into evaluation.
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


def _output(model: Callable[..., Any], neighbourhood: Neighbourhood, blocks: Any, x: dict[str, Tensor]) -> Tensor:
    typed = not hasattr(blocks[0], "indices")
    out = model(blocks, x if typed else next(iter(x.values())))
    rows = out.get(neighbourhood.node_type) if isinstance(out, dict) else out
    if rows is None or rows.dim() != 2 or len(rows) < 1:
        raise PenstockError(
            f"The model gives no row of outputs for a vertex of type {neighbourhood.node_type!r}: explain a vertex of"
            " the type that it predicts.",
            code="mismatched-inputs",
        )
    result: Tensor = rows[:1].float()
    return result
