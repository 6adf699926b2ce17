"""What becomes of a batch's features before the model sees them, as operators.

Each function here belongs to a way of `penstock.train.first_layer`: it says what the host does ahead of the step, what
is copied, and which operators of the first layer are done already or stay on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass

from penstock.cost.step_prediction import Call
from penstock.nn.order_costs import Order
from penstock.plan.execution.batch_kind import BatchKind
from penstock.plan.execution.host_share import rows_read


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


WayWork = Callable[[BatchKind], FirstLayerWork]


def rows_read_by_device(kind: BatchKind) -> FirstLayerWork:
    """The host does nothing: the device reads rows where they lie."""
    return FirstLayerWork()


def rows_gathered(kind: BatchKind) -> FirstLayerWork:
    """The host gathers the rows of all vertices."""
    return FirstLayerWork((_gather(kind, kind.rows),), kind.number_bytes * kind.rows * kind.width)


def rows_aggregated(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates rows straight from their table, and gathers the destinations' own."""
    block, own = kind.blocks[0], kind.blocks[0].dst * kind.own_rows
    known = {name: size for name, size in block._asdict().items() if size is not None}
    sums = Call("aggregate_table", {**known, "width": kind.width, "table_rows": kind.table_rows})
    ahead = (sums, _gather(kind, own)) if own else (sums,)
    return FirstLayerWork(ahead, 4.0 * (block.dst + own) * kind.width, "aggregate", frozenset({"aggregate"}))


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
