"""What is done with a batch's features before the model, as operators.

Each function here belongs to a way of `penstock.train.first_layer`: it gives the host's work ahead of the step, what is
copied, and which operators of the first layer are done already or stay on the host.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.cost.model import CostModel
from penstock.cost.step_prediction import BlockSizes
from penstock.nn.operator_costs import Call, Order
from penstock.plan.execution.choice import BatchKind

# The share of a batch's edges that the host aggregates, so that host and device end together (`first_layer: divided`).
# The device has the first destinations and reads the rows of their neighbours, and all destinations' own rows; the host
# aggregates the lists of the others.


class DivisionRates(NamedTuple):
    """Seconds per edge or row of the host and of the device."""

    host: float
    """Seconds for each edge whose row the host sums."""
    device: float
    """Seconds for each row that the device reads."""
    gather: float | None = None
    """Seconds for each row that the host gathers; None where unknown."""


def balanced_share(block: BlockSizes, rates: DivisionRates) -> float:
    """The share of the edges, 0 to 1, that takes the host as long as the rest takes the device.

    With share s the host sums s * edges rows, and the device reads dst + (1 - s) * (src - dst): rows of a sampled block
    are numbered in the order of its edges.
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
    """The rates by the cost model, for a table of values of so many bytes; None where it lacks one side."""
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
    """The work of a way on a batch's features."""

    ahead: tuple[Call, ...] = ()
    """Operators of the host while it reads the features."""
    bytes_up: float = 0.0
    """Bytes copied to a device before the step."""
    order: Order | None = None
    """The order of the first layer's products, if the way fixes it."""
    done: frozenset[str] = frozenset()
    """Operators of the first layer that are no longer needed."""
    on_host: frozenset[str] = frozenset()
    """Operators of the first layer that the host does within the step."""
    bytes_forward: float = 0.0
    """Bytes copied to a device within the step, after the host's part of the forward pass."""
    bytes_backward: float = 0.0
    """Bytes copied from a device within the step, before the host's part of the backward pass."""

    device_rows: float | None = None
    """Rows that a device reads by itself where features are pinned; None: all of the batch."""
    on_device: tuple[Call, ...] = ()
    """Operators of the device after it has read its rows."""
    filled: tuple[Call, ...] = ()
    """Operators of all threads of the host instead of `ahead`, where they fill the slots of captured steps."""
    gathered_share: float = 0.0
    """The share of uncached pinned rows that the host gathers while the device reads the others."""


WayWork = Callable[[BatchKind], FirstLayerWork]


def row_calls(kind: BatchKind, rows: float) -> tuple[Call, ...]:
    """Gathering so many rows for a device with all threads of the host."""
    return (Call("host_gather", {"rows": rows, "width": kind.stored_width}),)


def _sum_calls(kind: BatchKind, share: float, own: float) -> tuple[Call, ...]:
    """Summing a share of the first layer's lists with all threads of the host, and gathering `own` rows."""
    block = kind.blocks[0]
    sizes = {"src": share * block.src, "edges": share * block.edges, "dst": share * block.dst}
    sums = Call("host_aggregate", {**sizes, "width": kind.stored_width})
    return (sums, *row_calls(kind, own)) if own else (sums,)


def rows_read_by_device(kind: BatchKind) -> FirstLayerWork:
    """The host does nothing: the device reads rows in place."""
    return FirstLayerWork()


def rows_of_place(on_host: bool, gathers: bool) -> WayWork:
    """How a device gets plain rows: `gathers` says whether the host gathers some of the pinned ones."""
    if on_host:
        return rows_gathered
    return rows_along_paths if gathers else rows_read_by_device


def rows_along_paths(kind: BatchKind) -> FirstLayerWork:
    """Pinned rows: the device reads some by itself while the host gathers the others, so that both end together."""
    return FirstLayerWork(gathered_share=kind.gathered_share)


def rows_gathered(kind: BatchKind) -> FirstLayerWork:
    """The host gathers the rows of all vertices."""
    size = kind.number_bytes * kind.rows * kind.width
    return FirstLayerWork((_gather(kind, kind.rows),), size, filled=row_calls(kind, kind.rows))


def rows_aggregated(kind: BatchKind) -> FirstLayerWork:
    """The host aggregates rows directly from their table, and gathers the destinations' own."""
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
