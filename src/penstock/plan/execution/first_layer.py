"""What becomes of a batch's features before the model sees them, as operators.

Each function here belongs to a way of `penstock.train.first_layer`: it says what the host does ahead of the step, what
is copied, and which operators of the first layer are done already or stay on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.step_prediction import BlockSizes, Call
from penstock.nn.order_costs import Order
from penstock.plan.execution.choice import BatchKind

# The share of a batch's edges that the host aggregates, so that host and device end together (`first_layer: divided`).
#
# The device has the first destinations and reads the rows of their neighbours, and all destinations' own rows; the host
# aggregates the lists of the others.


class DivisionRates(NamedTuple):
    """What both sides take."""

    host: float
    """Seconds for each edge whose row the host adds up."""
    device: float
    """Seconds for each row that the device reads."""
    gather: float | None = None
    """Seconds for each row that the host gathers, where that is known."""


def balanced_share(block: BlockSizes, rates: DivisionRates) -> float:
    """The share of the edges that takes the host as long as the rest takes the device, from 0 to 1.

    With share s the host adds up s * edges rows, and the device reads dst + (1 - s) * (src - dst): rows of a sampled
    block are numbered as its edges meet them.
    """
    met = max(0, block.src - block.dst)
    slower = block.edges * rates.host + met * rates.device
    return min(1.0, (block.dst + met) * rates.device / slower) if slower else 0.0


def rows_read(block: BlockSizes, share: float) -> float:
    """Rows that a device reads where the host has a share of the edges."""
    return block.dst + (1 - share) * max(0, block.src - block.dst)


def predicted_rates(
    model: CostModel, block: BlockSizes, width: int, table_rows: int, number_bytes: int = 4
) -> DivisionRates | None:
    """By the cost model, for a table of numbers of so many bytes; None where it does not know both sides."""
    if not model.knows("pinned_read", "cuda") or not block.edges:
        return None
    stored = {"width": width * number_bytes / 4, "rows": float(block.src)}
    device = model.seconds("pinned_read", {**stored, "table_rows": float(table_rows)}, "cuda") / block.src
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    if model.knows("host_gather", "cuda") and model.knows("host_aggregate", "cuda"):
        gather = model.seconds("host_gather", stored, "cuda") / block.src
        return DivisionRates(model.seconds("host_aggregate", {**known, **stored}, "cuda") / block.edges, device, gather)
    if not model.knows("aggregate_table"):
        return None
    sizes = {**known, "width": float(width), "table_rows": float(table_rows)}
    return DivisionRates(model.seconds("aggregate_table", sizes) / block.edges, device)


@dataclass(frozen=True)
class FirstLayerWork:
    """What a way makes of a batch's features."""

    ahead: tuple[Call, ...] = ()
    """By the host, when it reads them."""
    bytes_up: float = 0.0
    """Copied to a device before the step."""
    order: Order | None = None
    """Of the first layer's products, where the way fixes it."""
    done: frozenset[str] = frozenset()
    """Operators of the first layer that are no more needed."""
    on_host: frozenset[str] = frozenset()
    """Operators of the first layer that the host does in the step, whatever computes the rest."""
    bytes_forward: float = 0.0
    """Copied to a device in the step, when the host has done its part of the forward pass."""
    bytes_backward: float = 0.0
    """Copied from a device in the step, before the host does its part of the backward pass."""

    device_rows: float | None = None
    """Rows that a device reads by itself where features are pinned; None: all of the batch."""
    on_device: tuple[Call, ...] = ()
    """By the device, when the rows that it reads are there."""
    filled: tuple[Call, ...] = ()
    """What all threads of the host do instead of `ahead`, where they fill the slots of captured steps."""
    gathered_share: float = 0.0
    """Of the rows of pinned features that no cache has, those that the host gathers while the device reads the others.
    """


WayWork = Callable[[BatchKind], FirstLayerWork]


def row_calls(kind: BatchKind, rows: float) -> tuple[Call, ...]:
    """All threads of the host gather so many rows for a device."""
    return (Call("host_gather", {"rows": rows, "width": kind.stored_width}),)


def _sum_calls(kind: BatchKind, share: float, own: float) -> tuple[Call, ...]:
    """All threads of the host add up a share of the first layer's lists, and gather `own` rows."""
    block = kind.blocks[0]
    sizes = {"src": share * block.src, "edges": share * block.edges, "dst": share * block.dst}
    sums = Call("host_aggregate", {**sizes, "width": kind.stored_width})
    return (sums, *row_calls(kind, own)) if own else (sums,)


def rows_read_by_device(kind: BatchKind) -> FirstLayerWork:
    """The host does nothing: the device reads rows where they lie."""
    return FirstLayerWork()


def rows_of_place(on_host: bool, gathers: bool) -> WayWork:
    """How a device gets rows as they are: `gathers` says whether the host gathers some of those that are pinned."""
    if on_host:
        return rows_gathered
    return rows_along_paths if gathers else rows_read_by_device


def rows_along_paths(kind: BatchKind) -> FirstLayerWork:
    """Of pinned rows, the device reads some by itself while the host gathers the others, so that both end together."""
    return FirstLayerWork(gathered_share=kind.gathered_share)


def rows_gathered(kind: BatchKind) -> FirstLayerWork:
    """The host gathers the rows of all vertices."""
    size = kind.number_bytes * kind.rows * kind.width
    return FirstLayerWork((_gather(kind, kind.rows),), size, filled=row_calls(kind, kind.rows))


def rows_aggregated(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates rows straight from their table, and gathers the destinations' own."""
    block, own = kind.blocks[0], kind.blocks[0].dst * kind.own_rows
    known = {name: size for name, size in block._asdict().items() if size is not None}
    sums = Call("aggregate_table", {**known, "width": kind.width, "table_rows": kind.table_rows})
    ahead = (sums, _gather(kind, own)) if own else (sums,)
    return FirstLayerWork(
        ahead,
        (4.0 * block.dst + kind.number_bytes * own) * kind.width,
        "aggregate",
        frozenset({"aggregate"}),
        filled=_sum_calls(kind, 1.0, own),
    )


def rows_divided(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates a share of the lists from their table; the device reads rows and aggregates the others."""
    share, block = kind.host_share, kind.blocks[0]
    known = {name: float(size) for name, size in block._asdict().items() if size is not None}
    parts = [{**known, "edges": part * block.edges, "dst": part * block.dst} for part in (share, 1 - share)]
    read = rows_read(block, share)
    sums = Call("aggregate_table", {**parts[0], "width": kind.width, "table_rows": kind.table_rows})
    return FirstLayerWork(
        (sums,),
        4.0 * share * block.dst * kind.width,
        "aggregate",
        frozenset({"aggregate"}),
        device_rows=read,
        on_device=(Call("aggregate", {**parts[1], "src": read, "width": kind.width}),),
        filled=_sum_calls(kind, share, 0.0),
    )


def rows_transformed(kind: BatchKind) -> FirstLayerWork:
    """The host gathers rows and multiplies them by the layer's weights, whose gradient it computes too."""
    numbers = (kind.rows + kind.blocks[0].dst * kind.own_rows) * kind.widths[0][1]
    return FirstLayerWork(
        (_gather(kind, kind.rows),),
        order="transform",
        on_host=frozenset({"dense", "dense_weight_gradient"}),
        bytes_forward=4.0 * numbers,
        bytes_backward=4.0 * numbers,
    )


def _gather(kind: BatchKind, rows: int) -> Call:
    return Call("gather", {"rows": rows, "width": kind.width, "table_rows": kind.table_rows})
