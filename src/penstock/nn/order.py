"""Aggregate first or transform first: A (X W) = (A X) W, at different costs."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.nn.aggregation import AggregatedRows, HostRows, gather, is_constant, kept_of_rows
from penstock.nn.device.drop import Rectified
from penstock.nn.device.gather import TableRows, compute_dtype
from penstock.nn.operator_costs import LayerSizes, Order, OrderCosts, shipped_order_costs
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock, on_device
from penstock.traced import Trace, current_trace, room

Costs = Mapping[str, OrderCosts]
"""The costs that decide `auto`, by kind of device."""

_COUNTED = 1 << 20
"""Values in which nonzeros are counted at once: on a GPU each takes nine bytes meanwhile."""
_DENSE = 20
"""Rows are treated as sparse if at most one in this many of their values is nonzero."""


def transform_neighbours(
    block: Block,
    x: Any,
    weight: Tensor,
    combine: Callable[[Any], Tensor],
    order: Order = "auto",
    costs: Costs | None = None,
) -> Tensor:
    """`combine` (linear in its rows) of x, times the transposed weight [out, in], in the chosen order.

    A weight [blocks, out, in] is block-diagonal. `auto` takes the order that is predicted to be faster by `costs`, or
    by those that come with Penstock.
    """
    if aggregates_first(block, x, weight, order, costs):
        return _product(combine(x), weight)
    return combine(transformed(x, weight))


def transformed(x: Tensor | HostRows, weight: Tensor) -> Tensor:
    """x times the transposed weight. Constant inputs that are mostly zeros are multiplied as a sparse matrix."""
    if isinstance(x, HostRows):
        return x.transformed(weight)
    sparse = _sparse(x)
    if sparse is None:
        return _product(x, weight)
    # Sparse rows read their columns of the weight as a destination reads its neighbours.
    matrix: Tensor = weight if weight.dim() == 2 else torch.block_diag(*weight.unbind())  # type: ignore[no-untyped-call]
    return gather(sparse, matrix.t().contiguous())


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transposed weight; each block of a block-diagonal one reads and writes its own columns."""
    return functional.linear(x, weight) if weight.dim() == 2 else transformed_heads(x, weight)


def transformed_heads(x: Tensor, weight: Tensor) -> Tensor:
    """x [rows, blocks * in] times the transposed weight [blocks, out, in], block by block."""
    blocks, width_out, width_in = weight.shape
    columns = x.reshape(len(x), blocks, width_in).transpose(0, 1)
    return torch.bmm(columns, weight.mT).transpose(0, 1).reshape(len(x), blocks * width_out)


def _sparse(x: Tensor) -> Block | None:
    """Constant rows as a block over their columns, if that is much smaller; else None."""
    found = kept_of_rows(x, "columns", lambda: (_column_block(x),))
    return None if found is None else found[0]


def _column_block(x: Tensor) -> Block | None:
    if (trace := current_trace()) is not None:
        return _traced_columns(x, trace)
    if x.dim() != 2 or _nonzero_count(x) > x.numel() // _DENSE:
        return None
    places = x.nonzero(as_tuple=True)
    rows, columns = (each.cpu().numpy() for each in places)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(x)))])
    # On the host the nonzeros are picked: marks of all values would take a quarter of what the values do.
    chosen = x[x != 0] if x.device.type == "cuda" else x[places]
    values = chosen.detach().float().cpu().numpy()
    block = Block(indptr, columns.astype(np.int32), x.shape[1], values)
    return on_device(block, x.device) if x.device.type == "cuda" else block


def is_sparse(density: float) -> bool:
    """Whether constant rows with this share of nonzeros are kept as a sparse matrix."""
    return density * _DENSE <= 1


def _nonzero_count(x: Tensor) -> int:
    """The number of nonzero values."""
    parts = x.reshape(-1).split(_COUNTED)  # type: ignore[no-untyped-call]
    counts = [torch.count_nonzero(part) for part in parts]
    return int(torch.stack(counts).sum())


def _traced_columns(x: Tensor, trace: Trace) -> Block | None:
    """A block of the size that the input's would have."""
    if trace.on_device:
        # A GPU counts by Boolean marks, which it widens.
        marks = torch.empty(min(x.numel(), _COUNTED), dtype=torch.bool, device=x.device)
        widened = torch.empty(len(marks), dtype=torch.int64, device=x.device)
        del marks, widened
    if not is_sparse(trace.density):
        return None
    entries = round(trace.density * x.numel())
    if trace.on_device:
        # While columns are searched there are a mark for each value, and the positions of the nonzeros.
        masks = [torch.empty(x.shape, dtype=torch.bool, device=x.device) for _ in range(2)]
        places = torch.empty(entries, 2, dtype=torch.int64, device=x.device)
        del masks, places
        lists: Any = torch.empty(len(x) + 1, dtype=torch.int32, device=x.device)
        columns: Any = torch.empty(entries, dtype=torch.int32, device=x.device)
        values: Any = torch.empty(entries, device=x.device)
        return DeviceBlock(lists, columns, x.shape[1], values)
    places = torch.empty(entries, 2, dtype=torch.int64, device=x.device)
    block = Block(room(len(x) + 1, np.int64), room(entries, np.int32), x.shape[1], room(entries, np.float32))
    del places
    return block


def as_matrix(x: Any, weight: Tensor) -> Any:
    """Rows in a table or whose ReLU is not complete as a matrix; others unchanged."""
    if isinstance(x, TableRows):
        return x.materialise(compute_dtype(weight))
    return x.settled() if isinstance(x, Rectified) else x


def aggregates_first(
    block: Block,
    x: Tensor | TableRows | Rectified | AggregatedRows | HostRows,
    weight: Tensor,
    order: Order = "auto",
    costs: Costs | None = None,
) -> bool:
    """Whether to aggregate first: by how the inputs were prepared, the order asked for, or the predicted times, a
    function of sizes and costs only.
    """
    if isinstance(x, AggregatedRows | HostRows):
        return isinstance(x, AggregatedRows)
    if order != "auto":
        return order == "aggregate"
    if is_constant(x):
        return not isinstance(x, Tensor) or _sparse(x) is None
    training = torch.is_grad_enabled()
    return _predicted(block, weight, training and x.requires_grad, training, costs)


def inputs_aggregated_first(block: Block, weight: Tensor, order: Order, costs: Costs | None) -> bool:
    """Whether a training step aggregates the features of a batch before it transforms them."""
    return order == "aggregate" if order != "auto" else _predicted(block, weight, False, True, costs)


def attends_inputs(
    block: Block, x: Tensor, weight: Tensor, heads: int, order: Order = "auto", costs: Costs | None = None
) -> bool:
    """Whether GAT weighs its inputs before it transforms them: sum of share * (W x) = W (sum of share * x), head by
    head. Only on the host, and where inputs get no gradient; then by the order asked for, or the predicted times.
    """
    if block.on_device or block.mask is not None or x.requires_grad:
        return False
    if order != "auto":
        return order == "aggregate"
    width_out, width_in = weight.shape
    counts, training = (block.num_src, block.num_dst, block.num_edges), torch.is_grad_enabled()
    return _costs(False, costs).attends_first(LayerSizes(*counts, width_in, width_out, False, training, heads))


def _costs(on_device: bool, costs: Costs | None) -> OrderCosts:
    device = "cuda" if on_device else "cpu"
    return (costs if costs is not None and device in costs else shipped_order_costs())[device]


def _predicted(block: Block, weight: Tensor, input_gradient: bool, training: bool, costs: Costs | None) -> bool:
    blocks = len(weight) if weight.dim() == 3 else 1
    width_out, width_in = (blocks * width for width in weight.shape[-2:])
    counts = block.num_src, block.num_dst, block.num_edges
    sizes = LayerSizes(*counts, width_in, width_out, input_gradient, training, blocks)
    return _costs(block.on_device, costs).aggregates_first(sizes)
