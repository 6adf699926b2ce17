"""GCN: neighbours and the vertex itself, each divided by the root of both ends' degrees."""

import torch
from torch import Tensor, nn

from penstock.nn.aggregation import normalised_sum
from penstock.nn.order import Order, transform_neighbours
from penstock.sampling.block import Block


class GCNLayer(nn.Module):
    """sum over the list and v itself of W x_u / sqrt((d_u + 1)(d_v + 1)), d being whole lists' totals."""

    def __init__(self, width_in: int, width_out: int, bias: bool = True, order: Order = "auto") -> None:
        super().__init__()
        self.order = order
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out)) if bias else None
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, block: Block, x: Tensor) -> Tensor:
        """[num_dst, out] of x [num_src, in]; the block needs the totals of its source rows."""
        weight = self.linear.weight
        result = transform_neighbours(block, x, weight, lambda rows: normalised_sum(block, rows), self.order)
        return result if self.bias is None else result + self.bias
