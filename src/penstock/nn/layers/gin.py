"""GIN: a small network on the vertex plus the sum of its neighbours."""

from typing import cast

import torch
from torch import Tensor, nn

from penstock.nn.aggregation import aggregate, aggregate_beside
from penstock.nn.first_rows import AggregatedRows, HostRows
from penstock.nn.order import Costs, aggregates_first, inputs_aggregated_first, transformed
from penstock.nn.order_costs import Order
from penstock.sampling.block import Block


class GINLayer(nn.Module):
    """mlp((1 + eps) x + sum of neighbours); the default mlp has one hidden layer as wide as the output.

    Where the mlp begins with a linear layer, that may come before the sum (`order`).
    """

    eps: Tensor

    def __init__(
        self,
        width_in: int,
        width_out: int,
        eps: float = 0.0,
        train_eps: bool = False,
        mlp: nn.Module | None = None,
        order: Order = "auto",
        costs: Costs | None = None,
    ) -> None:
        super().__init__()
        self.order, self.costs = order, costs
        self.mlp = mlp or nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        start = torch.tensor([float(eps)])
        if train_eps:
            self.eps = nn.Parameter(start)
        else:
            self.register_buffer("eps", start)

    def forward(self, block: Block, x: Tensor | AggregatedRows | HostRows) -> Tensor:
        """[num_dst, out] of x [num_src, in]; sums by the block's totals where it has them."""
        first = self._first_linear()
        if first is not None and not aggregates_first(block, x, first.weight, self.order, self.costs):
            assert not isinstance(x, AggregatedRows)
            rows = transformed(x, first.weight)
            result = aggregate(block, rows, "sum") + (1 + self.eps) * rows[: block.num_dst]
            result = result if first.bias is None else result + first.bias
            for module in list(cast(nn.Sequential, self.mlp))[1:]:
                result = module(result)
            return result
        assert not isinstance(x, HostRows), "they are given where the mlp begins with a linear layer"
        neighbours, own = aggregate_beside(block, x, "sum")
        made: Tensor = self.mlp(neighbours + (1 + self.eps) * own)
        return made

    def aggregates_inputs(self, block: Block) -> bool:
        """Whether features of a batch are aggregated before they are transformed."""
        first = self._first_linear()
        return first is None or inputs_aggregated_first(block, first.weight, self.order, self.costs)

    def _first_linear(self) -> nn.Linear | None:
        """What the mlp begins with, if that is a linear layer and may be called apart from the others."""
        if not isinstance(self.mlp, nn.Sequential) or not len(self.mlp):
            return None
        first = self.mlp[0]
        return first if type(first) is nn.Linear else None
