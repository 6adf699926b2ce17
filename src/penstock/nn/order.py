"""Aggregate first or transform first: A (X W) = (A X) W, at different costs."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from penstock.nn.aggregation import gather
from penstock.nn.constant_input import is_constant, kept_of_rows
from penstock.nn.device.rectified import Rectified
from penstock.nn.device.rows import TableRows
from penstock.sampling.block import Block
from penstock.sampling.device.block import DeviceBlock, on_device
from penstock.traced import Trace, current_trace, room

Order = Literal["auto", "aggregate", "transform"]

_FLOPS_PER_BYTE = 10
"""Flops that take as long as reading a byte of rows in no order: some 150 GFlop/s against 15 GB/s on two cores."""
_FLOPS_PER_BYTE_ON_DEVICE = 16
"""The same of an H200: some 50 TFlop/s in float32 against 3 TB/s."""
_DENSE = 20
"""Rows are taken as sparse if one in so many of their numbers is not zero, or fewer."""
_ITEM = 4
"""Bytes of a number."""


def transform_neighbours(
    block: Block, x: Tensor, weight: Tensor, combine: Callable[[Tensor], Tensor], order: Order = "auto"
) -> Tensor:
    """`combine` (linear in its rows) of x, times the transposed weight [out, in], in the cheaper order."""
    if aggregates_first(block, x, weight, order):
        return functional.linear(combine(x), weight)
    return combine(transformed(x, weight))


def transformed(x: Tensor, weight: Tensor) -> Tensor:
    """x times the transposed weight [out, in]. Of inputs that never change and are mostly zeros, only what is not."""
    sparse = _sparse(x)
    if sparse is None:
        return functional.linear(x, weight)
    # Rows read the columns that they have as a destination reads its neighbours.
    return gather(sparse, weight.t().contiguous())


def _sparse(x: Tensor) -> Block | None:
    """Constant rows as a block over their columns, where that is much smaller; None where it is not."""
    found = kept_of_rows(x, "columns", lambda: (_column_block(x),))
    return None if found is None else found[0]


def _column_block(x: Tensor) -> Block | None:
    if (trace := current_trace()) is not None:
        return _traced_columns(x, trace)
    if x.dim() != 2 or int(torch.count_nonzero(x)) > x.numel() // _DENSE:
        return None
    rows, columns = (each.cpu().numpy() for each in x.nonzero(as_tuple=True))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(x)))])
    values = x[x != 0].detach().float().cpu().numpy()
    block = Block(indptr, columns.astype(np.int32), x.shape[1], values)
    return on_device(block, x.device) if x.device.type == "cuda" else block


def _traced_columns(x: Tensor, trace: Trace) -> Block | None:
    """A block of the size that the input's would have."""
    if trace.density * _DENSE > 1:
        if trace.on_device:
            # Numbers that are not zero are marked to be counted.
            torch.empty(x.shape, dtype=torch.bool, device=x.device)
        return None
    entries = round(trace.density * x.numel())
    if trace.on_device:
        # While the columns are looked for there are a mark for each number, and the places of those that are not zero.
        marks = [torch.empty(x.shape, dtype=torch.bool, device=x.device) for _ in range(2)]
        places = torch.empty(entries, 2, dtype=torch.int64, device=x.device)
        del marks, places
        lists: Any = torch.empty(len(x) + 1, dtype=torch.int32, device=x.device)
        columns: Any = torch.empty(entries, dtype=torch.int32, device=x.device)
        values: Any = torch.empty(entries, device=x.device)
        return DeviceBlock(lists, columns, x.shape[1], values)
    return Block(room(len(x) + 1, np.int64), room(entries, np.int32), x.shape[1], room(entries, np.float32))


def aggregates_first(block: Block, x: Tensor | TableRows | Rectified, weight: Tensor, order: Order = "auto") -> bool:
    """The order as asked for, or the cheaper one."""
    if order != "auto":
        return order == "aggregate"
    if is_constant(x):
        return not isinstance(x, Tensor) or _sparse(x) is None
    sizes = block.num_src, block.num_dst, block.num_edges
    price = _FLOPS_PER_BYTE_ON_DEVICE if isinstance(block, DeviceBlock) else _FLOPS_PER_BYTE
    return aggregate_first(*sizes, weight.shape[1], weight.shape[0], x.requires_grad, price)


def aggregate_first(
    num_src: int,
    num_dst: int,
    num_edges: int,
    width_in: int,
    width_out: int,
    input_gradient: bool,
    flops_per_byte: float = _FLOPS_PER_BYTE,
) -> bool:
    """Whether to aggregate rows of `width_in` and transform the `num_dst` results, rather than transform all `num_src`
    rows and aggregate `width_out`. A training step is counted: forward, and backward to the weights and, where asked
    for, to the input.
    """
    # A product costs as much again for the weights' gradient and once more for the input's.
    products = 3 if input_gradient else 2
    product = 2 * width_in * width_out * products
    forward, backward = num_edges + num_dst, num_edges + num_src  # rows read and written
    aggregate = product * num_dst + flops_per_byte * _ITEM * width_in * (forward + backward * input_gradient)
    transform = product * num_src + flops_per_byte * _ITEM * width_out * (forward + backward)
    return aggregate <= transform
