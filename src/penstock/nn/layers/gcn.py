"""GCN: neighbours and the vertex itself, each divided by the root of both ends' degrees."""

from functools import partial

import torch
from torch import Tensor, nn

from penstock.nn.aggregation import normalised_sum
from penstock.nn.first_rows import AggregatedRows, HostRows
from penstock.nn.order import Costs, inputs_aggregated_first, transform_neighbours
from penstock.nn.order_costs import Order
from penstock.sampling.block import Block


class GCNLayer(nn.Module):
    """sum over the list and v itself of W x_u / sqrt((d_u + 1)(d_v + 1)), d being whole lists' totals."""

    def __init__(
        self, width_in: int, width_out: int, bias: bool = True, order: Order = "auto", costs: Costs | None = None
    ) -> None:
        super().__init__()
        self.order, self.costs = order, costs
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out)) if bias else None
        nn.init.xavier_uniform_(self.linear.weight)

    def forward(self, block: Block, x: Tensor | AggregatedRows | HostRows) -> Tensor:
        """[num_dst, out] of x [num_src, in]; the block needs the totals of its source rows."""
        weight = self.linear.weight
        combine = partial(normalised_sum, block)
        result = transform_neighbours(block, x, weight, combine, self.order, self.costs)
        return result if self.bias is None else result + self.bias

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        return inputs_aggregated_first(block, self.linear.weight, self.order, self.costs)
