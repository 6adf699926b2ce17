"""The operators of a training step, from the sizes of its blocks, and their predicted seconds.

Each kind of layer lists its calls, forward and backward, as `penstock.nn.layers` makes them on the host. A new kind is
a function here and its line in `LAYER_CALLS`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.operators.entry import block_sizes
from penstock.errors import PenstockError
from penstock.nn.operator_work import Amounts, Sizes
from penstock.nn.order_costs import LayerSizes, Order, OrderCosts, order_costs_of
from penstock.sampling import Block

STEP = "step"
"""The name of what was fitted to whole steps."""


class Call(NamedTuple):
    """An operator with its sizes."""

    operator: str
    sizes: Sizes


class BlockSizes(NamedTuple):
    """The sizes of a block that affect the time of a layer on it."""

    src: int
    dst: int
    edges: int
    src_distinct: float | None = None
    """Source rows that windows of the edges read (`penstock.cost.operators.entry`); None: estimated."""
    dst_distinct: float | None = None
    """The same for destination rows, which gradients read."""
    src_passes: float | None = None
    """Passes of the backward kernel over source rows; None: estimated from rows and edges."""
    dst_passes: float | None = None
    """Passes of the forward kernel over destination rows; None: estimated."""


def counted_block(block: Block) -> BlockSizes:
    """The sizes of a block that affect the time of a layer on it, counted rather than estimated."""
    found = block_sizes(block)
    further = {name: found[name] for name in ("src_distinct", "dst_distinct", "src_passes", "dst_passes")}
    return BlockSizes(block.num_src, block.num_dst, block.num_edges, **further)


@dataclass(frozen=True)
class StepShape:
    """A training step: blocks, outermost first, each layer's widths in and out, and what the model is made of."""

    layer: str
    """Kind of layer: a key of `LAYER_CALLS`."""
    blocks: Sequence[BlockSizes]
    widths: Sequence[tuple[int, int]]
    heads: int = 4
    order: Order | Sequence[Order] = "auto"


def step_seconds(model: CostModel, shape: StepShape, device: str = "cpu") -> float:
    """Predicted seconds of a step: forward, backward and the optimiser.

    If steps were measured as well, this includes what they take beyond the sum of their operators.
    """
    work = step_work(model, shape, device)
    return model.step_seconds(work, device) if model.knows(STEP, device) else work["operators"]


def step_work(model: CostModel, shape: StepShape, device: str = "cpu") -> Amounts:
    """The seconds of a step's operators, each alone, and their calls."""
    calls = step_calls(model, shape, device)
    return {"operators": sum(model.seconds(*call, device) for call in calls), "calls": float(len(calls))}


def step_calls(model: CostModel, shape: StepShape, device: str = "cpu") -> list[Call]:
    """All operators of a step; where the order of products is free, in the order that the model's costs decide."""
    layers, end = calls_by_layer(model, shape, device)
    return [*chain.from_iterable(layers), *end]


class StepCalls(NamedTuple):
    """The operators of a step by layer, forward and backward, and those at its end: the loss and the optimiser."""

    layers: list[list[Call]]
    end: list[Call]


def calls_by_layer(model: CostModel, shape: StepShape, device: str = "cpu") -> StepCalls:
    """The operators of a step, the outermost layer first. Norm and activation after a layer belong to it."""
    if shape.layer not in LAYER_CALLS:
        raise PenstockError(
            f"The steps of layer {shape.layer!r} cannot be predicted: choose one of {', '.join(LAYER_CALLS)}.",
            code="unknown-name",
        )
    if len(shape.blocks) != len(shape.widths):
        raise PenstockError(
            f"A step has {len(shape.blocks)} blocks and widths of {len(shape.widths)} layers: give one for each.",
            code="shape-mismatch",
        )
    costs = None
    if "auto" in (shape.order, *shape.order):
        costs = order_costs_of(model.profile.model_dump(mode="json", include={"machine", "fits"}))[device]
    layers, parameters, tensors, count = list[list[Call]](), 0, 0, len(shape.blocks)
    for number, (block, (width_in, width_out)) in enumerate(zip(shape.blocks, shape.widths, strict=True)):
        last = number == count - 1
        sizes = LayerSizes(block.src, block.dst, block.edges, width_in, width_out, input_gradient=number > 0)
        made = LAYER_CALLS[shape.layer](
            _Layer(sizes, _further(block), _first(shape, number, sizes, costs), shape.heads, last)
        )
        parameters, tensors = parameters + made.parameters, tensors + made.tensors
        behind = [] if last else [Call(name, {"rows": block.dst, "width": width_out}) for name in _END]
        layers.append([*made.calls, *behind])
    loss = Call("loss", {"rows": shape.blocks[-1].dst, "classes": shape.widths[-1][1]})
    return StepCalls(layers, [loss, Call("optimiser", {"tensors": tensors, "numbers": parameters})])


_END = ("relu_drop", "relu_drop_backward")
"""Behind every layer but the last."""


@dataclass(frozen=True)
class _Layer:
    sizes: LayerSizes
    further: dict[str, float]
    aggregates_first: bool
    heads: int
    last: bool


class _LayerCalls(NamedTuple):
    calls: list[Call]
    parameters: int
    tensors: int


def _first(shape: StepShape, number: int, sizes: LayerSizes, costs: OrderCosts | None) -> bool:
    order = shape.order if isinstance(shape.order, str) else shape.order[number]
    if order != "auto":
        return order == "aggregate"
    assert costs is not None
    return costs.aggregates_first(sizes)


def _products(sizes: LayerSizes, rows: int) -> list[Call]:
    """A product of rows with weights, and its gradients."""
    given = {"rows": rows, "in": sizes.width_in, "out": sizes.width_out}
    names = ["dense", "dense_weight_gradient", *(["dense_input_gradient"] if sizes.input_gradient else [])]
    return [Call(name, given) for name in names]


def _further(block: BlockSizes) -> dict[str, float]:
    """What is known of a block beside its rows and edges."""
    return {name: value for name, value in block._asdict().items() if name not in _COUNTS and value is not None}


_COUNTS = ("src", "dst", "edges")


def _lists(layer: _Layer, width: int, backward: bool) -> list[Call]:
    """A sum over lists, and its gradient."""
    sizes = layer.sizes
    given = {"src": sizes.src, "dst": sizes.dst, "edges": sizes.edges, "width": width, **layer.further}
    names = ["aggregate", *(["transpose", "aggregate_backward"] if backward else [])]
    return [Call(name, given) for name in names]


def _bias(sizes: LayerSizes, added: bool) -> list[Call]:
    """The bias's gradient, and its own pass if it is not part of a product."""
    given = {"rows": sizes.dst, "width": sizes.width_out}
    return [Call(name, given) for name in (["add", "column_sum"] if added else ["column_sum"])]


def _in_order(layer: _Layer) -> list[Call]:
    """Products and sums over neighbours, in the layer's order."""
    sizes = layer.sizes
    if layer.aggregates_first:
        return [*_products(sizes, sizes.dst), *_lists(layer, sizes.width_in, sizes.input_gradient)]
    return [*_products(sizes, sizes.src), *_lists(layer, sizes.width_out, True)]


def _sage(layer: _Layer) -> _LayerCalls:
    sizes = layer.sizes
    calls = [*_in_order(layer), *_products(sizes, sizes.dst), *_bias(sizes, added=not layer.aggregates_first)]
    if sizes.input_gradient and not layer.aggregates_first:
        # Gradients of own rows and of all rows are added.
        calls.append(Call("add", {"rows": sizes.src, "width": sizes.width_in}))
    return _LayerCalls(calls, (2 * sizes.width_in + 1) * sizes.width_out, 3)


def _gcn(layer: _Layer) -> _LayerCalls:
    sizes = layer.sizes
    return _LayerCalls([*_in_order(layer), *_bias(sizes, added=True)], (sizes.width_in + 1) * sizes.width_out, 2)


def _gin(layer: _Layer) -> _LayerCalls:
    sizes, first = layer.sizes, layer.aggregates_first
    # The weight of own rows is learned: where these are added to the sum directly, the product's input has a gradient
    # in every layer.
    weighed = _products(sizes._replace(input_gradient=True), sizes.dst)
    calls = [*weighed, *_lists(layer, sizes.width_in, sizes.input_gradient)] if first else _in_order(layer)
    calls += _bias(sizes, added=not first)
    # Own rows times their weight, the sum of both, and the gradient of the weight.
    calls += [Call("add", {"rows": sizes.dst, "width": sizes.width_in if first else sizes.width_out})] * 3
    calls += [Call(name, {"rows": sizes.dst, "width": sizes.width_out}) for name in _END]
    second = sizes._replace(width_in=sizes.width_out, input_gradient=True)
    calls += [*_products(second, sizes.dst), *_bias(second, added=False)]
    return _LayerCalls(calls, (sizes.width_in + sizes.width_out + 2) * sizes.width_out + 1, 5)


def _rgcn(layer: _Layer) -> _LayerCalls:
    """One relation, as in a graph of one type."""
    sizes = layer.sizes
    calls = [*_in_order(layer), *_products(sizes, sizes.dst), *_bias(sizes, added=True)]
    if sizes.input_gradient:
        calls.append(Call("add", {"rows": sizes.src, "width": sizes.width_in}))
    return _LayerCalls(calls, (2 * sizes.width_in + 1) * sizes.width_out, 3)


def _gat(layer: _Layer) -> _LayerCalls:
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
    return _LayerCalls(calls, (sizes.width_in + 2) * width + layer.sizes.width_out, 4)


LAYER_CALLS: dict[str, Callable[[_Layer], _LayerCalls]] = {
    "sage": _sage,
    "gcn": _gcn,
    "gat": _gat,
    "gin": _gin,
    "rgcn": _rgcn,
}
"""By kind of layer, the operators of a layer and of its gradients."""
