"""The work that a layer's operators do, counted from their sizes, and the predicted seconds of its two orders.

An operator's time is the sum of its amounts of work, each times a rate in seconds that was measured (`penstock.cost`).
The amounts are chosen by what limits a CPU: values read from a core's own cache, the last cache or memory, rows
written, edges looked up, products, and calls.

Seconds decide between aggregating first and transforming first. A run keeps the rates that it decides by (`order_costs`
of its job). So a resumed run and every worker of a cluster decide alike, whatever was measured on their machines.
"""

import json
import math
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from penstock.graph.documents import StrictDocument, mapping_of_flag

SHIPPED_MACHINES = Path(__file__).parents[1] / "shipped" / "machines"
"""The folder of the operator profiles that come with Penstock, one for each machine that was measured."""
USUAL_HOST, USUAL_GPU = "arm-host", "h200"
"""The profiles that serve hosts and GPUs which were not measured."""
Sizes = Mapping[str, float]


class Call(NamedTuple):
    """An operator with its sizes."""

    operator: str
    sizes: Sizes


Amounts = dict[str, float]
Rates = Mapping[str, float]
"""Seconds for one unit of each kind of work."""


CHUNK = 1 << 18
"""Values read and written in one of the chunks that a kernel of the host gives to threads: some hundred microseconds,
long compared with the microseconds of a call.
"""


WINDOW = 4096
"""Edges within which a row that is read again is still in a core's own cache."""


class Processor(NamedTuple):
    """Bytes of a core's own cache, and of the last one before memory; threads that share chunks of a kernel."""

    own_cache: float
    last_cache: float
    threads: float = 1.0


def seconds_of(rates: Rates, amounts: Amounts) -> float:
    """The predicted seconds of some work; kinds of work without a rate cost nothing."""
    return sum(rates.get(name, 0.0) * amount for name, amount in amounts.items())


def aggregate_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over neighbour lists: `edges` rows of `width` are read from `src` rows, `dst` rows are written.

    `src_distinct` and `dst_passes`, if known, are counted by `penstock.cost.operators.entry.block_sizes`.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    work = {
        "written": dst * width,
        "passes": sizes.get("dst_passes", _passes(dst, edges)) * width,
        "streamed": _fresh(src, dst, edges) * width,
        **rows_in_no_order(edges, distinct - _fresh(src, dst, edges), width, src, processor),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_table_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a sum over neighbour lists whose rows are anywhere in a table of `table_rows`.

    Each of the `src` rows is read from the table once, in no order; later reads of it are among the block's rows only.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    near, last = held_in_caches(4 * sizes["table_rows"] * width, processor)
    work = {
        "written": dst * width,
        "passes": sizes.get("dst_passes", _passes(dst, edges)) * width,
        "first_rows": src * (1 - near),
        "first_numbers": src * width * (1 - last),
        **rows_in_no_order(edges, distinct - src, width, src, processor),
    }
    return in_chunks(work, (edges + dst) * width, processor)


def aggregate_backward_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of the gradient of such a sum, along transposed lists: rows of `dst` are read, `src`
    rows are written.
    """
    src, dst, edges, width = (sizes[name] for name in ("src", "dst", "edges", "width"))
    distinct = sizes.get("dst_distinct", distinct_in_windows(edges, dst))
    work = {
        "written": src * width,
        "passes": sizes.get("src_passes", _passes(src, edges)) * width,
        **rows_in_no_order(edges, distinct, width, dst, processor),
    }
    return in_chunks(work, (edges + src) * width, processor)


def in_chunks(work: Amounts, numbers: float, processor: Processor) -> Amounts:
    """A call, and the work of its busiest thread: one thread does all of a small kernel, and a share of a large one."""
    chunks = max(1, int(numbers) // CHUNK)
    share = math.ceil(chunks / processor.threads) / chunks
    return {"calls": 1.0, **{name: amount * share for name, amount in work.items()}}


def _passes(rows: float, edges: float) -> float:
    """How often kernels pass over the rows that they write: once for four edges, and once for each remaining one.

    A list of four or more has one and a half remaining edges on average; of shorter lists all remain.
    """
    left = min(edges, 1.5 * rows)
    return left + (edges - left) / 4


def _fresh(src: float, dst: float, edges: float) -> float:
    """Source rows that are first read in the order in which the block numbered them, and so sequentially."""
    return min(max(src - dst, 0.0), edges)


def distinct_in_windows(reads: float, rows: float) -> float:
    """Rows that windows of 4,096 reads meet, if all rows are equally likely: each once for every
    window that reads it.
    """
    each = min(reads, WINDOW)
    return reads * rows / max(rows + each, 1.0)


def rows_in_no_order(count: float, first: float, width: float, table_rows: float, processor: Processor) -> Amounts:
    """`count` rows read from a table, `first` of them for the first time: looked up, and moved from where they are."""
    near, last = held_in_caches(4 * table_rows * width, processor)
    far, memory = max(first, 0.0) * (1 - near), max(first, 0.0) * (1 - last)
    return {
        "rows": count,
        "numbers": count * width,
        "rows_far": far,
        "numbers_far": far * width,
        "rows_memory": memory,
        "numbers_memory": memory * width,
    }


def held_in_caches(table_bytes: float, processor: Processor) -> tuple[float, float]:
    """The shares of a table that a core's own cache and the last cache hold."""
    return min(1.0, processor.own_cache / max(table_bytes, 1.0)), min(1.0, processor.last_cache / max(table_bytes, 1.0))


def transpose_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a counting sort of the edges by source, where counts and positions are read and
    written in no order.
    """
    src, edges = sizes["src"], sizes["edges"]
    distinct = sizes.get("src_distinct", distinct_in_windows(edges, src))
    # A position for each source, and an index and an edge number for each edge.
    near, last = held_in_caches(8 * src + 12 * edges, processor)
    far, memory = distinct * (1 - near), distinct * (1 - last)
    return {"calls": 1.0, "src": src, "edges": edges, "edges_far": far, "edges_memory": memory}


def dense_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of a product of [rows, in] with [in, out]: columns of the result are computed some at a time."""
    padded = _TILE * math.ceil(sizes["out"] / _TILE)
    return {**dense_gradient_work(sizes, processor), "flops": 2 * sizes["rows"] * sizes["in"] * padded}


def dense_gradient_work(sizes: Sizes, processor: Processor) -> Amounts:
    """The work of the product that computes the gradient of the weights [in, out], or of the rows [rows, in]."""
    rows, width_in, width_out = (sizes[name] for name in ("rows", "in", "out"))
    return {
        "calls": 1.0,
        "flops": 2 * rows * width_in * width_out,
        "read": rows * width_in,
        "written": rows * width_out,
        "weights": width_in * width_out,
    }


_TILE = 8
"""Columns that a product computes at a time."""


# The seconds of a linear layer in both orders.

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
