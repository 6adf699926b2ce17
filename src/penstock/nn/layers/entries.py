"""The entries of the layers that come with Penstock."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.layers.dense import DenseLayer, TypedDenseLayer
from penstock.nn.layers.entry import LayerEntry, SourceScale
from penstock.nn.layers.gat import GATLayer
from penstock.nn.layers.gcn import GCNLayer
from penstock.nn.layers.gin import GINLayer
from penstock.nn.layers.gine import GINELayer
from penstock.nn.layers.hgt import HGTLayer
from penstock.nn.layers.rgcn import RGCNLayer
from penstock.nn.layers.sage import SAGELayer
from penstock.nn.layers.transformer import TransformerLayer
from penstock.nn.layers.typed_gat import TypedGATLayer
from penstock.nn.options import ModelOptions


def _alike(totals: Array) -> Array:
    return np.ones(len(totals))


def _by_root(totals: Array) -> Array:
    """Of GCN."""
    roots: Array = 1 / np.sqrt(totals + 1)
    return roots


def _alike_unless_max(options: ModelOptions) -> SourceScale | None:
    return None if options.aggregate == "max" else _alike


def _order(options: ModelOptions) -> dict[str, Any]:
    """How a layer chooses between aggregating first and transforming first; `options` are those of the layer."""
    return {"order": options.order, "costs": options.order_costs}


def _relations(
    options: ModelOptions, width_in: int, width_out: int, types: Sequence[str], kinds: Sequence[EdgeType], last: bool
) -> nn.Module:
    # The first layer's inputs and the last one's outputs are as wide as the data wants them.
    blocks = 0 if options.blocks and (width_in % options.blocks or width_out % options.blocks) else options.blocks
    return RGCNLayer(width_in, width_out, types, kinds, options.bases, blocks, options.aggregate, **_order(options))


def _attention(v2: bool) -> LayerEntry:
    def size(options: ModelOptions, width_out: int, last: bool) -> int:
        """Of a head; the last layer's heads are averaged, so that its width is free."""
        return width_out if last else width_out // options.heads

    def build(options: ModelOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
        each, dropout = size(options, width_out, last), options.attention_dropout
        widths: dict[str, Any] = {}
        if v2:
            widths = {"edge_width": options.edge_width, "time_width": options.time_width}
        return GATLayer(width_in, each, options.heads, not last, v2, dropout=dropout, **widths)

    def build_typed(
        options: ModelOptions,
        width_in: int,
        width_out: int,
        types: Sequence[str],
        kinds: Sequence[EdgeType],
        last: bool,
    ) -> nn.Module:
        each, dropout = size(options, width_out, last), options.attention_dropout
        return TypedGATLayer(width_in, each, types, kinds, options.heads, not last, v2, dropout)

    return LayerEntry(
        "gatv2" if v2 else "gat",
        build,
        build_typed,
        linear=lambda options: False,
        edge_features="optional" if v2 else "none",
        encodes_time=v2,
        has_heads=True,
    )


def _transformer(options: ModelOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
    size = width_out if last else width_out // options.heads
    how = options.edge_width, options.attention_dropout, options.time_width
    return TransformerLayer(width_in, size, options.heads, not last, *how)


def _heterogeneous(
    options: ModelOptions, width_in: int, width_out: int, types: Sequence[str], kinds: Sequence[EdgeType], last: bool
) -> nn.Module:
    # The last layer is as wide as the others, and a linear map makes outputs of it.
    width, answer = (options.hidden, width_out) if last else (width_out, 0)
    return HGTLayer(width_in, width, types, kinds, options.heads, answer, options.attention_dropout)


def _gine(options: ModelOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
    if not options.edge_width:
        raise PenstockError(
            "Model gine reads what edges carry, and the edges carry nothing: name fields of the edges with"
            " edge_features, or use gin.",
            code="option-missing",
        )
    return GINELayer(width_in, width_out, options.edge_width)


SAGE = LayerEntry(
    "sage",
    lambda options, width_in, width_out, last: SAGELayer(width_in, width_out, options.aggregate, **_order(options)),
    _relations,
    needs_totals=lambda options: options.aggregate == "sum",
    reads_in_place=lambda options: options.aggregate != "max",
    aggregates=lambda options: None if options.aggregate == "max" else options.aggregate,
    transforms_first=lambda options: options.aggregate != "max",
    source_scale=_alike_unless_max,
    weighs_messages=lambda options: options.aggregate != "max",
)
GCN = LayerEntry(
    "gcn",
    lambda options, width_in, width_out, last: GCNLayer(width_in, width_out, **_order(options)),
    needs_totals=lambda options: True,
    aggregates=lambda options: "normalised",
    transforms_first=lambda options: True,
    source_scale=lambda options: _by_root,
    weighs_messages=lambda options: True,
)
GIN = LayerEntry(
    "gin",
    lambda options, width_in, width_out, last: GINLayer(width_in, width_out, train_eps=True, **_order(options)),
    needs_totals=lambda options: True,
    aggregates=lambda options: "sum",
    transforms_first=lambda options: True,
    source_scale=lambda options: _alike,
    weighs_messages=lambda options: True,
)
GINE = LayerEntry(
    "gine",
    _gine,
    needs_totals=lambda options: True,
    linear=lambda options: False,
    makes_edge_rows=True,
    edge_features="needed",
)
TRANSFORMER = LayerEntry(
    "transformer",
    _transformer,
    linear=lambda options: False,
    makes_edge_rows=True,
    edge_features="optional",
    encodes_time=True,
    has_heads=True,
)
GAT, GATV2 = _attention(v2=False), _attention(v2=True)
RGCN = LayerEntry(
    "rgcn",
    build_typed=_relations,
    needs_totals=lambda options: options.aggregate == "sum",
    source_scale=_alike_unless_max,
    weighs_messages=lambda options: options.aggregate != "max",
    decomposes=True,
)
HGT = LayerEntry("hgt", build_typed=_heterogeneous, linear=lambda options: False, makes_edge_rows=True, has_heads=True)
MLP = LayerEntry(
    "mlp",
    lambda options, width_in, width_out, last: DenseLayer(width_in, width_out),
    lambda options, width_in, width_out, types, kinds, last: TypedDenseLayer(width_in, width_out, types),
    reads_neighbours=False,
)
EMBEDDING = LayerEntry("embedding", reads_neighbours=False)
"""No layer at all: `nn.zoo.embedding` gives the input rows."""
