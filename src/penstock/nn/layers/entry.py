"""What a kind of layer declares, and the entries of the layers that come with Penstock."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import nn

from penstock.errors import PenstockError
from penstock.graph.arrays import Array
from penstock.graph.schema import EdgeType
from penstock.nn.aggregation import Aggregation
from penstock.nn.device.input_attention import suits_inputs
from penstock.nn.layers.attention import GATLayer, TransformerLayer, TypedGATLayer
from penstock.nn.layers.convolutions import DenseLayer, GCNLayer, GINELayer, GINLayer, SAGELayer, TypedDenseLayer
from penstock.nn.layers.hgt import HGTLayer
from penstock.nn.layers.rgcn import RGCNLayer
from penstock.nn.operator_costs import Call, LayerSizes
from penstock.nn.options import LayerOptions

# What a kind of layer declares: how it is built for graphs of one type and of several, and what it needs.

Build = Callable[[LayerOptions, int, int, bool], nn.Module]
"""`build(options, width in, width out, is last)`: a layer on blocks."""
BuildTyped = Callable[[LayerOptions, int, int, Sequence[str], Sequence[EdgeType], bool], nn.Module]
"""`build_typed(options, width in, width out, node types, edge types, is last)`: a layer on typed blocks."""
Asks = Callable[[LayerOptions], bool]
SourceScale = Callable[[Array], Array]
"""The factor of a row before it is added to others, by the total of its vertex's list in the relation that is read; 1
where that is 0, as it is where the relation comes from another type.
"""


class CalledLayer(NamedTuple):
    """A layer on one block, whose operators are to be listed."""

    sizes: LayerSizes
    further: dict[str, float]
    """What is known of the block beside its rows and edges."""
    aggregates_first: bool
    heads: int
    last: bool


class LayerCalls(NamedTuple):
    """The operators of a layer and of its gradients, and its weights."""

    calls: list[Call]
    parameters: int
    tensors: int


@dataclass(frozen=True)
class LayerEntry:
    """One kind of layer. A new one is a file with its module and its entry, and a line in `nn.layer_table.LAYERS`."""

    name: str
    build: Build | None = None
    """None: a graph of one type is treated as one with a single relation."""
    build_typed: BuildTyped | None = None
    """None: it is for one node type and one relation."""
    needs_totals: Asks = lambda options: False
    """Whether blocks must hold the lengths of whole lists."""
    reads_in_place: Asks = lambda options: False
    """Whether it reads rows of a device's table in place, and applies the ReLU to its inputs on the way."""
    reads_rectified: bool = False
    """Whether it applies the ReLU to its inputs on the way though it does not read a table."""
    suits_in_place: Callable[[LayerOptions, int, int | None], bool] = lambda options, width, longest: True
    """Whether a first layer that can reads inputs of this width in place, where lists have at most `longest` entries,
    None if that is not known.
    """
    reads_neighbours: bool = True
    """Whether it reads neighbours at all."""
    linear: Asks = lambda options: options.aggregate != "max"
    """Whether its aggregate is linear in the neighbours' rows."""
    aggregates: Callable[[LayerOptions], Aggregation | None] = lambda options: None
    """The aggregate that a first layer accepts instead of its inputs; None: it needs the inputs."""
    transforms_first: Asks = lambda options: False
    """Whether a first layer may transform its inputs before it aggregates them."""
    makes_edge_rows: bool = False
    """Whether it computes a row for each edge of a block, whose number must then be known to the host."""
    edge_rows_on_device: bool = True
    """Whether it computes those rows on a device as well."""
    source_scale: Callable[[LayerOptions], SourceScale | None] = lambda options: None
    """How it weighs neighbours' rows, if it can read a sum of them as one row of a vertex without a list; None: it must
    read every row.
    """
    weighs_messages: Asks = lambda options: False
    """Whether it multiplies messages by the blocks' weights, as the job field `edge_weight` requires."""
    edge_features: Literal["none", "optional", "needed"] = "none"
    """Whether it reads edge features: `options.edge_width` values each."""
    encodes_time: bool = False
    """Whether it reads ages of edges, encoded in `options.time_width` values; for graphs of one relation."""
    has_heads: bool = False
    """Whether `hidden` is divided among `heads`."""
    decomposes: bool = False
    """Whether the weights of relations may be mixtures of `bases` or block-diagonal (`blocks`), and one-hot input is
    possible.
    """
    calls: Callable[[CalledLayer], LayerCalls] | None = None
    """The operators of a layer as it makes them on the host, by which its steps are predicted (`penstock.cost`); None:
    they are not.
    """


# The operators that layers call, forward and backward.

RELU = ("relu_drop", "relu_drop_backward")
"""Behind every layer but the last."""


def _products(sizes: LayerSizes, rows: int) -> list[Call]:
    """A product of rows with weights, and its gradients."""
    given = {"rows": rows, "in": sizes.width_in, "out": sizes.width_out}
    names = ["dense", "dense_weight_gradient", *(["dense_input_gradient"] if sizes.input_gradient else [])]
    return [Call(name, given) for name in names]


def _lists(layer: CalledLayer, width: int, backward: bool) -> list[Call]:
    """A sum over lists, and its gradient."""
    sizes = layer.sizes
    given = {"src": sizes.src, "dst": sizes.dst, "edges": sizes.edges, "width": width, **layer.further}
    names = ["aggregate", *(["transpose", "aggregate_backward"] if backward else [])]
    return [Call(name, given) for name in names]


def _bias(sizes: LayerSizes, added: bool) -> list[Call]:
    """The bias's gradient, and its own pass if it is not part of a product."""
    given = {"rows": sizes.dst, "width": sizes.width_out}
    return [Call(name, given) for name in (["add", "column_sum"] if added else ["column_sum"])]


def _in_order(layer: CalledLayer) -> list[Call]:
    """Products and sums over neighbours, in the layer's order."""
    sizes = layer.sizes
    if layer.aggregates_first:
        return [*_products(sizes, sizes.dst), *_lists(layer, sizes.width_in, sizes.input_gradient)]
    return [*_products(sizes, sizes.src), *_lists(layer, sizes.width_out, True)]


def _sage_calls(layer: CalledLayer) -> LayerCalls:
    sizes = layer.sizes
    calls = [*_in_order(layer), *_products(sizes, sizes.dst), *_bias(sizes, added=not layer.aggregates_first)]
    if sizes.input_gradient and not layer.aggregates_first:
        # Gradients of own rows and of all rows are added.
        calls.append(Call("add", {"rows": sizes.src, "width": sizes.width_in}))
    return LayerCalls(calls, (2 * sizes.width_in + 1) * sizes.width_out, 3)


def _gcn_calls(layer: CalledLayer) -> LayerCalls:
    sizes = layer.sizes
    return LayerCalls([*_in_order(layer), *_bias(sizes, added=True)], (sizes.width_in + 1) * sizes.width_out, 2)


def _gin_calls(layer: CalledLayer) -> LayerCalls:
    sizes, first = layer.sizes, layer.aggregates_first
    # The weight of own rows is learned: where these are added to the sum directly, the product's input has a gradient
    # in every layer.
    weighed = _products(sizes._replace(input_gradient=True), sizes.dst)
    calls = [*weighed, *_lists(layer, sizes.width_in, sizes.input_gradient)] if first else _in_order(layer)
    calls += _bias(sizes, added=not first)
    # Own rows times their weight, the sum of both, and the gradient of the weight.
    calls += [Call("add", {"rows": sizes.dst, "width": sizes.width_in if first else sizes.width_out})] * 3
    calls += [Call(name, {"rows": sizes.dst, "width": sizes.width_out}) for name in RELU]
    second = sizes._replace(width_in=sizes.width_out, input_gradient=True)
    calls += [*_products(second, sizes.dst), *_bias(second, added=False)]
    return LayerCalls(calls, (sizes.width_in + sizes.width_out + 2) * sizes.width_out + 1, 5)


def _rgcn_calls(layer: CalledLayer) -> LayerCalls:
    """One relation, as in a graph of one type."""
    sizes = layer.sizes
    calls = [*_in_order(layer), *_products(sizes, sizes.dst), *_bias(sizes, added=True)]
    if sizes.input_gradient:
        calls.append(Call("add", {"rows": sizes.src, "width": sizes.width_in}))
    return LayerCalls(calls, (2 * sizes.width_in + 1) * sizes.width_out, 3)


def _gat_calls(layer: CalledLayer) -> LayerCalls:
    # The last layer's heads have the output's width, and are averaged; in other layers heads divide the width.
    width = layer.sizes.width_out * (layer.heads if layer.last else 1)
    sizes = layer.sizes._replace(width_out=width, edges=layer.sizes.edges + layer.sizes.dst)
    lists: dict[str, float] = {"src": sizes.src, "dst": sizes.dst, "edges": sizes.edges, **layer.further}
    lists |= {"width": width, "heads": layer.heads}
    names = ("self_loops", "transpose", "attend", "attend_backward")
    calls = [*_products(sizes, sizes.src), *(Call(name, lists) for name in names)]
    calls += [Call("scores", {"rows": rows, "width": width}) for rows in (sizes.src, sizes.dst)]
    # The values' gradient comes from the rows and from both scores.
    calls += [Call("add", {"rows": sizes.src, "width": width})] * 2
    calls += _bias(sizes._replace(width_out=layer.sizes.width_out), added=True)
    return LayerCalls(calls, (sizes.width_in + 2) * width + layer.sizes.width_out, 4)


# The entries of the layers that come with Penstock.


def _alike(totals: Array) -> Array:
    return np.ones(len(totals))


def _by_root(totals: Array) -> Array:
    """GCN's scale of sources: 1 / sqrt(total + 1), and 1 for 0."""
    roots: Array = 1 / np.sqrt(totals + 1)
    return roots


def _alike_unless_max(options: LayerOptions) -> SourceScale | None:
    return None if options.aggregate == "max" else _alike


def _order(options: LayerOptions) -> dict[str, Any]:
    """The arguments by which a layer chooses between aggregating first and transforming first."""
    return {"order": options.order, "costs": options.order_costs}


def _relations(
    options: LayerOptions, width_in: int, width_out: int, types: Sequence[str], kinds: Sequence[EdgeType], last: bool
) -> nn.Module:
    # The first layer's inputs and the last one's outputs have the widths of the data.
    blocks = 0 if options.blocks and (width_in % options.blocks or width_out % options.blocks) else options.blocks
    return RGCNLayer(width_in, width_out, types, kinds, options.bases, blocks, options.aggregate, **_order(options))


def _attention(v2: bool) -> LayerEntry:
    def size(options: LayerOptions, width_out: int, last: bool) -> int:
        """The width of a head; the last layer's heads are averaged, so its width is free."""
        return width_out if last else width_out // options.heads

    def build(options: LayerOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
        each, dropout = size(options, width_out, last), options.attention_dropout
        widths: dict[str, Any] = {}
        if v2:
            widths = {"edge_width": options.edge_width, "time_width": options.time_width}
        return GATLayer(width_in, each, options.heads, not last, v2, dropout=dropout, **widths, **_order(options))

    def build_typed(
        options: LayerOptions,
        width_in: int,
        width_out: int,
        types: Sequence[str],
        kinds: Sequence[EdgeType],
        last: bool,
    ) -> nn.Module:
        each, dropout = size(options, width_out, last), options.attention_dropout
        how = options.heads, not last, v2, dropout
        return TypedGATLayer(width_in, each, types, kinds, *how, **_order(options))

    return LayerEntry(
        "gatv2" if v2 else "gat",
        build,
        build_typed,
        reads_in_place=lambda options: not v2 and options.attention_dropout == 0,
        reads_rectified=True,
        suits_in_place=lambda options, width, longest: suits_inputs(options.heads, width, options.hidden, longest),
        linear=lambda options: False,
        edge_features="optional" if v2 else "none",
        encodes_time=v2,
        has_heads=True,
        calls=None if v2 else _gat_calls,
    )


def _transformer(options: LayerOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
    size = width_out if last else width_out // options.heads
    how = options.edge_width, options.attention_dropout, options.time_width
    return TransformerLayer(width_in, size, options.heads, not last, *how)


def _heterogeneous(
    options: LayerOptions, width_in: int, width_out: int, types: Sequence[str], kinds: Sequence[EdgeType], last: bool
) -> nn.Module:
    # The last layer is as wide as the others, and a linear map computes the outputs from it.
    width, answer = (options.hidden, width_out) if last else (width_out, 0)
    return HGTLayer(width_in, width, types, kinds, options.heads, answer, options.attention_dropout)


def _gine(options: LayerOptions, width_in: int, width_out: int, last: bool) -> nn.Module:
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
    calls=_sage_calls,
)
GCN = LayerEntry(
    "gcn",
    lambda options, width_in, width_out, last: GCNLayer(width_in, width_out, **_order(options)),
    needs_totals=lambda options: True,
    reads_in_place=lambda options: True,
    aggregates=lambda options: "normalised",
    transforms_first=lambda options: True,
    source_scale=lambda options: _by_root,
    weighs_messages=lambda options: True,
    calls=_gcn_calls,
)
GIN = LayerEntry(
    "gin",
    lambda options, width_in, width_out, last: GINLayer(width_in, width_out, train_eps=True, **_order(options)),
    needs_totals=lambda options: True,
    reads_in_place=lambda options: True,
    aggregates=lambda options: "sum",
    transforms_first=lambda options: True,
    source_scale=lambda options: _alike,
    weighs_messages=lambda options: True,
    calls=_gin_calls,
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
    calls=_rgcn_calls,
)
HGT = LayerEntry(
    "hgt",
    build_typed=_heterogeneous,
    linear=lambda options: False,
    makes_edge_rows=True,
    edge_rows_on_device=False,
    has_heads=True,
)
MLP = LayerEntry(
    "mlp",
    lambda options, width_in, width_out, last: DenseLayer(width_in, width_out),
    lambda options, width_in, width_out, types, kinds, last: TypedDenseLayer(width_in, width_out, types),
    reads_neighbours=False,
)
EMBEDDING = LayerEntry("embedding", reads_neighbours=False)
"""No layer at all: `nn.zoo.model.EmbeddingModel` returns the input rows."""
