"""The operators of a training step, from the sizes of its blocks, and their predicted seconds.

Each kind of layer declares its calls, forward and backward (`penstock.nn.layers.entry.LayerEntry.calls`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.operators.entry import block_sizes
from penstock.errors import PenstockError
from penstock.nn.layer_table import LAYERS
from penstock.nn.layers.entry import RELU, CalledLayer
from penstock.nn.operator_costs import Amounts, Call, LayerSizes, Order, OrderCosts, order_costs_of
from penstock.sampling import Block

STEP = "step"
"""The name of what was fitted to whole steps."""


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
    """Kind of layer, one that declares its calls."""
    blocks: Sequence[BlockSizes]
    widths: Sequence[tuple[int, int]]
    heads: int = 4
    order: Order | Sequence[Order] = "auto"
    first_kept: bool = False
    """Whether the first layer's aggregates, of inputs that never change, are kept from step to step."""
    first_density: float = 1.0
    """The share of the first layer's inputs that is not zero, if they are kept as a sparse matrix; 1: they are not."""


def predicted_layers() -> list[str]:
    """The kinds of layer whose steps can be predicted."""
    return [name for name, entry in LAYERS.items() if entry.calls is not None]


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
    calls_of = LAYERS[shape.layer].calls if shape.layer in LAYERS else None
    if calls_of is None:
        raise PenstockError(
            f"The steps of layer {shape.layer!r} cannot be predicted: choose one of {', '.join(predicted_layers())}.",
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
        made = calls_of(CalledLayer(sizes, _further(block), _first(shape, number, sizes, costs), shape.heads, last))
        parameters, tensors = parameters + made.parameters, tensors + made.tensors
        behind = [] if last else [Call(name, {"rows": block.dst, "width": width_out}) for name in RELU]
        layers.append([*(made.calls if number else _of_inputs(made.calls, shape)), *behind])
    loss = Call("loss", {"rows": shape.blocks[-1].dst, "classes": shape.widths[-1][1]})
    return StepCalls(layers, [loss, Call("optimiser", {"tensors": tensors, "numbers": parameters})])


_AGGREGATES = frozenset({"aggregate", "aggregate_backward", "transpose"})
_SPARSE = {"dense": "aggregate", "dense_weight_gradient": "aggregate_backward"}
"""Products with rows, and what they are with sparse ones, which read the weight as a list reads its neighbours."""


def _of_inputs(calls: Sequence[Call], shape: StepShape) -> list[Call]:
    """The first layer's calls as they are in every step, where something of its inputs is kept."""
    if shape.first_density < 1:
        width = shape.widths[0][0]
        return [
            _sparse(call, shape.first_density) if call.operator in _SPARSE and call.sizes["in"] == width else call
            for call in calls
        ]
    return [call for call in calls if not shape.first_kept or call.operator not in _AGGREGATES]


def _sparse(call: Call, density: float) -> Call:
    rows, width_in, width_out = (call.sizes[name] for name in ("rows", "in", "out"))
    sizes = {"src": width_in, "dst": rows, "edges": density * rows * width_in, "width": width_out}
    return Call(_SPARSE[call.operator], sizes)


def _first(shape: StepShape, number: int, sizes: LayerSizes, costs: OrderCosts | None) -> bool:
    if number == 0 and (shape.first_kept or shape.first_density < 1):
        return shape.first_density == 1
    order = shape.order if isinstance(shape.order, str) else shape.order[number]
    if order != "auto":
        return order == "aggregate"
    assert costs is not None
    return costs.aggregates_first(sizes)


def _further(block: BlockSizes) -> dict[str, float]:
    """What is known of a block beside its rows and edges."""
    return {name: value for name, value in block._asdict().items() if name not in _COUNTS and value is not None}


_COUNTS = ("src", "dst", "edges")
