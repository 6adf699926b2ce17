"""The predicted seconds of a layer in both orders, which decide between aggregating first and transforming first.

A run keeps the rates that it decides by (`order_costs` of its job). So a resumed run and every worker of a cluster
decide alike, whatever was measured on their machines.
"""

import json
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, mapping_of_flag
from penstock.nn.operator_work import (
    SHIPPED_MACHINES,
    USUAL_GPU,
    USUAL_HOST,
    Amounts,
    Processor,
    Sizes,
    aggregate_backward_work,
    aggregate_work,
    dense_gradient_work,
    dense_work,
    seconds_of,
    transpose_work,
)

OPERATORS = {
    "aggregate": aggregate_work,
    "aggregate_backward": aggregate_backward_work,
    "transpose": transpose_work,
    "dense": dense_work,
    "dense_weight_gradient": dense_gradient_work,
    "dense_input_gradient": dense_gradient_work,
}
"""The operators whose times depend on the order."""
Order = Literal["auto", "aggregate", "transform"]
_REMEMBERED = 10_000
"""Decisions that are cached: blocks of a whole graph, and of many relations, occur again and again."""
Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]


_BITS = 4
"""Bits of a size that decide. Batches of a job differ by a few percent, and are decided once for all of these; two
orders that are as close as that take as long."""


def _rounded(size: int) -> int:
    """A size to its first bits, so that batches that are nearly as large are one shape."""
    shift = max(0, size.bit_length() - _BITS)
    return (size + (1 << shift >> 1)) >> shift << shift


class LayerSizes(NamedTuple):
    """The sizes of a linear layer on a block, and which gradients are computed."""

    src: int
    dst: int
    edges: int
    width_in: int
    width_out: int
    input_gradient: bool
    """Whether the gradient of the rows is needed."""
    training: bool = True
    """Whether the gradient of the weights is needed."""
    blocks: int = 1
    """The number of diagonal blocks of the weights."""


class OrderCosts(StrictDocument):
    """Rates of one kind of device."""

    measured_on: str = Field(description="the processor or GPU that was measured")
    processor: tuple[Rate, Rate, Rate] = Field(
        description="bytes of a core's own cache and of the last one before memory, and threads"
    )
    rates: dict[str, dict[str, Rate]] = Field(description="by operator, seconds for one unit of each kind of work")

    def aggregates_first(self, sizes: LayerSizes) -> bool:
        """Whether aggregating `src` rows of `width_in` and transforming `dst` of them is not slower than the other
        order.
        """
        if sizes.width_in <= sizes.width_out and sizes.dst <= sizes.src:
            # Then no more rows are multiplied, and none that are wider are read.
            return True
        shape = LayerSizes(_rounded(sizes.src), _rounded(sizes.dst), _rounded(sizes.edges), *sizes[3:])
        if shape not in self.decided:
            self._remember(shape, self.aggregate_seconds(shape) <= self.transform_seconds(shape))
        return self.decided[shape]

    def attends_first(self, sizes: LayerSizes) -> bool:
        """Whether attention on inputs, of which each of the `blocks` heads makes a row of `width_in`, and transforming
        `dst` of these is not slower than transforming `src` rows before it. Gradients of the scores are one more pass
        over the lists.
        """
        shape = LayerSizes(_rounded(sizes.src), _rounded(sizes.dst), _rounded(sizes.edges), *sizes[3:])
        key = "attention", shape
        if key not in self.decided:
            counts, passes, heads = shape[:3], 1 + shape.training, shape.blocks
            wide = shape._replace(width_in=heads * shape.width_in)
            before = self._products(wide, shape.dst) + passes * self.gather_seconds(*counts, wide.width_in)
            single = shape._replace(blocks=1)
            behind = self.transform_seconds(single) + (passes - 1) * self.gather_seconds(*counts, shape.width_out)
            self._remember(key, before <= behind)
        return self.decided[key]

    def _remember(self, key: Any, answer: bool) -> None:
        if len(self.decided) >= _REMEMBERED:
            self.decided.clear()
        self.decided[key] = answer

    @cached_property
    def decided(self) -> dict[Any, bool]:
        """Earlier decisions: a prediction takes as long as a small operator."""
        return {}

    def aggregate_seconds(self, sizes: LayerSizes) -> float:
        """Predicted seconds of (A X) W, with the gradients that are asked for."""
        return self._lists(sizes, sizes.width_in, sizes.input_gradient) + self._products(sizes, sizes.dst)

    def transform_seconds(self, sizes: LayerSizes) -> float:
        """Predicted seconds of A (X W), with the gradients that are asked for."""
        return self._products(sizes, sizes.src) + self._lists(sizes, sizes.width_out, sizes.training)

    def gather_seconds(self, src: int, dst: int, edges: int, width: int) -> float:
        """Predicted seconds of sums over lists of rows, without gradients."""
        return self._seconds("aggregate", {"src": src, "dst": dst, "edges": edges, "width": width})

    def _lists(self, sizes: LayerSizes, width: int, backward: bool) -> float:
        given = {"src": sizes.src, "dst": sizes.dst, "edges": sizes.edges, "width": width}
        names = ["aggregate", *(["aggregate_backward", "transpose"] if backward else [])]
        return sum(self._seconds(name, given) for name in names)

    def _products(self, sizes: LayerSizes, rows: int) -> float:
        # Blocks read and write their own columns: like so many times as many rows that are so many times as narrow.
        blocks = sizes.blocks
        given = {"rows": rows * blocks, "in": sizes.width_in // blocks, "out": sizes.width_out // blocks}
        gradients = ["dense_weight_gradient"] * sizes.training + ["dense_input_gradient"] * sizes.input_gradient
        return sum(self._seconds(name, given) for name in ["dense", *gradients])

    def _seconds(self, operator: str, sizes: Sizes) -> float:
        amounts: Amounts = OPERATORS[operator](sizes, Processor(*self.processor))
        return seconds_of(self.rates.get(operator, {}), amounts)


def order_costs_of(profile: dict[str, Any]) -> dict[str, OrderCosts]:
    """By device, the costs in a machine's profile document."""
    machine, rates = profile["machine"], dict[str, dict[str, dict[str, float]]]()
    for fit in profile["fits"]:
        if fit["name"] in OPERATORS:
            rates.setdefault(fit["device"], {})[fit["name"]] = fit["rates"]
    names = {"cpu": machine["processor"], "cuda": machine["gpu"]}
    return {
        device: OrderCosts(measured_on=f"{names[device]}", processor=machine["processors"][device], rates=found)
        for device, found in rates.items()
    }


@cache
def shipped_order_costs() -> dict[str, OrderCosts]:
    """The costs of the host and of the GPU whose profiles come with Penstock."""
    profiles = {"cpu": USUAL_HOST, "cuda": USUAL_GPU}
    found = {
        device: order_costs_of(json.loads((SHIPPED_MACHINES / f"{name}.json").read_text()))
        for device, name in profiles.items()
    }
    return {device: costs[device] for device, costs in found.items()}


CostsByDevice = Annotated[dict[str, OrderCosts], BeforeValidator(mapping_of_flag)]
